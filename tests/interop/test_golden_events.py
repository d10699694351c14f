"""The bytes of the engine's events do not change: both decoders read the golden block, and the encoder writes it."""

import struct
from pathlib import Path

from interop.event_decoder import Decoded, decode_events
from interop.packet_decoder import crc32c
from penstock.engine import EventKind, make_event, read_events
from penstock.engine.core.kernel._event import ALL_ITEMS, NO_SLOT
from penstock.engine.core.session_events import decode_session, encode_session, session_id
from penstock.middleware import SessionEvent

GOLDEN = Path(__file__).parent / "golden" / "events" / "block.hex"
STARTED_NS = 1_700_000_000_000_000_000
TOPIC = b"md.us.eq.AAPL.quote"
RECORD = bytes(range(20))
RECEIPT = struct.pack("<QQB7x", 5, 9, 2)
LIVE = struct.pack("<I4x", 3)
SESSION = b'{"kind":"begin","stream_id":1,"session":"20240103","trading_date":"2024-01-03","tag":4711,"feed":"nasdaq"}'
SESSION_ID = crc32c(b"nasdaq" + struct.pack("<IH", 1, 4711))

EVENTS = [
    Decoded(7, 1, 1, 0, 11, 40, STARTED_NS, 0, 2, 1, NO_SLOT, TOPIC),
    Decoded(7, 2, 1, 1, 11, 40, STARTED_NS, 0, 2, 1, 0, RECORD),
    Decoded(7, 3, 3, 6, 12, 43, STARTED_NS, 3, 2, 1, SESSION_ID, RECORD[::-1]),
    Decoded(ALL_ITEMS, 4, 0, 0, 12, 0, 0, 0, 0, 0, 0, RECEIPT),
    Decoded(7, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, b""),
    Decoded(ALL_ITEMS, 6, 0, 0, 12, 0, 0, 0, 0, 0, 0, LIVE),
    Decoded(8, 7, 2, 0, 13, 1, STARTED_NS, 0, 2, 1, 4, b""),
    Decoded(7, 8, 1, 8, 14, 44, 0, 0, 2, 1, 0, b""),
    Decoded(ALL_ITEMS, 9, 0, 2, 15, 0, 0, 0, 0, 0, 0, SESSION),
]


def written() -> bytes:
    return b"".join(
        make_event(EventKind(event.kind), **{name: value for name, value in event._asdict().items() if name != "kind"})
        for event in EVENTS
    )


def test_the_encoder_writes_the_golden_block() -> None:
    assert written() == bytes.fromhex(GOLDEN.read_text())


def test_both_decoders_read_the_golden_block() -> None:
    block = bytes.fromhex(GOLDEN.read_text())
    assert decode_events(block) == EVENTS
    ours = read_events(block)
    assert [Decoded(*(getattr(event, name) for name in Decoded._fields)) for event in ours] == EVENTS
    assert ours[0].topic == TOPIC
    assert ours[3].lost == (5, 9, 2)
    assert ours[5].subscription == 3
    session = SessionEvent("begin", 1, "20240103", "2024-01-03", 4711, "nasdaq")
    assert decode_session(ours[8].session) == session
    assert encode_session(session) == SESSION
    assert [event.session_id for event in ours[1:3]] == [0, session_id(session)]
