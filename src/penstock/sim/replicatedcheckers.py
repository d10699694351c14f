"""What a pair of message routers promises, judged from outside: by what publishers were told and consumers got."""

import msgspec

from penstock.assured._layout import DELIVERY_REDELIVERED, OUTCOME_DEGRADED, OUTCOME_SYNC
from penstock.assured.frames import Delivered
from penstock.base.errors import SimulationError

Key = tuple[int, int]
"""A publisher, and its number of a message."""


class _Published(msgspec.Struct):
    topic: bytes
    payload: bytes
    transaction: int
    is_synchronous: bool
    """As far as its publisher is asked."""
    is_promised: bool = False
    """It was acknowledged in a way that outlives every switch."""
    is_rolled_back: bool = False


class ReplicatedChecker:
    """`routes` says which endpoints get what is published on a topic.

    Where a lease decides who is active, what was acknowledged as degraded outlives every switch as well: there is none
    to a router that has not got it (REPL-8).
    """

    def __init__(self, routes: dict[bytes, list[str]], *, has_lease: bool) -> None:
        self.deliveries = 0
        self.redeliveries = 0
        self.outcomes: dict[int, int] = {}
        self.is_excused = False
        """An operator has made a router active while the other one was degraded: transactions may be torn by that."""
        self._routes = routes
        self._promises = {OUTCOME_SYNC, OUTCOME_DEGRADED} if has_lease else {OUTCOME_SYNC}
        self._published: dict[Key, _Published] = {}
        self._firsts: dict[str, dict[Key, int]] = {}
        """By endpoint: what was delivered, in this order, and its id."""
        self._consumed: dict[str, set[Key]] = {}
        """By endpoint: what transactions have consumed that count for good."""
        self._owed: dict[str, set[Key]] = {}
        """By endpoint: what transactions consumed that are not known to be committed, until it is delivered again."""

    # What publishers do and are told

    def published(
        self, key: Key, topic: bytes, payload: bytes, *, transaction: int = 0, is_synchronous: bool = True
    ) -> None:
        self._published[key] = _Published(topic, payload, transaction, is_synchronous)

    def acknowledged(self, publisher: int, number: int, outcome: int) -> None:
        self._published[publisher, number].is_promised = outcome in self._promises
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def committed(self, publisher: int, numbers: list[int], treatment: int) -> None:
        for number in numbers:
            self.acknowledged(publisher, number, treatment)

    def rolled_back(self, publisher: int, numbers: list[int]) -> None:
        for number in numbers:
            key = (publisher, number)
            self._published[key].is_rolled_back = True
            seen = [endpoint for endpoint, firsts in self._firsts.items() if key in firsts]
            self._require(self.is_excused or not seen, f"{seen} got {key}, and then it was rolled back")

    # What consumers do and get

    def delivered(self, endpoint: str, message: Delivered) -> None:
        key = (message.publisher, message.number)
        published = self._published.get(key)
        self._require(
            published is not None and published.payload == message.payload, f"{key} is not what was published"
        )
        assert published is not None
        self._require(endpoint in self._routes[published.topic], f"{endpoint} got {key} on {published.topic!r}")
        self._require(self.is_excused or not published.is_rolled_back, f"{endpoint} got {key}, which was rolled back")
        self._require(
            key not in self._consumed.get(endpoint, ()), f"{endpoint} got {key} after a transaction had consumed it"
        )
        self._owed.get(endpoint, set()).discard(key)
        firsts = self._firsts.setdefault(endpoint, {})
        self.deliveries += 1
        if key not in firsts:
            firsts[key] = message.id
            return
        self.redeliveries += 1
        self._require(bool(message.flags & DELIVERY_REDELIVERED), f"{endpoint} got {key} again, as if it were new")

    def consuming(self, endpoint: str, keys: list[Key]) -> None:
        """Within a transaction that is about to end, one way or the other."""
        self._owed.setdefault(endpoint, set()).update(keys)

    def consumed(self, endpoint: str, keys: list[Key], treatment: int) -> None:
        """That transaction was committed."""
        self._owed[endpoint].difference_update(keys)
        if treatment in self._promises:
            # Of others a copy may have stayed at a router that was replaced, and been published again to its successor.
            sure = {key for key in keys if self._published[key].is_synchronous}
            self._consumed.setdefault(endpoint, set()).update(sure)

    # At the end

    def missing(self) -> list[Key]:
        """What was promised and did not get everywhere."""
        return [
            key
            for key, each in self._published.items()
            if each.is_promised
            and not all(key in self._firsts.get(endpoint, {}) for endpoint in self._routes[each.topic])
        ]

    def finish(self) -> None:
        missing = self.missing()
        self._require(not missing, f"{len(missing)} messages are lost that were acknowledged: {missing[:5]}")
        for endpoint, keys in self._owed.items():
            owed = sorted(key for key in keys if self._published[key].is_promised)
            self._require(not owed, f"{endpoint} never got again what a transaction gave back: {owed[:5]}")
        for endpoint, firsts in self._firsts.items():
            newest: dict[int, int] = {}
            for publisher, number in firsts:
                if self._published[publisher, number].is_promised:
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
                self.is_excused or all(arrived) or not any(arrived),
                f"transaction {transaction} of {publisher} was torn: {arrived}",
            )

    def _require(self, is_kept: bool, promise: str) -> None:
        if not is_kept:
            raise SimulationError(f"ReplicatedChecker: {promise}")
