"""A tape: recorded events of a line arbiter, for many readers at different positions.

    tape = b"".join(encode(event) for event in source)
    for event in read_tape(tape):                # SessionStarted, SourceReady, SourceLost, as recorded
        ...

Entries follow each other without gaps; docs/reference/protocol/feed-index.md has a drawing.
"""

import struct
from collections.abc import Iterator

from typing_extensions import Buffer

from penstock.base.counters import Cause
from penstock.base.errors import RemoteProtocolError
from penstock.feed.core.lines.events import LineInstruction, SessionStarted, SourceLost, SourceReady
from penstock.feed.recorded import _tape as layout
from penstock.feed.recorded._tape import TapeRows, encode_messages

HEADER = struct.Struct("<BBxxIQq")
assert HEADER.size == layout.TAPE_HEADER_SIZE

BATCH_SIZE = 1024 * 1024
"""Approximate size of the part of a tape that is read at a time."""


def encode(event: LineInstruction) -> bytes:
    """Return the entries for an event of a source; nothing for events that do not concern messages."""
    match event:
        case SourceReady(batch):
            return encode_messages(batch)
        case SessionStarted(name, first, is_reset, receive_ns):
            return _entry(layout.TAPE_SESSION, first, receive_ns, name, layout.TAPE_RESET if is_reset else 0)
        case SourceLost(first, last, cause):
            return _entry(layout.TAPE_LOST, first, last, cause)
        case _:
            return b""


def read_tape(data: Buffer) -> Iterator[SessionStarted | SourceReady | SourceLost]:
    """Yield the events of a tape, or of a part that begins with an entry; each is valid until the next."""
    view = memoryview(data).cast("B")
    rows = TapeRows()
    at = 0
    while at < len(view):
        batch = rows.batch(view, at, BATCH_SIZE)
        if rows.end > at:
            at = rows.end
            yield SourceReady(batch)
        else:
            event, at = _event(view, at)
            yield event


def _entry(kind: int, sequence: int, number: int, text: str, flags: int = 0) -> bytes:
    body = text.encode()
    return HEADER.pack(kind, flags, len(body), sequence, number) + body


def _event(view: memoryview, at: int) -> tuple[SessionStarted | SourceLost, int]:
    kind, flags, size, sequence, number = HEADER.unpack_from(view, at)
    start = at + HEADER.size
    try:
        text = bytes(view[start : start + size]).decode()
        if start + size <= len(view):
            if kind == layout.TAPE_SESSION:
                return SessionStarted(text, sequence, bool(flags & layout.TAPE_RESET), number), start + size
            if kind == layout.TAPE_LOST:
                return SourceLost(sequence, number, Cause(text)), start + size
    except ValueError:
        raise RemoteProtocolError("an entry of the tape has an invalid text or cause", where=f"offset {at}") from None
    raise RemoteProtocolError("an entry of the tape is damaged", where=f"offset {at}")
