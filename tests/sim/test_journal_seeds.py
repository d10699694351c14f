"""The journal under every fault of machine, process and disk, and a checker that must detect broken promises."""

from typing import Any

import pytest

import penstock.sim.journal.node as journalnode
from penstock.base.errors import JournalError, SimulationError
from penstock.journal.core import recovery
from penstock.journal.core.events import (
    DiskFailed,
    InlineDone,
    JournalEvent,
    JournalInstruction,
    Sync,
    SyncDone,
    WriteDone,
)
from penstock.journal.core.format import SEQUENCE_MAX, SegmentHeader
from penstock.journal.core.journal import Journal, _Phase
from penstock.journal.live.reader import JournalReader
from penstock.sim.journal.plant import run_journal_seed

SEEDS = 50
SEEDS_PER_TEST = 10
SOAK_SEEDS = 3_000


def run_seeds(seeds: range, seconds: float = 1.5) -> None:
    for seed in seeds:
        run_journal_seed(seed, seconds=seconds)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_acknowledged_records_survive_every_crash(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 60))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 60), seconds=10)


def test_a_seed_replays_exactly() -> None:
    assert run_journal_seed(5, seconds=1) == run_journal_seed(5, seconds=1)
    assert run_journal_seed(5, seconds=1).digest != run_journal_seed(6, seconds=1).digest


def test_the_seeds_cover_every_kind_of_fault() -> None:
    summaries = [run_journal_seed(seed, seconds=1.5) for seed in range(12)]
    troubles = ("crashes", "kills", "full_disks", "syncs_failed", "writes_torn", "segments_created", "segments_removed")
    for name in (*troubles, "records_committed_inline"):
        assert sum(getattr(each, name) for each in summaries) > 0, name


# Each sabotage breaks one promise of the product; the checker must detect the sabotage from outside.


def acknowledge_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal.handle

    def broken(self: Journal, event: JournalEvent, now_ns: int) -> list[JournalInstruction]:
        return original(self, SyncDone() if isinstance(event, WriteDone) else event, now_ns)

    monkeypatch.setattr(Journal, "handle", broken)


def sync_again_after_a_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases did this until 2018: the second sync succeeds, but proves nothing about the data of the first one."""
    original = Journal.handle

    def broken(self: Journal, event: JournalEvent, now_ns: int) -> list[JournalInstruction]:
        if isinstance(event, DiskFailed) and self._phase is _Phase.SYNCING:
            return [Sync(self._segments[-1].first_sequence)]
        return original(self, event, now_ns)

    monkeypatch.setattr(Journal, "handle", broken)


def count_a_lone_record_that_was_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal.handle

    def broken(self: Journal, event: JournalEvent, now_ns: int) -> list[JournalInstruction]:
        if isinstance(event, InlineDone) and event.is_written:
            event = InlineDone(event.count + 1, event.size + self._batch.size)
        return original(self, event, now_ns)

    monkeypatch.setattr(Journal, "handle", broken)


def go_on_where_a_lone_record_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal continues in the same segment, whose content on the disk is unknown, and without the failed
    record."""
    original = Journal.handle

    def broken(self: Journal, event: JournalEvent, now_ns: int) -> list[JournalInstruction]:
        return original(self, InlineDone(event.count, event.size) if isinstance(event, InlineDone) else event, now_ns)

    monkeypatch.setattr(Journal, "handle", broken)


def forget_the_place_of_lone_records(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal._inline_done

    def broken(self: Journal, done: InlineDone, now_ns: int) -> list[JournalInstruction]:
        said = original(self, done, now_ns)
        self._segments[-1].size -= done.size if not done.errno else 0
        return said

    monkeypatch.setattr(Journal, "_inline_done", broken)


def cut_off_a_good_record(monkeypatch: pytest.MonkeyPatch) -> None:
    original = recovery.scan_segment

    def broken(content: Any, header: SegmentHeader, **more: Any) -> recovery.SegmentEnd:
        end = original(content, header, **more)
        return original(content, header, end_sequence=max(header.first_sequence, end.next_sequence - 1))

    monkeypatch.setattr(recovery, "scan_segment", broken)
    monkeypatch.setattr(recovery, "require_torn", lambda *_, **__: None)


def keep_a_torn_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal continues after the bytes that a crash left behind, as if these bytes were records."""
    original = recovery.recover

    def broken(segments: Any, content: bytes, *rest: Any, **more: Any) -> recovery.Recovery:
        found = original(segments, content, *rest, **more)
        if found.truncate_at is not None:
            found.truncate_at = None
            found.segments[-1].size = len(content) + -len(content) % 8
        return found

    monkeypatch.setattr(journalnode, "recover", broken)


def believe_what_a_killed_writer_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a killed writer may exist only in the machine's memory."""
    original = recovery.recover
    monkeypatch.setattr(journalnode, "recover", lambda *a, **k: original(*a, **{**k, "boot_id": b"another run"}))


def show_what_is_not_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JournalReader, "_limit", lambda self, mark: SEQUENCE_MAX)


def number_from_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    original = recovery.recover

    def broken(segments: Any, content: bytes, *rest: Any, **more: Any) -> recovery.Recovery:
        return (
            original(segments[:-1], b"", *rest, **more)
            if len(segments) == 1
            else original(segments, content, *rest, **more)
        )

    monkeypatch.setattr(journalnode, "recover", broken)


def never_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full once stays full for the journal."""
    original = Journal.next_deadline_ns
    monkeypatch.setattr(
        Journal, "next_deadline_ns", lambda self: None if self._phase is _Phase.FULL else original(self)
    )


@pytest.mark.parametrize(
    "sabotage",
    [
        acknowledge_before_the_sync,
        sync_again_after_a_failed_sync,
        count_a_lone_record_that_was_not_synced,
        go_on_where_a_lone_record_failed,
        forget_the_place_of_lone_records,
        cut_off_a_good_record,
        keep_a_torn_tail,
        believe_what_a_killed_writer_left,
        show_what_is_not_on_the_disk,
        number_from_one_again,
        never_try_again,
    ],
)
def test_the_checker_detects_every_sabotage(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError) as caught:
        run_seeds(range(60), seconds=3)
    assert isinstance(caught.value.__cause__, SimulationError | JournalError)
    assert "penstock sim --scenario journal --seed" in caught.value.hint
