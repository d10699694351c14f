"""The outbox of a connection, and both directions of the connection at once until its end.

async def serve(connection):
    outbox = Outbox(1_024, "end", too_slow=Refused("you do not read"))
    await converse(connection, outbox, read(connection, outbox))
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from penstock.base.errors import PenstockError

LAST_MESSAGE_SECONDS = 2.0
"""Time for a peer to receive its last message before it is disconnected."""

WhenFull: TypeAlias = Literal["end", "cut", "drop_oldest"]
"""A message for a full outbox disconnects the peer, with a last message (`end`) or without (`cut`), or replaces the
oldest ones (`drop_oldest`)."""

M = TypeVar("M")


class MessageConnection(Protocol):
    """The methods of a connection that an outbox uses."""

    @property
    def is_over(self) -> bool: ...

    async def send(self, message: Any, /) -> None: ...


class Outbox(Generic[M]):
    """Messages that wait to be sent to one peer.

    `size_max` bounds their number, or their bytes if put() gets the size of each; None if the user bounds them.
    `too_slow` is the last message with `end`. `on_sent` gets the size of each message that has been sent. With
    `send_now`, put() sends a message at once if none waits; the function returns False if the connection cannot accept
    more.
    """

    def __init__(
        self,
        size_max: int | None,
        when_full: WhenFull = "cut",
        *,
        too_slow: M | None = None,
        on_sent: Callable[[int], None] = lambda size: None,
        send_now: Callable[[M], bool] | None = None,
    ) -> None:
        self.size = 0
        """Total size of the waiting messages."""

        self.changed = asyncio.Event()
        self.ending = asyncio.Event()
        self.is_cut = False
        self.over = asyncio.Event()
        """Set at the end of converse()."""

        self._waiting: deque[tuple[M, int]] = deque()
        self._size_max = size_max
        self._when_full = when_full
        self._too_slow = too_slow
        self._on_sent = on_sent
        self._send_now = send_now
        self._is_idle = False  # send_to() waits for messages

    def put(self, message: M, size: int = 1) -> None:
        if self.ending.is_set():
            return
        if self._is_idle and not self._waiting and self._is_sent_now(message):
            self._on_sent(size)
            return
        if self._size_max is not None and self.size + size > self._size_max:
            if self._when_full == "end":
                self.end(self._too_slow)
                return
            if self._when_full == "cut":
                self.cut()
                return
            while self._waiting and self.size + size > self._size_max:
                self._take()
        self._waiting.append((message, size))
        self.size += size
        self.changed.set()

    def end(self, last: M | None) -> None:
        """Disconnect: `last` is sent in place of the waiting messages; None: these are sent."""
        if not self.ending.is_set() and last is not None:
            self._clear()
            self._waiting.append((last, 0))
        self.ending.set()
        self.changed.set()

    def cut(self) -> None:
        """Disconnect now: nothing more is sent."""
        self._clear()
        self.is_cut = True
        self.ending.set()
        self.changed.set()

    async def send_to(self, connection: MessageConnection) -> None:
        """Send messages until the outbox or the connection ends; the connection's reader gets the error."""
        with contextlib.suppress(PenstockError):  # the connection logs the reason
            while True:
                while self._waiting:
                    message, size = self._take()
                    await connection.send(message)
                    self._on_sent(size)
                if self.ending.is_set():
                    return
                self.changed.clear()
                self._is_idle = True
                try:
                    await self.changed.wait()
                finally:
                    self._is_idle = False

    def _is_sent_now(self, message: M) -> bool:
        try:
            return self._send_now is not None and self._send_now(message)
        except PenstockError:
            return False  # send_to() gets the error, too

    def _take(self) -> tuple[M, int]:
        message, size = self._waiting.popleft()
        self.size -= size
        return message, size

    def _clear(self) -> None:
        self._waiting.clear()
        self.size = 0


async def converse(connection: MessageConnection, outbox: Outbox[M], read: Coroutine[Any, Any, None]) -> None:
    """Run until one side ends the connection. `read` handles the messages of the peer; its errors are raised here."""
    writing = asyncio.ensure_future(outbox.send_to(connection))
    reading = asyncio.ensure_future(read)
    ending = asyncio.ensure_future(outbox.ending.wait())
    try:
        await asyncio.wait([writing, reading, ending], return_when=asyncio.FIRST_COMPLETED)
        if outbox.ending.is_set() and not outbox.is_cut and not connection.is_over:
            await asyncio.wait([writing], timeout=LAST_MESSAGE_SECONDS)
    finally:
        for task in (writing, reading, ending):
            task.cancel()
        results = await asyncio.gather(writing, reading, ending, return_exceptions=True)
        outbox.over.set()
    for result in results:
        if isinstance(result, Exception):
            raise result
