"""Random bytes for every core of penstock.net: an answer of the grammar, bounded memory, nothing else."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.base.counters import Counters
from penstock.base.errors import PacketError
from penstock.net.config import ClockConfig, ControlConfig, WebSocketConfig
from penstock.net.core.clock import (
    ClockEstimator,
    ClockPacket,
    ClockPacketKind,
    decode_clock_packet,
    encode_clock_packet,
)
from penstock.net.core.control import Ping, encode_session
from penstock.net.core.events import BytesReceived, ClockSample, Connected, Disconnect, Opened, Received, Send
from penstock.net.core.framing import encode_frame
from penstock.net.core.websocket import WebSocketClientSession, WebSocketServerSession
from unit.net_kit import SECRET, Number, Say, converse, of, sent, session

WEBSOCKET = WebSocketConfig(message_size_max=500)


def control_pair() -> tuple[Any, Any]:
    config = ControlConfig(message_size_max=2_000)
    return session("client", secret=SECRET, config=config), session("server", secret=SECRET, config=config)


def websocket_pair() -> tuple[Any, Any]:
    return (
        WebSocketClientSession("ws://127.0.0.1:1/", WEBSOCKET),
        WebSocketServerSession(WEBSOCKET, origins=[None]),
    )


def control_messages(client: Any) -> bytes:
    says = [sent(client.handle(Send(message), 0)) for message in (Say("hello"), Number(7, "note"))]
    return b"".join([*says, encode_frame(encode_session(Ping(5)))])


def websocket_messages(client: Any) -> bytes:
    return b"".join(sent(client.handle(Send(message), 0)) for message in ("hello", b"\0\1", "x" * 200))


def mutate(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        choice = chance.randrange(5)
        if choice == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif choice == 1 and at < len(changed):
            changed[at] = chance.choice([0, 1, 0x7F, 0x80, 0xC1, 0xD9, 0xDF, 0xFF])
        elif choice == 2:
            del changed[at : at + chance.choice([1, 2, 4, 16])]
        elif choice == 3:
            changed[at:at] = chance.randbytes(chance.choice([1, 2, 4, 16]))
        else:
            start = chance.randrange(len(changed) + 1)
            changed[at:at] = changed[start : start + 16]
    return bytes(changed)


def feed(core: Any, data: bytes, chance: random.Random) -> list[Any]:
    said: list[Any] = []
    while data:
        size = chance.choice([1, 7, 64, 4_096])
        said += core.handle(BytesReceived(data[:size]), 0)
        data = data[size:]
    return said


def judge(said: list[Any], *, was_open: bool) -> str:
    """Check the grammar of events.py; returns the outcome of the connection."""
    ends, opens = of(Disconnect, said), of(Opened, said)
    assert len(ends) <= 1
    assert len(opens) <= (0 if was_open else 1)
    if ends:
        assert said[-1] is ends[0]
    if of(Received, said) and not was_open:
        assert opens
        assert said.index(opens[0]) < said.index(of(Received, said)[0])
    return str(ends[0].cause) if ends else "alive"


PAIRS: dict[str, tuple[Callable[[], tuple[Any, Any]], Callable[[Any], bytes], set[str]]] = {
    "control": (control_pair, control_messages, {"alive", "message", "length"}),
    "websocket": (websocket_pair, websocket_messages, {"alive", "message", "length"}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_damaged_messages(name: str, soak: bool) -> None:
    make, messages, expected = PAIRS[name]
    chance = random.Random(name)
    verdicts = set()
    for _ in range(30_000 if soak else 400):
        client, server = make()
        converse(client, server)
        said = feed(server, mutate(chance, messages(client)), chance)
        verdicts.add(judge(said, was_open=True))
    assert expected <= verdicts


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("side", ["client", "server"])
def test_damaged_handshakes(name: str, side: str, soak: bool) -> None:
    make, _, _ = PAIRS[name]
    chance = random.Random(name + side)
    verdicts = set()
    for _ in range(30_000 if soak else 400):
        client, server = make()
        request = sent(client.handle(Connected(), 0))
        server.handle(Connected(), 0)
        if side == "server":
            said = feed(server, mutate(chance, request), chance)
        else:
            said = feed(client, mutate(chance, sent(server.handle(BytesReceived(request), 0))), chance)
        verdicts.add(judge(said, was_open=False))
        assert not (name == "control" and of(Opened, said)), "a damaged handshake never authenticates"
    assert len(verdicts) >= 2


GOOD: list[dict[str, Any]] = [
    {"type": "say", "text": "x"},
    {"type": "number", "value": 1, "note": "n"},
    {"type": "ping", "t1": 1},
    {"type": "pong", "t1": 1, "t2": 2, "t3": 3},
    {"type": "error", "code": "c", "what": "w", "hint": "h"},
    {"type": "goodbye", "reason": "r"},
    {"type": "hello", "protocol": "echo", "major": 1, "minor": 2, "node": "n", "nonce": bytes(32), "wants_proof": True},
    {"type": "proof", "proof": bytes(32)},
]
VALUES = [None, True, 0, -1, 2**63, 1.5, "", "x" * 300, b"", bytes(32), [], {}, [[]] * 3, {"a": {"b": []}}, "say"]


def test_messages_with_wrong_values(soak: bool) -> None:
    """Valid msgpack whose fields have wrong types, are missing or are unknown: refused or accepted, never a crash."""
    chance = random.Random(3)
    verdicts = set()
    for _ in range(50_000 if soak else 1_000):
        client, server = control_pair()
        converse(client, server)
        message = dict(chance.choice(GOOD))
        for _ in range(chance.randrange(3)):
            key = chance.choice([*message, "unknown"])
            if chance.random() < 0.3:
                message.pop(key, None)
            else:
                message[key] = chance.choice(VALUES)
        said = feed(server, encode_frame(msgspec.msgpack.encode(message)), chance)
        verdicts.add(judge(said, was_open=True))
    assert verdicts == {"alive", "message", "refused", "goodbye"}


def test_damaged_clock_packets_and_absurd_times(soak: bool) -> None:
    chance = random.Random(4)
    edges = [-(2**63), -1, 0, 1, 2**62, 2**63 - 1]
    core = ClockEstimator(ClockConfig(), Counters("clock"))
    for number in range(100_000 if soak else 2_000):
        t1, t2, t3, t4 = (chance.choice(edges) + chance.choice([0, 1, -1]) * chance.randrange(2) for _ in range(4))
        core.add(ClockSample(t1, t2, t3, t4), now_ns=number)
        estimate = core.estimate(number)
        assert estimate is None or estimate.error_ns >= 0
        good = encode_clock_packet(ClockPacket(ClockPacketKind.REQUEST, number, chance.choice(edges)))
        damaged = mutate(chance, good)
        if damaged != good:
            with pytest.raises(PacketError):
                decode_clock_packet(damaged)
