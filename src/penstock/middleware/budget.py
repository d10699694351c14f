"""The memory that a receiver's streams have together for what they hold back."""

from typing import Generic, Protocol, TypeVar

PACKET_OVERHEAD = 512
"""Bytes that a packet held back takes besides its own."""


class Holder(Protocol):
    """A stream that holds something back."""

    held_bytes: int


H = TypeVar("H", bound=Holder)


class ReceiveBudget(Generic[H]):
    """Who holds how much."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.holders: dict[H, None] = {}

    @property
    def is_exceeded(self) -> bool:
        return self.used > self.bytes_max

    def change(self, holder: H, held_bytes: int) -> None:
        """The stream holds so much now."""
        self.used += held_bytes - holder.held_bytes
        holder.held_bytes = held_bytes
        if held_bytes:
            self.holders[holder] = None
        else:
            self.holders.pop(holder, None)
