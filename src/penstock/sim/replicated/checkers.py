"""Checker of a pair of message routers: it sees acknowledgements to publishers and deliveries to consumers."""

from typing import TYPE_CHECKING

import msgspec

from penstock.assured.core.router._records import TREATMENT_SYNC
from penstock.assured.wire._layout import OUTCOME_DEGRADED, OUTCOME_SYNC
from penstock.assured.wire.frames import Delivered
from penstock.sim.assured.deliveries import DeliveryChecker, Key
from penstock.sim.fencing import FencingChecker

if TYPE_CHECKING:
    from penstock.sim.replicated.plant import ReplicatedPlant


class _Published(msgspec.Struct):
    topic: bytes
    payload: bytes
    transaction: int
    treatment: int
    """The message's own replication mode; its transaction may raise the mode."""
    is_acknowledged: bool = False
    is_promised: bool = False
    """True if the acknowledged message survives every switch."""
    is_rolled_back: bool = False


class ReplicatedChecker(FencingChecker, DeliveryChecker):
    """`routes` returns the endpoints of a topic, `local` the endpoints without copies.

    With a lease, messages acknowledged as degraded also survive every switch, because a router without these messages
    does not become active (REPL-8). Messages at one router only are delivered when that router is active again.
    """

    def __init__(self, routes: dict[bytes, list[str]], *, has_lease: bool, local: frozenset[str] = frozenset()) -> None:
        FencingChecker.__init__(self)
        DeliveryChecker.__init__(self, routes)
        self.outcomes: dict[int, int] = {}
        self.is_excused = False
        """True if an operator made a router active while the other one was degraded, which may tear transactions."""
        self._has_lease = has_lease
        self._local = local
        self._promises = {OUTCOME_SYNC, OUTCOME_DEGRADED} if has_lease else {OUTCOME_SYNC}
        self._published: dict[Key, _Published] = {}
        self._firm: set[Key] = set()
        """Transactions, by publisher and number, that are the same at both routers (REPL-10): some of the messages they
        publish or consume are replicated.
        """
        self._firsts: dict[str, dict[Key, dict[int, int]]] = {}
        """By endpoint: delivered messages, with their ids and the number of the delivery. A message has several ids
        if a replaced router had not acknowledged it, so that it was published again to the other router."""
        self._consumed: dict[str, set[int]] = {}
        """By endpoint: ids that transactions have consumed for good."""
        self._owed: dict[str, set[Key]] = {}
        """By endpoint: messages consumed by transactions with an unknown outcome, until they are delivered again."""

    def step(self, plant: "ReplicatedPlant") -> None:
        if self._has_lease:
            self.require_one([node.name for node in plant.routers if node.is_active()])

    # Publishers

    def published(
        self, key: Key, topic: bytes, payload: bytes, *, transaction: int = 0, treatment: int = TREATMENT_SYNC
    ) -> None:
        self._published[key] = _Published(topic, payload, transaction, treatment)
        if transaction and treatment == TREATMENT_SYNC:
            self._firm.add((key[0], transaction))

    def acknowledged(self, publisher: int, number: int, outcome: int) -> None:
        published = self._published[publisher, number]
        published.is_acknowledged, published.is_promised = True, outcome in self._promises
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def committed(self, publisher: int, numbers: list[int], treatment: int) -> None:
        for number in numbers:
            self.acknowledged(publisher, number, treatment)

    def rolled_back(self, publisher: int, numbers: list[int]) -> None:
        for number in numbers:
            key = (publisher, number)
            if (publisher, self._published[key].transaction) not in self._firm:
                continue  # a replaced router may have delivered the message before
            self._published[key].is_rolled_back = True
            if not self.is_excused:
                self.require_absent([key], "was rolled back")

    # Consumers

    def delivered(self, endpoint: str, message: Delivered) -> None:
        key = (message.publisher, message.number)
        published = self._published.get(key)
        self.require(published is not None and published.payload == message.payload, f"{key} is not what was published")
        assert published is not None
        self.require(
            self.is_excused or not published.is_rolled_back, f"{endpoint} received {key}, which was rolled back"
        )
        self.require(
            message.id not in self._consumed.get(endpoint, ()),
            f"{endpoint} received {key} after a transaction had consumed it",
        )
        self._owed.get(endpoint, set()).discard(key)
        self.deliver_once_or_flagged(endpoint, key, published.topic, message.flags)
        firsts = self._firsts.setdefault(endpoint, {})
        firsts.setdefault(key, {}).setdefault(message.id, self.deliveries)

    def consuming(self, endpoint: str, transaction: Key, keys: list[Key]) -> None:
        """A transaction that acknowledges these messages is about to end."""
        self._owed.setdefault(endpoint, set()).update(keys)
        if endpoint not in self._local and any(self._published[key].treatment for key in keys):
            self._firm.add(transaction)

    def consumed(self, endpoint: str, transaction: Key, keys: list[Key], ids: list[int], treatment: int) -> None:
        """The transaction was committed."""
        self._owed[endpoint].difference_update(keys)
        if treatment in self._promises or transaction not in self._firm:
            self._consumed.setdefault(endpoint, set()).update(ids)

    # At the end

    def finish_first(self) -> None:
        """One router was active, and all its messages are consumed."""
        promised = ((key, each.topic) for key, each in self._published.items() if each.is_promised)
        self.require_delivered(promised, "were acknowledged as synchronous", except_by=self._local)
        for endpoint, firsts in self._firsts.items():
            if endpoint not in self._local:
                self._finish_order(endpoint, firsts)

    def _finish_order(self, endpoint: str, firsts: dict[Key, dict[int, int]]) -> None:
        """Deliveries are in the order of each publisher; for a message with several ids, in the order of one of
        them."""
        newest: dict[int, tuple[int, int]] = {}
        for publisher, number in sorted(firsts):
            if self._published[publisher, number].is_promised:
                before, last = newest.get(publisher, (0, 0))
                later = [each for each in firsts[publisher, number].values() if each > last]
                self.require(bool(later), f"{endpoint} got {number} of {publisher} before {before}")
                newest[publisher] = (number, min(later))

    def finish(self, plant: "ReplicatedPlant") -> None:
        """Called after the other router was active: its exclusive messages must also have been delivered."""
        acknowledged = ((key, each.topic) for key, each in self._published.items() if each.is_acknowledged)
        self.require_delivered(acknowledged, "were acknowledged by one router")
        for endpoint, keys in self._owed.items():
            owed = sorted(key for key in keys if self._published[key].is_acknowledged)
            self.require(
                self.is_excused or not owed,
                f"{endpoint} did not receive again the messages that a transaction released: {owed[:5]}",
            )
        self._finish_transactions()

    def _finish_transactions(self) -> None:
        groups: dict[tuple[int, int], list[Key]] = {}
        for key, each in self._published.items():
            if each.transaction:
                groups.setdefault((key[0], each.transaction), []).append(key)
        for (publisher, transaction), keys in groups.items():
            arrived = [
                self.has_delivered(endpoint, key)
                for key in keys
                for endpoint in self._routes[self._published[key].topic]
            ]
            self.require(
                self.is_excused or all(arrived) or not any(arrived),
                f"transaction {transaction} of {publisher} was torn: {arrived}",
            )
