"""What a writer finds on the disk when it opens a journal, and what it may do about it.

The rules, of which docs/reference/protocol/journal.md gives the reasons:

- Segments follow each other by their names and headers. A segment's records end where the next segment begins; what
  it has beyond that was written before a failed sync, and counts for nothing.
- The first segment is the first that the journal ever had, or begins with the oldest record that is retained, which a
  file of its own names (journal.oldest). If it begins later, a segment is missing: JournalCorruptError.
- The last segment is read to its first bad record. If that record, or a later one, is known to have been on the disk
  (the mark says so, or a later record does), acknowledged data is damaged: JournalCorruptError, nothing is changed.
- Otherwise the rest is a torn tail, and is cut off after the last good record.
- Good records beyond the mark, in the same run of the machine, are only known to be in the machine's memory. They are
  appended again, to a new segment.
"""

import itertools
from collections.abc import Sequence

import msgspec
import numpy
from typing_extensions import Buffer

from penstock.base.errors import JournalCorruptError, JournalError
from penstock.journal.core._log import (
    RECORD_ALIGNMENT,
    RECORD_DTYPE,
    SEGMENT_HEADER_SIZE,
    STOP_ROWS,
    RecordBuffer,
    find_record,
    scan,
)
from penstock.journal.core.format import (
    OLDEST_NAME,
    Mark,
    Oldest,
    SegmentHeader,
    newest_slot,
    parse_segment_name,
    segment_name,
)

ROWS_PER_SCAN = 4_096


class Segment(msgspec.Struct):
    """A segment as its name and header describe it."""

    header: SegmentHeader
    size: int
    """Bytes, up to the last record that counts."""

    @property
    def first_sequence(self) -> int:
        return self.header.first_sequence

    @property
    def name(self) -> str:
        return segment_name(self.header.first_sequence)


class Recovery(msgspec.Struct, kw_only=True):
    """Where a writer goes on."""

    journal_id: bytes
    segments: list[Segment]
    next_sequence: int
    """Of the first record that is not on the disk."""
    truncate_at: int | None
    """The last segment is to be cut to this size, and synced."""
    doubtful: RecordBuffer
    """Good records of the last segment that may be in the machine's memory only, from `next_sequence` on."""


class SegmentEnd(msgspec.Struct, kw_only=True):
    """How far the records of one segment are good."""

    next_sequence: int
    offset: int
    """Where the last good record ends."""
    first_timestamp_ns: int | None = None
    last_timestamp_ns: int | None = None
    durable: int = 0
    """The highest number that a record of this segment says to have been on the disk."""


def check_link(before: SegmentHeader, after: SegmentHeader) -> None:
    """Refuse segments that do not belong together, or do not follow each other."""
    name, name_before = segment_name(after.first_sequence), segment_name(before.first_sequence)
    if after.journal_id != before.journal_id:
        raise JournalError(
            f"belongs to another journal than {name_before}", where=name, hint="move foreign files elsewhere"
        )
    if after.previous_first != before.first_sequence:
        missing = segment_name(after.previous_first)
        raise JournalCorruptError(f"a segment is missing: {name} follows it, not {name_before}", where=missing)


def check_oldest(first: SegmentHeader, slots: Sequence[Oldest | None]) -> None:
    """Refuse a journal whose first segment does not begin with the oldest retained record."""
    if first.previous_first == 0:
        return  # the journal began with it
    missing, name = segment_name(first.previous_first), segment_name(first.first_sequence)
    at = newest_slot(slots, first.journal_id)
    oldest = None if at is None else slots[at]
    if oldest is None:
        raise JournalCorruptError(
            f"is missing or damaged: it says whether records before {first.first_sequence} were removed on purpose, "
            f"and {name} follows {missing}, which is not there",
            where=OLDEST_NAME,
            hint="nothing was changed; restore the journal's files from a copy",
        )
    if oldest.sequence < first.first_sequence:
        raise JournalCorruptError(
            f"a segment is missing: {name} follows it, and records from {oldest.sequence} on are retained",
            where=missing,
            hint="nothing was changed; restore the file from a copy",
        )


def check_name(name: str, header: SegmentHeader) -> None:
    if header.first_sequence != parse_segment_name(name) or header.first_sequence < 1:
        raise JournalError(
            f"begins with sequence {header.first_sequence}, which is not what its name says",
            where=name,
            hint="a segment that was copied or renamed does not belong here",
        )


def scan_segment(content: Buffer, header: SegmentHeader, *, end_sequence: int | None = None) -> SegmentEnd:
    """Read good records up to `end_sequence` (the next segment's first), or up to the first bad one."""
    rows = numpy.empty(ROWS_PER_SCAN, RECORD_DTYPE)
    end = SegmentEnd(next_sequence=header.first_sequence, offset=SEGMENT_HEADER_SIZE)
    while end_sequence is None or end.next_sequence < end_sequence:
        room = ROWS_PER_SCAN if end_sequence is None else min(ROWS_PER_SCAN, end_sequence - end.next_sequence)
        count, end.offset, stop = scan(content, header.nonce, end.next_sequence, rows[:room], end.offset)
        if count:
            if end.first_timestamp_ns is None:
                end.first_timestamp_ns = int(rows[0]["timestamp_ns"])
            end.next_sequence += count
            end.last_timestamp_ns = int(rows[count - 1]["timestamp_ns"])
            end.durable = max(end.durable, int(rows[count - 1]["durable"]))
        if stop != STOP_ROWS:
            break
    return end


def require_torn(rest: Buffer, header: SegmentHeader, next_sequence: int, durable: int, *, at: int) -> None:
    """Refuse to take the `rest` of a segment, from byte `at`, for a torn tail if some of it was surely on disk.

    A torn tail may have good records behind bad ones, because disks write in any order; they were not acknowledged.
    """
    where = f"{segment_name(header.first_sequence)} at byte {at}"
    if durable >= next_sequence:
        raise _damaged(where, next_sequence, f"the mark says that records up to {durable} were on the disk")
    offset = 0
    while found := find_record(rest, header.nonce, next_sequence, offset):
        offset, sequence, known = found
        if known >= next_sequence:
            raise _damaged(
                where, next_sequence, f"record {sequence} at byte {at + offset} says that {known} was on the disk"
            )
        offset += RECORD_ALIGNMENT


def is_blank(rest: Buffer) -> bool:
    """Whether nothing was written here: room that was allocated ahead."""
    return bytes(rest).count(0) == memoryview(rest).nbytes


def _damaged(where: str, sequence: int, evidence: str) -> JournalCorruptError:
    return JournalCorruptError(
        f"record {sequence} is damaged or missing, and it was acknowledged: {evidence}",
        where=where,
        hint="nothing was changed; restore the file from a copy, or look with penstock journal verify",
    )


def recover(
    segments: Sequence[Segment],
    last_content: Buffer,
    mark: Mark | None,
    oldest: Sequence[Oldest | None],
    *,
    boot_id: bytes,
    new_journal_id: bytes,
    first_sequence: int = 1,
) -> Recovery:
    """Decide how to go on after `segments`, the last of which holds `last_content`; without any, records begin with
    `first_sequence`. `oldest` has the slots of the file of that name."""
    durable = mark.durable if mark else 0
    if not segments:
        if durable:
            raise JournalCorruptError(f"there are no segments, but records up to {durable} were on the disk")
        return Recovery(
            journal_id=mark.journal_id if mark else new_journal_id,
            segments=[],
            next_sequence=first_sequence,
            truncate_at=None,
            doubtful=RecordBuffer(first_sequence),
        )
    check_oldest(segments[0].header, oldest)
    for before, after in itertools.pairwise(segments):
        check_link(before.header, after.header)
    last = segments[-1]
    if mark is not None and mark.journal_id != last.header.journal_id:
        mark, durable = None, 0  # another journal's mark says nothing about this one
    end = scan_segment(last_content, last.header)
    rest = memoryview(last_content)[end.offset :]
    require_torn(rest, last.header, end.next_sequence, durable, at=end.offset)
    trusted = end.next_sequence - 1
    if mark is not None and mark.boot_id == boot_id:
        trusted = min(trusted, max(last.first_sequence - 1, end.durable, durable))
    is_torn = not is_blank(rest) and trusted == end.next_sequence - 1  # doubtful records take what follows with them
    return Recovery(
        journal_id=last.header.journal_id,
        segments=[*segments[:-1], Segment(last.header, end.offset)],
        next_sequence=trusted + 1,
        truncate_at=end.offset if is_torn else None,
        doubtful=_copy(last_content, last.header, trusted + 1, end.next_sequence),
    )


def _copy(content: Buffer, header: SegmentHeader, first: int, end: int) -> RecordBuffer:
    """The records from `first` up to `end` of a segment whose records up to there are good."""
    records = RecordBuffer(first)
    rows = numpy.empty(ROWS_PER_SCAN, RECORD_DTYPE)
    offset, sequence = SEGMENT_HEADER_SIZE, header.first_sequence
    while sequence < end and first < end:
        count, offset, _ = scan(content, header.nonce, sequence, rows[: min(ROWS_PER_SCAN, end - sequence)], offset)
        chosen = rows[:count][rows["sequence"][:count] >= first]
        records.append_rows(content, chosen["offset"].copy(), chosen["size"].copy(), chosen["timestamp_ns"].copy())
        sequence += count
    return records
