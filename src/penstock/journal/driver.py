"""The writer of a journal on a real disk.

    with JournalWriter.open("trades.d") as journal:
        sequence = journal.append(b"...")
        journal.commit()                    # returns when everything appended is on the disk

Any number of threads may append and commit. Whoever waits in commit() does the disk's work while nobody else does, so
a lone append costs no change of threads; a thread of the writer's own does it for records that nobody waits for.
"""

import errno
import heapq
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.clock import NS_PER_SECOND, NS_PER_US, SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.base.errors import JournalError, LocalProtocolError
from penstock.base.log import logger
from penstock.journal.config import JournalConfig
from penstock.journal.core import Journal
from penstock.journal.events import (
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
    RemoveSegment,
    SegmentCreated,
    Sync,
    SyncDone,
    Troubled,
    Write,
    WriteDone,
)
from penstock.journal.files import WritableDirectory, boot_id
from penstock.journal.format import Mark

log = logger("journal")

IDLE_ROUNDS = 64
"""Looks without a new record after which the writer's thread sleeps until it is called."""

LOOK_SECONDS_MIN = 0.001


class JournalWriter:
    """The one writer of a journal; made by open(), ended by close() or the end of its `with` block."""

    def __init__(self, directory: WritableDirectory, core: Journal, mark: Mark, linger_seconds: float) -> None:
        self._directory = directory
        self._core = core
        self._mark = mark
        self._look_seconds = max(linger_seconds, LOOK_SECONDS_MIN)
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)  # for those who wait in commit() and append()
        self._call = threading.Condition(self._lock)  # for the writer's own thread
        self._is_asleep = False
        self._todo: DiskInstruction | None = None
        self._is_working = False
        self._removals: list[int] = []
        self._waiting: list[tuple[int, int, Future[int]]] = []
        self._waiting_count = 0
        self._due: list[tuple[Future[int], int | JournalError]] = []
        self._is_closing = self._is_closed = self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)

    @classmethod
    def open(cls, path: Path | str, config: JournalConfig | None = None, *, counters: Counters | None = None) -> Self:
        """Open the journal in the directory `path`, which is made if there is none, and put right what a crash left.

        JournalLockedError when it has a writer already; JournalCorruptError when acknowledged records are damaged.
        """
        config = config or JournalConfig()
        directory = WritableDirectory(Path(path), config.preallocate_bytes)
        try:
            run_id = boot_id()
            recovery = directory.recover(run_id)
            mark = Mark(journal_id=recovery.journal_id, boot_id=run_id, durable=recovery.next_sequence - 1)
            directory.write_mark(mark)
            core = Journal(
                config,
                recovery,
                SystemRandomness(),
                counters or Counters("journal"),
                now_ns=time.monotonic_ns(),
                wall_ns=time.time_ns(),
            )
            writer = cls(directory, core, mark, config.linger_us * NS_PER_US / NS_PER_SECOND)
            writer._thread.start()
        except OSError as error:
            directory.close()
            raise JournalError(f"cannot be opened for writing: {error.strerror}", where=str(path)) from None
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def path(self) -> Path:
        return self._directory.path

    @property
    def next_sequence(self) -> int:
        """Of the next record appended."""
        return self._core.next_sequence

    @property
    def durable_sequence(self) -> int:
        """Of the newest record that is on the disk."""
        return self._core.durable_sequence

    def append(self, payload: Buffer, timestamp_ns: int | None = None) -> int:
        """Append one record; returns its sequence number. It is on the disk when commit() has returned."""
        with self._lock:
            if self._core.is_gathering_full:
                self._wait_for_room()
            stamp_ns = time.time_ns() if timestamp_ns is None else timestamp_ns
            sequence = self._core.append(payload, stamp_ns, time.monotonic_ns())
            if self._is_asleep:
                self._wake()
            return sequence

    def append_batch(self, payloads: Sequence[Buffer], timestamp_ns: int | None = None) -> range:
        """Append one record for each payload; returns their sequence numbers."""
        with self._lock:
            first = self._core.next_sequence
            for payload in payloads:
                if self._core.is_gathering_full:
                    self._wait_for_room()
                stamp_ns = time.time_ns() if timestamp_ns is None else timestamp_ns
                self._core.append(payload, stamp_ns, time.monotonic_ns())
            if self._is_asleep:
                self._wake()
            return range(first, self._core.next_sequence)

    def append_packed(
        self,
        data: Buffer,
        offsets: NDArray[numpy.uint32],
        sizes: NDArray[numpy.uint32],
        timestamps_ns: NDArray[numpy.int64],
    ) -> range:
        """Append one record for each row, its payload at that place of `data`; returns their sequence numbers."""
        with self._lock:
            if self._core.is_gathering_full:
                self._wait_for_room()
            first = self._core.next_sequence
            self._core.append_rows(data, offsets, sizes, timestamps_ns, time.monotonic_ns())
            if self._is_asleep:
                self._wake()
            return range(first, self._core.next_sequence)

    def commit(self, through: int | None = None) -> int:
        """Wait until the records up to `through`, or all that were appended, are on the disk; returns how far it is.

        JournalFullError while the disk is full: the records are kept in memory and tried again. JournalFailedError
        when they will never be written.
        """
        with self._lock:
            target = self._core.next_sequence - 1 if through is None else through
            self._check_appended(target)
            self._work_until(target)
            return self._core.durable_sequence

    def when_durable(self, sequence: int) -> "Future[int]":
        """A future that is done when the record is on the disk; with asyncio: await asyncio.wrap_future(...).

        It has the error instead, if the disk is full or has failed. Its callbacks run in the writer's own thread.
        """
        future: Future[int] = Future()
        with self._lock:
            self._check_appended(sequence)
            self._waiting_count += 1
            heapq.heappush(self._waiting, (sequence, self._waiting_count, future))
            self._find_due()
            self._wake()
        return future

    def close(self) -> None:
        """Bring what was appended to the disk, and let go of the journal. Closing again does nothing."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        try:
            with self._lock:
                self._work_until(self._core.next_sequence - 1)
                self._tell(Close())
        finally:
            self._stop()

    def _check_appended(self, sequence: int) -> None:
        if sequence >= self._core.next_sequence:
            raise LocalProtocolError(f"record {sequence} was not appended", hint="give what append() returned")

    # The disk's work; all of it with the lock held, except where it says so

    def _work_until(self, target: int) -> None:
        """Take part in the disk's work until `target` is durable."""
        while self._core.durable_sequence < target:
            if self._core.error is not None:
                raise self._core.error
            if self._todo is None and not self._is_working:
                self._tell(Commit())
            if self._todo is not None:
                self._work()
            else:
                self._progress.wait()
        if self._todo is not None:
            self._wake()

    def _wait_for_room(self) -> None:
        while self._core.is_gathering_full and self._core.error is None:
            if self._todo is None and not self._is_working:
                self._tell(Commit())
            if self._todo is not None:
                self._work()
            else:
                self._progress.wait()

    def _work(self) -> None:
        """Carry out the instruction that waits; the lock is free meanwhile."""
        instruction, self._todo = self._todo, None
        assert instruction is not None
        self._is_working = True
        event: JournalEvent = DiskFailed(errno.EINTR)  # should an interrupt end it: nobody knows what was done
        self._lock.release()
        try:
            event = self._carry_out(instruction)
        finally:
            self._lock.acquire()
            self._is_working = False
            self._tell(event)
            self._progress.notify_all()

    def _carry_out(self, instruction: DiskInstruction) -> JournalEvent:
        """Without the lock."""
        try:
            match instruction:
                case Write(first_sequence, offset, data):
                    self._directory.write(first_sequence, offset, data)
                    return WriteDone()
                case Sync(first_sequence):
                    self._directory.sync(first_sequence)
                    return SyncDone()
                case CreateSegment(first_sequence, header):
                    self._directory.create(first_sequence, header)
                    return SegmentCreated()
        except OSError as error:
            log.warning("disk_failed", path=str(self.path), error=os.strerror(error.errno or errno.EIO))
            return DiskFailed(error.errno or errno.EIO)

    def _tell(self, event: JournalEvent) -> None:
        for instruction in self._core.handle(event, time.monotonic_ns()):
            self._follow(instruction)

    def _follow(self, instruction: JournalInstruction) -> None:
        match instruction:
            case Acknowledged(through):
                self._renew_mark(through)
                self._find_due()
            case RemoveSegment(first_sequence):
                self._removals.append(first_sequence)
                self._wake()
            case Troubled(error) | Failed(error):
                log.error("journal_refuses", path=str(self.path), code=error.code, error=str(error))
                self._find_due()
            case Recovered():
                log.info("journal_goes_on", path=str(self.path))
            case Closed():
                self._is_closed = True
            case CreateSegment() | Write() | Sync():
                self._todo = instruction

    def _find_due(self) -> None:
        """Futures whose time has come; they are resolved without the lock, because their callbacks may append."""
        durable, error = self._core.durable_sequence, self._core.error
        while self._waiting and (error is not None or self._waiting[0][0] <= durable):
            sequence, _, future = heapq.heappop(self._waiting)
            self._due.append((future, durable if sequence <= durable or error is None else error))
        if self._due:
            self._wake()

    def _renew_mark(self, durable: int) -> None:
        """If it cannot be renewed, readers fall behind and recovery takes more care: nothing is wrong."""
        self._mark = msgspec.structs.replace(self._mark, durable=durable)
        try:
            self._directory.write_mark(self._mark)
        except OSError as error:
            log.warning("mark_not_renewed", path=str(self.path), error=error.strerror)

    # The writer's own thread

    def _wake(self) -> None:
        self._is_asleep = False
        self._call.notify()

    def _run(self) -> None:
        rounds, seen = 0, 0
        with self._lock:
            while not self._is_stopping:
                now_ns = time.monotonic_ns()
                deadline_ns = self._core.next_deadline_ns()
                if self._todo is not None:
                    self._work()
                elif self._removals or self._due:
                    self._do_chores()
                elif deadline_ns is not None and now_ns >= deadline_ns:
                    self._tell(Tick())
                else:
                    rounds = 0 if seen != self._core.next_sequence else rounds + 1
                    seen = self._core.next_sequence
                    self._sleep(deadline_ns, now_ns, is_quiet=rounds > IDLE_ROUNDS)

    def _sleep(self, deadline_ns: int | None, now_ns: int, *, is_quiet: bool) -> None:
        """While records come, look again soon instead of being called by every one of them."""
        self._is_asleep = is_quiet
        if deadline_ns is not None:
            self._call.wait((deadline_ns - now_ns) / NS_PER_SECOND)
        else:
            self._call.wait(None if is_quiet else self._look_seconds)
        self._is_asleep = False

    def _do_chores(self) -> None:
        """What waits for the disk no longer; the lock is free meanwhile."""
        removals, self._removals = self._removals, []
        due, self._due = self._due, []
        self._lock.release()
        try:
            for first_sequence in removals:
                self._remove(first_sequence)
            for future, outcome in due:
                _resolve(future, outcome)
        finally:
            self._lock.acquire()

    def _remove(self, first_sequence: int) -> None:
        try:
            self._directory.remove(first_sequence)
        except OSError as error:
            log.warning("segment_not_removed", first_sequence=first_sequence, error=error.strerror)

    def _stop(self) -> None:
        """Without the lock."""
        with self._lock:
            self._is_closing = self._is_stopping = True
            self._wake()
        self._thread.join()
        with self._lock:
            self._do_chores()
        for _, _, future in self._waiting:
            _resolve(future, JournalError("the journal was closed before the record was on the disk"))
        try:
            if self._is_closed:
                self._directory.trim()
                self._directory.sync_mark()
        finally:
            self._directory.close()


def _resolve(future: "Future[int]", outcome: int | JournalError) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, JournalError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
