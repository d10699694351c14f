"""The bounded outbox of one browser, without I/O.

A conflating subscription keeps the newest message of each topic, and counts and reports the others; a lossless one
keeps everything, and its source pauses when the outbox is full; one of class `disconnect` ends when it is full.
"""

from collections import OrderedDict
from collections.abc import Iterator

from penstock.base.errors import LimitError
from penstock.web.gateway.core.fields import Arrived
from penstock.web.gateway.core.replies import Receipt, Reply
from penstock.web.gateway.core.requests import Class

BATCH_MAX = 256
"""Maximum number of messages in one frame."""

REPLIES_MAX = 1_024
"""Maximum number of waiting replies and notifications; a browser with more has not read for long."""


class Outbox:
    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._waiting: OrderedDict[object, Arrived | Reply] = OrderedDict()
        self._next = 0
        self._replies = 0
        self._conflated: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """True if sources must pause."""
        return len(self._waiting) >= self._size_max

    @property
    def has_room(self) -> bool:
        """True if sources may resume after a pause."""
        return len(self._waiting) <= self._size_max // 2

    def put(self, arrived: Arrived, cls: Class) -> None:
        """Add a message. Raise LimitError if its class disconnects a browser that is too slow."""
        if cls == "conflating":
            key: object = (arrived.id, arrived.message.topic)
            if self._waiting.pop(key, None) is not None:
                self._conflated[arrived.id] = self._conflated.get(arrived.id, 0) + 1
        else:
            if cls == "disconnect" and self.is_full:
                raise LimitError(
                    f"{self._size_max} messages wait for this browser",
                    hint="a subscription of class conflating or lossless is not disconnected",
                )
            key = self._number()
        self._waiting[key] = arrived

    def reply(self, reply: Reply) -> None:
        """Add a reply after the messages so far."""
        if self._replies >= REPLIES_MAX:
            raise LimitError(f"{REPLIES_MAX} answers wait for this browser")
        self._replies += 1
        self._waiting[self._number()] = reply

    def forget(self, number: int) -> None:
        """Remove the messages of a subscription that has ended."""
        for key, each in list(self._waiting.items()):
            if isinstance(each, Arrived) and each.id == number:
                del self._waiting[key]
        self._conflated.pop(number, None)

    def take(self) -> "list[Arrived] | Reply | None":
        """Remove and return what is sent next: one reply, or consecutive messages."""
        if self._conflated:
            number, count = self._conflated.popitem()
            return Receipt(id=number, receipt="conflated", count=count)
        messages = list(self._messages())
        if messages or not self._waiting:
            return messages or None
        _, reply = self._waiting.popitem(last=False)
        assert isinstance(reply, Reply)
        self._replies -= 1
        return reply

    def _messages(self) -> Iterator[Arrived]:
        for _ in range(BATCH_MAX):
            key, first = next(iter(self._waiting.items()), (None, None))
            if not isinstance(first, Arrived):
                return
            del self._waiting[key]
            yield first

    def _number(self) -> int:
        self._next += 1
        return self._next
