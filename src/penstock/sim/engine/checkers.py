"""Checkers of a distribution plant: they observe published updates, subscriptions and deliveries.

StoryChecker      for each item, a consumer gets the current record and then every update, once, in order: one by one
                  if the item is critical or never conflated, else in consecutive spans; or a receipt
ContentChecker    no record is torn, each corresponds to its publications, and follows the contract of its model
RateChecker       metered updates are written at the agreed rate at most: per item, consumer and node
NewestChecker     after faults and load, every consumer has the newest record of every subscribed item; a consumer of
                  the adaptive class has it soon, on every kind of connection: no older data precedes it
FreshnessChecker  at all times, no data of the adaptive class waits for a consumer with room
BoundsChecker     buffers stay within their limits
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.engine import Event
from penstock.engine.core.kernel._event import EventFlag, EventKind, TransmissionClass
from penstock.model import Message
from penstock.sim.checker import Checker
from penstock.sim.engine.consumers import Connection, ConsumerNode, Defined
from penstock.sim.engine.market import KEPT, NEVER, Market

if TYPE_CHECKING:
    from penstock.sim.engine.options import EnginePlantOptions
    from penstock.sim.engine.plant import EnginePlant


class EngineChecker(Checker):
    """Observes subscriptions and deliveries of consumers."""

    def __init__(self, market: Market) -> None:
        self.market = market

    def subscribed(self, connection: Connection, topic: str) -> None:
        """A consumer subscribes to the topic."""

    def unsubscribed(self, connection: Connection, topic: str) -> None:
        """A consumer unsubscribes from the topic; events already on their way still arrive."""

    def told(self, connection: Connection, event: Event, defined: Defined | None, message: Message | None) -> None:
        """A consumer reads an event; `message` is its record, if it has one."""

    def calmed(self, plant: "EnginePlant") -> None:
        """Faults, congestion and storms have been over for a while, and the market rests."""


class _Story(msgspec.Struct):
    """Deliveries of one item to one consumer."""

    position: int = 0
    """The number of the newest publication known to the consumer; 0 if it knows none."""
    is_lost: bool = False
    """True if a receipt informed the consumer of a loss."""
    lost_last: int = 0
    """The event number up to which losses are excused: a receipt repeated after an overrun covers several."""
    begun: int = 0
    """The number of the last publication before the subscription."""
    shown: int = 0
    """The number of the last refresh that was written into its ring, which may be lost in an overrun."""
    shown_before: int = 0
    """`shown` when the ring was last restarted: later updates may come without this refresh."""
    endings: int = 0
    """Number of unsubscriptions; after each, the item may start again."""
    is_defined: bool = False
    """True if the item was defined since the last record; a new beginning is then allowed."""

    def begin_anew(self) -> None:
        """Start the story again, if an unsubscription allows it."""
        if self.position and self.endings and self.is_defined:
            self.position, self.is_lost, self.endings = 0, False, self.endings - 1


class StoryChecker(EngineChecker):
    def __init__(self, market: Market, options: "EnginePlantOptions") -> None:
        super().__init__(market)
        self.stories: dict[tuple[Connection, str], _Story] = defaultdict(_Story)
        self.updates = self.refreshes = self.receipts = self.replays = self.merged = 0
        self._is_conflated_above = options.is_conflated_above
        self._is_lossy_above = options.is_lossy_above
        self._numbers: dict[Connection, int] = {}

    def subscribed(self, connection: Connection, topic: str) -> None:
        self.stories[connection, topic].begun = self.market.count

    def unsubscribed(self, connection: Connection, topic: str) -> None:
        self.stories[connection, topic].endings += 1

    def wrote(self, connection: Connection, event: Event, defined: Defined | None) -> None:
        """A refresh was written into the consumer's ring; it may be read later, or never."""
        if event.kind == EventKind.REFRESH and defined is not None:
            self.stories[connection, defined.topic].shown = defined.model.view(event.body).number

    def restarted(self, connection: Connection) -> None:
        """The consumer's ring is restarted after an overrun."""
        for (teller, _), story in self.stories.items():
            if teller == connection:
                story.shown_before = story.shown

    def told(self, connection: Connection, event: Event, defined: Defined | None, message: Message | None) -> None:
        if event.kind == EventKind.RECEIPT:
            self.receipts += 1
            for (teller, _), story in self.stories.items():
                if teller == connection:
                    story.is_lost, story.lost_last = True, max(story.lost_last, event.lost[1])
            return
        if event.kind == EventKind.LIVE:
            return
        self.require(defined is not None, f"{connection} received an event of item {event.item}, which was not defined")
        assert defined is not None
        story = self.stories[connection, defined.topic]
        if event.kind == EventKind.DEFINE:
            story.is_defined = True
        elif event.kind == EventKind.REFRESH:
            assert message is not None
            self._refresh(connection, defined, event, story, message)
        elif event.kind == EventKind.UPDATE:
            assert message is not None
            self._update(connection, defined, event, story, message)

    def _refresh(self, connection: Connection, defined: Defined, event: Event, story: _Story, message: Message) -> None:
        self.refreshes += 1
        where = f"{connection}, {defined.topic}"
        is_flagged = event.flags & EventFlag.AFTER_OVERRUN and event.cls != TransmissionClass.CRITICAL
        if message.number != story.position and not story.is_lost and not is_flagged:
            story.begin_anew()
        self.require(message.number >= story.position, f"{where}: a refresh goes back to {message.number}: {story}")
        if story.position and message.number > story.position:
            is_told = story.is_lost or event.flags & EventFlag.AFTER_OVERRUN
            if connection.cls == "auto" and defined.model is not NEVER:
                is_told = True  # after a change of the rules, the refresh includes updates that waited in another class
            self.require(bool(is_told), f"{where}: a refresh skips to {message.number} without a receipt: {story}")
            if event.cls == TransmissionClass.CRITICAL and (connection.cls != "auto" or defined.model is NEVER):
                self.require(story.is_lost, f"{where}: no receipt covers the gap before {message.number}: {story}")
        story.position, story.is_lost, story.is_defined = message.number, False, False

    def _update(self, connection: Connection, defined: Defined, event: Event, story: _Story, message: Message) -> None:
        where = f"{connection}, {defined.topic}"
        self.updates += 1
        self.replays += bool(event.flags & EventFlag.REPLAYED)
        is_again = event.number <= story.lost_last and message.number <= story.position
        is_of_several_classes = connection.cls == "auto" and event.cls != TransmissionClass.CRITICAL
        if is_again and (is_of_several_classes or event.flags & EventFlag.REPLAYED):
            return  # an overrun ring only names its last critical update; Intake drops this one by its version
        following = self.market.after(defined.topic, story.position)
        if not story.is_lost and (not following or following[0].number != message.first_number):
            story.begin_anew()
        self.require(message.number > story.position, f"{where}: {message.number} comes again: {story}")
        # Without a previous refresh, this is the item's first update since the plant started, or a repeated event.
        shown = story.shown if event.flags & EventFlag.REPLAYED else story.shown_before
        known = story.position or min(
            max(story.begun, shown, self.market.started_before(message.number)), message.first_number - 1
        )
        following = self.market.after(defined.topic, known)
        is_critical = event.cls == TransmissionClass.CRITICAL
        is_mixed = connection.cls == "auto" and event.merged > 1  # updates that waited in another class are included
        is_conflated_above = self._is_conflated_above and connection.is_below
        may_merge = defined.model is not NEVER and (not is_critical or is_conflated_above or is_mixed)
        was_lost = story.is_lost
        is_kept = defined.model is KEPT and not (self._is_lossy_above and connection.is_below)
        first_number = message.first_number if is_kept or not may_merge else following[0].number
        if following[0].number != first_number:
            self.require(story.is_lost, f"{where}: {first_number} to {message.number} are not contiguous: {story}")
        if may_merge:
            count = sum(each.number <= message.number for each in following)
            is_exact = event.merged == count or is_conflated_above or not story.position or was_lost
            self.require(is_exact, f"{where}: {event.merged} are reported as merged, not {count}: {story}")
            self.merged += event.merged - 1
        else:
            self.require(event.merged == 1, f"{where}: {event.merged} merged")
        if is_critical:
            before = self._numbers.get(connection, 0)
            self.require(event.number > before, f"{where}: event {event.number} comes after {before}")
            self._numbers[connection] = event.number
        story.is_lost &= event.number <= story.lost_last  # a receipt does not excuse later losses
        story.position, story.is_defined = message.number, False


class ContentChecker(EngineChecker):
    """The content of a span is unknown if a part of it was lost on the way."""

    def __init__(self, market: Market, stories: StoryChecker, options: "EnginePlantOptions") -> None:
        super().__init__(market)
        self._stories = stories
        self._is_lossy_above = options.is_lossy_above

    def told(self, connection: Connection, event: Event, defined: Defined | None, message: Message | None) -> None:
        if message is not None and defined is not None:
            is_lost = self._stories.stories[connection, defined.topic].is_lost
            is_lost |= self._is_lossy_above and connection.is_below
            fault = self.market.fault(defined.topic, message, is_whole=not is_lost)
            self.require(
                not fault,
                f"{connection}, {defined.topic}: {fault}, from {message.first_number} to {message.number}: "
                f"{message.high}, {message.low}, {message.total}",
            )


class RateChecker(EngineChecker):
    """Observes rings and sessions' buffers while they are written."""

    INTERVALS = (1, 2, 5, 20)

    def __init__(self, market: Market) -> None:
        super().__init__(market)
        self._times: dict[str, list[int]] = defaultdict(list)

    def wrote(self, what: str, per_second: float, now_ns: int) -> None:
        """Count an update of this rate; 0: no rate."""
        if not per_second:
            return
        times = self._times[what]
        times.append(now_ns)
        interval_ns = round(1e9 / per_second)
        for count in self.INTERVALS:
            found = len(times) - bisect_right(times, now_ns - count * interval_ns)
            self.require(found <= count + 1, f"{what}: {found} updates in {count} intervals of {interval_ns} ns")


class NewestChecker(EngineChecker):
    def __init__(self, market: Market, stories: StoryChecker, newest_record: Callable[[Connection, str], int]) -> None:
        """`newest_record` returns the record in a consumer's region; 0: none."""
        super().__init__(market)
        self._stories = stories
        self._newest_record = newest_record
        self._lives: dict[Connection, set[int]] = defaultdict(set)

    def told(self, connection: Connection, event: Event, defined: Defined | None, message: Message | None) -> None:
        if event.kind == EventKind.LIVE:
            self._lives[connection].add(event.subscription)

    def calmed(self, plant: "EnginePlant") -> None:
        for consumer in plant.consumers:
            if consumer.taste.cls == "adaptive":
                self._require_newest(plant, consumer)

    def finish(self, plant: "EnginePlant") -> None:
        for consumer in plant.consumers:
            self._require_newest(plant, consumer)

    def _require_newest(self, plant: "EnginePlant", consumer: ConsumerNode) -> None:
        connection = consumer.connection
        self.require(consumer.is_connected, f"{consumer.name} is not connected")
        for topic, subscription in consumer.topics.items():
            where = f"{connection}, {topic}"
            story = self._stories.stories[connection, topic]
            newest = plant.newest_at_plant(topic)
            record = self._newest_record(connection, topic)
            has_newest = max(story.position, record) >= newest
            self.require(has_newest, f"{where}: the newest is {newest}, the consumer has {story} and record {record}")
            self.require(
                subscription in self._lives[connection], f"{where}: the consumer never received the event live"
            )


class FreshnessChecker(EngineChecker):
    """A ring always has room: an adaptive update must be in it when the node has finished its turn."""

    def step(self, plant: "EnginePlant") -> None:
        for consumer in plant.consumers:
            node, number = consumer.node, consumer.consumer
            if number is None or consumer.taste.sink != "ring" or consumer.taste.cls != "adaptive" or not node.is_up:
                continue
            record = node.engine.record(number)
            self.require(
                record.pending == 0 or record.waiting > 0 or record.is_behind, f"{consumer.name} has room: {record}"
            )


class BoundsChecker(EngineChecker):
    def step(self, plant: "EnginePlant") -> None:
        for node in plant.nodes:
            if node.is_up:
                for record in node.engine.records():
                    items_max = len(self.market.models) + len(self.market.dated)
                    self.require(record.items <= items_max, f"{node.name}: {record}")
        for consumer in plant.consumers:
            if consumer.link is not None:
                buffer = consumer.link.buffer
                self.require(len(buffer) <= buffer.capacity, f"{consumer.name} has {len(buffer)} bytes in its buffer")
