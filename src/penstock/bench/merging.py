"""A subscriber that merges the streams of several adapters and records the arrivals."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.middleware import ReceiverConfig
from penstock.middleware.core.events import Discontinuity, Merged, MergedBatch, MergeGap
from penstock.middleware.core.merger import Merger
from penstock.middleware.live import MulticastReceiver
from penstock.net.udp import Channel
from penstock.wire import Extension, MessageBatch, decode_origin
from penstock.wire._codec import ORIGIN_MESSAGE_SEQUENCE_AT

LOOK_SECONDS = 0.05


class Book(msgspec.Struct):
    """A subscriber's record of one source stream."""

    times_ns: list[int] = []
    """Times of all deliveries, on the monotonic clock."""

    messages: int = 0
    lost: int = 0
    duplicated: int = 0
    discontinuities: list[int] = []
    """Times of the discontinuities after the start."""

    last_number: int = 0

    def longest_gap_ns(self, from_ns: int, to_ns: int) -> int:
        """Return the longest gap between consecutive deliveries, if either is within the time."""
        times = numpy.array(self.times_ns, numpy.int64)
        first, last = numpy.searchsorted(times, [from_ns, to_ns])
        chosen = times[max(0, int(first) - 1) : int(last) + 1]
        return int(numpy.diff(chosen).max()) if len(chosen) > 1 else to_ns - from_ns


class MergingSubscriber:
    """Receives, merges and checks that the numbers are consecutive."""

    def __init__(self, channels: list[Channel], config: ReceiverConfig) -> None:
        self._receiver = MulticastReceiver(channels, config=config)
        self._merger = Merger()
        self.book = Book()
        self.on_messages: Callable[[MessageBatch | list[Any]], None] | None = None

    def close(self) -> None:
        self._receiver.close()

    def take(self, timeout: float = LOOK_SECONDS) -> None:
        received = self._receiver.receive(timeout)
        now_ns = time.monotonic_ns()
        for each in received:
            for merged in self._merger.handle(each, now_ns):
                self._note(merged, now_ns)

    def _note(self, merged: object, now_ns: int) -> None:
        book = self.book
        if isinstance(merged, MergedBatch):
            self._note_numbers(_numbers_of(merged.messages), now_ns)
        elif isinstance(merged, Merged):
            origins = [decode_origin(each.extensions[Extension.ORIGIN]) for each in merged.messages]
            self._note_numbers(numpy.array([each.message_sequence for each in origins], numpy.int64), now_ns)
        elif isinstance(merged, MergeGap):
            book.lost += merged.last - merged.first + 1
            book.last_number = merged.last
        elif isinstance(merged, Discontinuity):
            if book.messages:
                book.discontinuities.append(now_ns)
                book.lost += sum(last - first + 1 for first, last in merged.lost)
            book.last_number = merged.message_sequence

    def _note_numbers(self, numbers: NDArray[numpy.int64], now_ns: int) -> None:
        if not len(numbers):
            return
        book = self.book
        steps = numpy.diff(numbers, prepend=book.last_number or int(numbers[0]) - 1)
        book.lost += int(numpy.maximum(steps - 1, 0).sum())
        book.duplicated += int(numpy.count_nonzero(steps < 1))
        book.last_number = int(numbers[-1])
        book.messages += len(numbers)
        book.times_ns.append(now_ns)


def _numbers_of(batch: MessageBatch) -> NDArray[numpy.int64]:
    """Read the sequence numbers; ORIGIN is the first extension of every adapter message."""
    at = batch.messages["extensions_offset"].astype(numpy.int64) + ORIGIN_MESSAGE_SEQUENCE_AT
    data = numpy.frombuffer(batch.data, numpy.uint8)
    octets = data[at[:, None] + numpy.arange(8)]
    numbers: NDArray[numpy.int64] = numpy.ascontiguousarray(octets).view("<i8").reshape(-1)
    return numbers
