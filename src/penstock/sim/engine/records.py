"""Observers of the consumers' records in the regions of a simulated distribution plant.

RecordChecker     no record is torn, even during a write; each follows the contract, and none is older than the one
                  before it; a reader with marks reads consecutive records, or gets a receipt; "updated since last
                  read" is true
AgeChecker        at all times, the age of records in a region is bounded while the node works
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.engine import Event
from penstock.engine.client._store import RecordState
from penstock.engine.core.kernel._event import EventKind
from penstock.model import Message
from penstock.sim.engine.checkers import EngineChecker
from penstock.sim.engine.consumers import Connection
from penstock.sim.engine.market import KEPT, NEVER, Market
from penstock.sim.engine.regions import ReadAmid

if TYPE_CHECKING:
    from penstock.sim.engine.consumers import ConsumerNode
    from penstock.sim.engine.options import EnginePlantOptions
    from penstock.sim.engine.plant import EnginePlant

AGE_NS_MAX = 300 * NS_PER_MS
"""Refreshes are written at a pace that a ring's reader can follow, and nodes stand still for a while."""


class _Reading(msgspec.Struct):
    """One consumer's reads of one topic."""

    number: int = 0
    """Number of the record that was read last; 0: none."""
    is_whole: bool = True
    """True if that record covers every update that it claims, as far as is known."""
    is_beginning: bool = True
    """True if nothing was read since the subscription."""
    lost_after: set[int] = msgspec.field(default_factory=set)
    """For each reported loss: the number of the record at that time, which readers may still read."""


class RecordChecker(EngineChecker):
    def __init__(self, market: Market, options: "EnginePlantOptions") -> None:
        super().__init__(market)
        self.reads = self.reads_amid = 0
        self._is_conflated_above = options.is_conflated_above
        self._is_lossy_above = options.is_lossy_above
        self._has_budget = options.budget_bytes >= 0
        self._readings: dict[tuple[Connection, str], _Reading] = defaultdict(_Reading)
        self._lives: dict[Connection, set[int]] = defaultdict(set)
        self._just_told: set[Connection] = set()

    def newest(self, connection: Connection, topic: str) -> int:
        """The number of its record; 0: none."""
        return self._readings[connection, topic].number

    def subscribed(self, connection: Connection, topic: str) -> None:
        self._readings[connection, topic].is_beginning = True

    def wrote(self, consumer: "ConsumerNode", event: Event) -> None:
        """A receipt in the consumer's ring of events; the record may be read before the receipt."""
        if event.kind == EventKind.RECEIPT and consumer.records is not None:
            self.wrote_receipt(consumer.connection, consumer.records.numbers)

    def wrote_receipt(self, connection: Connection, numbers: Mapping[str, int]) -> None:
        """`numbers` are those of the records, by topic, as far as they were observed."""
        self._note_loss(connection, numbers)
        self._just_told.add(connection)

    def observed(self, connection: Connection, numbers: Mapping[str, int], replaced: Iterable[str]) -> None:
        """All data of one write was observed: the receipt was in it, before or after the records. The records of the
        `replaced` topics were written again with the same number, as after a refresh."""
        if connection in self._just_told:
            self._note_loss(connection, numbers)
        self._just_told.discard(connection)
        for topic in replaced:
            lost_after = self._readings[connection, topic].lost_after
            if numbers[topic] in lost_after:
                lost_after.add(numbers[topic] - 1)

    def _note_loss(self, connection: Connection, numbers: Mapping[str, int]) -> None:
        for (reader, topic), reading in self._readings.items():
            if reader == connection:
                reading.lost_after.add(numbers.get(topic, 0))

    def live(self, connection: Connection, subscription: int) -> None:
        self._lives[connection].add(subscription)

    def read(
        self, connection: Connection, topic: str, state: RecordState, *, is_shared: bool, is_updated: bool
    ) -> None:
        reading, message = self._readings[connection, topic], state.message
        where = f"{connection}, {topic}, record {message.number} from {message.first_number}"
        self.reads += 1
        self.require(message.number >= reading.number, f"{where}: before there was {reading}")
        self.require(is_updated == (state.update_count > state.since_count), f"{where}: no update of it is announced")
        is_new = message.number > reading.number
        self.require(is_updated or not is_new, f"{where}: no update of it was announced: {reading}")
        is_lost = any(message.number > each for each in reading.lost_after)
        is_lost |= self._is_lossy_above and connection.is_below
        is_whole = not is_lost and (reading.is_whole or message.number > reading.number)
        is_known = bool(reading.number) and not reading.is_beginning and not is_lost
        self._check_content(where, topic, message, is_whole=is_whole)
        if is_new and is_known and not is_shared and connection.cls == "adaptive":
            is_conflated_above = self._is_conflated_above and connection.is_below
            self._check_span(where, topic, state, reading, is_conflated_above=is_conflated_above)
        if is_new:
            reading.is_beginning = False
        reading.lost_after = {each for each in reading.lost_after if each >= message.number}
        reading.number, reading.is_whole = message.number, is_whole

    def _check_content(self, where: str, topic: str, message: Message, *, is_whole: bool) -> None:
        fault = self.market.fault(topic, message, is_whole=is_whole)
        self.require(not fault, f"{where}: {fault}, {message.high}, {message.low}, {message.total}")

    def _check_span(
        self, where: str, topic: str, state: RecordState, reading: _Reading, *, is_conflated_above: bool
    ) -> None:
        """Check that a record covers every message after the reader's last position."""
        following = [each for each in self.market.after(topic, reading.number) if each.number <= state.message.number]
        if state.model is KEPT:
            first = state.message.first_number
            # With a budget, a write may still wait when the previous record is read: it then covers that record, too.
            is_whole = first == following[0].number or (self._has_budget and first < following[0].number)
            self.require(is_whole, f"{where}: {following[0].number} comes first: {reading}")
        is_exact = state.merged == len(following) or is_conflated_above or self._has_budget
        self.require(is_exact, f"{where}: {state.merged} are reported as merged, not {len(following)}: {reading}")

    def read_amid(self, connection: Connection, topic: str, read: ReadAmid) -> None:
        self.reads_amid += 1
        where = f"{connection}, {topic}, read while it is written"
        is_one = read.record is None or read.record in (read.before, read.after)
        self.require(is_one, f"{where}: the record is neither the one before nor the one after")

    def finish(self, plant: "EnginePlant") -> None:
        for consumer in plant.consumers:
            if consumer.records is not None:
                missing = set(consumer.topics.values()) - self._lives[consumer.connection]
                self.require(not missing, f"{consumer.connection}: subscriptions {missing} are not live among notices")


class AgeChecker(EngineChecker):
    """A region always has room: it has the node's record, at most slightly delayed."""

    def __init__(self, market: Market) -> None:
        super().__init__(market)
        self._old_since_ns: dict[tuple[Connection, str], int] = {}

    def step(self, plant: "EnginePlant") -> None:
        for consumer in plant.consumers:
            if consumer.records is not None and consumer.consumer is not None and consumer.taste.cls == "adaptive":
                for topic, model in self.market.models.items():
                    if model is not NEVER and topic in consumer.topics:
                        self._check(consumer, topic, plant.world.now_ns())

    def _check(self, consumer: "ConsumerNode", topic: str, now_ns: int) -> None:
        key, node = (consumer.connection, topic), consumer.node
        if not node.is_up or now_ns < node.stalled_until_ns:
            self._old_since_ns.pop(key, None)
            return
        model, records = self.market.models[topic], consumer.records
        newest = max(
            (model.view(each.record).number for each in node.engine.current([topic]) if each.record), default=0
        )
        there = 0 if records is None else records.peek(topic)
        if there >= newest:
            self._old_since_ns.pop(key, None)
            return
        since_ns = self._old_since_ns.setdefault(key, now_ns)
        self.require(
            now_ns - since_ns <= AGE_NS_MAX,
            f"{consumer.connection}, {topic}: the node has {newest}, the region has {there}, old since {since_ns} ns",
        )
