"""Consumers of a simulated distribution plant: fast, slow, stalled, overrun and crashing; by ring, by session, or with
records in regions."""

from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.base.clock import NS_PER_MS
from penstock.base.errors import OverrunError
from penstock.base.segment import Segment
from penstock.engine import EVENT_SIZE_MAX, Event, SessionBuffer, read_events
from penstock.engine.control import ClassWish
from penstock.engine.core.events import Overrun, Sinks, Subscribe, Unsubscribe
from penstock.engine.core.kernel._event import EventKind, TransmissionClass
from penstock.model import MessageModel
from penstock.shm import RingReader, RingWriter
from penstock.sim.engine.links import SessionLink
from penstock.sim.engine.market import MODELS
from penstock.sim.engine.nodes import NOTICE_NS_MAX, DistributionNode, detach_later
from penstock.sim.engine.regions import NOTICE_SIZE_MAX, NOTICES_SIZE, RecordsIntake
from penstock.sim.node import Node

if TYPE_CHECKING:
    from penstock.sim.engine.plant import EnginePlant

RING_SIZE = 4 * (EVENT_SIZE_MAX + 64)
POLL_NS = NS_PER_MS
SLOW_BATCH = 2
SLOW_BYTES_PER_S = 200_000
FAST_BYTES_PER_S = 50_000_000
FAST_BATCH = 1_000
NEWS_NS_MAX = 5 * NS_PER_MS
"""Time until a consumer has mapped a new region."""

SLOW_READS = 0.1
"""Probability that a slow consumer reads a record that it could read."""

HALF_WRITTEN = 0.05
"""Probability that a record is read while it is being written."""

NUMBERED = (EventKind.UPDATE, EventKind.WITHDRAW)
MODELS_BY_ID = {model.id: model for model in MODELS}


class Taste(NamedTuple):
    """The kind of a consumer."""

    sink: Literal["ring", "session", "region"]
    cls: ClassWish
    per_second: float = 0.0
    is_slow: bool = False


class Connection(NamedTuple):
    """One attachment of a consumer, to which its notifications belong."""

    consumer: str
    number: int
    cls: ClassWish
    is_below: bool
    """True for a consumer of a multiplexer."""

    def __str__(self) -> str:
        return f"{self.consumer} (connection {self.number})"


class Defined(NamedTuple):
    topic: str
    model: MessageModel


class ConsumerNode(Node):
    """Attaches to a node again and again, and reports everything it reads to the checkers."""

    def __init__(self, plant: "EnginePlant", name: str, node: DistributionNode, taste: Taste) -> None:
        super().__init__(plant.world, name, "consumer")
        self.plant = plant
        self.node = node
        self.taste = taste
        self.randomness = plant.world.randomness.fork(name)
        self.topics: dict[str, int] = {}
        """Subscribed topics, each with the number of its subscription."""
        self.link: SessionLink | None = None
        self.consumer: int | None = None
        self._ring: RingWriter | None = None
        self._reader: RingReader | None = None
        self._tap: RingReader | None = None
        """A reader of its ring that is never late."""
        self._tapped: dict[int, Defined] = {}
        self._notices: RingWriter | None = None
        self.records: RecordsIntake | None = None
        """The records of a consumer with regions."""
        self._left: list[RingWriter] = []
        """Rings that the consumer has left, until the node notices."""
        self._is_restarting = self._is_lost_among_notices = False
        self._connections = self._subscriptions = 0
        self._items: dict[int, Defined] = {}
        self._last_number = 0

    @property
    def connection(self) -> Connection:
        return Connection(self.name, self._connections, self.taste.cls, self.node is not self.plant.plant)

    @property
    def is_connected(self) -> bool:
        return self._ring is not None or self.link is not None

    def on_start(self) -> None:
        self._connect()
        self._change_later()

    def on_crash(self) -> None:
        self._break_off()

    def stall(self, duration_ns: int) -> None:
        super().stall(duration_ns)
        if self.link is not None:
            self.link.pause(True)
            self.world.at(self.stalled_until_ns, lambda: self._go_on())

    def _go_on(self) -> None:
        if self.link is not None and self.world.now_ns() >= self.stalled_until_ns:
            self.link.pause(False)

    # Connections

    def cut(self) -> None:
        self._break_off()
        if self.is_up:
            self._connect_later()

    def node_is_gone(self) -> None:
        self.consumer = None
        self.cut()

    def close(self) -> None:
        """Release all resources at the end of a run."""
        self._break_off()
        for ring in self._left:
            ring.close()

    def _break_off(self) -> None:
        consumer, reader = self.consumer, self._reader
        rings = [each for each in (self._ring, self._notices) if each is not None]
        if self.link is not None:
            self.link.break_off()
        if reader is not None and self._tap is not None:
            reader.close()
            self._tap.close()
        if self.records is not None:
            self.records.close()
        self.link = self.consumer = self._ring = self._reader = self._tap = self._notices = self.records = None
        node, incarnation = self.node, self.node.incarnation

        self._left += rings

        def close_rings() -> None:
            for ring in rings:
                ring.close()
                self._left.remove(ring)

        def notice() -> None:
            if consumer is not None:
                detach_later(node, incarnation, consumer)
            node.ask(close_rings) if node.is_up else close_rings()

        if not self.plant.is_over:
            self.world.after(self.randomness.below(NOTICE_NS_MAX), notice)

    def _connect_later(self) -> None:
        incarnation = self.incarnation
        self.world.after(
            self.randomness.below(NOTICE_NS_MAX) + 1,
            lambda: self._connect() if self.incarnation == incarnation else None,
        )

    def _connect(self) -> None:
        if not self.is_up or self.is_connected:
            return
        if not self.node.is_up:
            self._connect_later()
            return
        self._connections += 1
        self._items.clear()
        self._last_number = 0
        self.topics.clear()
        self._is_restarting = False
        self.plant.connected(self.connection, self)
        connection = self.connection
        if self.taste.sink != "session":
            self._ring = RingWriter.create(RING_SIZE, EVENT_SIZE_MAX)
            self._reader, self._tap = RingReader(self._ring.segment), RingReader(self._ring.segment)
            self._tapped.clear()
            if self.taste.sink == "region":
                self._notices = RingWriter.create(NOTICES_SIZE, NOTICE_SIZE_MAX)
                self.records = RecordsIntake(self._notices, MODELS_BY_ID)
                self._is_lost_among_notices = False
            sinks = Sinks(ring=self._ring, notices=self._notices)
            self._poll_later(connection)
        else:
            buffer = SessionBuffer(2 * EVENT_SIZE_MAX)
            speed = SLOW_BYTES_PER_S if self.taste.is_slow and not self.plant.is_settling else FAST_BYTES_PER_S
            self.link = SessionLink(
                self.world,
                self.randomness,
                buffer,
                speed,
                lambda: self._arrive(connection),
                self.node.drained,
                self._observe_session,
            )
            self._tapped.clear()
            sinks = Sinks(buffer=buffer)
        self.node.ask(lambda: self._attach(connection, sinks))

    def _attach(self, connection: Connection, sinks: Sinks) -> None:
        """Runs in the node's thread."""
        if self.connection == connection and self.is_connected:
            self.consumer = self.node.attach(self, self.name, sinks)
            for topic in self.plant.market.models:
                if self.randomness.chance(0.7):
                    self._subscribe(topic)
            if self.taste.sink != "region":
                self._subscribe_dated(self.consumer)

    def _subscribe_dated(self, consumer: int) -> None:
        self._subscriptions += 1
        topics, taste = list(self.plant.market.dated), self.taste
        self.node.say(Subscribe(consumer, self._subscriptions, topics, taste.cls, taste.per_second))

    # Subscriptions

    def _change_later(self) -> None:
        incarnation = self.incarnation
        self.world.after(
            self.randomness.below(2 * self.plant.options.change_interval_ms * NS_PER_MS),
            lambda: self._change() if self.incarnation == incarnation and self.is_up else None,
        )

    def _change(self) -> None:
        if self.plant.is_settling:
            return
        self.node.ask(self._change_one)
        self._change_later()

    def _change_one(self) -> None:
        if self.consumer is None:
            return
        topic = self.randomness.choose(list(self.plant.market.models))
        if topic in self.topics:
            number = self.topics.pop(topic)
            self.plant.unsubscribed(self.connection, topic)
            self.node.say(Unsubscribe(self.consumer, number))
            if self.records is not None:  # later events of the topic belong to another subscription
                self._hear_notices(self.records)
                self.records.release(topic)
        else:
            self._subscribe(topic)

    def _subscribe(self, topic: str) -> None:
        assert self.consumer is not None
        self._subscriptions += 1
        self.topics[topic] = self._subscriptions
        self.plant.subscribed(self.connection, topic)
        taste = self.taste
        self.node.say(Subscribe(self.consumer, self._subscriptions, [topic], taste.cls, taste.per_second))

    # Events

    def is_congested(self) -> bool:
        return self.link is not None and self.link.is_congested()

    def wake(self) -> None:
        if self.link is not None:
            self.link.wake()

    def observe(self) -> None:
        """Report the events that were just written into its ring or its session's buffer."""
        if self.link is not None:
            self.link.observe()
        if self._tap is None:
            return
        self._tap.restart()
        try:
            while (payload := self._tap.read(0)) is not None:
                for event in read_events(payload):
                    if event.kind == EventKind.DEFINE:
                        self._tapped[event.item] = Defined(event.topic.decode(), MODELS_BY_ID[event.model_id])
                    self.plant.wrote(self, event, self._tapped.get(event.item))
            if self.records is not None:
                self._observe_records(self.records)
        except OverrunError:
            self.plant.broke(f"{self.name}: one write overran its ring")

    def _observe_session(self, written: bytes) -> None:
        for event in read_events(written):
            if event.kind == EventKind.DEFINE:
                self._tapped[event.item] = Defined(event.topic.decode(), MODELS_BY_ID[event.model_id])
            self.plant.metered(self, event, self._tapped.get(event.item))

    def _observe_records(self, records: RecordsIntake) -> None:
        before = dict(records.numbers)
        overwritten = records.observe()
        topics = [place.topic for place, _, _ in overwritten]
        replaced = [each for each in topics if records.numbers[each] == before.get(each)]
        self.plant.records.observed(self.connection, records.numbers, replaced)
        for place, former, present in overwritten:
            self.log(f"has {place.topic} {records.numbers[place.topic]} in its region")
            if self.randomness.chance(HALF_WRITTEN):
                read = records.half_written(place, former, present, self.randomness)
                self.plant.read_amid(self.connection, place.topic, read)

    def region_opened(self, consumer: int, model: MessageModel, region: Segment, marks: Segment | None) -> None:
        records = self.records
        if records is None or consumer != self.consumer:  # that connection has gone, which the node has not noticed yet
            for each in (region, marks):
                if each is not None:
                    each.close()
            return
        opened = records.tell(model, region, marks)
        self.world.after(
            self.randomness.below(NEWS_NS_MAX), lambda: records.open(opened) if self.records is records else None
        )

    def _arrive(self, connection: Connection) -> None:
        if self.connection == connection and self.link is not None and self.link.arrived:
            self._take(self.link.arrived.popleft())

    def _poll_later(self, connection: Connection) -> None:
        self.world.after(POLL_NS, lambda: self._poll(connection))

    def _poll(self, connection: Connection) -> None:
        if self.connection != connection or self._reader is None:
            return
        if self.world.now_ns() >= self.stalled_until_ns:
            self._read_ring(self._reader)
            if self.records is not None:
                self._read_records(self.records)
        self._poll_later(connection)

    def _read_records(self, records: RecordsIntake) -> None:
        """Read the records with notices; a slow consumer occasionally reads a random record instead."""
        is_slow = self.taste.is_slow and not self.plant.is_settling
        if is_slow and not self.randomness.chance(SLOW_READS):
            return
        if not self._hear_notices(records):
            return
        known = list(records.places)
        for topic in [self.randomness.choose(known)] if is_slow and known else list(records.noticed):
            if topic in self.topics:
                self._read_record(records, topic)

    def _hear_notices(self, records: RecordsIntake) -> bool:
        """Drain the ring of notices. True if the reader has its place in the ring."""
        if self._is_lost_among_notices and not records.restart():
            return False
        self._is_lost_among_notices = False
        try:
            for subscription in records.drain():
                self.plant.live(self.connection, subscription)
        except OverrunError:
            self._is_lost_among_notices = True
            self.plant.overran(self.connection)
            self.node.ask(self._report_lost_notices)
        return not self._is_lost_among_notices

    def _read_record(self, records: RecordsIntake, topic: str) -> None:
        place = records.places.get(topic)
        if place is None or place.model_id not in records.regions:
            return
        is_updated = records.is_updated(topic)
        if (state := records.read(topic)) is not None:
            is_shared = records.regions[place.model_id].is_shared
            self.plant.read(self.connection, topic, state, is_shared=is_shared, is_updated=is_updated)

    def _report_lost_notices(self) -> None:
        if self.consumer is not None and self._is_lost_among_notices:
            self.node.say(Overrun(self.consumer, 0, "notices"))

    def _read_ring(self, reader: RingReader) -> None:
        if self._is_restarting:
            if not reader.restart():
                return
            self._is_restarting = False
        try:
            for _ in range(SLOW_BATCH if self.taste.is_slow else FAST_BATCH):
                payload = reader.read(0)
                if payload is None:
                    return
                self._take(payload)
        except OverrunError:
            self._is_restarting = True
            self.plant.overran(self.connection)
            self.node.ask(self._report_overrun)

    def _report_overrun(self) -> None:
        if self.consumer is not None and self._is_restarting:
            self._items.clear()
            self.plant.restarted(self.connection)
            self.node.say(Overrun(self.consumer, self._last_number))

    def _take(self, data: bytes) -> None:
        for event in read_events(data):
            if event.kind == EventKind.DEFINE:
                model = MODELS_BY_ID[event.model_id]
                self._items[event.item] = Defined(event.topic.decode(), model)
            is_critical = event.cls == TransmissionClass.CRITICAL
            if event.kind == EventKind.SESSION or (event.kind in NUMBERED and is_critical):  # as Intake does
                self._last_number = max(self._last_number, event.number)
            self.plant.told(self.connection, event, self._items.get(event.item))
            self._forget(event)

    def _forget(self, event: Event) -> None:
        if event.kind == EventKind.REMOVE:
            self._items.pop(event.item, None)
