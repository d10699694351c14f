"""Read a journal by sequence number or time, and follow its writer from another process.

    with JournalReader.open("trades.d") as journal:
        for sequence, timestamp_ns, payload in journal.read(from_sequence=1_000): ...
        for record in journal.follow(): ...          # continues, and waits for new records

A reader returns only records on disk, so that no returned record can vanish in a crash. The mark, which the writer
renews after every sync, gives the newest of them (protocol/journal.md). If no writer has run since the machine was
booted, all file content comes from the disk.
"""

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import numpy

from penstock.base.errors import JournalCorruptError, JournalError, JournalGoneError, LocalProtocolError
from penstock.journal.config import RECORD_SPACE_MAX, FollowConfig
from penstock.journal.core._log import RECORD_ALIGNMENT, RECORD_DTYPE, SEGMENT_HEADER_SIZE, STOP_SHORT, scan
from penstock.journal.core.format import SEQUENCE_MAX, Mark, SegmentHeader, segment_name
from penstock.journal.core.records import NOTHING, Record, RecordBatch
from penstock.journal.core.recovery import require_torn
from penstock.journal.live.files import Directory, boot_id, pause

ROWS_MAX = 65_536
"""Maximum number of records in one batch."""


class OpenSegment(Protocol):
    header: SegmentHeader

    def read(self, offset: int, size: int) -> bytes: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class JournalFiles(Protocol):
    """The location of a journal: a directory, or the simulator's."""

    def first_sequences(self) -> list[int]: ...
    def open_segment(self, first_sequence: int) -> OpenSegment | None: ...
    def read_mark(self) -> Mark | None: ...


class _Place(NamedTuple):
    """Position of a record in a segment, and the newest time before it."""

    sequence: int
    offset: int
    timestamp_ns: int


class JournalReader:
    """Reads forwards from a position; opened by open()."""

    def __init__(self, source: JournalFiles, run_id: bytes, config: FollowConfig, where: str) -> None:
        self._source = source
        self._run_id = run_id
        self._config = config
        self._where = where
        self._wanted = 0
        """The next record to return; 0 for the oldest."""
        self._wanted_ns: int | None = None
        """Older records are skipped, up to the first that is not older."""
        self._firsts: list[int] = []
        """First numbers of the segments when they were listed; the end of a segment is final once another one
        follows.
        """
        self._segment: OpenSegment | None = None
        self._end_sequence = SEQUENCE_MAX  # one more than the last number of the open segment
        self._place = _Place(0, 0, 0)
        self._places: dict[tuple[int, int], list[_Place]] = defaultdict(list)
        """An index in memory: some positions per segment, recorded while reading."""
        self._rows = numpy.empty(ROWS_MAX, RECORD_DTYPE)
        self._torn = (0, 0)
        self._journal_id: bytes | None = None

    @classmethod
    def open(cls, path: Path | str, config: FollowConfig | None = None) -> Self:
        """Open the journal in directory `path`, with or without a writer."""
        source = Directory(Path(path))
        source.first_sequences()  # refuse an unreadable directory early
        return cls(source, boot_id(), config or FollowConfig(), str(path))

    def close(self) -> None:
        self._leave()
        self._firsts = []

    def _leave(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Positions

    @property
    def first_sequence(self) -> int:
        """Number of the oldest retained record; 1 if there is none."""
        firsts = self._source.first_sequences()
        return firsts[0] if firsts else 1

    @property
    def next_sequence(self) -> int:
        """Number of the next record to return, if known; 0 for the oldest."""
        return self._wanted

    def seek(self, sequence: int) -> None:
        """Continue with record `sequence`, which may be in the future; JournalGoneError if it is no longer kept."""
        if not 1 <= sequence <= SEQUENCE_MAX:
            raise LocalProtocolError(f"sequence {sequence} is outside 1 to {SEQUENCE_MAX}")
        firsts = self._source.first_sequences()
        if firsts and sequence < firsts[0]:
            raise self._gone(sequence, firsts[0])
        self.close()
        self._wanted, self._wanted_ns = sequence, None

    def next_segment(self, sequence: int, default: int) -> int:
        """Return the first record of the first segment that begins after this record, for skipping a damaged
        segment.
        """
        return next((first for first in self._source.first_sequences() if first > sequence), default)

    def find_end(self) -> int:
        """Return the number after the newest readable record, and move the reader there."""
        self.close()
        firsts = self._source.first_sequences()
        self._wanted, self._wanted_ns = firsts[-1] if firsts else 1, None
        mark = self._read_mark()
        if mark is not None and self._limit(mark) == mark.durable >= self._wanted:
            self._wanted = mark.durable + 1
            return self._wanted
        while self.read_batch():
            pass
        return self._wanted

    def seek_time(self, timestamp_ns: int) -> None:
        """Continue with the first record that is not older, assuming that times grow with the sequence numbers."""
        self.close()
        firsts = self._source.first_sequences()
        older = bisect.bisect_left(firsts, True, key=lambda first: self._begins_at(first, timestamp_ns))
        self._wanted = firsts[max(0, older - 1)] if firsts else 0
        self._wanted_ns = timestamp_ns

    def _begins_at(self, first_sequence: int, timestamp_ns: int) -> bool:
        """True if the segment's first record is not older than the time, or if the segment has no records."""
        segment = self._source.open_segment(first_sequence)
        if segment is None:
            return False  # the segment was removed meanwhile, so it was old
        try:
            _, count = self._scan(segment, SEGMENT_HEADER_SIZE, first_sequence, 1)
            return not count or bool(self._rows[0]["timestamp_ns"] >= timestamp_ns)
        finally:
            segment.close()

    # Reading

    def read(self, *, from_sequence: int | None = None, from_time_ns: int | None = None) -> Iterator[Record]:
        """Yield the records from a position, or from the current one, up to the newest."""
        self._seek(from_sequence, from_time_ns)
        while batch := self.read_batch():
            yield from batch

    def follow(
        self,
        *,
        from_sequence: int | None = None,
        from_time_ns: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[Record]:
        """Yield records without an end, waiting for new ones. `is_over` is called while waiting."""
        self._seek(from_sequence, from_time_ns)
        wait_us = self._config.poll_min_us
        while True:
            if batch := self.read_batch():
                wait_us = self._config.poll_min_us
                yield from batch
            elif is_over():
                return
            else:
                pause(wait_us / 1e6)
                wait_us = min(2 * wait_us, self._config.poll_max_us)

    def read_batch(self, rows_max: int = ROWS_MAX) -> RecordBatch:
        """Return the next available records in one buffer; an empty batch if there are none yet."""
        is_reloaded = False
        while True:
            mark = self._read_mark()
            durable = mark.durable if mark else 0
            limit = self._limit(mark)
            if max(self._wanted, 1) > limit or not self._open_next(durable):
                return NOTHING
            passed = max(0, self._wanted - self._place.sequence)  # skip all at once, not chunk by chunk
            batch = self._take(limit, max(1, min(passed + rows_max, ROWS_MAX)))
            if batch is not None:
                if len(batch := self._wanted_of(batch)):
                    return batch
            elif self._place.sequence < self._end_sequence <= SEQUENCE_MAX - 1 or self._place.sequence <= durable:
                if is_reloaded:  # the record is not in the file that has this name now either
                    raise self._missing(durable)
                self.close()
                is_reloaded = True
            else:
                self._check_torn(durable)
                return NOTHING

    def _seek(self, sequence: int | None, time_ns: int | None) -> None:
        if sequence is not None and time_ns is not None:
            raise LocalProtocolError("from_sequence and from_time_ns exclude each other")
        if sequence is not None:
            self.seek(sequence)
        elif time_ns is not None:
            self.seek_time(time_ns)

    def _read_mark(self) -> Mark | None:
        """Read the mark; None if it belongs to another journal."""
        mark = self._source.read_mark()
        if mark is None or mark.journal_id == self._journal_id:
            return mark
        self.close()
        has_segment = self._open_next(mark.durable)  # its header identifies this journal
        self.close()  # until one of its records is readable, another segment may replace it
        return mark if not has_segment or mark.journal_id == self._journal_id else None

    def _limit(self, mark: Mark | None) -> int:
        """Return the newest readable record. If the machine was rebooted since, all valid records are readable, because
        they come from the disk.
        """
        is_known = mark is not None and mark.boot_id == self._run_id and mark.journal_id == self._journal_id
        return mark.durable if mark is not None and is_known else SEQUENCE_MAX

    def _open_next(self, durable: int) -> bool:
        """Open the segment of the next record; False if there is none yet.

        The end of the newest segment is unknown, so segments are listed again each time, after the mark was read: a
        segment that replaced the end of another one existed before any of its records was acknowledged.
        """
        if self._segment is not None and self._place.sequence < self._end_sequence < SEQUENCE_MAX:
            return True
        if not self._firsts or not self._firsts[0] <= self._wanted < self._firsts[-1]:
            self._list()
        firsts = self._firsts
        if not firsts:
            if durable:
                raise JournalCorruptError(
                    f"no segments exist, but records up to {durable} were on disk", where=self._where
                )
            return False
        if self._segment is not None:
            first = self._segment.header.first_sequence
            self._end_sequence = _next_first(firsts, first)
            # retention may have removed the open segment and the next one, so the end of the open one is unknown
            if first in firsts and self._place.sequence < self._end_sequence:
                return True
            self._leave()
        wanted = self._wanted or firsts[0]
        if wanted < firsts[0]:
            raise self._gone(wanted, firsts[0])
        first = firsts[bisect.bisect_right(firsts, wanted) - 1]
        self._segment = self._source.open_segment(first)
        if self._segment is None:
            self._firsts = []
            return self._open_next(durable)  # retention removed the segment meanwhile
        self._check_journal(self._segment.header)
        self._end_sequence = _next_first(firsts, first)
        self._place = self._nearest_place(self._segment.header)
        if self._place.sequence >= self._end_sequence:  # the next record is beyond the last one of the segment
            self._wanted = self._place.sequence
            return self._open_next(durable)
        return True

    def _list(self) -> None:
        self._firsts = self._source.first_sequences()
        for gone in [key for key in self._places if self._firsts and key[0] < self._firsts[0]]:
            del self._places[gone]

    def _nearest_place(self, header: SegmentHeader) -> _Place:
        places = self._places[header.first_sequence, header.nonce]
        if self._wanted_ns is not None:
            index = bisect.bisect_left(places, self._wanted_ns, key=lambda place: place.timestamp_ns) - 1
        else:
            index = bisect.bisect_right(places, self._wanted, key=lambda place: place.sequence) - 1
        return places[index] if index >= 0 else _Place(header.first_sequence, SEGMENT_HEADER_SIZE, 0)

    def _take(self, limit: int, rows_max: int) -> RecordBatch | None:
        """Return the records at the current position, up to `limit`; None if there is no valid one."""
        assert self._segment is not None
        sequence, offset, _ = self._place
        room = min(rows_max, self._end_sequence - sequence, limit - sequence + 1)
        data, count = self._scan(self._segment, offset, sequence, room)
        if limit == SEQUENCE_MAX:  # a writer may have started meanwhile, whose records may not be on disk
            limit = self._limit(self._source.read_mark())
            count = max(0, min(count, limit - sequence + 1))
        if count == 0:
            return None
        rows = self._rows[:count].copy()
        self._go_to(rows[-1], offset)
        return RecordBatch(data, rows)

    def _scan(self, segment: OpenSegment, offset: int, sequence: int, room: int) -> tuple[bytes, int]:
        """Read from a position and fill rows with the valid records; return the bytes read and the number of rows."""
        size = self._config.chunk_bytes
        while True:
            data = segment.read(offset, size)
            count, _, stop = scan(data, segment.header.nonce, sequence, self._rows[: max(0, room)])
            if count or stop != STOP_SHORT or len(data) < size or size >= RECORD_SPACE_MAX:
                return data, count
            size = RECORD_SPACE_MAX  # a record that is larger than a chunk

    def _go_to(self, last: numpy.void, chunk_offset: int) -> None:
        """Move behind record `last`, and remember the position for later seeks."""
        assert self._segment is not None
        end = int(last["offset"]) + int(last["size"])
        end += -end % RECORD_ALIGNMENT
        self._place = _Place(int(last["sequence"]) + 1, chunk_offset + end, int(last["timestamp_ns"]))
        header = self._segment.header
        places = self._places[header.first_sequence, header.nonce]
        if not places or self._place.offset >= places[-1].offset + self._config.chunk_bytes // 2:
            places.append(self._place)

    def _wanted_of(self, batch: RecordBatch) -> RecordBatch:
        """Drop the records before the requested one."""
        rows = batch.rows[max(0, self._wanted - int(batch.rows[0]["sequence"])) :]
        if self._wanted_ns is not None and len(rows):
            is_young = rows["timestamp_ns"] >= self._wanted_ns
            rows = rows[int(is_young.argmax()) :] if is_young.any() else rows[:0]
            if len(rows):
                self._wanted_ns = None
        self._wanted = max(self._wanted, self._place.sequence)
        return RecordBatch(batch.data, rows)

    # Error checks

    def _check_journal(self, header: SegmentHeader) -> None:
        if self._journal_id is None:
            self._journal_id = header.journal_id
        if header.journal_id != self._journal_id:
            name = segment_name(header.first_sequence)
            self.close()
            raise JournalError(
                "the segment belongs to another journal than the previous one", where=f"{self._where}/{name}"
            )

    def _check_torn(self, durable: int) -> None:
        """No valid record follows. This is normal after the newest record; raise an error if more records must
        exist.
        """
        assert self._segment is not None
        size = self._segment.size()
        if size > self._place.offset and self._torn != (self._place.offset, size):
            rest = self._segment.read(self._place.offset, size - self._place.offset)
            require_torn(rest, self._segment.header, self._place.sequence, durable, at=self._place.offset)
            self._torn = (self._place.offset, size)

    def _missing(self, durable: int) -> JournalCorruptError:
        header = self._segment.header.first_sequence if self._segment else 0
        last = min(self._end_sequence - 1, durable) if durable >= self._place.sequence else self._end_sequence - 1
        return JournalCorruptError(
            f"record {self._place.sequence} is damaged or missing, but records up to {last} must exist",
            where=f"{self._where}/{segment_name(header)} at byte {self._place.offset}",
            hint="run penstock journal verify for details",
        )

    def _gone(self, wanted: int, first: int) -> JournalGoneError:
        return JournalGoneError(
            f"record {wanted} is no longer kept; the oldest record is {first}",
            first_sequence=first,
            where=self._where,
            hint=f"read from {first} on",
        )


def _next_first(firsts: list[int], first: int) -> int:
    index = bisect.bisect_right(firsts, first)
    return firsts[index] if index < len(firsts) else SEQUENCE_MAX
