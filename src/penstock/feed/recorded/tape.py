"""A tape: what a line arbiter answered once, written down so that it can be read again from many places at a time.

    tape = b"".join(encode(event) for event in source)
    for event in read_tape(tape):                # SessionStarted, SourceReady, SourceLost, as they were
        ...

Entries follow each other without gaps; docs/reference/protocol/feed-index.md draws them.
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
"""Bytes of a tape that are read at a time, about."""


def encode(event: LineInstruction) -> bytes:
    """The entries for what a source gave; nothing for what does not concern its messages."""
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
    """The events on a tape, or a part of one that begins with an entry; each is good until the next."""
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
        raise RemoteProtocolError("an entry of the tape has no text, or no cause", where=f"offset {at}") from None
    raise RemoteProtocolError("an entry of the tape is damaged", where=f"offset {at}")
