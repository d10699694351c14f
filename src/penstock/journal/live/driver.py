"""The writer of a journal on a real disk.

    with JournalWriter.open("trades.d") as journal:
        sequence = journal.append(b"...")
        journal.commit()                    # returns when all appended records are on disk

Any number of threads may append and commit. A thread that waits in commit() does the disk work unless another thread
does, so a single append needs no thread switch; the writer's own thread writes records without a waiting commit().
"""

import errno
import heapq
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.clock import NS_PER_SECOND, NS_PER_US, SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import JournalError, LocalProtocolError
from penstock.base.log import logger
from penstock.journal.config import JournalConfig
from penstock.journal.core.events import (
    Acknowledged,
    Close,
    Closed,
    Commit,
    CreateSegment,
    DiskFailed,
    DiskInstruction,
    Failed,
    JournalEvent,
    JournalInstruction,
    Recovered,
    RemoveBefore,
    RemoveSegment,
    Sync,
    Troubled,
    Write,
)
from penstock.journal.core.journal import Journal
from penstock.journal.live._inline_commit import InlineWriter
from penstock.journal.live.files import WritableDirectory, boot_id

log = logger("journal")

IDLE_ROUNDS = 64
"""Idle polls after which the writer's thread sleeps until it is notified."""

LOOK_SECONDS_MIN = 0.001

BROKEN_OFF = "the journal was closed before the record was on disk"


_Outcome = tuple["Future[int]", int | JournalError]


class Promises:
    """Futures of callers that wait for a record without a thread, by sequence number. Used with the writer's lock
    held.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Future[int]]] = []
        self._count = 0
        self._due: list[_Outcome] = []

    def __len__(self) -> int:
        """Return the number of futures that are due."""
        return len(self._due)

    def make(self, sequence: int) -> "Future[int]":
        future: Future[int] = Future()
        self._count += 1
        heapq.heappush(self._waiting, (sequence, self._count, future))
        return future

    def find_due(self, durable: int, error: JournalError | None) -> None:
        """Mark the futures of durable records as due; all of them on an error."""
        while self._waiting and (error is not None or self._waiting[0][0] <= durable):
            sequence, _, future = heapq.heappop(self._waiting)
            self._due.append((future, durable if sequence <= durable or error is None else error))

    def take_due(self) -> list[_Outcome]:
        due, self._due = self._due, []
        return due


def resolve(due: list[_Outcome]) -> None:
    """Complete the futures. Call it without the lock: their callbacks may append."""
    for future, outcome in due:
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, JournalError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def open_for_writing(
    path: Path, config: JournalConfig, counters: Counters, first: int
) -> tuple[WritableDirectory, Journal]:
    """Recover the journal: return its directory, locked against other writers, and its core."""
    directory = WritableDirectory(path, config.preallocate_bytes)
    try:
        recovery = directory.recover(boot_id(), first)
    except OSError as error:
        directory.close()
        raise JournalError(f"cannot be opened for writing: {error.strerror}", where=str(path)) from None
    except BaseException:
        directory.close()
        raise
    now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    return directory, Journal(config, recovery, SystemRandomness(), counters, now_ns=now_ns, wall_ns=wall_ns)


class JournalWriter:
    """The only writer of a journal; opened by open(), closed by close() or the end of its `with` block."""

    def __init__(self, directory: WritableDirectory, core: Journal, linger_seconds: float) -> None:
        self._directory = directory
        self._core = core
        self._look_seconds = max(linger_seconds, LOOK_SECONDS_MIN)
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)  # wakes threads waiting in commit() and append()
        self._call = threading.Condition(self._lock)  # wakes the writer's own thread
        self._is_asleep = self._is_working = False
        self._todo: DiskInstruction | None = None
        self._inline_count = 0  # records written by inline commit
        self._removals: list[RemoveSegment] = []
        self._promises = Promises()
        self._is_closing = False  # close() has begun
        self._is_closed = False  # all appended records are on disk
        self._is_stopped = False  # no thread may start work any more
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)

    @classmethod
    def open(
        cls, path: Path | str, config: JournalConfig | None = None, *, counters: Counters | None = None, first: int = 1
    ) -> Self:
        """Open the journal in directory `path`, create the directory if missing, and repair the journal after a crash.
        A journal without records begins with number `first`. Raises JournalLockedError if it has a writer, or
        JournalCorruptError.
        """
        config = config or JournalConfig()
        directory, core = open_for_writing(Path(path), config, counters or Counters("journal"), first)
        writer = cls(directory, core, config.linger_us * NS_PER_US / NS_PER_SECOND)
        try:
            writer._thread.start()
        except BaseException:
            directory.close()
            raise
        try:
            writer.commit()
        except BaseException:
            writer._stop()
            raise
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        return self._directory.path

    @property
    def next_sequence(self) -> int:
        """Number of the next appended record."""
        return self._core.next_sequence

    @property
    def durable_sequence(self) -> int:
        """Number of the newest record on disk."""
        return self._core.durable_sequence

    def append(self, payload: Buffer, timestamp_ns: int | None = None) -> int:
        """Append one record and return its sequence number. The record is on disk when commit() has returned."""
        while True:
            with self._lock:
                if not self._is_crowded():
                    stamp_ns = time.time_ns() if timestamp_ns is None else timestamp_ns
                    sequence = self._core.append(payload, stamp_ns, time.monotonic_ns())
                    if self._is_asleep:
                        self._wake()
                    return sequence
            self._work_while(self._is_crowded)

    def append_batch(self, payloads: Iterable[Buffer], timestamp_ns: int | None = None) -> list[int]:
        """Append one record per payload and return their sequence numbers."""
        return [self.append(payload, timestamp_ns) for payload in payloads]

    def append_packed(
        self,
        data: Buffer,
        offsets: NDArray[numpy.uint32],
        sizes: NDArray[numpy.uint32],
        timestamps_ns: NDArray[numpy.int64],
    ) -> range:
        """Append one record per row, with its payload at that offset of `data`; return their sequence numbers."""
        while True:
            with self._lock:
                if not self._is_crowded():
                    first = self._core.next_sequence
                    self._core.append_rows(data, offsets, sizes, timestamps_ns, time.monotonic_ns())
                    if self._is_asleep:
                        self._wake()
                    return range(first, self._core.next_sequence)
            self._work_while(self._is_crowded)

    def commit(self, through: int | None = None) -> int:
        """Wait until the records up to `through`, or all appended ones, are on disk; return the newest number on disk.

        Raises JournalFullError while the disk is full: the records stay in memory and are retried. Raises
        JournalFailedError when they will never be written.
        """
        with self._lock:
            target = self._core.next_sequence - 1 if through is None else through
            self._check_appended(target)
        self._work_while(lambda: self._is_pending(target))
        return self._core.durable_sequence

    def inline_commit(self, work: Callable[[InlineWriter], None]) -> int | None:
        """Let `work` write and sync single records, if no other work is pending; return the newest number on disk.
        None: no record was written. Other threads wait meanwhile, and readers see the records afterwards. If the disk
        fails, the last record counts as appended but not committed.
        """
        with self._lock:
            place = self._core.inline_place()
            if place is None or self._todo is not None or self._is_working or self._is_stopped:
                return None
            if (writer := self._directory.inline_writer(place)) is None:
                return None
            try:
                work(writer)
            finally:
                try:
                    self._inline_count += writer.count
                    self._tell(self._directory.inline_done(writer))
                except BaseException:  # otherwise the core would reuse numbers and offsets
                    self._give_up()
                    raise
                self._leave_rest()
            return self._core.durable_sequence

    def when_durable(self, sequence: int) -> "Future[int]":
        """Return a future that completes when the record is on disk; with asyncio: await asyncio.wrap_future(...).

        The future fails if the disk is full or has failed. Its callbacks run in the writer's own thread.
        """
        with self._lock:
            self._check_appended(sequence)
            future = self._promises.make(sequence)
            self._promises.find_due(self._core.durable_sequence, self._core.error)
            self._wake()
        return future

    def remove_before(self, sequence: int) -> None:
        """Remove whole segments before this record, soon."""
        with self._lock:
            self._tell(RemoveBefore(sequence))

    def close(self) -> None:
        """Sync the appended records and release the journal. Closing again has no effect.

        Further appends are refused; waiting commits end normally.
        """
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        try:
            with self._lock:
                self._tell(Close())
            self._work_while(self._is_unfinished)
        finally:
            self._stop()

    def _check_appended(self, sequence: int) -> None:
        if self._is_stopped:
            raise LocalProtocolError("the journal is closed", where=str(self.path))
        if sequence >= self._core.next_sequence:
            raise LocalProtocolError(f"record {sequence} was not appended", hint="pass a number that append() returned")

    # Conditions for waiting; the lock is held

    def _is_crowded(self) -> bool:
        return self._core.is_gathering_full and self._core.error is None and not self._is_closing

    def _is_pending(self, sequence: int) -> bool:
        if self._core.durable_sequence >= sequence:
            return False
        if self._core.error is not None:
            raise self._core.error
        if self._is_stopped:
            raise JournalError(BROKEN_OFF, where=str(self.path))
        return True

    def _is_unfinished(self) -> bool:
        if self._core.error is not None:
            raise self._core.error
        return not self._is_closed

    # Disk work

    def _work_while(self, is_worth_it: Callable[[], bool]) -> None:
        """Take part in the disk work; called without the lock."""
        try:
            while True:
                with self._lock:
                    if not is_worth_it():
                        return
                    if self._todo is None and not self._is_working:
                        self._tell(Commit())
                    if self._todo is None:
                        self._progress.wait()
                self._work()
        finally:
            with self._lock:
                self._leave_rest()

    def _leave_rest(self) -> None:
        """Leave the remaining work to the writer's thread; the lock is held."""
        if self._todo is not None or (self._is_asleep and self._core.next_deadline_ns() is not None):
            self._wake()

    def _work(self) -> None:
        """Execute the pending instruction, if any; called without the lock.

        The main thread may be interrupted (Ctrl-C) anywhere. The outcome of started work is always reported to the
        core.
        """
        instruction: DiskInstruction | None = None
        event: JournalEvent = DiskFailed(errno.EINTR)  # the outcome if an interrupt ends the work: unknown
        try:
            with self._lock:
                if self._todo is not None and not self._is_stopped:
                    instruction, self._todo, self._is_working = self._todo, None, True
            if instruction is not None:
                event = self._directory.carry_out(instruction)
        finally:
            if instruction is not None:
                self._report(event)

    def _report(self, event: JournalEvent) -> None:
        """End the work that this thread has started; an interrupt meanwhile is raised afterwards."""
        interrupt: KeyboardInterrupt | None = None
        is_reported = False
        while not is_reported:
            try:
                with self._lock:
                    is_reported, self._is_working = True, False
                    self._progress.notify_all()
                    self._tell(event)
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _tell(self, event: JournalEvent) -> None:
        """Pass an event to the core and handle its instructions; the lock is held."""
        try:
            for instruction in self._core.handle(event, time.monotonic_ns()):
                self._follow(instruction)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        self._core.abandon("interrupted in the middle of a decision", where=str(self.path))
        self._find_due()
        self._progress.notify_all()

    def _follow(self, instruction: JournalInstruction) -> None:
        match instruction:
            case Acknowledged(through):
                self._directory.renew_mark(through)
                self._find_due()
            case RemoveSegment():
                self._removals.append(instruction)
                self._wake()
            case Troubled(error) | Failed(error):
                log.error("journal_refuses", path=str(self.path), code=error.code, error=str(error))
                self._find_due()
                self._wake()
            case Recovered():
                log.info("journal_goes_on", path=str(self.path))
            case Closed():
                self._is_closed = True
            case CreateSegment() | Write() | Sync():
                self._todo = instruction

    def _find_due(self) -> None:
        self._promises.find_due(self._core.durable_sequence, self._core.error)
        if len(self._promises):
            self._wake()

    # The writer's own thread

    def _wake(self) -> None:
        self._is_asleep = False
        self._call.notify()

    def _run(self) -> None:
        rounds, seen = 0, 0
        while not self._is_stopped:
            with self._lock:
                now_ns = time.monotonic_ns()
                deadline_ns = self._core.next_deadline_ns()
                if deadline_ns is not None and now_ns >= deadline_ns:
                    self._tell(Tick())
                elif not (self._todo or self._removals or self._promises or self._is_stopped):
                    appended = self._core.next_sequence - self._inline_count
                    rounds = 0 if seen != appended else rounds + 1
                    seen = appended
                    self._sleep(deadline_ns, now_ns, is_quiet=rounds > IDLE_ROUNDS)
            self._work()
            self._do_chores()

    def _sleep(self, deadline_ns: int | None, now_ns: int, *, is_quiet: bool) -> None:
        """Sleep; while records arrive, poll soon instead of being woken by each of them."""
        seconds = None if deadline_ns is None else (deadline_ns - now_ns) / NS_PER_SECOND
        if not is_quiet:
            seconds = self._look_seconds if seconds is None else min(seconds, self._look_seconds)
        self._is_asleep = is_quiet
        self._call.wait(seconds)
        self._is_asleep = False

    def _do_chores(self) -> None:
        """Resolve futures and remove files, which do not wait for the disk; called without the lock."""
        with self._lock:
            removals, self._removals = self._removals, []
            due = self._promises.take_due()
        if removals:
            self._directory.remove_oldest([each.first_sequence for each in removals], removals[-1].oldest)
        resolve(due)

    def _stop(self) -> None:
        """Stop new work, wait for running work, then release the files; called without the lock."""
        with self._lock:
            self._is_closing = self._is_stopped = True
            self._progress.notify_all()
            self._wake()
        self._thread.join()
        with self._lock:
            while self._is_working:
                self._progress.wait()
            self._promises.find_due(self._core.durable_sequence, JournalError(BROKEN_OFF, where=str(self.path)))
        self._do_chores()
        try:
            if self._is_closed:
                self._directory.trim()
                self._directory.sync_mark()
        finally:
            self._directory.close()
