"""Recent events for any number of watchers, each of which reads from its own position."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

NEWS_KEPT = 200

T = TypeVar("T")


class News(Generic[T]):
    """Events are numbered from 1; a watcher that lags more than `kept` events behind misses the oldest. Use the object
    in the thread of the loop."""

    def __init__(self, kept: int = NEWS_KEPT) -> None:
        self._kept: deque[T] = deque(maxlen=kept)
        self._changed = asyncio.Event()
        self.number = 0
        """Number of the newest event."""

    def tell(self, item: T) -> None:
        self.number += 1
        self._kept.append(item)
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_newer(self, number: int) -> list[T]:
        """Wait for events after this number, and return those that are kept."""
        while self.number <= number:
            await self._changed.wait()
        return list(self._kept)[-(self.number - number) :]
