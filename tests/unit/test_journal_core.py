"""The journal's core, event by event."""

import errno

import pytest

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import JournalFailedError, JournalFullError, LimitError, LocalProtocolError
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
from penstock.journal.core.format import decode_header
from penstock.journal.core.journal import Journal
from penstock.journal.core.recovery import Recovery

RECORD = 40  # bytes of a record with a payload of up to 8


class Ones:
    def below(self, limit: int) -> int:
        return 1


class Driven:
    """A core, its time, and its last instructions."""

    def __init__(self, **config: int) -> None:
        empty = Recovery(journal_id=bytes(16), segments=[], next_sequence=1, truncate_at=None, doubtful=RecordBuffer(1))
        self.counters = Counters("journal")
        self.now_ns = 0
        self.core = Journal(JournalConfig(**config), empty, Ones(), self.counters, now_ns=0, wall_ns=NS_PER_SECOND)

    def tell(self, *events: object) -> list[object]:
        said: list[object] = []
        for event in events:
            said = list(self.core.handle(event, self.now_ns))  # type: ignore[arg-type]
        return said

    def append(self, count: int = 1) -> None:
        assert self.tell(Append([b"x"] * count, 7)) == []

    def begin(self) -> None:
        """The core with its first segment, which has one record."""
        self.append()
        self.tell(Commit(), SegmentCreated())
        assert self.core.durable_sequence == 1


def test_a_record_becomes_durable_step_by_step() -> None:
    driven = Driven()
    driven.append()
    (create,) = driven.tell(Commit())
    assert isinstance(create, CreateSegment)
    header = decode_header(create.header, where="")
    assert (header.first_sequence, header.previous_first, header.created_ns) == (1, 0, NS_PER_SECOND)
    assert len(create.data) == 1, "a segment is created with its first records"
    assert driven.core.durable_sequence == 0
    assert driven.tell(SegmentCreated()) == [Acknowledged(1)]
    driven.append(2)
    (write,) = driven.tell(Commit())
    assert isinstance(write, Write)
    assert (write.first_sequence, write.offset, len(write.data)) == (1, SEGMENT_HEADER_SIZE + RECORD, 2)
    assert driven.tell(WriteDone()) == [Sync(1)]
    assert driven.core.durable_sequence == 1
    assert driven.tell(SyncDone()) == [Acknowledged(3)]
    assert driven.core.durable_sequence == 3


def test_records_that_arrive_during_a_sync_share_the_next_one() -> None:
    driven = Driven()
    driven.begin()
    driven.append()
    driven.tell(Commit(), WriteDone())
    driven.append(100)
    assert driven.tell(Commit()) == [], "one batch at a time"
    acknowledged, write = driven.tell(SyncDone())
    assert acknowledged == Acknowledged(2)
    assert isinstance(write, Write)
    assert len(write.data) == 100
    assert driven.tell(WriteDone()) == [Sync(1)]
    assert driven.tell(SyncDone()) == [Acknowledged(102)]
    assert driven.counters["syncs"] == 3


def test_a_record_without_a_waiter_is_written_after_the_linger_time() -> None:
    driven = Driven(linger_us=5_000)
    driven.now_ns = NS_PER_MS
    driven.append()
    assert driven.core.next_deadline_ns() == 6 * NS_PER_MS
    driven.now_ns = 6 * NS_PER_MS - 1
    assert driven.tell(Tick()) == []
    driven.now_ns += 1
    assert isinstance(driven.tell(Tick())[0], CreateSegment)
    assert driven.core.next_deadline_ns() is None, "only the disk's answer can change it"


def test_a_new_segment_begins_when_the_batch_does_not_fit() -> None:
    driven = Driven(segment_bytes=4_096)
    driven.begin()
    driven.append((4_096 - SEGMENT_HEADER_SIZE) // RECORD - 1)
    assert isinstance(driven.tell(Commit())[0], Write)
    driven.tell(WriteDone(), SyncDone())
    driven.append()
    (create,) = driven.tell(Commit())
    assert isinstance(create, CreateSegment)
    assert decode_header(create.header, where="").previous_first == 1


@pytest.mark.parametrize("phase", ["write", "sync"])
def test_after_an_io_error_the_batch_goes_to_a_new_segment(phase: str) -> None:
    driven = Driven()
    driven.begin()
    driven.append(3)
    driven.tell(Commit())
    if phase == "sync":
        driven.tell(WriteDone())
    (create,) = driven.tell(DiskFailed(errno.EIO))
    assert isinstance(create, CreateSegment)
    assert create.first_sequence == 2, "the old segment ends there"
    assert len(create.data) == 3
    assert driven.tell(SegmentCreated()) == [Acknowledged(4)]


def test_a_segment_without_acknowledged_records_is_replaced() -> None:
    driven = Driven()
    driven.begin()
    driven.append()
    driven.tell(Commit(), DiskFailed(errno.EIO))
    (create,) = driven.tell(DiskFailed(errno.EIO))
    assert isinstance(create, CreateSegment)
    assert create.first_sequence == 2
    assert decode_header(create.header, where="").previous_first == 1
    assert [segment.first_sequence for segment in driven.core.segments] == [1, 2]


def test_a_disk_that_fails_repeatedly_ends_the_journal() -> None:
    driven = Driven(failures_max=2)
    driven.begin()
    driven.append()
    driven.tell(Commit(), DiskFailed(errno.EIO), DiskFailed(errno.EIO))
    (failed,) = driven.tell(DiskFailed(errno.EIO))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, JournalFailedError)
    with pytest.raises(JournalFailedError, match="records up to 1 are safe"):
        driven.append()
    assert driven.core.durable_sequence == 1
    assert driven.tell(Commit()) == driven.tell(Tick()) == []
    assert driven.counters.by_cause("disk_failures") == {"EIO": 3}


def test_a_full_disk_is_retried_at_the_same_position() -> None:
    driven = Driven(retry_ms=50)
    driven.begin()
    driven.append(2)
    (first,) = driven.tell(Commit())
    (troubled,) = driven.tell(DiskFailed(errno.ENOSPC))
    assert isinstance(troubled, Troubled)
    with pytest.raises(JournalFullError):
        driven.append()
    assert driven.core.next_deadline_ns() == 50 * NS_PER_MS
    driven.now_ns = 50 * NS_PER_MS
    (again,) = driven.tell(Tick())
    assert isinstance(first, Write)
    assert isinstance(again, Write)
    assert (again.first_sequence, again.offset) == (first.first_sequence, first.offset)
    assert driven.tell(DiskFailed(errno.ENOSPC)) == [], "reported once"
    driven.now_ns = 100 * NS_PER_MS
    driven.tell(Tick(), WriteDone())
    assert driven.tell(SyncDone()) == [Acknowledged(3), Recovered()]
    driven.append()


def test_a_sync_that_finds_the_disk_full_is_a_failed_sync() -> None:
    driven = Driven()
    driven.begin()
    driven.append()
    driven.tell(Commit(), WriteDone(), DiskFailed(errno.ENOSPC))
    driven.now_ns = NS_PER_SECOND
    assert isinstance(driven.tell(Tick())[0], CreateSegment)


def test_the_batch_is_bounded() -> None:
    driven = Driven(gather_bytes_max=4_096)
    driven.append(103)
    assert driven.core.is_gathering_full
    with pytest.raises(LimitError, match="gather_bytes_max"):
        driven.append()


def test_retention_by_size_keeps_the_segment_in_use() -> None:
    driven = Driven(segment_bytes=4_096, retention_bytes=9_000)
    removed = []
    for _ in range(6):
        driven.append(90)
        (said,) = driven.tell(Commit())
        assert isinstance(said, CreateSegment)
        removed += driven.tell(SegmentCreated())[1:]
    assert removed == [RemoveSegment(first, oldest=first + 90) for first in (1, 91, 181, 271)]
    assert [segment.first_sequence for segment in driven.core.segments] == [361, 451]


def test_records_that_are_not_needed_are_removed_in_whole_segments() -> None:
    driven = Driven(segment_bytes=4_096)
    for _ in range(3):
        driven.append(100)
        driven.tell(Commit(), SegmentCreated())
    assert [segment.first_sequence for segment in driven.core.segments] == [1, 101, 201]
    assert driven.tell(RemoveBefore(100)) == []
    assert driven.tell(RemoveBefore(150)) == [RemoveSegment(1, oldest=101)]
    assert driven.tell(RemoveBefore(10**6)) == [RemoveSegment(101, oldest=201)]  # the newest one stays
    assert driven.tell(RemoveBefore(10**6)) == []


def test_retention_by_age_counts_from_the_end_of_a_segment() -> None:
    driven = Driven(segment_bytes=4_096, retention_seconds=10)
    for second in (0, 5):
        driven.now_ns = second * NS_PER_SECOND
        driven.append(100)
        driven.tell(Commit(), SegmentCreated())
    assert driven.core.next_deadline_ns() == 15 * NS_PER_SECOND
    driven.now_ns = 15 * NS_PER_SECOND
    assert driven.tell(Tick()) == [RemoveSegment(1, oldest=101)]
    assert driven.core.next_deadline_ns() is None


def test_retention_continues_while_the_disk_is_full() -> None:
    """Retention may free the space."""
    driven = Driven(segment_bytes=4_096, retention_seconds=10, retry_ms=3_600_000)
    for _ in range(2):
        driven.append(100)
        driven.tell(Commit(), SegmentCreated())
    driven.append(100)
    driven.tell(Commit(), DiskFailed(errno.ENOSPC))
    assert driven.core.next_deadline_ns() == 10 * NS_PER_SECOND
    driven.now_ns = 10 * NS_PER_SECOND
    assert driven.tell(Tick()) == [RemoveSegment(1, oldest=101)]
    assert driven.core.next_deadline_ns() == 3_600 * NS_PER_SECOND
    driven.now_ns = 3_600 * NS_PER_SECOND
    assert isinstance(driven.tell(Tick())[0], CreateSegment)


def test_close_waits_for_appended_records() -> None:
    driven = Driven()
    driven.append()
    assert isinstance(driven.tell(Close())[0], CreateSegment)
    with pytest.raises(LocalProtocolError, match="closed"):
        driven.append()
    assert driven.tell(SegmentCreated()) == [Acknowledged(1), Closed()]
    assert Driven().tell(Close()) == [Closed()]


# Records that come one at a time


def lend(driven: Driven) -> InlinePlace:
    place = driven.core.inline_place()
    assert place is not None
    return place


def fill(place: InlinePlace, count: int) -> None:
    """Handle the place's batch like a writer whose record after `count` others fails."""
    place.batch.clear(place.next_sequence + count)
    place.batch.append(b"x", 7)
    place.batch.seal(place.nonce, place.next_sequence + count - 1)


def test_the_place_of_lone_records_is_after_the_last_record() -> None:
    driven = Driven(segment_bytes=8_192)
    assert driven.core.inline_place() is None, "there is no segment"
    driven.begin()
    place = lend(driven)
    assert (place.first_sequence, place.next_sequence) == (1, 2)
    assert (place.offset, place.end) == (SEGMENT_HEADER_SIZE + RECORD, 8_192)
    assert driven.tell(InlineDone(3, 3 * RECORD)) == [Acknowledged(4)]
    assert driven.core.durable_sequence == 4
    assert driven.counters["records_written"] == driven.counters["syncs"] == 4
    place = lend(driven)
    assert (place.next_sequence, place.offset) == (5, SEGMENT_HEADER_SIZE + 4 * RECORD)
    driven.append()
    (write,) = driven.tell(Commit())
    assert isinstance(write, Write)
    assert (write.offset, write.data.first_sequence) == (place.offset, 5)
    driven.tell(WriteDone())
    assert driven.tell(SyncDone()) == [Acknowledged(5)]


def test_an_empty_inline_commit_changes_nothing() -> None:
    driven = Driven()
    driven.begin()
    before = lend(driven)
    assert driven.tell(InlineDone(0, 0)) == []
    assert lend(driven) == before
    assert driven.counters["syncs"] == 1


def test_there_is_no_place_for_lone_records_while_other_work_is_pending() -> None:
    driven = Driven()
    driven.begin()
    driven.append()
    assert driven.core.inline_place() is None, "another record was appended before"
    for event in (Commit(), WriteDone()):
        driven.tell(event)
        assert driven.core.inline_place() is None
    driven.tell(SyncDone())
    assert driven.core.inline_place() is not None
    driven.append()
    driven.tell(Commit(), DiskFailed(errno.EIO))
    assert driven.core.inline_place() is None, "the new segment does not exist yet"
    driven.tell(SegmentCreated())
    assert driven.core.inline_place() is not None
    driven.append()
    driven.tell(Commit(), DiskFailed(errno.ENOSPC))
    assert driven.core.inline_place() is None
    driven.now_ns = NS_PER_SECOND
    driven.tell(Tick(), WriteDone(), SyncDone())
    assert driven.core.inline_place() is not None
    driven.tell(Close())
    assert driven.core.inline_place() is None


@pytest.mark.parametrize(
    ("number", "is_written"),
    [(errno.EIO, False), (errno.EIO, True), (errno.EDQUOT, True)],
    ids=["write", "sync", "room"],
)
@pytest.mark.parametrize("count", [0, 2])
def test_a_lone_record_that_fails_goes_to_a_new_segment(count: int, number: int, is_written: bool) -> None:
    driven = Driven()
    driven.begin()
    fill(lend(driven), count)
    said = driven.tell(InlineDone(count, count * RECORD, number, is_written=is_written))
    if number == errno.EDQUOT:
        assert isinstance(said.pop(), Troubled)
        driven.now_ns = NS_PER_SECOND
        said += driven.tell(Tick())
    assert said[:-1] == ([Acknowledged(1 + count)] if count else [])
    create = said[-1]
    assert isinstance(create, CreateSegment)
    assert (create.first_sequence, len(create.data)) == (2 + count, 1)
    assert decode_header(create.header, where="").previous_first == 1
    assert driven.core.durable_sequence == 1 + count
    assert driven.core.next_sequence == 3 + count, "the number of the failed record is used"
    assert Acknowledged(2 + count) in driven.tell(SegmentCreated())
    assert lend(driven).next_sequence == 3 + count


def test_a_lone_record_that_finds_the_disk_full_is_retried_at_its_position() -> None:
    driven = Driven(retry_ms=50)
    driven.begin()
    fill(lend(driven), 1)
    acknowledged, troubled = driven.tell(InlineDone(1, RECORD, errno.ENOSPC))
    assert acknowledged == Acknowledged(2)
    assert isinstance(troubled, Troubled)
    with pytest.raises(JournalFullError):
        driven.append()
    driven.now_ns = 50 * NS_PER_MS
    (again,) = driven.tell(Tick())
    assert isinstance(again, Write)
    assert (again.offset, again.data.first_sequence, len(again.data)) == (SEGMENT_HEADER_SIZE + 2 * RECORD, 3, 1)
    driven.tell(WriteDone())
    assert driven.tell(SyncDone()) == [Acknowledged(3), Recovered()]


def test_lone_records_between_failures_reset_the_count_of_failures() -> None:
    driven = Driven(failures_max=1)
    driven.begin()
    for _ in range(3):
        place = lend(driven)
        fill(place, 1)
        said = driven.tell(InlineDone(1, RECORD, errno.EIO, is_written=True))
        assert isinstance(said[-1], CreateSegment)
        driven.tell(SegmentCreated())
    fill(lend(driven), 0)
    driven.tell(InlineDone(0, 0, errno.EIO))
    (failed,) = driven.tell(DiskFailed(errno.EIO))
    assert isinstance(failed, Failed)
    assert driven.core.inline_place() is None


def test_retention_sees_lone_records() -> None:
    driven = Driven(segment_bytes=4_096, retention_bytes=5_000)
    for _ in range(2):
        driven.append(60)
        driven.tell(Commit(), SegmentCreated())
    assert driven.tell(InlineDone(10, 10 * RECORD)) == [Acknowledged(130), RemoveSegment(1, oldest=61)]


def test_an_event_for_another_core_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="does not accept event int"):
        Driven().tell(3)
