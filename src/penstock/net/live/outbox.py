"""The outbox of a control connection, and both directions of the connection at once until its end.

async def serve(connection):
    outbox = Outbox(1_024, too_slow)
    await converse(connection, outbox, read(connection, outbox))
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any, Generic, Protocol, TypeVar

from penstock.base.errors import PenstockError

LAST_MESSAGE_SECONDS = 2.0
"""Time in which a peer that is disconnected has to take its last message."""

M = TypeVar("M")


class MessageConnection(Protocol):
    """A connection, as far as an outbox needs one."""

    @property
    def is_over(self) -> bool: ...

    async def send(self, message: Any, /) -> None: ...


class Outbox(Generic[M]):
    """Messages that wait to be sent to one peer. A peer that lets more than `size_max` wait is disconnected, with
    `too_slow` as its last message."""

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
        """Disconnect now. `last` is sent in place of the waiting messages."""
        if not self.ending.is_set():
            self.waiting.clear()
            self.waiting.append(last)
        self.ending.set()
        self.changed.set()


async def converse(connection: MessageConnection, outbox: Outbox[M], read: Coroutine[Any, Any, None]) -> None:
    """Run until one side ends the connection. `read` handles the messages of the peer; its errors are raised here."""
    writing = asyncio.ensure_future(_write(connection, outbox))
    reading = asyncio.ensure_future(read)
    ending = asyncio.ensure_future(outbox.ending.wait())
    try:
        await asyncio.wait([writing, reading, ending], return_when=asyncio.FIRST_COMPLETED)
        if outbox.ending.is_set() and not connection.is_over:
            await asyncio.wait([writing], timeout=LAST_MESSAGE_SECONDS)
    finally:
        for task in (writing, reading, ending):
            task.cancel()
        results = await asyncio.gather(writing, reading, ending, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _write(connection: MessageConnection, outbox: Outbox[M]) -> None:
    with contextlib.suppress(PenstockError):  # the connection logs why it ended
        while True:
            while outbox.waiting:
                await connection.send(outbox.waiting.popleft())
            if outbox.ending.is_set():
                return
            outbox.changed.clear()
            await outbox.changed.wait()
