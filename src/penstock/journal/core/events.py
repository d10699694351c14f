"""Events and instructions of the journal's core.

Append, Commit, RemoveBefore, Tick, Close from the application and the clock SegmentCreated, WriteDone, SyncDone,
DiskFailed from the disk, one for each instruction below that waits for it InlineDone from the disk, after an inline
commit

CreateSegment, Write, Sync answered by an event; the core issues no further one of these before the answer RemoveSegment
a segment is no longer kept; no answer Acknowledged all records up to this number are on disk Troubled, Recovered,
Failed the disk is full; the disk has space again; the journal failed permanently Closed all appended records are on
disk
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
    """The application appends one record per payload."""

    payloads: Sequence[Buffer]
    timestamp_ns: int


class Commit(msgspec.Struct, frozen=True):
    """The application waits for its appended records."""


class RemoveBefore(msgspec.Struct, frozen=True):
    """The application needs no records before this one: whole segments before it are removed, but never the newest."""

    sequence: int


class Close(msgspec.Struct, frozen=True):
    """The application appends no more records."""


class SegmentCreated(msgspec.Struct, frozen=True):
    """The segment's header and its directory entry are on disk."""


class WriteDone(msgspec.Struct, frozen=True):
    """All bytes were written."""


class SyncDone(msgspec.Struct, frozen=True):
    """All data written to the segment is on disk."""


class DiskFailed(msgspec.Struct, frozen=True):
    """The current instruction failed: what it wrote or synced is unknown."""

    errno: int


class InlineDone(msgspec.Struct, frozen=True):
    """Records were written one by one to the place that the core has given (inline_place), as if each had been appended
    and committed. If the disk failed, the place's batch contains the record that failed.
    """

    count: int
    size: int
    errno: int = 0
    is_written: bool = False
    """True if the failed record was written but not synced."""


class InlinePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place where records may be written and synced one by one."""

    first_sequence: int
    """First sequence number of the segment."""
    nonce: int
    offset: int
    end: int
    """Records must end before this offset."""
    next_sequence: int
    batch: RecordBuffer
    """Contains the record being written."""


# Instructions


class CreateSegment(msgspec.Struct, frozen=True):
    """Make the segment with this header and its first records durable under its name, replacing a segment of the same
    name. A segment ends the previous one, so it must not appear without the records that are valid from then on.
    """

    first_sequence: int
    header: bytes
    data: RecordBuffer


class Write(msgspec.Struct, frozen=True):
    """Write all of `data`, overwriting existing content."""

    first_sequence: int
    offset: int
    data: RecordBuffer


class Sync(msgspec.Struct, frozen=True):
    """Sync all data written to the segment."""

    first_sequence: int


class RemoveSegment(msgspec.Struct, frozen=True):
    """Remove the oldest segment, after it is durable that the journal begins with record `oldest`."""

    first_sequence: int
    oldest: int


class Acknowledged(msgspec.Struct, frozen=True):
    through_sequence: int


class Troubled(msgspec.Struct, frozen=True):
    """Appends are refused for now; appended records are retried."""

    error: JournalError


class Recovered(msgspec.Struct, frozen=True):
    """Appends are accepted again."""


class Failed(msgspec.Struct, frozen=True):
    """No further records will be acknowledged."""

    error: JournalError


class Closed(msgspec.Struct, frozen=True):
    pass


JournalEvent: TypeAlias = (
    Append | Commit | RemoveBefore | Tick | Close | SegmentCreated | WriteDone | SyncDone | DiskFailed | InlineDone
)
DiskInstruction: TypeAlias = CreateSegment | Write | Sync
JournalInstruction: TypeAlias = DiskInstruction | RemoveSegment | Acknowledged | Troubled | Recovered | Failed | Closed
