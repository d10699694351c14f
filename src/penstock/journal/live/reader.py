"""Reading a journal, by sequence number or by time, and following its writer from another process.

    with JournalReader.open("trades.d") as journal:
        for sequence, timestamp_ns, payload in journal.read(from_sequence=1_000): ...
        for record in journal.follow(): ...          # goes on, and waits for what is written next

A reader sees only records that are on the disk, so none that it has shown can vanish in a crash. How far that is says
the mark, which the writer renews after every sync (protocol/journal.md). Without a writer since the machine was
started, what is in the files has come from the disk.
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
"""Records in one batch at most."""


class OpenSegment(Protocol):
    header: SegmentHeader

    def read(self, offset: int, size: int) -> bytes: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class Source(Protocol):
    """Where a reader finds a journal: a directory, or the simulator's."""

    def first_sequences(self) -> list[int]: ...
    def open_segment(self, first_sequence: int) -> OpenSegment | None: ...
    def read_mark(self) -> Mark | None: ...


class _Place(NamedTuple):
    """Where a record begins in a segment, and the newest time before it."""

    sequence: int
    offset: int
    timestamp_ns: int


class JournalReader:
    """Reads forwards from a place; made by open()."""

    def __init__(self, source: Source, run_id: bytes, config: FollowConfig, where: str) -> None:
        self._source = source
        self._run_id = run_id
        self._config = config
        self._where = where
        self._wanted = 0
        """The record to show next; 0 for the oldest there is."""
        self._wanted_ns: int | None = None
        """Records older than this are not shown, up to the first that is not."""
        self._firsts: list[int] = []
        """Of the segments, as they were listed; where one of them ends stays so as soon as another one follows it."""
        self._segment: OpenSegment | None = None
        self._end_sequence = SEQUENCE_MAX  # of the open segment: where the next one begins
        self._place = _Place(0, 0, 0)
        self._places: dict[tuple[int, int], list[_Place]] = defaultdict(list)
        """Of each segment, some places that were met while reading: the index. It is remembered, never stored."""
        self._rows = numpy.empty(ROWS_MAX, RECORD_DTYPE)
        self._torn = (0, 0)
        self._journal_id: bytes | None = None

    @classmethod
    def open(cls, path: Path | str, config: FollowConfig | None = None) -> Self:
        """Open the journal in the directory `path`; it need not have a writer."""
        source = Directory(Path(path))
        source.first_sequences()  # a directory that cannot be read is better refused now
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

    # Where to read

    @property
    def first_sequence(self) -> int:
        """Of the oldest record that is kept; 1 while there is none."""
        firsts = self._source.first_sequences()
        return firsts[0] if firsts else 1

    @property
    def next_sequence(self) -> int:
        """Of the record that is shown next, if it is known; 0 for the oldest there is."""
        return self._wanted

    def seek(self, sequence: int) -> None:
        """Go on with record `sequence`, which may be yet to come; JournalGoneError when it is no longer kept."""
        if not 1 <= sequence <= SEQUENCE_MAX:
            raise LocalProtocolError(f"records are numbered from 1 to {SEQUENCE_MAX}, there is no {sequence}")
        firsts = self._source.first_sequences()
        if firsts and sequence < firsts[0]:
            raise self._gone(sequence, firsts[0])
        self.close()
        self._wanted, self._wanted_ns = sequence, None

    def next_segment(self, sequence: int, default: int) -> int:
        """The first record of the first file that begins after this one: for whoever gives up a damaged one."""
        return next((first for first in self._source.first_sequences() if first > sequence), default)

    def find_end(self) -> int:
        """The number of the record after the newest that may be shown; the reader is there afterwards."""
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
        """Go on with the first record that is not older; times are taken to grow with the sequence numbers."""
        self.close()
        firsts = self._source.first_sequences()
        older = bisect.bisect_left(firsts, True, key=lambda first: self._begins_at(first, timestamp_ns))
        self._wanted = firsts[max(0, older - 1)] if firsts else 0
        self._wanted_ns = timestamp_ns

    def _begins_at(self, first_sequence: int, timestamp_ns: int) -> bool:
        """Whether the segment's first record is not older than this; one without a record has nothing older."""
        segment = self._source.open_segment(first_sequence)
        if segment is None:
            return False  # gone meanwhile: it was old
        try:
            _, count = self._scan(segment, SEGMENT_HEADER_SIZE, first_sequence, 1)
            return not count or bool(self._rows[0]["timestamp_ns"] >= timestamp_ns)
        finally:
            segment.close()

    # Reading

    def read(self, *, from_sequence: int | None = None, from_time_ns: int | None = None) -> Iterator[Record]:
        """The records from a place, or from where the reader is, up to the newest; then it ends."""
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
        """The same, without an end: it waits for records to come. `is_over` is asked while it waits."""
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
        """The next records that are there, in one buffer; an empty batch when there is none yet."""
        is_reloaded = False
        while True:
            mark = self._read_mark()
            durable = mark.durable if mark else 0
            limit = self._limit(mark)
            if max(self._wanted, 1) > limit or not self._open_next(durable):
                return NOTHING
            passed = max(0, self._wanted - self._place.sequence)  # all at once, and not a chunk for each
            batch = self._take(limit, max(1, min(passed + rows_max, ROWS_MAX)))
            if batch is not None:
                if len(batch := self._wanted_of(batch)):
                    return batch
            elif self._place.sequence < self._end_sequence <= SEQUENCE_MAX - 1 or self._place.sequence <= durable:
                if is_reloaded:  # it ought to be here, and it is not in the file that has its name now either
                    raise self._missing(durable)
                self.close()
                is_reloaded = True
            else:
                self._check_torn(durable)
                return NOTHING

    def _seek(self, sequence: int | None, time_ns: int | None) -> None:
        if sequence is not None and time_ns is not None:
            raise LocalProtocolError("from_sequence and from_time_ns are two different places")
        if sequence is not None:
            self.seek(sequence)
        elif time_ns is not None:
            self.seek_time(time_ns)

    def _read_mark(self) -> Mark | None:
        """The mark, if it is this journal's: another one's says nothing about these records."""
        mark = self._source.read_mark()
        if mark is None or mark.journal_id == self._journal_id:
            return mark
        self.close()
        has_segment = self._open_next(mark.durable)  # its header says which journal this is
        self.close()  # as long as nothing in it may be shown, another segment may take its place
        return mark if not has_segment or mark.journal_id == self._journal_id else None

    def _limit(self, mark: Mark | None) -> int:
        """The newest record that may be shown. Of a run of the machine that is over, all good ones: they were read
        from the disk."""
        is_known = mark is not None and mark.boot_id == self._run_id and mark.journal_id == self._journal_id
        return mark.durable if mark is not None and is_known else SEQUENCE_MAX

    def _open_next(self, durable: int) -> bool:
        """Have the segment open that has the next record; False when there is none yet.

        Of the newest segment the end is not known. So they are listed anew each time, after the mark was read: a
        segment that took the place of another's end was there before anything in it was acknowledged.
        """
        if self._segment is not None and self._place.sequence < self._end_sequence < SEQUENCE_MAX:
            return True
        if not self._firsts or not self._firsts[0] <= self._wanted < self._firsts[-1]:
            self._list()
        firsts = self._firsts
        if not firsts:
            if durable:
                raise JournalCorruptError(
                    f"no segments, but records up to {durable} were on the disk", where=self._where
                )
            return False
        if self._segment is not None:
            first = self._segment.header.first_sequence
            self._end_sequence = _next_first(firsts, first)
            # retention may have removed the open segment and the next one: then nothing says where it ends
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
            return self._open_next(durable)  # retention was quicker
        self._check_journal(self._segment.header)
        self._end_sequence = _next_first(firsts, first)
        self._place = self._nearest_place(self._segment.header)
        if self._place.sequence >= self._end_sequence:  # what is wanted is not even in its last record
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
        """The records at the reader's place, up to `limit`; None when there is no good one."""
        assert self._segment is not None
        sequence, offset, _ = self._place
        room = min(rows_max, self._end_sequence - sequence, limit - sequence + 1)
        data, count = self._scan(self._segment, offset, sequence, room)
        if limit == SEQUENCE_MAX:  # a writer may have come meanwhile, and what it has written may not be on the disk
            limit = self._limit(self._source.read_mark())
            count = max(0, min(count, limit - sequence + 1))
        if count == 0:
            return None
        rows = self._rows[:count].copy()
        self._go_to(rows[-1], offset)
        return RecordBatch(data, rows)

    def _scan(self, segment: OpenSegment, offset: int, sequence: int, room: int) -> tuple[bytes, int]:
        """Read from a place, and fill rows with the good records there; returns what was read, and their number."""
        size = self._config.chunk_bytes
        while True:
            data = segment.read(offset, size)
            count, _, stop = scan(data, segment.header.nonce, sequence, self._rows[: max(0, room)])
            if count or stop != STOP_SHORT or len(data) < size or size >= RECORD_SPACE_MAX:
                return data, count
            size = RECORD_SPACE_MAX  # one record that is longer than a chunk

    def _go_to(self, last: numpy.void, chunk_offset: int) -> None:
        """The place behind the record `last`; remembered, for the next one who looks for something near."""
        assert self._segment is not None
        end = int(last["offset"]) + int(last["size"])
        end += -end % RECORD_ALIGNMENT
        self._place = _Place(int(last["sequence"]) + 1, chunk_offset + end, int(last["timestamp_ns"]))
        header = self._segment.header
        places = self._places[header.first_sequence, header.nonce]
        if not places or self._place.offset >= places[-1].offset + self._config.chunk_bytes // 2:
            places.append(self._place)

    def _wanted_of(self, batch: RecordBatch) -> RecordBatch:
        """Without the records before the one that was asked for."""
        rows = batch.rows[max(0, self._wanted - int(batch.rows[0]["sequence"])) :]
        if self._wanted_ns is not None and len(rows):
            is_young = rows["timestamp_ns"] >= self._wanted_ns
            rows = rows[int(is_young.argmax()) :] if is_young.any() else rows[:0]
            if len(rows):
                self._wanted_ns = None
        self._wanted = max(self._wanted, self._place.sequence)
        return RecordBatch(batch.data, rows)

    # What can be wrong

    def _check_journal(self, header: SegmentHeader) -> None:
        if self._journal_id is None:
            self._journal_id = header.journal_id
        if header.journal_id != self._journal_id:
            name = segment_name(header.first_sequence)
            self.close()
            raise JournalError("belongs to another journal than the segment before", where=f"{self._where}/{name}")

    def _check_torn(self, durable: int) -> None:
        """Nothing good follows. Beyond the newest record that is well; if there was more, say so."""
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
            f"record {self._place.sequence} is damaged or missing, though there must be records up to {last}",
            where=f"{self._where}/{segment_name(header)} at byte {self._place.offset}",
            hint="penstock journal verify says more",
        )

    def _gone(self, wanted: int, first: int) -> JournalGoneError:
        return JournalGoneError(
            f"record {wanted} is no longer kept, the oldest is {first}",
            first_sequence=first,
            where=self._where,
            hint=f"read from {first} on",
        )


def _next_first(firsts: list[int], first: int) -> int:
    index = bisect.bisect_right(firsts, first)
    return firsts[index] if index < len(firsts) else SEQUENCE_MAX
