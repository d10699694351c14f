"""Ticker plants and multiplexers of a simulated distribution plant: each has an engine and attached parties."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.core import Tick
from penstock.base.segment import Segment
from penstock.engine import DistributionEngine
from penstock.engine.core.events import (
    Attach,
    Detach,
    EngineInstruction,
    OpenRegion,
    Ready,
    RegionOpened,
    Signals,
    Sinks,
)
from penstock.engine.core.signals import Readings
from penstock.model import MessageModel
from penstock.plant.config import NodeConfig
from penstock.plant.live.segments import Parted, Segments
from penstock.sim.engine.chains import Chaining
from penstock.sim.node import Node

if TYPE_CHECKING:
    from penstock.sim.engine.plant import EnginePlant

NOTICE_NS_MAX = 20 * NS_PER_MS
"""Time until a node notices that a connection is gone, and until the other side reconnects."""

SIGNAL_NS = 5 * NS_PER_MS
"""Interval at which a node measures its load."""

REVOKED = 0.3
"""The share of consumers with revocable rights: consumers that shared a region with one get another region when it
leaves."""


DATED = 0.2
"""The share of publications on topics of the source stream with sessions."""

SESSION_CHANGE = 0.15
"""The share of these publications that are the first ones of a session."""

UNANNOUNCED = 0.3
"""The share of sessions that begin without an announced end of the previous session."""


class Work:
    """Marks the next queued action of a node; actions run in order."""


class AttachedConsumer(Protocol):
    """A consumer or multiplexer that is attached to a node."""

    def wake(self) -> None:
        """Called when there is data to send to the party."""

    def observe(self) -> None:
        """Called after each action of the node."""

    def node_is_gone(self) -> None: ...

    def is_congested(self) -> bool:
        """True if the buffer of its session is more than half full."""
        ...

    def region_opened(self, consumer: int, model: MessageModel, region: Segment, marks: Segment | None) -> None:
        """Give this consumer of the node a region with its records of the model; the party closes the segments."""


class Offers:
    """Simulates the socket that passes segments to other processes."""

    def __init__(self) -> None:
        self._segments: dict[str, Segment] = {}

    def offer(self, name: str, segment: Segment) -> None:
        self._segments[name] = segment

    def withdraw(self, name: str) -> None:
        del self._segments[name]

    def receive(self, name: str) -> Segment | None:
        return self._segments[name].copy() if name else None


class DistributionNode(Node):
    """A node that serves consumers."""

    def __init__(self, plant: "EnginePlant", name: str) -> None:
        super().__init__(plant.world, name, "engine")
        self.plant = plant
        self.randomness = plant.world.randomness.fork(name)
        self.parties: dict[int, AttachedConsumer] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._attached = 0
        self._offers = Offers()
        self._segments: Segments | None = None
        self.load = 0.0
        """The load that the node reports."""
        self.reliefs = 0
        self._relieved_since_ns: int | None = None
        self.chaining: Chaining | None = None
        """Links to nodes below by datagrams."""

    def on_start(self) -> None:
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        self._attached = 0
        engine = self.plant.make_engine(self, randomness)
        is_sharing = self.plant.options.regions == "shared"
        config = NodeConfig(name=self.name, engine=engine.config, shared_regions=is_sharing)
        self._segments = Segments(config, self._offers)
        self.run(engine)
        datagrams = self.plant.datagrams(self)
        self.chaining = None if datagrams is None else Chaining(self, datagrams)
        self._relieved_since_ns = None
        if self.plant.options.has_signals:
            self._watch_later()

    @property
    def is_relieved_for_long(self) -> bool:
        """True if relief has lasted for a while: updates from before the relief keep their former class."""
        return self._relieved_since_ns is not None and self._relieved_since_ns < self.world.now_ns()

    def _watch_later(self) -> None:
        incarnation = self.incarnation
        self.world.after(SIGNAL_NS, lambda: self._watch() if self.incarnation == incarnation and self.is_up else None)

    def _watch(self) -> None:
        self.ask(self._read_signals)
        self._watch_later()

    def _read_signals(self) -> None:
        """Measure the load, as the gauge of a live node does."""
        full = [each.is_congested() for each in self.parties.values()]
        was_relieved, relief = self._relieved_since_ns is not None, self.engine.relief
        self.say(Signals(Readings(load=self.load, consumers=len(full), congestion=sum(full) / max(len(full), 1))))
        if relief.is_on != was_relieved:
            self._relieved_since_ns = self.world.now_ns() if relief.is_on else None
            self.reliefs += relief.is_on
            self.log("is relieved" if relief.is_on else "is no longer relieved")

    def on_crash(self) -> None:
        self.parties.clear()
        self.close()
        self._asked.clear()
        for party in self.plant.parties_of(self):  # including parties that were about to be attached
            party.node_is_gone()

    @property
    def engine(self) -> DistributionEngine:
        assert isinstance(self.core, DistributionEngine)
        return self.core

    def ask(self, action: Callable[[], None]) -> None:
        """Queue an action for the node's thread, after all earlier actions."""
        if self.is_up:
            self._asked.append(action)
            self.handle(Work())

    def take(self, event: Any) -> None:
        if isinstance(event, Work):
            self._asked.popleft()()
            for instruction in self.engine.take():
                self.carry_out(instruction)
        else:
            super().take(event)
        for party in self.parties.values():
            party.observe()

    def carry_out(self, instruction: EngineInstruction) -> None:
        if isinstance(instruction, Ready):
            for number in instruction.consumers:
                self.parties[number].wake()
        elif isinstance(instruction, OpenRegion):
            self._open_region(instruction)

    def say(self, event: Any) -> None:
        """Notify the engine at once, within the current action."""
        super().take(event)

    def reserve(self) -> int:
        """Return the number for a new consumer."""
        self._attached += 1
        return self._attached - 1

    def attach(self, party: AttachedConsumer, name: str, sinks: Sinks, number: int | None = None) -> int:
        number = self.reserve() if number is None else number
        self.parties[number] = party
        self.say(Attach(number, name, sinks))
        return number

    def detach(self, number: int) -> None:
        if self.parties.pop(number, None) is not None and self._segments is not None:
            self.say(Detach(number))
            if self.chaining is not None:
                self.chaining.leave(number)
            parted: list[Parted] = []
            if self.randomness.chance(REVOKED):
                parted = [each for each in self._segments.part(number) if each.consumer != number]
            self._segments.close(number)
            for consumer, model, record_count in parted:
                self._open_region(OpenRegion(consumer, model, record_count))

    def close(self) -> None:
        """Release the shared memory."""
        if self._segments is not None:
            self._segments.close_all()
        if self.chaining is not None:
            self.chaining.close()

    def _open_region(self, asked: OpenRegion) -> None:
        party = self.parties.get(asked.consumer)
        if party is None or self._segments is None:
            return
        sink, opened = self._segments.open_region(asked.consumer, asked.model, asked.record_count, "all alike")
        receive = self._offers.receive
        region = receive(opened.segment)
        assert region is not None
        party.region_opened(asked.consumer, asked.model, region, receive(opened.marks))
        self.say(RegionOpened(asked.consumer, asked.model.id, sink))

    def drained(self) -> None:
        self.handle(Tick())


class PlantNode(DistributionNode):
    """Publishes updates at a changing rate."""

    def on_start(self) -> None:
        super().on_start()
        self.plant.market.start()
        self.ask(lambda: self.say(self.plant.source.event("running")))
        self._wait()

    def _wait(self) -> None:
        incarnation = self.incarnation
        mean_ns = NS_PER_SECOND // max(1, self.plant.updates_per_s)
        self.world.after(self.randomness.below(2 * mean_ns) + 1, lambda: self._publish(incarnation))

    def _publish(self, incarnation: int) -> None:
        if self.incarnation == incarnation and self.is_up and not self.plant.is_resting:
            self.ask(self._publish_one)
            self._wait()

    def publish_all(self) -> None:
        for topic in self.plant.market.models:
            self._publish_on(topic)

    def _publish_one(self) -> None:
        if self.randomness.chance(DATED):
            self._publish_dated()
            return
        self._publish_on(self.randomness.choose(list(self.plant.market.models)))

    def _publish_on(self, topic: str) -> None:
        market, now_ns = self.plant.market, self.world.now_ns()
        publication = market.publish(topic, self.randomness.between(-1_000, 1_000), now_ns)
        model = market.models[topic]
        self.engine.publish(topic.encode(), model, publication.record(model), now_ns, now_ns)

    def _publish_dated(self) -> None:
        source = self.plant.source
        if self.randomness.chance(SESSION_CHANGE) and not self.plant.is_settling:
            for event in source.change(is_announced=not self.randomness.chance(UNANNOUNCED)):
                self.log(f"session {event.event.session}: {event.event.kind}")
                self.say(event)
        topic = self.randomness.choose(list(self.plant.market.dated))
        self.say(source.publish(topic, self.randomness.between(-1_000, 1_000), self.world.now_ns()))


def detach_later(node: DistributionNode, incarnation: int, consumer: int) -> None:
    if node.incarnation == incarnation:
        node.ask(lambda: node.detach(consumer))
