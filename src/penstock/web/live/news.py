"""What happened lately, for however many watch: each reads from where it was."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

NEWS_KEPT = 200

T = TypeVar("T")


class News(Generic[T]):
    """Numbered from 1; whoever is slower than `kept` misses the oldest. In the thread of the loop."""

    def __init__(self, kept: int = NEWS_KEPT) -> None:
        self._kept: deque[T] = deque(maxlen=kept)
        self._changed = asyncio.Event()
        self.number = 0
        """Of the newest."""

    def tell(self, item: T) -> None:
        self.number += 1
        self._kept.append(item)
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_newer(self, number: int) -> list[T]:
        """Those after this number that are kept, as soon as there are some."""
        while self.number <= number:
            await self._changed.wait()
        return list(self._kept)[-(self.number - number) :]
