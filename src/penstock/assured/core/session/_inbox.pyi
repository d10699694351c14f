"""What a flow has brought, and what the application has settled."""

from typing import Any

from penstock.assured.wire.control import EndpointNamed

class Delivery:
    """A message of an endpoint. `is_redelivered`: it may have been delivered before. `opened` says on which opening of
    its flow it came: after another one it cannot be settled any more, and comes again."""

    id: int
    topic: str
    payload: bytes
    priority: int
    is_redelivered: bool
    is_replayed: bool
    deliveries: int
    model_id: int
    model_version: int
    published_ns: int
    publisher: int
    number: int
    opened: int
    is_settled: bool
    dead_reason: str
    """Of a message that another endpoint gave up: rejected, deliveries_max, expired or overflowed. Of others empty."""
    dead_from: str
    """The endpoint that gave it up; empty if that is not known, or is no more."""
    source: Any

    def ack(self) -> None:
        """It is done with: the router deletes it."""
    def nack(self) -> None:
        """It goes back into the queue, and comes again, to whomever."""
    def reject(self) -> None:
        """It goes to the dead-message queue."""

class Inbox:
    """Of one flow."""

    source: Any
    """Whose messages these are."""
    named: dict[int, EndpointNamed]
    """Endpoints, by the numbers that the router has for them."""

    waiting: int
    """Messages that were not read."""
    came: int
    """In all, since it was opened."""

    def reopen(self, opened: int) -> None:
        """The flow is another: what was not read will come again."""
    def feed(self, frame: bytes) -> None:
        """A DELIVER, without its length."""
    def next(self) -> Delivery | None:
        """The next message; None if there is none now."""
    def end(self) -> int:
        """Nobody reads any more. How many of those that came were read."""
    def take(self, count_max: int) -> list[Delivery]:
        """So many of the next messages."""

class Settlements:
    """What became of a flow's messages, in runs; ids that follow each other and share their fate are one run."""

    settled: int
    """Messages in all, since it was opened."""
    opened: int

    def reopen(self, opened: int) -> None:
        """The flow is another: what was not sent cannot be settled any more."""
    def add(self, delivery: Delivery, what: int, transaction: int) -> bool:
        """False if the message came on an earlier opening of the flow: it comes again."""
    @property
    def is_waiting(self) -> bool: ...
    def take(self, handle: int) -> bytes:
        """Frames with all of it."""
