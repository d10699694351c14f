"""The disk of a message router as its core sees it: one journal, appended to and read.

A thread of its own writes all pending records to the disk together, and reports the last number. A single short message
is committed in the loop's thread if the disk is fast, so that a publisher that waits for every message does not wait
for threads to wake each other. While the disk is full nothing is lost: appended records wait, in order, until there is
room. A reserve provides some room, in which settlements and cleaning continue.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.assured.core.router._records import RECORD_MESSAGE
from penstock.assured.core.router.events import (
    Append,
    DiskFailed,
    DiskRecovered,
    DiskTroubled,
    Event,
    ReadRecords,
    RecordsRead,
    Stored,
)
from penstock.assured.core.router.log_reader import records_of
from penstock.assured.live.reserve import Reserve
from penstock.base.counters import Counters
from penstock.base.errors import JournalError, JournalFullError, PenstockError
from penstock.base.log import logger
from penstock.journal import InlineWriter, JournalConfig, JournalReader, JournalWriter
from penstock.journal.core.records import NOTHING, RecordBatch

RETRY_SECONDS = 0.1
SINGLE_BYTES_MAX = 16_384
FAST_SYNC_SECONDS = 0.001
INLINE_PAUSE_FACTOR = 3
"""After a sync that took longer than FAST_SYNC_SECONDS, inline commit pauses for this many times as long: the thread
commits, and the loop serves others."""

INLINE_COMMIT_SECONDS = 0.004
"""How long one client is served at a time; then others have a turn."""

LOOK_SECONDS = 0.2
RELIEF_SECONDS = 1.0
"""Pause after the reserve was released: by then the journal has tried again."""

log = logger("assured.storing")


class LiveDisk:
    """`tell` passes an event to the core. Created and called in the loop's thread."""

    def __init__(
        self,
        path: Path,
        config: JournalConfig,
        counters: Counters,
        tell: Callable[[Event], None],
        *,
        reserve: Reserve | None = None,
        after_inline_commit: "Callable[[LiveDisk], None] | None" = None,
    ) -> None:
        """`reserve` is given back when the disk is full. `after_inline_commit` is called when a single message was
        committed in the loop's thread; without it, that thread never waits for the disk."""
        self._path = path
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._writer = JournalWriter.open(path, config, counters=counters)
        self._waiting: deque[Append] = deque()
        self._backlog: deque[tuple[int, int]] = deque()  # last record, bytes
        self.backlog_bytes = 0
        """Bytes that are not on the disk."""

        self._is_troubled = self._is_failed = self._is_closing = False
        self._retry: asyncio.TimerHandle | None = None
        self._single: asyncio.Handle | None = None
        self._reserve = reserve
        self._relieved_at: float | None = None  # when the reserve was given back, or could be written to again
        self._looking: asyncio.TimerHandle | None = None
        if reserve is not None and not reserve.is_held:
            self._look_soon()
            if reserve.is_given_back:
                self._loop.call_soon(self._relieve, "the disk was full before this start")
        self._work = threading.Condition()
        self._appended = self._writer.next_sequence - 1  # as far as the thread knows
        self._after_inline_commit = after_inline_commit
        self._inline_paused_until = 0.0
        self._thread = threading.Thread(target=self._commit, name="penstock-assured-disk", daemon=True)
        self._thread.start()
        self._reading = ThreadPoolExecutor(1, "penstock-assured-read")
        self._reader: JournalReader | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def next_sequence(self) -> int:
        return self._writer.next_sequence

    @property
    def is_storing(self) -> bool:
        """True if the disk accepts data."""
        return not self._is_troubled and not self._is_failed

    def replay(self) -> Iterator[RecordBatch]:
        """Yield all records of the journal, in order."""
        with JournalReader.open(self._path) as reader:
            last = self._writer.next_sequence - 1
            while reader.next_sequence <= last and len(batch := reader.read_batch()):
                yield batch

    async def close(self) -> None:
        if self._single is not None:
            self._append_all()  # to close is to commit
        self._is_closing = True
        for timer in (self._retry, self._looking):
            if timer is not None:
                timer.cancel()
        with self._work:
            self._work.notify_all()
        await asyncio.to_thread(self._thread.join)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._reading.shutdown()
        if self._reader is not None:
            self._reader.close()
        try:
            self._writer.close()
        except JournalError as error:
            log.error("not_closed", code=error.code, error=str(error))

    # Appending

    def append(self, request: Append) -> None:
        self._backlog.append((request.through, len(request.data)))
        self.backlog_bytes += len(request.data)
        self._waiting.append(request)
        if self._is_single(request):
            self._single = self._loop.call_soon(self._commit_single)  # after the records that arrived with it
        elif self._single is not None or len(self._waiting) == 1:
            self._append_all()

    def remove_before(self, sequence: int) -> None:
        try:
            self._writer.remove_before(sequence)
        except JournalError as error:
            log.warning("not_removed", before=sequence, code=error.code, error=str(error))

    def _append_all(self) -> None:
        self._retry = self._single = None
        while self._waiting and not self._is_failed:
            request = self._waiting[0]
            try:
                self._writer.append_packed(request.data, request.offsets, request.sizes, request.timestamps_ns)
            except JournalFullError as error:
                self._trouble(error)
                self._retry = self._loop.call_later(RETRY_SECONDS, self._append_all)
                return
            except PenstockError as error:  # any error: records that are not on the disk are not acknowledged
                self._fail(error)
                return
            self._waiting.popleft()
            self._hand_over(request.through)

    def _hand_over(self, through: int) -> None:
        with self._work:
            self._appended = through
            self._work.notify()

    def _is_single(self, request: Append) -> bool:
        """True if this is a single short message and nothing else waits for the disk: its publisher waits for it."""
        return (
            self._after_inline_commit is not None
            and len(self._backlog) == 1
            and len(request.offsets) == 1
            and len(request.data) <= SINGLE_BYTES_MAX
            and request.data[request.offsets[0]] == RECORD_MESSAGE
            and not self._is_troubled
            and time.monotonic() >= self._inline_paused_until
        )

    def _commit_single(self) -> None:
        """Commit the single message in this thread, unless more has come meanwhile."""
        if self._single is None or self._is_closing:
            return
        self._single = None
        request = self._waiting[0]
        record = memoryview(request.data)[request.offsets[0] :][: request.sizes[0]]
        timestamp_ns = int(request.timestamps_ns[0])

        def store(writer: InlineWriter) -> None:
            if writer.append(record, timestamp_ns) or writer.failure:
                self._waiting.popleft()

        done = self._with_inline_writer(store, FAST_SYNC_SECONDS)
        if self._waiting:  # there was no room in the segment, or something else to do
            self._append_all()
        elif done is not None and done >= request.through:
            self._stored(done)
            if self._after_inline_commit is not None and time.monotonic() >= self._inline_paused_until:
                self._after_inline_commit(self)

    def commit_inline(self, serve: Callable[[InlineWriter], bool]) -> bool:
        """Let `serve` commit consecutive single messages in this thread. Return True if there were any; False if other
        work is waiting, and `serve` was not called."""
        if self._backlog or self._is_troubled or self._is_failed or self._is_closing:
            return False
        has_news = False

        def work(writer: InlineWriter) -> None:
            nonlocal has_news
            has_news = serve(writer)

        if (done := self._with_inline_writer(work, INLINE_COMMIT_SECONDS + FAST_SYNC_SECONDS)) is None:
            return False
        if has_news:
            self._stored(done)
        return True

    def _with_inline_writer(self, work: Callable[[InlineWriter], None], seconds_max: float) -> int | None:
        """The last number on the disk after that; None: other work is waiting."""
        began = time.monotonic()
        try:
            done = self._writer.inline_commit(work) if began >= self._inline_paused_until else None
        except PenstockError as error:
            self._fail(error)
            return None
        except BaseException as error:  # the state of the disk is unknown
            self._fail(JournalError(f"interrupted: {error!r}", where=str(self._path)))
            raise
        if done is None:
            return None
        if (seconds := time.monotonic() - began) > seconds_max:
            self._inline_paused_until = began + (1 + INLINE_PAUSE_FACTOR) * seconds
        if (
            through := self._writer.next_sequence - 1
        ) > done:  # the disk has failed: the committing thread handles the failure
            if not self._backlog:
                self._backlog.append((through, 0))
            self._hand_over(through)
        return done

    def _trouble(self, error: JournalError) -> None:
        if self._reserve is not None and self._reserve.is_held:
            self._reserve.give_back()
            self._look_soon()
            self._relieve(str(error))
            return
        if self._relieved_at is not None:
            if time.monotonic() < self._relieved_at + RELIEF_SECONDS:
                return  # the journal has not retried yet
            self._relieved_at, self._is_troubled = None, False
        if not self._is_troubled:
            self._is_troubled = True
            log.error("disk_troubled", code=error.code, error=str(error))
            self._tell(DiskTroubled(str(error)))

    def _relieve(self, why: str) -> None:
        """New messages are refused, but there is room for records that free more."""
        self._relieved_at, self._is_troubled = time.monotonic(), True
        log.error("disk_is_full", error=why, hint="there is room for settlements; the journal is cleaned")
        self._tell(DiskTroubled(why, is_relieved=True))

    @property
    def _is_reserve_gone(self) -> bool:
        return self._reserve is not None and self._reserve.is_given_back

    def _look_soon(self) -> None:
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Check whether there is room for the reserve again."""
        assert self._reserve is not None
        self._loop.run_in_executor(self._reading, self._reserve.take).add_done_callback(self._looked)

    def _looked(self, taking: "asyncio.Future[bool]") -> None:
        if self._is_closing:
            return
        if not taking.result():
            self._look_soon()
        elif self._relieved_at is not None and not self._waiting:
            self._recover()

    def _recover(self) -> None:
        self._relieved_at, self._is_troubled = None, False
        log.info("disk_recovered")
        self._tell(DiskRecovered())

    def _fail(self, error: PenstockError) -> None:
        if not self._is_failed:
            self._is_failed = True
            log.error("disk_failed", code=error.code, error=str(error))
            self._tell(DiskFailed(str(error)))

    def _stored(self, through: int) -> None:
        while self._backlog and self._backlog[0][0] <= through:
            self.backlog_bytes -= self._backlog.popleft()[1]
        if self._is_troubled and not self._waiting:
            if self._is_reserve_gone and self._relieved_at is None:
                self._relieve("the disk was full")
            elif not self._is_reserve_gone:
                self._recover()
        self._tell(Stored(through))

    # The committing thread

    def _commit(self) -> None:
        done = self._appended
        while True:
            with self._work:
                while self._appended <= done and not self._is_closing:
                    self._work.wait()
                target = self._appended
                if target <= done:
                    return
            try:
                done = self._writer.commit(target)
            except JournalFullError as error:
                self._call(self._trouble, error)
                if self._is_closing:
                    return
                threading.Event().wait(RETRY_SECONDS)
            except JournalError as error:
                self._call(self._fail, error)
                return
            else:
                self._call(self._stored, done)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # Reading

    def read(self, request: ReadRecords) -> None:
        task = self._loop.create_task(self._read(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, request: ReadRecords) -> None:
        try:
            batch, first = await self._loop.run_in_executor(self._reading, self._records, request)
        except PenstockError as error:
            log.warning("read_failed", code=error.code, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            self._tell(RecordsRead(request.request, b"", NOTHING.rows, 0, is_failed=True))
        else:
            self._tell(RecordsRead(request.request, batch.data, batch.rows, first))

    def _records(self, request: ReadRecords) -> tuple[RecordBatch, int]:
        if self._reader is None:
            self._reader = JournalReader.open(self._path)
        reader = self._reader
        try:
            return records_of(reader, request), reader.first_sequence
        except PenstockError:
            self._reader = None  # the next one does not continue where this one stopped
            reader.close()
            raise
