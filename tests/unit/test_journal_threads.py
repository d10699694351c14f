"""The writer between threads: closing, interrupts, and duties of the writer's own thread."""

import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import JournalFailedError, JournalFullError, LocalProtocolError
from penstock.journal import JournalConfig, JournalWriter
from penstock.journal.core.events import JournalEvent, JournalInstruction, SyncDone
from penstock.journal.core.journal import Journal
from penstock.journal.live.files import WritableDirectory
from unit.journal_kit import SMALL, read
from waiting import wait_until

PATIENCE_SECONDS = 120


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def before(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], None]) -> None:
    """Call the function each time before the disk does `name`."""
    original = getattr(WritableDirectory, name)

    def replacement(self: WritableDirectory, *arguments: Any) -> None:
        action()
        original(self, *arguments)

    monkeypatch.setattr(WritableDirectory, name, replacement)


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's thread never checks by itself whether work is pending."""
    monkeypatch.setattr("penstock.journal.live.driver.IDLE_ROUNDS", -1)


def begun(path: Path, config: JournalConfig | None = None) -> JournalWriter:
    """A journal whose first segment exists, so that the next record is written into it and synced."""
    journal = JournalWriter.open(path, config)
    journal.append(b"first")
    journal.commit()
    return journal


def append_asleep(journal: JournalWriter) -> None:
    """Append a record and let the writer's thread sleep again: all further work is the caller's."""
    journal.append(b"x")
    wait_until(lambda: journal._is_asleep)


def once(action: Callable[[], None]) -> Callable[[], None]:
    actions = [action]
    return lambda: actions.pop()() if actions else None


def append_until_refused(journal: JournalWriter) -> int:
    """Append records until one is refused; return the last accepted record."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            journal.append(b"x")
        except LocalProtocolError:
            return journal.next_sequence - 1
    pytest.fail("appends are taken while the journal closes")


def test_closing_refuses_appends_and_syncs_accepted_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = begun(path)
    is_syncing, may_sync = threading.Event(), threading.Event()

    def stop_and_wait() -> None:
        is_syncing.set()
        assert may_sync.wait(PATIENCE_SECONDS)

    before(monkeypatch, "sync", stop_and_wait)
    journal.append(b"x")
    with ThreadPoolExecutor() as threads:
        committed = threads.submit(journal.commit)
        assert is_syncing.wait(PATIENCE_SECONDS)
        closed = threads.submit(journal.close)
        last = append_until_refused(journal)
        may_sync.set()
        assert committed.result(PATIENCE_SECONDS) >= 1
        closed.result(PATIENCE_SECONDS)
    assert len(read(path)) == last


def test_a_closed_writer_releases_the_files_to_the_next_one(path: Path) -> None:
    old = JournalWriter.open(path, SMALL)
    old.append(b"one")
    old.close()
    with JournalWriter.open(path, SMALL) as journal:
        journal.append(b"two")
        journal.commit()
        for call in (old.commit, lambda: old.commit(1), lambda: old.when_durable(1), lambda: old.append(b"three")):
            with pytest.raises(LocalProtocolError, match="closed"):
                call()
        old.close()
    assert [record.payload for record in read(path)] == [b"one", b"two"]


def test_a_closed_directory_opens_nothing(path: Path) -> None:
    with JournalWriter.open(path, SMALL) as journal:
        journal.append(b"one")
    directory = WritableDirectory(path)
    directory.close()
    with pytest.raises(OSError, match="closed"):
        directory.write(1, 64, b"over it")


def test_closing_on_a_full_disk_ends_waiting_callers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalWriter.open(path, JournalConfig(retry_ms=3_600_000))

    def fail() -> None:
        raise OSError(errno.ENOSPC, "full")

    before(monkeypatch, "create", fail)
    future = journal.when_durable(journal.append(b"x"))
    with pytest.raises(JournalFullError):
        journal.commit()
    with pytest.raises(JournalFullError):
        future.result(PATIENCE_SECONDS)
    with pytest.raises(JournalFullError):
        journal.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        journal.commit()
    JournalWriter.open(path).close()


def test_a_distant_retention_deadline_does_not_delay_records(path: Path) -> None:
    config = JournalConfig(segment_bytes=4_096, retention_seconds=3_600)
    with JournalWriter.open(path, config) as journal:
        for _ in range(3):
            journal.append(bytes(3_000))
            journal.commit()
        for is_rested in (False, True):
            if is_rested:
                wait_until(lambda: journal._is_asleep)
            sequence = journal.append(b"nobody waits for it")
            wait_until(lambda: journal.durable_sequence == sequence)  # noqa: B023


@pytest.mark.usefixtures("sleepy")
def test_a_full_disk_found_by_a_commit_is_retried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(path, JournalConfig(retry_ms=1, linger_us=1_000_000)) as journal:

        def fail() -> None:
            wait_until(lambda: journal._is_asleep)
            raise OSError(errno.ENOSPC, "full")

        before(monkeypatch, "write", once(fail))
        append_asleep(journal)
        with pytest.raises(JournalFullError):
            journal.commit()
        wait_until(lambda: journal.durable_sequence == 2)
        assert journal.append(b"y") == 3


@pytest.mark.usefixtures("sleepy")
def test_an_interrupted_commit_is_finished_by_the_writers_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(path, JournalConfig(linger_us=1_000_000)) as journal:

        def interrupt() -> None:
            wait_until(lambda: journal._is_asleep)
            raise KeyboardInterrupt

        before(monkeypatch, "sync", once(interrupt))
        append_asleep(journal)
        with pytest.raises(KeyboardInterrupt):
            journal.commit()
        wait_until(lambda: journal.durable_sequence == 2)


class InterruptedLock:
    """The waiting caller is interrupted, once."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.is_armed = False

    def acquire(self) -> bool:
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt
        return bool(self._lock.acquire())

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.usefixtures("sleepy")
def test_an_interrupt_while_the_lock_is_acquired_again_is_safe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(path, JournalConfig(linger_us=1_000_000)) as journal:
        lock = journal._lock = InterruptedLock(journal._lock)  # type: ignore[assignment]
        wait_until(lambda: journal._is_asleep)

        def arm() -> None:
            wait_until(lambda: journal._is_asleep)
            lock.is_armed = True

        before(monkeypatch, "sync", once(arm))
        append_asleep(journal)
        with pytest.raises(KeyboardInterrupt):
            journal.commit()
        assert journal.durable_sequence == 2, "the sync was done, and its result is known"
        journal.append(b"y")
        assert journal.commit() == 3
    assert len(read(path)) == 3


def test_an_interrupt_in_the_middle_of_a_decision_ends_the_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the core is unknown: nothing is written on that basis."""
    journal = begun(path)
    original = Journal.handle

    def interrupted(self: Journal, event: JournalEvent, now_ns: int) -> list[JournalInstruction]:
        said = original(self, event, now_ns)
        if isinstance(event, SyncDone):
            raise KeyboardInterrupt
        return said

    journal.append(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "handle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.commit()
    for call in (lambda: journal.append(b"y"), journal.close):
        with pytest.raises(JournalFailedError, match="interrupted"):
            call()
    with JournalWriter.open(path) as journal:
        assert journal.append(b"y") == 3
    assert [record.payload for record in read(path)] == [b"first", b"x", b"y"]
