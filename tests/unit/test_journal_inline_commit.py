"""Inline commit: the segment in use is lent to the caller, and the core gets all of its records in one event."""

import errno
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from disk_kit import FULL, UNSYNCED, broken_disk
from penstock.base.counters import Counters
from penstock.base.errors import JournalFailedError, JournalFullError, LimitError
from penstock.journal import InlineWriter, JournalConfig, JournalReader, JournalWriter
from penstock.journal.core.events import InlineDone
from penstock.journal.core.journal import Journal
from penstock.journal.live.files import Directory, WritableDirectory
from penstock.journal.live.verify import inspect
from unit.journal_kit import read, segments
from waiting import PATIENCE_SECONDS, wait_until

PATIENT = JournalConfig(linger_us=1_000_000)
"""Records without a waiter are not written."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def begun(path: Path, config: JournalConfig = PATIENT, counters: Counters | None = None) -> JournalWriter:
    """A journal whose segment in use has preallocated space."""
    journal = JournalWriter.open(path, config, counters=counters)
    for payload in (b"first", b"second"):
        journal.append(payload)
        journal.commit()
    return journal


def alone(journal: JournalWriter, *payloads: bytes) -> list[bool]:
    """Per record, whether it is on the disk."""
    answers: list[bool] = []

    def work(writer: InlineWriter) -> None:
        answers.extend(writer.append(payload, 7) for payload in payloads)

    assert journal.inline_commit(work) is not None, "other work is pending"
    return answers


def payloads_of(path: Path) -> list[bytes]:
    """All records, which are numbered without a gap."""
    records = read(path)
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    return [record.payload for record in records]


def test_records_of_both_paths_are_read_in_order(path: Path) -> None:
    choice = random.Random(3)
    config = JournalConfig(segment_bytes=8_192, preallocate_bytes=2_000, linger_us=200)
    written: list[bytes] = []
    alone_count = 0
    for _ in range(3):
        with JournalWriter.open(path, config) as journal:
            for _ in range(150):
                payloads = [choice.randbytes(choice.randrange(400)) for _ in range(choice.randrange(1, 8))]
                if choice.random() < 0.5:
                    journal.commit()
                    done = alone(journal, *payloads) if journal._core.inline_place() else []
                    written += [payload for payload, is_done in zip(payloads, done, strict=False) if is_done]
                    alone_count += sum(done)
                else:
                    journal.append_batch(payloads)
                    written += payloads
                if choice.random() < 0.5:
                    assert journal.commit() == len(written) == journal.next_sequence - 1
        assert payloads_of(path) == written
    assert alone_count > 100
    assert len(segments(path)) > 5
    assert not any(report.problem for report in inspect(Directory(path)))


def test_lone_records_are_durable_and_reported_as_durable(path: Path) -> None:
    counters = Counters("journal")
    with begun(path, counters=counters) as journal:
        syncs = counters["syncs"]
        assert alone(journal, b"third", b"", b"fifth") == [True] * 3
        assert (journal.durable_sequence, journal.next_sequence) == (5, 6)
        assert counters["syncs"] == syncs + 3, "each has its own sync"
        assert counters["records_written"] == 5
        with JournalReader.open(path) as reader:
            assert [record.payload for record in reader.read()][2:] == [b"third", b"", b"fifth"]
        assert journal.when_durable(5).result(PATIENCE_SECONDS) == 5
        assert journal.commit(5) == 5
        assert journal.append(b"sixth") == 6
    assert payloads_of(path) == [b"first", b"second", b"third", b"", b"fifth", b"sixth"]


def test_each_record_confirms_that_the_previous_one_is_on_the_disk(path: Path) -> None:
    """So a damaged record is distinguished from one that was never acknowledged, whatever the mark says."""
    with begun(path) as journal:
        alone(journal, b"third", b"fourth")
    with JournalReader.open(path) as reader:
        assert reader.read_batch().rows["durable"].tolist() == [0, 1, 2, 3]


def test_a_caller_without_a_record_is_not_called(path: Path) -> None:
    with begun(path) as journal:
        before = (journal._directory.read_mark(), journal.next_sequence)
        assert journal.inline_commit(lambda writer: None) == 2
        assert (journal._directory.read_mark(), journal.next_sequence) == before


def test_without_space_in_the_segment_the_next_commit_creates_another(path: Path) -> None:
    with begun(path, JournalConfig(segment_bytes=4_096, linger_us=1_000_000)) as journal:
        answers = alone(journal, *[bytes(500)] * 10, b"little")
        assert answers == [True] * 7 + [False] * 3 + [True], "a record that fits is written"
        journal.append(bytes(500))
        assert journal.commit() == 11
        assert [int(segment.stem) for segment in segments(path)] == [1, 11]
        assert alone(journal, b"x") == [False], "nothing is allocated yet"
        journal.append(b"x")
        journal.commit()
        assert alone(journal, b"y") == [True]
    assert len(payloads_of(path)) == 13
    assert not any(report.problem for report in inspect(Directory(path)))


def test_without_preallocated_space_the_next_write_allocates_more(path: Path) -> None:
    with begun(path, JournalConfig(preallocate_bytes=1_000, linger_us=1_000_000)) as journal:
        assert alone(journal, *[bytes(400)] * 3) == [True, True, False]
        journal.append(bytes(400))
        journal.commit()
        assert alone(journal, *[bytes(400)] * 3) == [True, True, False]
    assert len(segments(path)) == 1
    assert len(payloads_of(path)) == 7


def test_a_journal_without_preallocation_is_written_to_the_segments_end(path: Path) -> None:
    with begun(path, JournalConfig(segment_bytes=4_096, preallocate_bytes=0, linger_us=1_000_000)) as journal:
        assert alone(journal, *[bytes(1_000)] * 4) == [True] * 3 + [False]
        journal.append(bytes(1_000))
        journal.commit()
        assert alone(journal, b"x") == [True]
    assert [int(segment.stem) for segment in segments(path)] == [1, 6]
    assert len(payloads_of(path)) == 7


def test_an_oversized_payload_is_refused_in_the_caller(path: Path) -> None:
    config = JournalConfig(segment_bytes=64 * 2**20, preallocate_bytes=32 * 2**20, linger_us=1_000_000)
    with begun(path, config) as journal:

        def work(writer: InlineWriter) -> None:
            writer.append(bytes(17 * 2**20), 7)

        with pytest.raises(LimitError):
            journal.inline_commit(work)
        assert alone(journal, b"x") == [True]
    assert payloads_of(path) == [b"first", b"second", b"x"]


def test_after_its_turn_a_caller_writes_nothing_more(path: Path) -> None:
    kept: list[InlineWriter] = []
    with begun(path) as journal:
        assert journal.inline_commit(kept.append) == 2
        journal.append(b"third")
        journal.commit()
        assert not kept[0].append(b"over it", 7)
    assert payloads_of(path) == [b"first", b"second", b"third"]


def test_an_error_of_the_caller_keeps_the_records_that_are_written(path: Path) -> None:
    with begun(path) as journal:

        def work(writer: InlineWriter) -> None:
            assert writer.append(b"third", 7)
            raise LookupError

        with pytest.raises(LookupError):
            journal.inline_commit(work)
        assert journal.durable_sequence == 3
        journal.append(b"fourth")
        assert journal.commit() == 4
        assert alone(journal, b"fifth") == [True]
    assert payloads_of(path) == [b"first", b"second", b"third", b"fourth", b"fifth"]


# Other pending work


def refused(writer: InlineWriter) -> None:
    pytest.fail("the journal is lent")


def test_the_journal_is_not_lent_while_records_are_appended_or_under_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_syncing, may_sync = threading.Event(), threading.Event()
    sync = WritableDirectory.sync

    def wait_and_sync(self: WritableDirectory, first_sequence: int) -> None:
        is_syncing.set()
        assert may_sync.wait(PATIENCE_SECONDS)
        sync(self, first_sequence)

    monkeypatch.setattr(Journal, "next_deadline_ns", lambda _: None)  # no commit without a waiter
    with begun(path) as journal, ThreadPoolExecutor() as threads:
        journal.append(b"third")
        assert journal.inline_commit(refused) is None, "it would overtake that record"
        monkeypatch.setattr(WritableDirectory, "sync", wait_and_sync)
        committed = threads.submit(journal.commit)
        assert is_syncing.wait(PATIENCE_SECONDS)
        assert journal.inline_commit(refused) is None
        may_sync.set()
        assert committed.result(PATIENCE_SECONDS) == 3
        assert alone(journal, b"fourth") == [True]
    assert payloads_of(path)[2:] == [b"third", b"fourth"]


def test_a_journal_without_a_segment_or_a_closed_one_is_not_lent(path: Path) -> None:
    with JournalWriter.open(path) as journal:
        assert journal.inline_commit(refused) is None
        journal.append(b"x")
    assert journal.inline_commit(refused) is None
    with JournalWriter.open(path) as journal:
        assert alone(journal, b"y") == [False], "the file has exactly the length of its records"
    assert payloads_of(path) == [b"x"]


def test_a_full_journal_is_not_lent_until_it_continues(path: Path) -> None:
    with begun(path, JournalConfig(retry_ms=10, linger_us=1_000_000)) as journal:
        with broken_disk(journal, FULL):
            assert alone(journal, b"third") == [False]
            assert journal.inline_commit(refused) is None
        wait_until(lambda: journal.durable_sequence == 3)
        assert alone(journal, b"fourth") == [True]


# The disk fails


def test_a_record_that_finds_the_disk_full_waits_for_space_at_its_position(path: Path) -> None:
    counters = Counters("journal")
    with begun(path, JournalConfig(retry_ms=10, linger_us=1_000_000), counters) as journal:
        assert alone(journal, b"third") == [True]
        with broken_disk(journal, FULL):
            assert alone(journal, b"fourth", b"fifth") == [False, False], "no record overtakes it"
            assert (journal.durable_sequence, journal.next_sequence) == (3, 5)
            assert len(read(path)) == 3
            with pytest.raises(JournalFullError):
                journal.commit()
            with pytest.raises(JournalFullError):
                journal.append(b"fifth")
            with pytest.raises(JournalFullError):
                journal.when_durable(4).result(PATIENCE_SECONDS)
        wait_until(lambda: journal.durable_sequence == 4)
        assert journal.append(b"fifth") == 5
    assert payloads_of(path)[2:] == [b"third", b"fourth", b"fifth"]
    assert len(segments(path)) == 1
    assert set(counters.by_cause("disk_failures")) == {"ENOSPC"}
    assert not any(report.problem for report in inspect(Directory(path)))


@pytest.mark.parametrize(("device", "flags", "cause"), [(UNSYNCED, os.O_RDWR, "EINVAL"), ("/", os.O_RDONLY, "EBADF")])
def test_after_a_failed_sync_or_write_the_record_goes_to_a_new_segment(
    path: Path, device: str, flags: int, cause: str
) -> None:
    """The null device accepts writes but cannot be synced; a file that is open for reading accepts no writes."""
    counters = Counters("journal")
    with begun(path, counters=counters) as journal:
        assert alone(journal, b"third") == [True]
        with broken_disk(journal, device, flags):
            assert alone(journal, b"fourth", b"fifth") == [False, False]
            assert journal.commit() == 4
        assert journal.append(b"fifth") == 5
        assert journal.commit() == 5
        assert alone(journal, b"sixth") == [True]
    assert payloads_of(path)[2:] == [b"third", b"fourth", b"fifth", b"sixth"]
    assert [int(segment.stem) for segment in segments(path)] == [1, 4]
    assert counters.by_cause("disk_failures") == {cause: 1}
    assert not any(report.problem for report in inspect(Directory(path)))


def test_a_disk_that_fails_permanently_ends_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "failed")

    journal = begun(path, JournalConfig(failures_max=1))
    with monkeypatch.context() as patch:
        patch.setattr(WritableDirectory, "create", fail)
        with broken_disk(journal, UNSYNCED):
            assert alone(journal, b"third") == [False]
        for call in (journal.commit, lambda: journal.append(b"x"), journal.close):
            with pytest.raises(JournalFailedError, match="records up to 2 are safe"):
                call()
    assert journal.inline_commit(refused) is None
    assert journal.durable_sequence == 2
    with JournalWriter.open(path) as journal:
        assert journal.append(b"third again") == 3
    assert payloads_of(path) == [b"first", b"second", b"third again"]


def test_the_writers_thread_continues_with_a_failed_record(path: Path) -> None:
    """No caller commits it."""
    with begun(path) as journal, broken_disk(journal, UNSYNCED):
        assert alone(journal, b"third") == [False]
        wait_until(lambda: journal.durable_sequence == 3)
    assert payloads_of(path)[2:] == [b"third"]


# Concurrent threads


def test_appends_of_other_threads_wait_and_are_not_lost(path: Path) -> None:
    rounds = 100
    turns = threading.Semaphore(0)
    counts = dict.fromkeys(range(3), 0)

    def append(thread: int) -> None:
        for _ in range(rounds):
            assert turns.acquire(timeout=PATIENCE_SECONDS)
            sequence = journal.append(b"%d/%d" % (thread, counts[thread]))
            counts[thread] += 1
            if counts[thread] % 2:
                assert journal.commit(sequence) >= sequence
            else:
                assert journal.when_durable(sequence).result(PATIENCE_SECONDS) >= sequence

    def work(writer: InlineWriter) -> None:
        turns.release(2)  # to append while the journal is lent
        while counts[0] % 5 != 4 and writer.append(b"0/%d" % counts[0], 7):
            counts[0] += 1
        counts[0] += writer.append(b"0/%d" % counts[0], 7)

    with begun(path, JournalConfig(linger_us=0)) as journal, ThreadPoolExecutor() as threads:
        others = [threads.submit(append, thread) for thread in (1, 2)]
        for _ in range(rounds):
            wait_until(lambda: journal.inline_commit(work) is not None, "the others to be done")
        for other in others:
            other.result(PATIENCE_SECONDS)
    found: dict[int, list[int]] = {thread: [] for thread in counts}
    for payload in payloads_of(path)[2:]:
        thread, number = map(int, payload.split(b"/"))
        found[thread].append(number)
    assert found == {thread: list(range(count)) for thread, count in counts.items()}
    assert counts[0] == 5 * rounds
    assert counts[1] == counts[2] == rounds


def test_an_append_waits_until_the_journal_is_returned(path: Path) -> None:
    with begun(path) as journal, ThreadPoolExecutor() as threads:

        def work(writer: InlineWriter) -> None:
            submitted.append(threads.submit(journal.append, b"other"))
            assert writer.append(b"third", 7)
            assert writer.append(b"fourth", 7)

        submitted: list[Any] = []
        journal.inline_commit(work)
        assert submitted[0].result(PATIENCE_SECONDS) == 5
    assert payloads_of(path)[2:] == [b"third", b"fourth", b"other"]


def test_retention_continues(path: Path) -> None:
    config = JournalConfig(segment_bytes=4_096, retention_bytes=9_000, preallocate_bytes=4_096)
    with begun(path, config) as journal:
        for number in range(3, 201):
            if journal.inline_commit(lambda writer: None) is None or alone(journal, bytes(300)) == [False]:
                journal.append(bytes(300))
                journal.commit()
            assert journal.durable_sequence == number
        wait_until(lambda: journal._core.segments[0].first_sequence == int(segments(path)[0].stem))
        assert len(segments(path)) <= 3
    with JournalReader.open(path) as reader:
        sequences = [record.sequence for record in reader.read(from_sequence=reader.first_sequence)]
    assert sequences == list(range(sequences[0], 201))
    assert sequences[0] > 100


def test_segments_are_removed_while_records_come_alone(path: Path) -> None:
    with begun(path, JournalConfig(segment_bytes=4_096, linger_us=1_000_000)) as journal:
        alone(journal, *[bytes(500)] * 7)
        journal.append(bytes(500))
        journal.commit()
        journal.remove_before(journal.next_sequence)
        wait_until(lambda: [int(each.stem) for each in segments(path)] == [10])
        journal.append(b"x")
        journal.commit()
        assert alone(journal, b"y") == [True]
    with JournalReader.open(path) as reader:
        assert [record.sequence for record in reader.read(from_sequence=10)] == [10, 11, 12]


def test_an_interrupt_before_the_core_has_the_result_ends_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C: otherwise the next record would get the number and the position of a record that is on the disk."""
    journal = begun(path)

    def interrupted(self: WritableDirectory, written: InlineWriter) -> InlineDone:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WritableDirectory, "inline_done", interrupted)
        with pytest.raises(KeyboardInterrupt):
            alone(journal, b"third")
    for call in (lambda: journal.append(b"x"), journal.close):
        with pytest.raises(JournalFailedError, match="interrupted"):
            call()
    with JournalWriter.open(path) as journal:
        assert journal.append(b"fourth") == 4
    assert payloads_of(path)[2:] == [b"third", b"fourth"]
