"""Checker of a message router: it sees requests, answers and deliveries of its clients."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.assured.config import EndpointConfig
from penstock.assured.core.router._records import WHY_DELIVERIES, WHY_EXPIRED, WHY_OVERFLOWED, WHY_REJECTED
from penstock.assured.wire._layout import DELIVERY_WHY_SHIFT
from penstock.assured.wire.frames import Delivered, Published
from penstock.sim.assured.deliveries import DeliveryChecker, Key

if TYPE_CHECKING:
    from penstock.sim.assured.plant import AssuredPlant

DEAD = "dead"


class AssuredChecker(DeliveryChecker):
    """`wants` returns the endpoints of a topic; `endpoints` are in the order in which the router creates them."""

    def __init__(self, wants: dict[bytes, frozenset[str]], endpoints: Sequence[EndpointConfig]) -> None:
        super().__init__(wants)
        self._endpoints = dict(enumerate(endpoints, 1))
        self._published: dict[Key, Published] = {}
        self._acknowledged: set[Key] = set()
        self._refused: set[Key] = set()
        self._gone: dict[str, set[Key]] = defaultdict(set)
        """Messages that an endpoint must not deliver again, because a committed transaction consumed them."""
        self._groups: dict[Key, list[Key]] = {}
        """The published messages of a transaction, by its publisher and number."""
        self._endings: dict[Key, str] = {}
        self.acknowledged = self.committed = self.rolled_back = 0

    # Publishers

    def publish(self, publisher: int, number: int, message: Published) -> None:
        self._published[publisher, number] = message

    def acknowledge(self, publisher: int, number: int) -> None:
        key = (publisher, number)
        self.require(key in self._published, f"{key} was acknowledged, but never published")
        self._acknowledged.add(key)
        self.acknowledged += 1

    def refuse(self, publisher: int, number: int) -> None:
        self._refused.add((publisher, number))
        self.require_absent([(publisher, number)], "was refused")

    # Transactions

    def begin(self, publisher: int, transaction: int) -> None:
        self._groups[publisher, transaction] = []

    def publish_in(self, publisher: int, transaction: int, number: int, message: Published) -> None:
        self._published[publisher, number] = message
        self._groups[publisher, transaction].append((publisher, number))

    def end(self, publisher: int, transaction: int, outcome: str, consumed: list[tuple[str, Key]]) -> None:
        """A transaction has ended: the client received its result, or the client never requested a commit."""
        group = self._groups[publisher, transaction]
        before = self._endings.setdefault((publisher, transaction), outcome)
        self.require(before == outcome, f"transaction {transaction} of {publisher} was {before}, now it is {outcome}")
        if outcome == "committed":
            self._acknowledged |= set(group)
            self.committed += 1
            for endpoint, key in consumed:
                self._gone[endpoint].add(key)
        else:
            self._refused |= set(group)
            self.rolled_back += 1
            self.require_absent(group, "is of a transaction that was rolled back")

    # Consumers

    def deliver(self, endpoint: str, message: Delivered) -> None:
        key = (message.publisher, message.number)
        published = self._published.get(key)
        self.require(published is not None, f"{endpoint} delivered {key}, which nobody published")
        assert published is not None
        same = (published.topic, published.payload, published.priority) == (
            message.topic,
            message.payload,
            message.priority,
        )
        self.require(same, f"{endpoint} delivered {key}, but not as it was published")
        self.require(key not in self._refused, f"{endpoint} delivered {key}, which was refused or rolled back")
        if endpoint == DEAD:
            self.deliveries += 1
            self.require(self._is_explained(message), f"{DEAD} delivered {key} without a valid reason or endpoint")
            self._delivered[DEAD].add(key)
            return
        self.require(key not in self._gone[endpoint], f"{endpoint} delivered {key} again after a commit consumed it")
        self.deliver_once_or_flagged(endpoint, key, message.topic, message.flags)

    def _is_explained(self, message: Delivered) -> bool:
        """True if the message names the endpoint that gave it up, and a reason that this endpoint can have."""
        giver = self._endpoints.get(message.given_up_by)
        if giver is None or giver.name not in self._routes[message.topic]:
            return False
        return {
            WHY_REJECTED: True,
            WHY_DELIVERIES: giver.deliveries_max > 0,
            WHY_EXPIRED: True,
            WHY_OVERFLOWED: giver.when_full == "dead",
        }.get(message.flags >> DELIVERY_WHY_SHIFT, False)

    # At the end

    def finish(self, plant: "AssuredPlant") -> None:
        acknowledged = ((key, self._published[key].topic) for key in self._acknowledged)
        self.require_delivered(acknowledged, "were acknowledged")

    def has_delivered(self, endpoint: str, key: Key) -> bool:
        """The dead-letter endpoint delivers for all others."""
        return super().has_delivered(endpoint, key) or super().has_delivered(DEAD, key)
