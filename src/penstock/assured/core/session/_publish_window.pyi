"""A publisher's messages without acknowledgement."""

from collections import deque
from typing import TypeVar

from typing_extensions import Buffer

from penstock.assured.wire.control import EndpointNamed

T = TypeVar("T")

class PublishWindow:
    """Numbers begin at `first`; at most `messages_max` messages and `bytes_max` bytes are without an outcome."""

    messages_max: int
    bytes_max: int
    payload_size_max: int
    """The router's limit."""
    next_number: int
    unresolved: int
    """The lowest number without an outcome; next_number: none."""
    answered: int
    """The number after the highest one with an outcome."""
    waiting_bytes: int
    refused: int
    """Total number of refused messages."""

    def __init__(self, messages_max: int, bytes_max: int, first: int = 1) -> None: ...
    @property
    def room(self) -> int:
        """Number of messages that can be added now."""
    @property
    def is_unsent(self) -> bool: ...
    @property
    def unsent_messages(self) -> int: ...
    def begin_at(self, first: int) -> None:
        """Set the first number before the first message: the router has seen lower ones."""
    def put(
        self,
        topic: str,
        payload: bytes,
        priority: int,
        flags: int,
        model_id: int,
        model_version: int,
        ttl_ms: int,
        transaction: int,
    ) -> int:
        """Add a message and return its number; 0 if there is no room."""
    def rewind(self) -> None:
        """Prepare for another link: all messages without an outcome are sent again."""
    def pass_over(self, transaction: int) -> None:
        """The router on this link has the transaction's messages and its commit: they are not sent again."""
    def take(self, handle: int) -> bytes:
        """Return frames with all messages that were not sent on this link."""
    def acknowledge(self, frame: Buffer, named: dict[int, EndpointNamed] = ...) -> list[tuple[int, int, int]]:
        """Apply an ACKNOWLEDGE frame without its length; `named` has the endpoints of the numbers in it. Return its
        runs of refused messages: (first, last, outcome)."""
    def end_transaction(self, transaction: int, outcome: int) -> None:
        """The transaction was committed or rolled back: that is the outcome of all its messages."""
    def outcome_of(self, number: int) -> int:
        """The outcome of a message; 0: none yet. Known until 65,536 later messages have one."""
    def take_outcomes(self, awaited: dict[int, T], answered: deque[tuple[T, int, int]]) -> None:
        """Move what is awaited, by number in ascending order, to `answered` if its message has an outcome: (what,
        number, outcome)."""
    def full_endpoint(self, number: int) -> tuple[EndpointNamed, int] | None:
        """The full endpoint that refused a message, and its exceeded limit; None: unknown."""
    def outcome_counts(self) -> dict[int, int]:
        """Number of messages by outcome."""
