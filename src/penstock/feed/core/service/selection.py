"""Selects each subscriber's messages: those that match its interests and its grants."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.topics import Interest, InterestTable


class Selector:
    """Interests and grants of subscribers, by small numbers. A message goes to subscribers whose interests and
    grants match its topic; discontinuities go to all."""

    def __init__(self) -> None:
        self._wanted = InterestTable()
        self._granted = InterestTable()
        self._numbers: set[int] = set()

    def set(self, number: int, topics: Sequence[str], patterns: Iterable[str]) -> None:
        """Replace a subscriber's interests and grants; a TopicError changes nothing."""
        wanted = [Interest.parse(text) for text in topics]
        granted = [Interest.parse(text) for text in patterns]
        self.remove(number)
        for table, interests in ((self._wanted, wanted), (self._granted, granted)):
            table.add(DISCONTINUITY_TOPIC, number)
            for interest in interests:
                table.add(interest, number)
        self._numbers.add(number)

    def remove(self, number: int) -> None:
        if number in self._numbers:
            self._wanted.remove_subscriber(number)
            self._granted.remove_subscriber(number)
            self._numbers.discard(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def rows_for(self, number: int, data: NDArray[numpy.uint8], rows: NDArray[Any]) -> NDArray[Any]:
        """The rows for one subscriber."""
        indices = self.select(data, rows).get(number)
        return rows[:0] if indices is None else rows[indices]

    def select(self, data: NDArray[numpy.uint8], rows: NDArray[Any]) -> dict[int, NDArray[numpy.intp]]:
        """For each subscriber with matching messages, the indices of their rows, in order."""
        if not len(rows) or not self._numbers:
            return {}
        offsets = numpy.ascontiguousarray(rows["topic_offset"])
        sizes = numpy.ascontiguousarray(rows["topic_size"])
        wanted = _pairs(*self._wanted.match_batch(data.data, offsets, sizes))
        granted = _pairs(*self._granted.match_batch(data.data, offsets, sizes))
        both = numpy.intersect1d(wanted, granted, assume_unique=True)  # sorted: by subscriber, then by row
        numbers, indices = both >> 32, (both & 0xFFFF_FFFF).astype(numpy.intp)
        edges = [0, *(numpy.flatnonzero(numpy.diff(numbers)) + 1).tolist(), len(both)]
        return {int(numbers[start]): indices[start:end] for start, end in itertools.pairwise(edges) if start < end}


def _pairs(starts: NDArray[numpy.uint64], subscribers: NDArray[numpy.uint32]) -> NDArray[numpy.uint64]:
    """subscriber << 32 | row, for each message's subscribers."""
    counts = numpy.diff(starts).astype(numpy.intp)
    rows = numpy.repeat(numpy.arange(len(counts), dtype=numpy.uint64), counts)
    pairs: NDArray[numpy.uint64] = subscribers.astype(numpy.uint64) << numpy.uint64(32) | rows
    return pairs
