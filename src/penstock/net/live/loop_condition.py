"""A condition variable that threads and tasks of asyncio loops wait for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable


class LoopCondition(threading.Condition):
    """A notification wakes waiting threads, and the loops of waiting tasks: once for each task that waits, however
    often the condition is notified until the task runs."""

    def __init__(self, lock: "threading.RLock | None" = None) -> None:
        super().__init__(lock)
        self._tasks: set[asyncio.Future[None]] = set()

    def notify_all(self) -> None:
        super().notify_all()
        for waiting in list(self._tasks):
            self._tasks.discard(waiting)
            with contextlib.suppress(RuntimeError):  # its loop has ended
                waiting.get_loop().call_soon_threadsafe(_wake, waiting)

    async def wait_in_loop(self, is_met: Callable[[], object]) -> None:
        """Return when `is_met`, which is called without the lock."""
        while not is_met():
            waiting = asyncio.get_running_loop().create_future()
            self._tasks.add(waiting)
            try:
                if not is_met():  # by a thread that notified before the task was there
                    await waiting
            finally:
                self._tasks.discard(waiting)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
