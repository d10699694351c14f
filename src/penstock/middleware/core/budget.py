"""The total memory of streams for buffered data: packets, ranges of missing packets and unfinished messages of a
receiver, messages of a merger."""

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

PACKET_OVERHEAD = 512
"""Overhead of a buffered packet in bytes."""

GAP_OVERHEAD = 192
"""Size of a range of missing packets in bytes."""


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

    def victims(self, order: Callable[[H], Any]) -> Iterator[H]:
        """If the limit is exceeded, return the streams that must release their buffers, highest in `order` first, until
        one eighth of the limit is free. One sort then serves many packets."""
        if self.used <= self.bytes_max:
            return
        for holder in sorted(self.holders, key=order, reverse=True):
            if self.used <= self.bytes_max - self.bytes_max // 8:
                return
            yield holder

    def change(self, holder: H, held_bytes: int) -> None:
        """Update the stream's buffered bytes."""
        self.used += held_bytes - holder.held_bytes
        holder.held_bytes = held_bytes
        if held_bytes:
            self.holders[holder] = None
        else:
            self.holders.pop(holder, None)
