"""The grammar of the journal's core: what it is told (events) and what it answers (instructions).

Append, Commit, RemoveBefore, Tick, Close        from the application and the clock
SegmentCreated, WriteDone, SyncDone, DiskFailed  from the disk, one for each instruction below that waits for it
InlineDone                                       from the disk, after an inline commit

CreateSegment, Write, Sync       answered by an event; the core gives no further one of these before the answer
RemoveSegment                    a segment is no longer kept; no answer
Acknowledged                     everything up to this number is on the disk
Troubled, Recovered, Failed      the disk is full; it has room again; this journal is at its end
Closed                           everything appended is on the disk
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from typing_extensions import Buffer

from penstock.base.core import Tick
from penstock.base.errors import JournalError
from penstock.journal.core._log import RecordBuffer

# Events


class Append(msgspec.Struct, frozen=True):
    """The application appends records, one for each payload."""

    payloads: Sequence[Buffer]
    timestamp_ns: int


class Commit(msgspec.Struct, frozen=True):
    """The application waits for what it has appended."""


class RemoveBefore(msgspec.Struct, frozen=True):
    """The application needs no records before this one: whole segments of them are removed, but never the newest."""

    sequence: int


class Close(msgspec.Struct, frozen=True):
    """The application appends nothing more."""


class SegmentCreated(msgspec.Struct, frozen=True):
    """The segment's header and its name in the directory are on the disk."""


class WriteDone(msgspec.Struct, frozen=True):
    """All bytes were written."""


class SyncDone(msgspec.Struct, frozen=True):
    """Everything written to the segment is on the disk."""


class DiskFailed(msgspec.Struct, frozen=True):
    """The instruction under way failed: nothing is known of what it wrote or synced."""

    errno: int


class InlineDone(msgspec.Struct, frozen=True):
    """To the place that the core has given (inline_place) records were brought one by one, as if each had been appended
    and committed. If the disk failed at last, the record that it failed with is in the place's batch."""

    count: int
    size: int
    errno: int = 0
    is_written: bool = False
    """That one was written, and could not be synced."""


class InlinePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where records may be brought to the disk one by one."""

    first_sequence: int
    """Of the segment."""
    nonce: int
    offset: int
    end: int
    """No record goes beyond."""
    next_sequence: int
    batch: RecordBuffer
    """For the record that is on its way."""


# Instructions


class CreateSegment(msgspec.Struct, frozen=True):
    """Make the segment with this header and its first records durable under its name, in place of one that may have
    the same name. A segment ends the one before it, so it must not appear without the records that count from then on.
    """

    first_sequence: int
    header: bytes
    data: RecordBuffer


class Write(msgspec.Struct, frozen=True):
    """Write all of `data`; what was there before is written over."""

    first_sequence: int
    offset: int
    data: RecordBuffer


class Sync(msgspec.Struct, frozen=True):
    """Bring everything written to the segment to the disk."""

    first_sequence: int


class RemoveSegment(msgspec.Struct, frozen=True):
    """Remove the oldest segment, after it is durable that the journal begins with record `oldest`."""

    first_sequence: int
    oldest: int


class Acknowledged(msgspec.Struct, frozen=True):
    through_sequence: int


class Troubled(msgspec.Struct, frozen=True):
    """Appends are refused for now; what was appended is tried again."""

    error: JournalError


class Recovered(msgspec.Struct, frozen=True):
    """Appends are welcome again."""


class Failed(msgspec.Struct, frozen=True):
    """Nothing beyond what was acknowledged will ever be."""

    error: JournalError


class Closed(msgspec.Struct, frozen=True):
    pass


JournalEvent: TypeAlias = (
    Append | Commit | RemoveBefore | Tick | Close | SegmentCreated | WriteDone | SyncDone | DiskFailed | InlineDone
)
DiskInstruction: TypeAlias = CreateSegment | Write | Sync
JournalInstruction: TypeAlias = DiskInstruction | RemoveSegment | Acknowledged | Troubled | Recovered | Failed | Closed
