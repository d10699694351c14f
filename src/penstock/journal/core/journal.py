"""The journal's core: group commit, segments, retention, and handling of disk failures.

One batch at a time is written, synced and acknowledged. Meanwhile further records form the next batch, which needs one
write and one sync, whatever its number of records. Only records on disk are acknowledged.

After a failed sync, it is unknown which data is on disk, and a later successful sync proves nothing. The segment is
therefore not written again: its last batch goes to a new segment, and the old segment ends where the new one begins.
"""

import errno
from enum import Enum, auto

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND, NS_PER_US, Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Counters
from penstock.base.errors import JournalError, JournalFailedError, JournalFullError, LimitError, LocalProtocolError
from penstock.journal.config import JournalConfig
from penstock.journal.core._log import SEGMENT_HEADER_SIZE, RecordBuffer
from penstock.journal.core.events import (
    Acknowledged,
    Append,
    Close,
    Closed,
    Commit,
    CreateSegment,
    DiskFailed,
    Failed,
    InlineDone,
    InlinePlace,
    JournalEvent,
    JournalInstruction,
    Recovered,
    RemoveBefore,
    RemoveSegment,
    SegmentCreated,
    Sync,
    SyncDone,
    Troubled,
    Write,
    WriteDone,
)
from penstock.journal.core.format import SegmentHeader, encode_header
from penstock.journal.core.recovery import Recovery, Segment

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Phase(Enum):
    """What the current batch waits for."""

    IDLE = auto()
    CREATING = auto()
    WRITING = auto()
    SYNCING = auto()
    FULL = auto()  # space on the disk
    FAILED = auto()
    CLOSED = auto()


class Journal:
    """The core of a writer, starting from the result of recovery. `wall_ns` is the time of day at `now_ns`; segment
    ages and headers use the time of day.
    """

    def __init__(
        self,
        config: JournalConfig,
        recovery: Recovery,
        randomness: Randomness,
        counters: Counters,
        *,
        now_ns: int,
        wall_ns: int,
    ) -> None:
        self.durable_sequence = recovery.next_sequence - 1
        self.error: JournalError | None = None
        """The reason why appends are refused; None if they are not."""
        self._config = config
        self._journal_id = recovery.journal_id
        self._randomness = randomness
        self._counters = counters
        self._wall_offset_ns = wall_ns - now_ns
        self._segments = recovery.segments
        self._is_trusted = bool(recovery.segments) and not len(recovery.doubtful)
        self._gathering = recovery.doubtful
        self._batch = RecordBuffer(recovery.next_sequence)
        self._phase = _Phase.IDLE
        self._flush_ns: int | None = now_ns if len(recovery.doubtful) else None
        self._retry_ns = 0
        self._failures = 0
        self._is_closing = False

    @property
    def next_sequence(self) -> int:
        """Number of the next appended record."""
        return self._gathering.next_sequence

    @property
    def segments(self) -> list[Segment]:
        return self._segments

    @property
    def is_gathering_full(self) -> bool:
        """True if appends must wait for the disk."""
        return self._gathering.size >= self._config.gather_bytes_max

    def append(self, payload: Buffer, timestamp_ns: int, now_ns: int) -> int:
        """Append a record like handle(Append), without an event object; return its sequence number.

        Returns no instructions: the record is written when a batch ends, on Commit, or at its deadline.
        """
        if self.error is not None or self._is_closing or self._gathering.size >= self._config.gather_bytes_max:
            self._check_welcome()
        sequence = self._gathering.append(payload, timestamp_ns)
        if self._flush_ns is None:
            self._set_flush(now_ns)
        return sequence

    def append_rows(
        self,
        data: Buffer,
        offsets: NDArray[numpy.uint32],
        sizes: NDArray[numpy.uint32],
        timestamps_ns: NDArray[numpy.int64],
        now_ns: int,
    ) -> None:
        """Append records that are packed in memory."""
        self._check_welcome()
        self._gathering.append_rows(data, offsets, sizes, timestamps_ns)
        self._set_flush(now_ns)

    def _check_welcome(self) -> None:
        """Raise the error that prevents an append, if any."""
        if self.error is not None:
            raise self.error
        if self._is_closing:
            raise LocalProtocolError("the journal is closed")
        if self.is_gathering_full:
            raise LimitError(
                f"{self._gathering.size} bytes wait for the disk, above the limit of {self._config.gather_bytes_max}",
                hint="commit before appending more, or raise gather_bytes_max",
            )

    def _set_flush(self, now_ns: int) -> None:
        if self._flush_ns is None and len(self._gathering):
            self._flush_ns = now_ns + self._config.linger_us * NS_PER_US

    def handle(self, event: JournalEvent, now_ns: int) -> list[JournalInstruction]:
        match event:
            case Append(payloads, timestamp_ns):
                for payload in payloads:
                    self.append(payload, timestamp_ns, now_ns)
                return []
            case Commit():
                return self._begin(now_ns)
            case SegmentCreated():
                self._counters.add("segments_created")
                self._is_trusted = True
                return self._acknowledge(now_ns)
            case WriteDone():
                self._phase = _Phase.SYNCING
                return [Sync(self._segments[-1].first_sequence)]
            case SyncDone():
                return self._acknowledge(now_ns)
            case DiskFailed(number):
                return self._fail(number, now_ns)
            case InlineDone():
                return self._inline_done(event, now_ns)
            case Tick():
                return self._tick(now_ns)
            case RemoveBefore(sequence):
                return self._remove_before(sequence)
            case Close():
                self._is_closing = True
                return self._end() if not len(self._gathering) else self._begin(now_ns)
            case _:
                refuse(self, event)

    def next_deadline_ns(self) -> int | None:
        if self._phase not in (_Phase.IDLE, _Phase.FULL):
            return None
        next_ns = self._retry_ns if self._phase is _Phase.FULL else self._flush_ns
        return min((each for each in (next_ns, self._expiry_ns()) if each is not None), default=None)

    # Writing a batch

    def _begin(self, now_ns: int) -> list[JournalInstruction]:
        if self._phase is not _Phase.IDLE or not len(self._gathering):
            return []
        self._batch, self._gathering = self._gathering, self._batch
        self._gathering.clear(self._batch.next_sequence)
        self._flush_ns = None
        return self._place(now_ns)

    def _place(self, now_ns: int) -> list[JournalInstruction]:
        """Choose the segment for the batch."""
        if self._is_trusted:
            segment = self._segments[-1]
            is_empty = segment.size == SEGMENT_HEADER_SIZE
            if is_empty or segment.size + self._batch.size <= self._config.segment_bytes:
                return self._write()
        return self._create(now_ns)

    def _create(self, now_ns: int) -> list[JournalInstruction]:
        first = self._batch.first_sequence
        last = self._segments[-1] if self._segments else None
        previous_first = last.first_sequence if last else 0
        if last is not None and last.first_sequence == first:
            previous_first = (
                last.header.previous_first
            )  # none of its records was acknowledged: the new segment replaces it
            self._segments.pop()
        header = SegmentHeader(
            journal_id=self._journal_id,
            nonce=self._randomness.below(2**32),
            first_sequence=first,
            previous_first=previous_first,
            created_ns=now_ns + self._wall_offset_ns,
        )
        self._segments.append(Segment(header, SEGMENT_HEADER_SIZE))
        self._is_trusted = False
        self._phase = _Phase.CREATING
        self._batch.seal(header.nonce, self.durable_sequence)
        return [CreateSegment(first, encode_header(header), self._batch)]

    def _write(self) -> list[JournalInstruction]:
        segment = self._segments[-1]
        self._batch.seal(segment.header.nonce, self.durable_sequence)
        self._phase = _Phase.WRITING
        return [Write(segment.first_sequence, segment.size, self._batch)]

    def _acknowledge(self, now_ns: int) -> list[JournalInstruction]:
        self._count_written(len(self._batch), self._batch.size, syncs=1)
        self._phase = _Phase.IDLE
        instructions: list[JournalInstruction] = [Acknowledged(self.durable_sequence)]
        if self.error is not None:
            self.error = None
            instructions.append(Recovered())
        instructions += self._expire(now_ns)
        if len(self._gathering):
            instructions += self._begin(now_ns)
        elif self._is_closing:
            instructions += self._end()
        return instructions

    def _count_written(self, count: int, size: int, syncs: int) -> None:
        self._segments[-1].size += size
        self.durable_sequence += count
        self._counters.add("records_written", count)
        self._counters.add("syncs", syncs)
        self._failures = 0

    # Inline commit

    def inline_place(self) -> InlinePlace | None:
        """Return a place where records may be written one by one, until this core is given InlineDone; no other event
        may come before. None if other work is pending.
        """
        if self._phase is not _Phase.IDLE or not self._is_trusted or len(self._gathering):
            return None
        if self.error is not None or self._is_closing:
            return None
        segment = self._segments[-1]
        return InlinePlace(
            first_sequence=segment.first_sequence,
            nonce=segment.header.nonce,
            offset=segment.size,
            end=self._config.segment_bytes,
            next_sequence=self.next_sequence,
            batch=self._batch,
        )

    def _inline_done(self, done: InlineDone, now_ns: int) -> list[JournalInstruction]:
        instructions: list[JournalInstruction] = []
        if done.count:
            self._count_written(done.count, done.size, syncs=done.count)
            instructions = [Acknowledged(self.durable_sequence), *self._expire(now_ns)]
        if not done.errno:
            self._gathering.clear(self.durable_sequence + 1)
            return instructions
        self._gathering.clear(self._batch.next_sequence)
        self._phase = _Phase.SYNCING if done.is_written else _Phase.WRITING
        return instructions + self._fail(done.errno, now_ns)

    def _end(self) -> list[JournalInstruction]:
        if self._phase is not _Phase.IDLE:
            return []
        self._phase = _Phase.CLOSED
        return [Closed()]

    def _tick(self, now_ns: int) -> list[JournalInstruction]:
        if self._phase not in (_Phase.IDLE, _Phase.FULL):
            return []
        instructions = self._expire(now_ns)
        if self._phase is _Phase.FULL:
            instructions += self._place(now_ns) if now_ns >= self._retry_ns else []
        elif self._flush_ns is not None and now_ns >= self._flush_ns:
            instructions += self._begin(now_ns)
        return instructions

    # Failures

    def _fail(self, number: int, now_ns: int) -> list[JournalInstruction]:
        is_full = number in NO_SPACE
        self._counters.add("disk_failures", cause=errno.errorcode.get(number, str(number)))
        if self._phase is _Phase.SYNCING or not is_full:
            self._is_trusted = False
        where = self._segments[-1].name
        if self._phase is _Phase.CREATING:
            self._forget_new_segment()
        if is_full:
            return self._wait_for_room(where, now_ns)
        self._failures += 1
        if self._failures <= self._config.failures_max:
            return self._place(now_ns)
        name = errno.errorcode.get(number, number)
        return [
            Failed(self.abandon(f"the disk failed {self._failures} times in a row, most recently with {name}", where))
        ]

    def abandon(self, what: str, where: str) -> JournalError:
        """Stop writing permanently, because the state of the disk is unknown."""
        self._phase = _Phase.FAILED
        self.error = JournalFailedError(
            what,
            where=where,
            hint=f"records up to {self.durable_sequence} are safe; check the disk and reopen the journal",
        )
        return self.error

    def _forget_new_segment(self) -> None:
        """Forget a segment that could not be created; the next segment of the same name replaces any remains on
        disk.
        """
        self._segments.pop()

    def _wait_for_room(self, where: str, now_ns: int) -> list[JournalInstruction]:
        self._phase = _Phase.FULL
        self._retry_ns = now_ns + self._config.retry_ms * NS_PER_MS
        if self.error is not None:
            return []
        self.error = JournalFullError(
            f"the disk is full; {len(self._batch) + len(self._gathering)} records wait for space",
            where=where,
            hint="free space, or lower retention_bytes; the journal then resumes",
        )
        return [Troubled(self.error)]

    # Retention

    def _remove_before(self, sequence: int) -> list[JournalInstruction]:
        """Remove whole segments before this record, but never the newest."""
        removed: list[JournalInstruction] = []
        while self._has_spare_segment() and self._segments[1].first_sequence <= sequence:
            removed.append(self._remove_oldest())
        return removed

    def _expire(self, now_ns: int) -> list[JournalInstruction]:
        """Remove whole segments by total size and age; never the current one, nor the newest acknowledged records."""
        removed: list[JournalInstruction] = []
        while self._has_spare_segment() and (self._is_too_large() or self._is_too_old(now_ns)):
            removed.append(self._remove_oldest())
        return removed

    def _remove_oldest(self) -> RemoveSegment:
        self._counters.add("segments_removed")
        return RemoveSegment(self._segments.pop(0).first_sequence, oldest=self._segments[0].first_sequence)

    def _has_spare_segment(self) -> bool:
        return len(self._segments) > 1 and self._segments[1].first_sequence <= self.durable_sequence

    def _is_too_large(self) -> bool:
        limit = self._config.retention_bytes
        return limit > 0 and sum(segment.size for segment in self._segments) > limit

    def _is_too_old(self, now_ns: int) -> bool:
        expiry_ns = self._expiry_ns()
        return expiry_ns is not None and now_ns >= expiry_ns

    def _expiry_ns(self) -> int | None:
        """Return when the oldest segment exceeds its maximum age; a segment's end is the begin of the next one."""
        if not self._config.retention_seconds or not self._has_spare_segment():
            return None
        ended_ns = self._segments[1].header.created_ns - self._wall_offset_ns
        return ended_ns + self._config.retention_seconds * NS_PER_SECOND
