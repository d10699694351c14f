"""What a pair of message routers promises, judged from outside: by what publishers were told and consumers got."""

import msgspec

from penstock.assured._layout import DELIVERY_REDELIVERED, OUTCOME_SYNC
from penstock.assured.frames import Delivered
from penstock.base.errors import SimulationError

Key = tuple[int, int]
"""A publisher, and its number of a message."""


class _Published(msgspec.Struct):
    topic: bytes
    payload: bytes
    transaction: int
    is_synchronous: bool = False
    """It was acknowledged so."""
    is_acknowledged: bool = False
    is_rolled_back: bool = False


class ReplicatedChecker:
    """`routes` says which endpoints get what is published on a topic."""

    def __init__(self, routes: dict[bytes, list[str]]) -> None:
        self.deliveries = 0
        self.redeliveries = 0
        self.outcomes: dict[int, int] = {}
        self._routes = routes
        self._published: dict[Key, _Published] = {}
        self._firsts: dict[str, dict[Key, int]] = {}
        """By endpoint: what was delivered, in this order, and its id."""

    # What publishers do and are told

    def published(self, publisher: int, number: int, topic: bytes, payload: bytes, transaction: int) -> None:
        self._published[publisher, number] = _Published(topic, payload, transaction)

    def acknowledged(self, publisher: int, number: int, outcome: int) -> None:
        message = self._published[publisher, number]
        message.is_acknowledged = True
        message.is_synchronous = outcome == OUTCOME_SYNC
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def committed(self, publisher: int, numbers: list[int], treatment: int) -> None:
        for number in numbers:
            self.acknowledged(publisher, number, treatment)

    def rolled_back(self, publisher: int, numbers: list[int]) -> None:
        for number in numbers:
            self._published[publisher, number].is_rolled_back = True

    # What consumers get

    def delivered(self, endpoint: str, message: Delivered) -> None:
        key = (message.publisher, message.number)
        published = self._published.get(key)
        self._require(
            published is not None and published.payload == message.payload, f"{key} is not what was published"
        )
        assert published is not None
        self._require(endpoint in self._routes[published.topic], f"{endpoint} got {key} on {published.topic!r}")
        self._require(not published.is_rolled_back, f"{endpoint} got {key}, which was rolled back")
        firsts = self._firsts.setdefault(endpoint, {})
        self.deliveries += 1
        if key not in firsts:
            firsts[key] = message.id
            return
        self.redeliveries += 1
        self._require(bool(message.flags & DELIVERY_REDELIVERED), f"{endpoint} got {key} again, as if it were new")

    # At the end

    def missing(self) -> list[Key]:
        """What was acknowledged as synchronous and did not get everywhere."""
        return [
            key
            for key, each in self._published.items()
            if each.is_synchronous
            and not all(key in self._firsts.get(endpoint, {}) for endpoint in self._routes[each.topic])
        ]

    def finish(self) -> None:
        missing = self.missing()
        self._require(not missing, f"{len(missing)} messages acknowledged as synchronous are lost: {missing[:5]}")
        for endpoint, firsts in self._firsts.items():
            newest: dict[int, int] = {}
            for publisher, number in firsts:
                if self._published[publisher, number].is_synchronous:
                    last = newest.get(publisher, 0)
                    self._require(number > last, f"{endpoint} got {number} of {publisher} after {last}")
                    newest[publisher] = number
        self._finish_transactions()

    def _finish_transactions(self) -> None:
        groups: dict[tuple[int, int], list[Key]] = {}
        for key, each in self._published.items():
            if each.transaction:
                groups.setdefault((key[0], each.transaction), []).append(key)
        for (publisher, transaction), keys in groups.items():
            arrived = [
                key in self._firsts.get(endpoint, {})
                for key in keys
                for endpoint in self._routes[self._published[key].topic]
            ]
            self._require(
                all(arrived) or not any(arrived), f"transaction {transaction} of {publisher} was torn: {arrived}"
            )

    def _require(self, is_kept: bool, promise: str) -> None:
        if not is_kept:
            raise SimulationError(f"ReplicatedChecker: {promise}")
