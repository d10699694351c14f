"""One control connection of a server: what waits to be told to the peer, and both directions at once until the end.

async def serve(connection):
    letters = Letters(1_024, too_slow)
    await converse(connection, letters, hear(connection, letters))
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any, Generic, Protocol, TypeVar

from penstock.base.errors import PenstockError

LAST_WORDS_SECONDS = 2.0
"""How long one that is cut off has to take its last message."""

M = TypeVar("M")


class Hearer(Protocol):
    """A connection, as far as this needs one."""

    @property
    def is_over(self) -> bool: ...

    async def send(self, message: Any, /) -> None: ...


class Letters(Generic[M]):
    """What waits to be told to one peer; one that lets more than `size_max` wait is cut off, with `too_slow`."""

    def __init__(self, size_max: int, too_slow: M) -> None:
        self.waiting: deque[M] = deque()
        self.changed = asyncio.Event()
        self.ending = asyncio.Event()
        self._size_max = size_max
        self._too_slow = too_slow

    def put(self, message: M) -> None:
        if self.ending.is_set():
            return
        if len(self.waiting) >= self._size_max:
            self.end(self._too_slow)
            return
        self.waiting.append(message)
        self.changed.set()

    def end(self, last: M) -> None:
        """At once, with last words."""
        if not self.ending.is_set():
            self.waiting.clear()
            self.waiting.append(last)
        self.ending.set()
        self.changed.set()


async def converse(connection: Hearer, letters: Letters[M], hear: Coroutine[Any, Any, None]) -> None:
    """Until one side ends it; `hear` takes what the peer says, and what it raises is raised here."""
    writing = asyncio.ensure_future(_write(connection, letters))
    hearing = asyncio.ensure_future(hear)
    ending = asyncio.ensure_future(letters.ending.wait())
    try:
        await asyncio.wait([writing, hearing, ending], return_when=asyncio.FIRST_COMPLETED)
        if letters.ending.is_set() and not connection.is_over:
            await asyncio.wait([writing], timeout=LAST_WORDS_SECONDS)
    finally:
        for task in (writing, hearing, ending):
            task.cancel()
        results = await asyncio.gather(writing, hearing, ending, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _write(connection: Hearer, letters: Letters[M]) -> None:
    with contextlib.suppress(PenstockError):  # why a connection ended is the connection's to log
        while True:
            while letters.waiting:
                await connection.send(letters.waiting.popleft())
            if letters.ending.is_set():
                return
            letters.changed.clear()
            await letters.changed.wait()
