"""Selects each subscriber's messages: those that match its interests and its grants."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.base.clock import random_bytes
from penstock.base.errors import TopicError
from penstock.feed.core.service._rows import TopicSelector
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.topics import Interest, InterestTable


class Selector:
    """Interests and grants of subscribers, by small numbers. A message goes to subscribers whose interests and
    grants match its topic; discontinuities go to all."""

    def __init__(self) -> None:
        self._wanted = InterestTable()
        self._granted = InterestTable()
        self._numbers: set[int] = set()
        self._by_topic = TopicSelector(int.from_bytes(random_bytes(8), "big"), self._subscribers_of)

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
        self._by_topic.forget()

    def remove(self, number: int) -> None:
        if number in self._numbers:
            self._wanted.remove_subscriber(number)
            self._granted.remove_subscriber(number)
            self._numbers.discard(number)
            self._by_topic.forget()

    def __len__(self) -> int:
        return len(self._numbers)

    def rows_for(self, number: int, data: NDArray[numpy.uint8], rows: NDArray[Any]) -> NDArray[Any]:
        """The rows for one subscriber."""
        return self.select(data, rows).get(number, rows[:0])

    def select(self, data: NDArray[numpy.uint8], rows: NDArray[Any]) -> dict[int, NDArray[Any]]:
        """For each subscriber with matching messages, their rows, in order."""
        if not len(rows) or not self._numbers:
            return {}
        return self._by_topic.select(data, numpy.ascontiguousarray(rows))

    def _subscribers_of(self, topic: str) -> list[int]:
        try:
            wanted = self._wanted.match(topic)
            granted = set(self._granted.match(topic)) if wanted else ()
        except TopicError:
            return []
        return [number for number in wanted if number in granted]
