"""The frames of a session's events do not change; the decoder is written from docs/reference/protocol/sessions.md
alone."""

import socket
import struct
from pathlib import Path

import pytest

from interop import control_decoder
from interop.event_decoder import Decoded, decode_events
from penstock.engine import EventKind
from penstock.plant.live._session_sender import Framing, SessionSender
from unit.engine_kit import NOW, QUOTE, buffer_consumer, engine, record

GOLDEN = Path(__file__).parent / "golden" / "sessions"
STARTED_NS = 1_700_000_000_000_000_000
FRAMINGS = {"websocket": Framing.WEBSOCKET_MESSAGE, "control": Framing.EVENTS_MESSAGE}


def frames(framing: Framing, *updates: int) -> list[bytes]:
    """The output of a socket: the answer to a subscription, then this many updates, each in one write."""
    core = engine()
    buffer, _ = buffer_consumer(core, 0, "md.>")
    session_sender = SessionSender(1, 1, gather_ns=0, words_size_max=1_024)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        session_sender.open(0, ours.fileno())
        session_sender.attach(0, 0, buffer, framing)
        found = []
        for count in (0, *updates):
            for value in range(count):
                core.publish(b"md.us.eq.AAPL.quote", QUOTE, record(value), NOW, STARTED_NS)
            session_sender.notice([0], NOW)
            session_sender.run(NOW)
            found.append(theirs.recv(1 << 20))
    return found


def events_in(name: str, frame: bytes) -> list[Decoded]:
    if name == "control":
        (payload,) = control_decoder.frames(frame)
        assert payload[:19] == b"\x82\xa4type\xa6events\xa4data\xc6"[:19]
        (size,) = struct.unpack_from(">I", payload, 19)
        assert len(payload) == 23 + size
        return decode_events(payload[23:])
    assert frame[0] == 0x82
    at, size = 2, frame[1]
    if size == 126:
        at, (size,) = 4, struct.unpack_from(">H", frame, 2)
    elif size == 127:
        at, (size,) = 10, struct.unpack_from(">Q", frame, 2)
    assert len(frame) == at + size
    return decode_events(frame[at:])


@pytest.mark.parametrize("name", FRAMINGS)
def test_the_session_sender_writes_the_golden_frames(name: str) -> None:
    golden = (GOLDEN / f"{name}.hex").read_text().split()
    assert [frame.hex() for frame in frames(FRAMINGS[name], 1)] == golden


@pytest.mark.spec("EDGE-1")
@pytest.mark.parametrize("name", FRAMINGS)
def test_frames_of_every_length_hold_whole_events(name: str) -> None:
    live, first, many = (events_in(name, frame) for frame in frames(FRAMINGS[name], 1, 300))
    assert [event.kind for event in live] == [EventKind.LIVE]
    assert [(event.kind, event.item) for event in first] == [(EventKind.DEFINE, 0), (EventKind.UPDATE, 0)]
    assert first[0].body == b"md.us.eq.AAPL.quote"
    assert (first[1].started_ns, first[1].body) == (STARTED_NS, record(0))
    assert [event.version for event in many] == list(range(2, 302))
