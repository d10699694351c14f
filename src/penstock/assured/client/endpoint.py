"""An endpoint as the application uses it: received messages, and their settlement."""

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.assured.client.arguments import deadline_after, whole_number
from penstock.assured.core.session._inbox import Delivery
from penstock.assured.core.session.parts import FlowPart
from penstock.assured.wire._layout import SETTLE_ACKNOWLEDGED, SETTLE_REJECTED, SETTLE_RETURNED

if TYPE_CHECKING:
    from penstock.assured.client.connection import Assured

SLICE_SECONDS = 0.05


class AssuredEndpoint:
    """Made by Assured.endpoint(). One thread or task reads; any thread may settle messages, and close the endpoint.

    Messages that are unsettled when the flow ends go back into the queue. After a reconnect the router delivers these
    messages again, marked as redelivered. Settling a message of the lost link, or a settled message, has no effect.
    """

    def __init__(self, assured: "Assured", part: FlowPart) -> None:
        self.part = part
        self.part.inbox.source = self
        self._assured = assured
        self._is_closed = False

    def next(self, timeout: float | None = None) -> Delivery | None:
        """The next message, or None if no message arrives within `timeout` seconds."""
        inbox = self.part.inbox
        if not inbox.waiting:
            self._wait(timeout)
        return inbox.next()

    def take(self, count_max: int, timeout: float | None = None) -> list[Delivery]:
        """Up to `count_max` messages that have arrived; waits for the first message."""
        count_max = whole_number(count_max, "number of messages", 2**32 - 1)
        if not self.part.inbox.waiting:
            self._wait(timeout)
        return self.part.inbox.take(count_max)

    def __iter__(self) -> Iterator[Delivery]:
        """Messages, until the endpoint is closed."""
        while not self._is_closed:
            if (message := self.next(SLICE_SECONDS)) is not None:
                yield message

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """The same in an asyncio loop."""
        take = self.part.inbox.next
        while not self._is_closed:
            while (message := take()) is not None:
                yield message
            await self._assured.changed.wait_in_loop(self._is_ready)
            if not self._is_closed:
                self._assured.check(self.part)

    def ack(self, messages: Delivery | Iterable[Delivery], *, transaction: int = 0) -> int:
        """Acknowledge messages: the router deletes them. Return how many of the messages could be settled."""
        return self._settle(messages, SETTLE_ACKNOWLEDGED, transaction)

    def nack(self, messages: Delivery | Iterable[Delivery], *, transaction: int = 0) -> int:
        """Return messages to the queue, which delivers them again, to any consumer."""
        return self._settle(messages, SETTLE_RETURNED, transaction)

    def reject(self, messages: Delivery | Iterable[Delivery], *, transaction: int = 0) -> int:
        """Move the messages to the dead-letter endpoint."""
        return self._settle(messages, SETTLE_REJECTED, transaction)

    def is_of(self, assured: "Assured") -> bool:
        """True if the messages are delivered by this session: transactions of other sessions cannot settle them."""
        return self._assured is assured

    @property
    def waiting(self) -> int:
        """Number of messages that have arrived and were not read."""
        return self.part.inbox.waiting

    @property
    def is_active(self) -> bool:
        """True if this consumer receives messages. Only one consumer of an exclusive endpoint does; the others wait."""
        return self.part.is_active

    def close(self, *, as_unread: bool = False) -> None:
        """Return unsettled messages to the queue. Messages that the application has read count as delivered; with
        `as_unread`, no message does."""
        if not self._is_closed:
            self._is_closed = True
            with self._assured.lock:
                self._assured.changed.notify_all()
            self._assured.close_part(self.part, is_unread=as_unread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _settle(self, messages: Delivery | Iterable[Delivery], what: int, transaction: int) -> int:
        if self._is_closed:
            return 0
        add = self.part.settlements.add
        if isinstance(messages, Delivery):
            settled = int(add(messages, what, transaction))
        else:
            settled = sum([add(each, what, transaction) for each in messages])
        if settled:
            self._assured.flush_soon()
        return settled

    def _is_ready(self) -> bool:
        return self.part.inbox.waiting > 0 or self._is_closed or self._assured.failure_of(self.part) is not None

    def _wait(self, timeout: float | None) -> None:
        deadline = deadline_after(timeout)
        with self._assured.lock:
            while not self.part.inbox.waiting and not self._is_closed:
                self._assured.check(self.part)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._assured.changed.wait(left)
