"""The total memory of a receiver's streams for buffered packets and unfinished messages."""

from typing import Generic, Protocol, TypeVar

PACKET_OVERHEAD = 512
"""Overhead of a buffered packet in bytes."""


class Holder(Protocol):
    """A stream with buffered data."""

    held_bytes: int


H = TypeVar("H", bound=Holder)


class ReceiveBudget(Generic[H]):
    """Buffered bytes per stream."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.holders: dict[H, None] = {}

    @property
    def is_exceeded(self) -> bool:
        return self.used > self.bytes_max

    def change(self, holder: H, held_bytes: int) -> None:
        """Update the stream's buffered bytes."""
        self.used += held_bytes - holder.held_bytes
        holder.held_bytes = held_bytes
        if held_bytes:
            self.holders[holder] = None
        else:
            self.holders.pop(holder, None)
