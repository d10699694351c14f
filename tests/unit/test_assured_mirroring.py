"""REPL-6: the configuration and token state that the routers of a pair exchange besides messages, and its use."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from penstock.assured.live.peer_settings import HEAD, REVOKED_PER_FRAME, SECRET, PeerSettings, configured
from penstock.assured.node_config import RouterNodeConfig
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError, RemoteProtocolError, RevokedError, TokenError
from penstock.net.core.framing import FrameDecoder
from penstock.net.secret import Secret
from penstock.security.core.brokering import Revoked, Verification
from penstock.security.core.keys import PrivateKey
from penstock.security.core.token import Token, TokenSigner
from penstock.security.live import gate as gate_module
from penstock.security.live import token_watch
from penstock.security.live.client import AdminClient
from penstock.security.live.gate import TokenGate, TokenState
from penstock.security.live.token_watch import TokenWatch

FAR_NS = 2**62
KEYS = [PrivateKey(bytes([number]) * 32).public.text for number in (1, 2)]


def router(**values: Any) -> RouterNodeConfig:
    return RouterNodeConfig(name="one", state_directory="state", **values)


def revoked(number: int, until_ns: int = FAR_NS) -> Revoked:
    return Revoked(subscription_id=f"s{number}", client="bob", reason="left", until_ns=until_ns)


def state(*numbers: int, generation: int = 1, key: int = 0) -> TokenState:
    return TokenState([KEYS[key]], generation, 0, [revoked(each) for each in numbers])


def frames(told: list[bytes]) -> list[bytes]:
    return FrameDecoder(2**24).feed(b"".join(told))


def test_the_token_state_is_mirrored_completely() -> None:
    learned: list[TokenState] = []
    here, there = (PeerSettings(configured(router(), {}, None), learned.append) for _ in range(2))
    many = state(*range(REVOKED_PER_FRAME + 1))
    for told in (here.tokens(many), here.opening()):
        learned.clear()
        for frame in frames(told):
            there.frame(frame, "one")
        assert [each for part in learned for each in part.revoked] == many.revoked
        assert {(tuple(part.token_keys), part.generation) for part in learned} == {((KEYS[0],), 1)}
    here.tokens(msgspec.structs.replace(many, refused_through_ns=17))
    learned.clear()
    for frame in frames(here.opening()):
        there.frame(frame, "one")
    assert {part.refused_through_ns for part in learned} == {17}


def test_a_router_without_token_mirroring_neither_sends_nor_learns() -> None:
    here = PeerSettings(configured(router(), {}, None), None)
    assert here.tokens(state(1)) == []
    for frame in frames(PeerSettings(configured(router(), {}, None), lambda _: None).tokens(state(1))):
        here.frame(frame, "two")


def test_differences_are_named_and_secrets_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Secret(b"the secret of clients here"), Secret(b"the secret of clients there")
    here = PeerSettings(configured(router(synchronous_topics=("a.>",), replicate_by="topic"), {}, one), None)
    there = PeerSettings(configured(router(operators=tuple(f"operator-{n}" for n in range(100))), {}, two), None)
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
def test_invalid_messages_are_refused(rubbish: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        PeerSettings(configured(router(), {}, None), None).frame(rubbish, "two")


def test_invalid_keys_are_refused() -> None:
    wrong = TokenState(["no key"], 1, 0, [])
    here = PeerSettings(configured(router(), {}, None), lambda _: None)
    for frame in frames(here.tokens(wrong)):
        with pytest.raises(PenstockError):
            here.frame(frame, "two")


def test_mirrored_state_never_makes_a_revoked_token_valid(tmp_path: Path) -> None:
    gate = TokenGate(tmp_path / "tokens.json")
    gate.learn(state(1, generation=2), 0)
    gate.learn(state(2, generation=1), 0)
    assert gate.state is not None
    assert (gate.state.generation, len(gate.state.revoked)) == (2, 2)
    gate.learn(state(3, generation=3, key=1), 0)
    assert gate.state.token_keys == [KEYS[1]]
    assert {each.subscription_id for each in gate.state.revoked} == {"s1", "s2", "s3"}
    assert TokenGate(tmp_path / "tokens.json").state == gate.state, "also after a restart"


@pytest.mark.parametrize("generation", [5, 6])
def test_replaced_keys_do_not_return(generation: int, tmp_path: Path) -> None:
    """The other router may forward an old answer of its server."""
    gate = TokenGate(tmp_path / "tokens.json")
    gate.learn(state(1, generation=6, key=1), 0)
    gate.learn(state(2, generation=generation), 0)
    for each in (gate, TokenGate(tmp_path / "tokens.json")):
        assert each.state is not None
        assert (each.state.token_keys, each.state.generation) == ([KEYS[1]], 6)
        assert {one.subscription_id for one in each.state.revoked} == {"s1", "s2"}


def test_the_routers_own_server_takes_precedence() -> None:
    """Mirrored state is used while the router's own server does not answer."""
    put_out: list[Revoked] = []
    watch = TokenWatch(cast(AdminClient, None), None, put_out.append)
    watch.is_in_touch = True
    assert not watch.learn(state(1))
    assert watch.gate.state is None
    watch.is_in_touch = False
    assert watch.learn(state(2))
    watch.use_learned()
    assert watch.gate.is_ready
    assert put_out == [revoked(1), revoked(2)]
    assert watch.wait(0.0)


def test_learned_changes_are_applied_once() -> None:
    """Learned states are combined: the latest state is used whatever the order, with all revocations."""
    put_out: list[Revoked] = []
    watch = TokenWatch(cast(AdminClient, None), None, put_out.append)
    told = [state(1, generation=2), state(2, generation=3, key=1), state(3), state(2, 3, generation=3, key=1)]
    assert [watch.learn(each) for each in told] == [True, False, False, False]
    assert not watch.gate.is_ready
    watch.use_learned()
    assert watch.gate.state == state(1, 2, 3, generation=3, key=1)
    assert put_out == [revoked(each) for each in (1, 2, 3)]
    assert watch.learn(state(3, 4)), "the next change is announced"
    watch.use_learned()
    assert put_out[3:] == [revoked(4)], "a disconnected client is not disconnected again"


def test_revocations_of_expired_tokens_are_removed_also_while_the_server_is_silent() -> None:
    gate = TokenGate(None)
    old, young = revoked(1, 10 * NS_PER_SECOND), revoked(2, 100 * NS_PER_SECOND)
    told = TokenState([KEYS[0]], 1, 0, [old, young])
    assert gate.learn(told, 40 * NS_PER_SECOND) == [old, young], "a clock may be behind"
    assert gate.learn(msgspec.structs.replace(told, revoked=[old, revoked(3)]), 41 * NS_PER_SECOND) == [revoked(3)]
    assert gate.state is not None
    assert gate.state.revoked == [young, revoked(3)]


def checked(gate: TokenGate, subscription: str, expires_ns: int) -> bool:
    signer = TokenSigner(PrivateKey(bytes([1]) * 32))
    try:
        gate.verify(signer.sign(Token("stream", "bob", subscription, (), 0, expires_ns, 1)), 0)
    except (TokenError, RevokedError):
        return False
    return True


def many_revoked(count: int) -> TokenState:
    return TokenState([KEYS[0]], 1, 0, [revoked(each, FAR_NS + each) for each in range(count)])


def test_no_revocation_is_dropped_for_lack_of_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Revocations that do not fit into the file are replaced by refusing all tokens that expire as early."""
    monkeypatch.setattr(gate_module, "STATE_SIZE_MAX", 5_000)
    gate = TokenGate(tmp_path / "tokens.json")
    gate.learn(many_revoked(100), 0)
    assert "revocations_dropped" in caplog.text
    again = TokenGate(tmp_path / "tokens.json")
    assert again.state == gate.state
    for each in (gate, again):
        assert each.state is not None
        assert 10 < len(each.state.revoked) < 90
        assert each.state.refused_through_ns == FAR_NS + 99 - len(each.state.revoked)
        assert not any(checked(each, f"s{number}", FAR_NS + number) for number in range(100))
        assert not checked(each, "another", each.state.refused_through_ns)
        assert checked(each, "another", each.state.refused_through_ns + 1)
    gate.renew(Verification(token_keys=[KEYS[0]], generation=1, generation_since_ns=0, revoked=[], events_after=0))
    assert gate.state is not None
    assert not checked(gate, "another", gate.state.refused_through_ns), "the answer may be older than the revocations"
    assert checked(gate, "another", gate.state.refused_through_ns + 1)


def test_the_queue_of_learned_changes_is_bounded_and_bearers_beyond_it_are_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_out: list[Revoked] = []
    watch = TokenWatch(cast(AdminClient, None), None, put_out.append)
    monkeypatch.setattr(token_watch, "LEARNED_SIZE_MAX", 10 * 100)
    told = many_revoked(100)
    for each in told.revoked:
        watch.learn(msgspec.structs.replace(told, revoked=[each]))
    watch.use_learned()
    assert watch.gate.state is not None
    assert 0 < len(watch.gate.state.revoked) < 10
    assert sorted(each.until_ns for each in put_out) == [each.until_ns for each in told.revoked]
    assert not any(checked(watch.gate, each.subscription_id, each.until_ns) for each in told.revoked)
    assert checked(watch.gate, "another", FAR_NS + 100)
