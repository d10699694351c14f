"""The disk of a root or standby as its core sees it: journals that are appended to and read, each in its order.

While the disk is full nothing is lost: what was to be appended waits, nothing more is taken from publishers, and it
goes on by itself when there is room.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy

from penstock.base.errors import JournalCorruptError, JournalError, JournalFailedError, PenstockError
from penstock.base.log import logger
from penstock.tree.config import TreeConfig
from penstock.tree.core.control import StreamInfo
from penstock.tree.core.events import Append, Appended, JournalRead, ReadJournal
from penstock.tree.live.stream_store import Portion, StreamStore

RETRY_SECONDS = 0.1
READS_MAX = 8
"""Concurrent requests; others wait."""

log = logger("tree.storing")


class JournalQueue:
    """`answer` gives an event to the core; `hold` and `release` have publishers wait. In the loop's thread."""

    def __init__(
        self,
        store: StreamStore,
        config: TreeConfig,
        answer: Callable[[Any], None],
        hold: Callable[[], None],
        release: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.store = store
        self._is_synced = config.persist == "synced"
        self._answer = answer
        self._hold = hold
        self._release = release
        self._fail = fail
        self._waiting: deque[Append] = deque()
        self._unsynced: set[tuple[int, int]] = set()
        """Streams and sequences that the disk had no room for."""
        self._is_holding = self._is_closing = False
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._reads = asyncio.Semaphore(READS_MAX)

    @property
    def is_storing(self) -> bool:
        """True if the disk accepts data."""
        return not self._waiting and not self._is_holding

    def define(self, info: StreamInfo) -> None:
        self.store.define(info)

    def append(self, request: Append) -> None:
        is_working = bool(self._waiting)
        self._waiting.extend(parts_of(request, self.store.append_size_max))
        if not is_working:
            self._work()

    def read(self, request: ReadJournal) -> None:
        task = self._loop.create_task(self._read(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._is_closing = True
        if self._retry is not None:
            self._retry.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await asyncio.to_thread(self.store.close)
        except JournalError as error:
            log.error("not_closed", code=error.code, error=str(error))

    # Publishers wait while any append does.

    def _have_wait(self) -> None:
        self._is_holding = True
        self._hold()

    def _go_on(self) -> None:
        if self._is_holding and not self._waiting and not self._unsynced:
            self._is_holding = False
            self._release()

    # Appending

    def _work(self) -> None:
        self._retry = None
        while self._waiting:
            try:
                self._append(self._waiting[0])
            except JournalFailedError as error:
                self._fail(error)
                return
            except JournalError as error:
                log.warning("appends_wait", code=error.code, error=str(error), waiting=len(self._waiting))
                self._have_wait()
                self._retry = self._loop.call_later(RETRY_SECONDS, self._work)
                return
            self._waiting.popleft()
        self._go_on()

    def _append(self, request: Append) -> None:
        stream, through = request.stream, request.through
        if request.cut_after is not None:
            self.store.cut(stream, request.cut_after)
        if len(request.sizes):
            first = through - len(request.sizes) + 1
            self.store.append(
                stream,
                request.packets,
                request.offsets,
                request.sizes,
                time.time_ns(),
                first=first,
                is_in_tail=request.is_in_tail,
            )
        if self._is_synced and len(request.sizes):
            self._await_sync(stream, through)
        else:
            self._answer(Appended(stream, through))

    def _await_sync(self, stream: int, through: int) -> None:
        def done(error: Exception | None) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._synced, stream, through, error)

        self.store.when_durable(stream, through, done)

    def _synced(self, stream: int, through: int, error: Exception | None) -> None:
        if error is None:
            self._unsynced.discard((stream, through))
            self._answer(Appended(stream, through))
            self._go_on()
        elif isinstance(error, JournalFailedError):
            self._fail(error)
        elif not self._is_closing:  # the disk is full: it is kept in memory, and tried again
            self._unsynced.add((stream, through))
            self._have_wait()
            self._loop.call_later(RETRY_SECONDS, self._ask_again, stream, through)

    def _ask_again(self, stream: int, through: int) -> None:
        if self._is_closing:
            return
        try:
            self._await_sync(stream, through)
        except PenstockError as error:
            log.debug("sync_not_awaited", error=str(error))  # it was truncated
            self._unsynced.discard((stream, through))
            self._go_on()

    # Reading

    async def _read(self, request: ReadJournal) -> None:
        try:
            async with self._reads:
                portion = await asyncio.to_thread(self._portion, request)
            answer = JournalRead(request.request, portion.packets, portion.after, portion.through)
        except JournalFailedError as error:
            self._fail(error)
            return
        except PenstockError as error:  # such as a full disk: whoever still wants it asks again, not at once
            log.warning("read_failed", stream=request.stream, code=error.code, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            answer = JournalRead(request.request, b"", 0, 0, is_failed=True)
        self._answer(answer)

    def _portion(self, request: ReadJournal) -> Portion:
        stream, after = request.stream, self._begin(request)
        try:
            return self.store.read(stream, after, request.bytes_max)
        except JournalCorruptError as error:  # the rest is good: what cannot be read is told as gone
            through = self.store.pass_damaged(stream, after)
            log.error("stream_damaged", stream=stream, after=after, through=through, error=str(error))
            return Portion(b"", through, through)

    def _begin(self, request: ReadJournal) -> int:
        if request.time_ns is None:
            return request.after
        try:
            return max(self.store.find_time(request.stream, request.time_ns), request.after)
        except JournalCorruptError as error:  # the place is unknown: begin with the oldest rather than too late
            log.error("time_not_found", stream=request.stream, error=str(error))
            return request.after


def parts_of(request: Append, size_max: int) -> list[Append]:
    """Append the packets in parts for which the tail has room."""
    sizes = request.sizes
    if int(sizes.sum()) <= size_max:
        return [request]
    parts: list[Append] = []
    first, begin = request.through - len(sizes) + 1, 0
    while begin < len(sizes):
        count = max(1, int(numpy.searchsorted(numpy.cumsum(sizes[begin:], dtype=numpy.int64), size_max, side="right")))
        end = begin + count
        cut_after = None if parts else request.cut_after
        places = {"offsets": request.offsets[begin:end], "sizes": sizes[begin:end]}
        parts.append(msgspec.structs.replace(request, through=first + end - 1, cut_after=cut_after, **places))
        begin = end
    return parts
