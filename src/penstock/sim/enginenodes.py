"""Ticker plants and multiplexers of a simulated distribution plant: an engine each, and who is attached to it."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.core import Tick
from penstock.base.errors import RemoteProtocolError
from penstock.base.segment import Segment
from penstock.engine import EVENT_SIZE_MAX, DistributionEngine, SessionBuffer
from penstock.engine.events import (
    Attach,
    Detach,
    EngineInstruction,
    Lost,
    OpenRegion,
    Ready,
    RegionOpened,
    Sinks,
    Subscribe,
    Unsubscribe,
    Unwanted,
    Wanted,
)
from penstock.model import MessageModel
from penstock.plant.config import NodeConfig
from penstock.plant.datapath import Updated
from penstock.plant.segments import Parted, Segments
from penstock.plant.upstream import Incoming
from penstock.sim.enginelinks import SessionLink
from penstock.sim.node import Node

if TYPE_CHECKING:
    from penstock.sim.engine import EnginePlant

NOTICE_NS_MAX = 20 * NS_PER_MS
"""How long a node takes to see that a connection is gone, and whoever lost one to try again."""

REVOKED = 0.3
"""The share of consumers that may not see what comes after they left: who shared a region with one gets another."""


class Work:
    """The next of what a node was asked to do, in the order in which it was asked."""


class Party(Protocol):
    """Who is attached to a node."""

    def wake(self) -> None:
        """There is something to send to it."""

    def observe(self) -> None:
        """The node has done something."""

    def node_is_gone(self) -> None: ...

    def region_opened(self, model: MessageModel, region: Segment, marks: Segment | None) -> None:
        """Its records of the model are there from now on; the segments are its own to close."""


class Offers:
    """Stands for the socket by which segments are handed over."""

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
        self.parties: dict[int, Party] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._attached = 0
        self._offers = Offers()
        self._segments: Segments | None = None

    def on_start(self) -> None:
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        self._attached = 0
        engine = self.plant.make_engine(self, randomness)
        is_sharing = self.plant.options.regions == "shared"
        config = NodeConfig(name=self.name, engine=engine.config, shared_regions=is_sharing)
        self._segments = Segments(config, self._offers)
        self.run(engine)

    def on_crash(self) -> None:
        self.parties.clear()
        self.close()
        self._asked.clear()
        for party in self.plant.parties_of(self):  # also those that were about to be attached
            party.node_is_gone()

    @property
    def engine(self) -> DistributionEngine:
        assert isinstance(self.core, DistributionEngine)
        return self.core

    def ask(self, action: Callable[[], None]) -> None:
        """Have something done in the node's thread, after all that was asked for before."""
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
        """Tell the engine at once; within what was asked for."""
        super().take(event)

    def attach(self, party: Party, name: str, sinks: Sinks) -> int:
        number = self._attached
        self._attached += 1
        self.parties[number] = party
        self.say(Attach(number, name, sinks))
        return number

    def detach(self, number: int) -> None:
        if self.parties.pop(number, None) is not None and self._segments is not None:
            self.say(Detach(number))
            parted: list[Parted] = []
            if self.randomness.chance(REVOKED):
                parted = [each for each in self._segments.part(number) if each.consumer != number]
            self._segments.close(number)
            for consumer, model, record_count in parted:
                self._open_region(OpenRegion(consumer, model, record_count))

    def close(self) -> None:
        """Give its shared memory back."""
        if self._segments is not None:
            self._segments.close_all()

    def _open_region(self, asked: OpenRegion) -> None:
        party = self.parties.get(asked.consumer)
        if party is None or self._segments is None:
            return
        sink, opened = self._segments.open_region(asked.consumer, asked.model, asked.record_count, "all alike")
        receive = self._offers.receive
        region = receive(opened.segment)
        assert region is not None
        party.region_opened(asked.model, region, receive(opened.marks))
        self.say(RegionOpened(asked.consumer, asked.model.id, sink))

    def drained(self) -> None:
        self.handle(Tick())


class PlantNode(DistributionNode):
    """Publishes, at a rate that changes."""

    def on_start(self) -> None:
        super().on_start()
        self.plant.market.start()
        self._wait()

    def _wait(self) -> None:
        incarnation = self.incarnation
        mean_ns = NS_PER_SECOND // max(1, self.plant.updates_per_s)
        self.world.after(self.randomness.below(2 * mean_ns) + 1, lambda: self._publish(incarnation))

    def _publish(self, incarnation: int) -> None:
        if self.incarnation == incarnation and self.is_up and not self.plant.is_resting:
            self.ask(self._publish_one)
            self._wait()

    def _publish_one(self) -> None:
        market, now_ns = self.plant.market, self.world.now_ns()
        topic = self.randomness.choose(list(market.models))
        publication = market.publish(topic, self.randomness.between(-1_000, 1_000), now_ns)
        model = market.models[topic]
        self.engine.publish(topic.encode(), model, publication.record(model), now_ns, now_ns)


class MuxNode(DistributionNode):
    """Has what its consumers want from the node above, and nothing else."""

    def __init__(self, plant: "EnginePlant", name: str, above: DistributionNode) -> None:
        super().__init__(plant, name)
        self.above = above
        self.link: SessionLink | None = None
        self._consumer: int | None = None
        self._numbers: dict[str, int] = {}
        self._topics: dict[int, str] = {}
        self._held: set[int] = set()
        """Subscriptions that this connection has asked for; one that ends before it is asked for again is not told."""

        self._asked_above = 0
        self._incoming = Incoming(self._topics_of)
        self._was_attached = False

    def on_start(self) -> None:
        super().on_start()
        self._numbers.clear()
        self._topics.clear()
        self._was_attached = False
        self._connect()

    def on_crash(self) -> None:
        self._break_off()
        super().on_crash()

    # The link to the node above

    def wake(self) -> None:
        if self.link is not None:
            self.link.wake()

    def observe(self) -> None:
        """Its own consumers are observed, not itself."""

    def node_is_gone(self) -> None:
        self._break_off()

    def region_opened(self, model: MessageModel, region: Segment, marks: Segment | None) -> None:
        """It has none."""

    def cut(self) -> None:
        """The connection breaks; both ends see it after a while."""
        self._break_off()

    def _break_off(self) -> None:
        link, consumer, self.link, self._consumer = self.link, self._consumer, None, None
        if link is not None:
            self.log("the link to the node above is gone")
            link.break_off()
        if consumer is not None:
            above, incarnation = self.above, self.above.incarnation
            self.world.after(self.randomness.below(NOTICE_NS_MAX), lambda: _detach_later(above, incarnation, consumer))
        if link is not None and self.is_up:
            self._connect_later()

    def _connect_later(self) -> None:
        incarnation = self.incarnation
        self.world.after(
            self.randomness.below(NOTICE_NS_MAX) + 1,
            lambda: self._connect() if self.incarnation == incarnation else None,
        )

    def _connect(self) -> None:
        if not self.is_up or self.link is not None:
            return
        if not self.above.is_up:
            self._connect_later()
            return
        buffer = SessionBuffer(2 * EVENT_SIZE_MAX)
        speed = self.plant.options.chain_bytes_per_s
        link = SessionLink(
            self.world, self.randomness, buffer, speed, lambda: self.ask(lambda: self._read(link)), self.above.drained
        )
        self.link = link
        self.above.ask(lambda: self._attach(link, buffer))

    def _attach(self, link: SessionLink, buffer: SessionBuffer) -> None:
        """In the thread of the node above."""
        if self.link is not link:
            return
        self._consumer = self.above.attach(self, self.name, Sinks(buffer=buffer))
        self._held.clear()
        self.ask(lambda: self._attached_above(link))

    def _attached_above(self, link: SessionLink) -> None:
        if self.link is not link:
            return
        self._incoming.begin(is_again=self._was_attached)
        if self._was_attached:
            self.say(Lost())
        self._was_attached = True
        for topic in [each for each, number in self._numbers.items() if number not in self._held]:
            self._ask_for(topic)

    def _ask_for(self, topic: str) -> None:
        self._asked_above += 1
        number = self._numbers[topic] = self._asked_above
        self._topics[number] = topic
        consumer, options = self._consumer, self.plant.options
        if consumer is not None:
            self._held.add(number)
            self.above.ask(
                lambda: self._say_above(
                    consumer, Subscribe(consumer, number, [topic], options.chain_class, options.chain_per_second)
                )
            )

    def _say_above(self, consumer: int, event: Any) -> None:
        if self._consumer == consumer and consumer in self.above.parties:
            self.above.say(event)

    def _topics_of(self, subscription: int) -> list[str]:
        topic = self._topics.get(subscription)
        return [topic] if topic is not None and self._numbers.get(topic) == subscription else []

    def _read(self, link: SessionLink) -> None:
        if self.link is not link or not link.arrived:
            return
        try:
            for said in self._incoming.read(link.arrived.popleft()):
                if isinstance(said, Updated):
                    self.plant.publish_below(self.engine, said, self.world.now_ns())
                else:
                    self.say(said)
        except RemoteProtocolError as error:
            self.plant.broke(f"{self.name} cannot read what it gets from above: {error}")

    def carry_out(self, instruction: EngineInstruction) -> None:
        match instruction:
            case Wanted(topics):
                for topic in topics:
                    self._ask_for(topic)
            case Unwanted(topics):
                for topic in topics:
                    self._release(topic)
            case _:
                super().carry_out(instruction)

    def _release(self, topic: str) -> None:
        number, consumer = self._numbers.pop(topic), self._consumer
        self._topics.pop(number, None)
        if consumer is not None and number in self._held:
            self._held.discard(number)
            self.above.ask(lambda: self._say_above(consumer, Unsubscribe(consumer, number)))


def _detach_later(node: DistributionNode, incarnation: int, consumer: int) -> None:
    if node.incarnation == incarnation:
        node.ask(lambda: node.detach(consumer))
