"""An adapter's state from the administration server, and the times of its registrations."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError, RevokedError, TokenError
from penstock.feed.live.registration import Registration
from penstock.security import Token, TokenSigner
from penstock.security.core.brokering import (
    AdapterHeartbeat,
    Events,
    GenerationChanged,
    HeartbeatAnswer,
    Registered,
    Revoked,
)
from penstock.security.live.gate import TokenGate
from unit.service_kit import KEY, START_NS, receive, token
from waiting import wait_until

HOUR_NS = 3_600 * NS_PER_SECOND


def registered(generation: int = 1, revoked: Iterable[Revoked] = ()) -> Registered:
    return Registered(
        generation=generation,
        generation_since_ns=START_NS,
        token_keys=[KEY.public.text],
        keys=[],
        active_key_id=0,
        key_lease_s=60.0,
        heartbeat_s=0.01,
        events_after=0,
        revoked=list(revoked),
        subscriptions=[],
    )


def revoked(subscription_id: str, until_ns: int = START_NS + HOUR_NS) -> Revoked:
    return Revoked(subscription_id=subscription_id, client="alice", reason="left the firm", until_ns=until_ns)


@pytest.mark.spec("ADM-5", "ADM-8")
def test_a_restarted_adapter_refuses_revoked_subscriptions_without_a_server(tmp_path: Path) -> None:
    path = tmp_path / "state" / "tokens.json"
    gate = TokenGate(path)
    with pytest.raises(TokenError, match="cannot be checked here yet"):
        gate.verify(token(receive(">")), START_NS)
    gate.renew(registered(revoked=[revoked("s-1")]))
    gate.note(revoked("s-2"))
    assert path.stat().st_mode & 0o777 == 0o600
    again = TokenGate(path)
    for name in ("s-1", "s-2"):
        with pytest.raises(RevokedError, match="left the firm"):
            again.verify(token(receive(">"), subscription=name), START_NS)
    assert again.verify(token(receive(">"), subscription="s-3"), START_NS).subject == "alice"
    assert [each.name for each in path.parent.iterdir()] == ["tokens.json"]


@pytest.mark.spec("ADM-8")
def test_a_generation_is_stored_and_never_decreases(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    gate = TokenGate(path)
    gate.renew(registered(1))
    gate.note(GenerationChanged(generation=2, since_ns=START_NS))
    gate.renew(registered(1))  # the replaced server has not learned of it
    late = Token("stream", "alice", "s", (), START_NS + 1, START_NS + HOUR_NS, 1)
    for each in (gate, TokenGate(path)):
        with pytest.raises(TokenError, match="generation"):
            each.verify(TokenSigner(KEY).sign(late), START_NS + 2)


@pytest.mark.spec("AUTH-6")
def test_no_answer_of_a_server_makes_a_revoked_subscription_valid_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    gate = TokenGate(path)
    gate.renew(registered(2, revoked=[revoked("s-1")]))
    gate.note(revoked("s-2"))
    gate.renew(registered(2, revoked=[revoked("s-1")]))  # an answer that was under way when s-2 was revoked
    gate.renew(registered(1, revoked=[revoked("s-3")]))  # the replaced server knows neither
    for each in (gate, TokenGate(path)):
        for name in ("s-1", "s-2", "s-3"):
            with pytest.raises(RevokedError):
                each.verify(token(receive(">"), subscription=name), START_NS)
        assert each.verify(token(receive(">"), subscription="s-4"), START_NS).subject == "alice"
    gate.forget_expired(START_NS + 2 * HOUR_NS)
    assert b"s-" not in path.read_bytes()


def test_revocations_are_dropped_when_their_tokens_have_expired(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    gate = TokenGate(path)
    gate.renew(registered(revoked=[revoked("s-1"), revoked("s-2", START_NS + 2 * HOUR_NS)]))
    gate.forget_expired(START_NS)
    assert path.read_bytes().count(b"s-") == 2
    gate.forget_expired(START_NS + HOUR_NS + 600 * NS_PER_SECOND)
    assert (b"s-1" in path.read_bytes(), b"s-2" in path.read_bytes()) == (False, True)
    gate.forget_expired(START_NS + 3 * HOUR_NS)
    assert b"s-2" not in path.read_bytes()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"token_keys": ["x"]}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="not a token state"):
        TokenGate(path)


class Server:
    """Answers like an AdminClient whose server is replaced by one of another generation."""

    def __init__(self) -> None:
        self.generation = 1
        self.registrations: list[int] = []
        self._is_closed = threading.Event()

    def register(self, description: Any) -> Registered:
        self.registrations.append(self.generation)
        return registered(self.generation)

    def heartbeat(self, heartbeat: AdapterHeartbeat) -> HeartbeatAnswer:
        return HeartbeatAnswer(generation=self.generation, active_key_id=0, key_lease_s=60.0, heartbeat_s=0.01)

    def events(self, after: int, *, wait_s: float) -> Events:
        self._is_closed.wait(wait_s)
        return Events(events=[], next_after=after, is_complete=True)

    def close(self) -> None:
        self._is_closed.set()


@pytest.mark.spec("ADM-8")
def test_an_adapter_registers_with_the_server_that_took_over() -> None:
    server: Any = Server()
    beat = AdapterHeartbeat(feed="itch", adapter="a", term=0)
    beats: list[int] = []
    registration = Registration(
        server,
        lambda: server,
        lambda: beat,
        lambda _, __: None,
        lambda answer, asked_ns: beats.append(asked_ns),
        lambda *_: None,
        now_ns=lambda: 7,
    )
    registration.start()
    try:
        wait_until(lambda: server.registrations == [1], "the first registration")
        server.generation = 2
        wait_until(lambda: server.registrations == [1, 2], "another registration")
        wait_until(lambda: beats[:1] == [7], "an answer with the time of its request")
    finally:
        registration.stop()
