"""The disk of a root or standby as its core sees it: journals that are appended to and read, each in its order.

While the disk is full nothing is lost: what was to be appended waits, nothing more is taken from publishers, and it
goes on by itself when there is room.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.base.errors import JournalError, JournalFailedError
from penstock.base.log import logger
from penstock.tree.config import TreeConfig
from penstock.tree.control import StreamInfo
from penstock.tree.events import Append, Appended, JournalRead, ReadJournal
from penstock.tree.persistence import Portion, StreamStore

RETRY_SECONDS = 0.1

log = logger("tree.storing")


class Storing:
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
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def is_storing(self) -> bool:
        """Whether the disk takes what comes."""
        return not self._waiting

    def define(self, info: StreamInfo) -> None:
        self.store.define(info)

    def append(self, request: Append) -> None:
        self._waiting.append(request)
        if len(self._waiting) == 1:
            self._work()

    def read(self, request: ReadJournal) -> None:
        task = self._loop.create_task(self._read(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await asyncio.to_thread(self.store.close)
        except JournalError as error:
            log.error("not_closed", code=error.code, error=str(error))

    # Appending

    def _work(self) -> None:
        self._retry = None
        was_waiting = len(self._waiting) > 1
        while self._waiting:
            try:
                self._append(self._waiting[0])
            except JournalFailedError as error:
                self._fail(error)
                return
            except JournalError as error:
                log.warning("appends_wait", code=error.code, error=str(error), waiting=len(self._waiting))
                self._hold()
                self._retry = self._loop.call_later(RETRY_SECONDS, self._work)
                return
            self._waiting.popleft()
        if was_waiting:
            self._release()

    def _append(self, request: Append) -> None:
        stream, through = request.stream, request.through
        if request.cut_after is not None:
            self.store.cut(stream, request.cut_after)
        if len(request.sizes):
            first = through - len(request.sizes) + 1
            self.store.append(stream, request.packets, request.offsets, request.sizes, time.time_ns(), first=first)
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
            self._answer(Appended(stream, through))
        elif isinstance(error, JournalFailedError):
            self._fail(error)
        else:  # the disk is full: it is kept in memory, and tried again
            self._hold()
            self._loop.call_later(RETRY_SECONDS, self._ask_again, stream, through)

    def _ask_again(self, stream: int, through: int) -> None:
        try:
            self._await_sync(stream, through)
        except JournalError as error:
            log.debug("sync_not_awaited", error=str(error))  # it has been closed
        else:
            self._release()

    # Reading

    async def _read(self, request: ReadJournal) -> None:
        try:
            portion = await asyncio.to_thread(self._portion, request)
        except JournalError as error:
            self._fail(error)
            return
        self._answer(JournalRead(request.request, portion.packets, portion.after, portion.through))

    def _portion(self, request: ReadJournal) -> Portion:
        after = request.after
        if request.time_ns is not None:
            self.store.commit()
            after = max(self.store.find_time(request.stream, request.time_ns), after)
        portion = self.store.read(request.stream, after, request.bytes_max)
        if not portion.packets and after < self.store.next_sequence(request.stream) - 1:
            self.store.commit()  # what is asked for is on its way to the disk
            portion = self.store.read(request.stream, after, request.bytes_max)
        return portion
