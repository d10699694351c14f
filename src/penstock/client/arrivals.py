"""Wait in an asyncio loop until something can be received."""

import asyncio
import select
from collections.abc import Sequence

WAIT_SECONDS = 0.05
"""Maximum wait, after which the caller looks for changes."""


class Arrivals:
    """The descriptors of one reader in the loop that calls wait(). One epoll descriptor stands for all of them, and
    stays registered with the loop from one wait to the next.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._known: set[int] = set()
        self._waiter: asyncio.Future[None] | None = None
        self._is_registered = False

    async def wait(self, descriptors: Sequence[int], seconds: float) -> None:
        """Wait until one of the descriptors is readable, or for the time."""
        if self._known != set(descriptors):
            self._watch(descriptors)
        if not self._is_registered:
            self._loop.add_reader(self._epoll.fileno(), self._wake)
            self._is_registered = True
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(min(seconds, WAIT_SECONDS), self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            timer.cancel()

    def close(self) -> None:
        self._unregister()
        self._epoll.close()

    def _watch(self, descriptors: Sequence[int]) -> None:
        """Watch these descriptors only; an epoll descriptor forgets closed ones, so it is made anew."""
        self._unregister()
        self._epoll.close()
        self._epoll = select.epoll()
        for each in descriptors:
            self._epoll.register(each, select.EPOLLIN)
        self._known = set(descriptors)

    def _wake(self) -> None:
        if self._waiter is None:
            self._unregister()  # the reader is busy elsewhere
        elif not self._waiter.done():
            self._waiter.set_result(None)

    def _unregister(self) -> None:
        if self._is_registered:
            self._loop.remove_reader(self._epoll.fileno())
            self._is_registered = False
