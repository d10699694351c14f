"""REPL-6: what the routers of a pair tell each other besides messages, and what each makes of it."""

from pathlib import Path
from typing import Any, cast

import pytest

from penstock.assured.mirroring import HEAD, REVOKED_PER_FRAME, SECRET, Mirroring, configured
from penstock.assured.node import RouterNodeConfig
from penstock.base.errors import PenstockError, RemoteProtocolError
from penstock.net.framing import FrameDecoder
from penstock.net.secret import Secret
from penstock.security.brokering import Revoked
from penstock.security.client import AdminClient
from penstock.security.gate import TokenGate, TokenState
from penstock.security.keys import PrivateKey
from penstock.security.token_watch import TokenWatch

KEYS = [PrivateKey(bytes([number]) * 32).public.text for number in (1, 2)]


def router(**values: Any) -> RouterNodeConfig:
    return RouterNodeConfig(name="one", state_directory="state", **values)


def revoked(number: int) -> Revoked:
    return Revoked(subscription_id=f"s{number}", client="bob", reason="left", until_ns=10**18)


def state(*numbers: int, generation: int = 1, key: int = 0) -> TokenState:
    return TokenState([KEYS[key]], generation, 0, [revoked(each) for each in numbers])


def frames(told: list[bytes]) -> list[bytes]:
    return FrameDecoder(2**24).feed(b"".join(told))


def test_what_tokens_are_checked_with_reaches_the_other_router_whole() -> None:
    learned: list[TokenState] = []
    here, there = (Mirroring(configured(router(), {}, None), learned.append) for _ in range(2))
    many = state(*range(REVOKED_PER_FRAME + 1))
    for told in (here.tokens(many), here.opening()):
        learned.clear()
        for frame in frames(told):
            there.frame(frame, "one")
        assert [each for part in learned for each in part.revoked] == many.revoked
        assert {(tuple(part.token_keys), part.generation) for part in learned} == {((KEYS[0],), 1)}


def test_who_does_not_mirror_tokens_neither_tells_nor_learns() -> None:
    here = Mirroring(configured(router(), {}, None), None)
    assert here.tokens(state(1)) == []
    for frame in frames(Mirroring(configured(router(), {}, None), lambda _: None).tokens(state(1))):
        here.frame(frame, "two")


def test_what_differs_is_named_and_secrets_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Secret(b"the secret of clients here"), Secret(b"the secret of clients there")
    here = Mirroring(configured(router(synchronous_topics=("a.>",), replicate_by="topic"), {}, one), None)
    there = Mirroring(configured(router(operators=tuple(f"operator-{n}" for n in range(100))), {}, two), None)
    for frame in frames(there.opening()):
        here.frame(frame, "two")
    assert here.differences == ("operators", "replicate_by", SECRET, "synchronous_topics")
    assert one.prove(b"penstock pair: the secret of clients").hex() not in caplog.text
    for frame in frames(here.opening()):
        here.frame(frame, "two")
    assert here.differences == ()


@pytest.mark.parametrize(
    "rubbish", [HEAD[:1], HEAD, HEAD + b"\xc1", HEAD + b"\x81\xa4type\xa5hello", HEAD + b"\xff" * 99]
)
def test_rubbish_is_refused(rubbish: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Mirroring(configured(router(), {}, None), None).frame(rubbish, "two")


def test_keys_that_are_none_are_refused() -> None:
    wrong = TokenState(["no key"], 1, 0, [])
    here = Mirroring(configured(router(), {}, None), lambda _: None)
    for frame in frames(here.tokens(wrong)):
        with pytest.raises(PenstockError):
            here.frame(frame, "two")


def test_nothing_that_was_revoked_is_good_again_by_what_is_learned(tmp_path: Path) -> None:
    gate = TokenGate(tmp_path / "tokens.json")
    gate.learn(state(1, generation=2))
    gate.learn(state(2, generation=1))
    assert gate.state is not None
    assert (gate.state.generation, len(gate.state.revoked)) == (2, 2)
    gate.learn(state(3, generation=3, key=1))
    assert gate.state.token_keys == [KEYS[1]]
    assert {each.subscription_id for each in gate.state.revoked} == {"s1", "s2", "s3"}
    assert TokenGate(tmp_path / "tokens.json").state == gate.state, "also after a restart"


@pytest.mark.parametrize("generation", [5, 6])
def test_keys_that_were_replaced_do_not_come_back(generation: int, tmp_path: Path) -> None:
    """The other router may tell what its server said long ago."""
    gate = TokenGate(tmp_path / "tokens.json")
    gate.learn(state(1, generation=6, key=1))
    gate.learn(state(2, generation=generation))
    for each in (gate, TokenGate(tmp_path / "tokens.json")):
        assert each.state is not None
        assert (each.state.token_keys, each.state.generation) == ([KEYS[1]], 6)
        assert {one.subscription_id for one in each.state.revoked} == {"s1", "s2"}


def test_what_the_own_server_says_counts_more() -> None:
    """What was learned is used while the own server does not answer."""
    put_out: list[Revoked] = []
    watch = TokenWatch(cast(AdminClient, None), None, put_out.append)
    watch.is_in_touch = True
    watch.learn(state(1))
    assert watch.gate.state is None
    watch.is_in_touch = False
    watch.learn(state(2))
    assert watch.gate.is_ready
    assert put_out == [revoked(1), revoked(2)]
    assert watch.wait(0.0)
