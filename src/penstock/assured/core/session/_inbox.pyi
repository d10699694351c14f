"""The deliveries of a flow, and the application's settlements."""

from typing import Any

from penstock.assured.wire.control import EndpointNamed

class Delivery:
    """A message of an endpoint. `is_redelivered`: it may have been delivered before. `opened` is the opening of its
    flow: after another opening, the message cannot be settled, and is redelivered."""

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
    """The reason of a dead letter: rejected, deliveries_max, expired or overflowed. Otherwise empty."""
    dead_from: str
    """The endpoint that the dead letter came from; empty if unknown or deleted."""
    source: Any

    def ack(self) -> None:
        """Accept the message: the router deletes it."""
    def nack(self) -> None:
        """Return the message to the queue: it is delivered again, to any consumer."""
    def reject(self) -> None:
        """Move the message to the dead-letter endpoint."""

class Inbox:
    """The deliveries of one flow."""

    source: Any
    """The owner of these messages."""
    named: dict[int, EndpointNamed]
    """Endpoints, by the router's numbers."""

    waiting: int
    """Number of unread messages."""
    came: int
    """Number of messages received since it was opened."""

    def reopen(self, opened: int) -> None:
        """The flow was opened again: unread messages will be delivered again."""
    def feed(self, frame: bytes) -> None:
        """Add a DELIVER frame without its length."""
    def next(self) -> Delivery | None:
        """The next message; None if there is none now."""
    def end(self) -> int:
        """Stop reading. Return the number of received messages that were read."""
    def take(self, count_max: int) -> list[Delivery]:
        """Return up to `count_max` of the next messages."""

class Settlements:
    """Settlements of a flow's messages, in runs of consecutive ids with equal settlements."""

    settled: int
    """Number of messages settled since it was opened."""
    opened: int

    def reopen(self, opened: int) -> None:
        """The flow was opened again: unsent settlements are void."""
    def add(self, delivery: Delivery, what: int, transaction: int) -> bool:
        """Add a settlement. False if the message belongs to an earlier opening of the flow: it is delivered again."""
    @property
    def is_waiting(self) -> bool: ...
    def take(self, handle: int) -> bytes:
        """Return frames with all settlements."""
