"""Distribution nodes, in this process or in processes of their own, and consumers that use the protocol directly."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from integration.command_kit import Running, running
from integration.filter_kit import Loop
from penstock.base.errors import PenstockError, RingClosedError
from penstock.base.segment import Segment
from penstock.engine import Event, EventKind, control, read_events
from penstock.engine.live.link import NodeLink, Told
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastPublisher
from penstock.model import Message, shipped
from penstock.net.live.handover import await_segment
from penstock.net.udp import Channel
from penstock.plant.config import AnyNodeConfig, MuxAccess, MuxConfig, PlantAccess, PlantConfig, UpstreamConfig
from penstock.plant.live.driver import LiveNode
from penstock.shm import RingReader
from penstock.wire import PacketMessage
from waiting import PATIENCE_SECONDS, wait_until

QUOTE, TRADE = shipped("quote"), shipped("trade")
QUICK = PublisherConfig(linger_ms=1)


def plant_config(**values: Any) -> PlantConfig:
    return PlantConfig(**{"name": "plant", "control": PlantAccess(port=0), **values})


def mux_config(upstream_port: int, **values: Any) -> MuxConfig:
    above = UpstreamConfig(port=upstream_port)
    return MuxConfig(**{"name": "mux", "control": MuxAccess(port=0), "upstream": above, **values})


class NodeHere:
    """A node in this process; its loop is in a thread."""

    def __init__(self, config: AnyNodeConfig) -> None:
        self.loop = Loop()
        self._stop: asyncio.Event
        try:
            self.node = self.loop.run(self._start(config))
        except BaseException:
            self.loop.close()
            raise
        self._ended = asyncio.run_coroutine_threadsafe(self.node.node.run(self._stop), self.loop.loop)

    async def _start(self, config: AnyNodeConfig) -> LiveNode:
        self._stop = asyncio.Event()
        node = LiveNode(config)
        await node.node.start()
        return node

    @property
    def port(self) -> int:
        return self.node.control_port

    def publish(self, *messages: PacketMessage) -> None:
        self.node._data.take(list(messages))

    def consumer_names(self) -> list[str]:
        return sorted(each.name for each in self.node.status().consumers)

    def close(self) -> None:
        self.loop.loop.call_soon_threadsafe(self._stop.set)
        self._ended.result(PATIENCE_SECONDS)
        self.loop.close()


@contextlib.contextmanager
def node_here(config: AnyNodeConfig) -> Iterator[NodeHere]:
    made = NodeHere(config)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def node_process(*arguments: str) -> Iterator[tuple[Running, int]]:
    """`penstock plant` or `penstock mux`, and the port at which it listens."""
    with running(*arguments) as process:
        process.wait_for_output("control_port")
        yield process, json.loads(process.out.splitlines()[0])["control_port"]


@contextlib.contextmanager
def publisher(channel: Channel) -> Iterator[MulticastPublisher]:
    with MulticastPublisher(channel, config=QUICK) as made:
        yield made


def quote(symbol: str, number: int) -> Message:
    return QUOTE.new(symbol=symbol, bid_price=number, ask_price=number + 1, source_seq=number)


def trade(symbol: str, number: int) -> Message:
    return TRADE.new(symbol=symbol, price=number + 1, quantity=1, trade_id=number, action="trade", source_seq=number)


def packed(topic: str, message: Message) -> PacketMessage:
    return PacketMessage(topic, bytes(message), message.model.id, message.model.version)


class Consumer:
    """The events of one consumer, in order."""

    def __init__(self, port: int, /, name: str = "app", transport: control.Transport = "local", **login: Any) -> None:
        self.events: list[Event] = []
        self.topics: dict[int, str] = {}
        self.regions: list[control.OpenRegion] = []
        self.refusals: list[PenstockError] = []
        self.losses = 0
        self.welcomes: list[control.Welcome] = []
        self.segment: Segment | None = None
        self.ring: RingReader | None = None
        self._reading = threading.Lock()  # a new connection has a new ring
        self.loop = Loop()
        self.link = NodeLink(
            ("127.0.0.1", port), control.Login(name, transport, **login), self, on_refused=self.refusals.append
        )
        self._running = asyncio.run_coroutine_threadsafe(self.link.run(), self.loop.loop)

    # For the link

    async def welcomed(self, welcome: control.Welcome) -> None:
        segment = None
        if welcome.ring:
            segment = await await_segment(welcome.path, welcome.ring, secret=None)
        with self._reading:
            self._close_ring()
            self.topics.clear()
            if segment is not None:
                self.segment, self.ring = segment, RingReader(segment)
        self.welcomes.append(welcome)

    async def told(self, message: Told) -> None:
        if isinstance(message, control.Events):
            self._take(message.data)
        elif isinstance(message, control.OpenRegion):
            self.regions.append(message)

    def lost(self, error: PenstockError) -> None:
        self.losses += 1

    def position(self) -> int:
        return 0

    def _take(self, data: bytes) -> None:
        for event in read_events(data):
            if event.kind == EventKind.DEFINE:
                self.topics[event.item] = event.topic.decode()
            self.events.append(event)

    # For tests

    def attached(self) -> "Consumer":
        wait_until(lambda: self.link.attached.is_set() or self.link.failure, "the node to admit the consumer")
        assert self.link.failure is None, self.link.failure
        return self

    def run(self, work: Any) -> Any:
        return self.loop.run(work)

    def subscribe(self, *topics: str, cls: control.ClassWish = "critical", per_second: float = 0.0) -> int:
        return int(self.run(self.link.subscribe(topics, cls, per_second)))

    def receive(self) -> None:
        """Read the events in the ring."""
        with self._reading:
            while self.ring is not None:
                try:
                    data = self.ring.read(0)
                except RingClosedError:  # the node ended the connection; the link has the reason
                    return
                if data is None:
                    return
                self._take(data)

    def of_kind(self, kind: EventKind) -> list[Event]:
        self.receive()
        return [each for each in self.events if each.kind == kind]

    def wait_live(self, *numbers: int) -> None:
        wait_until(lambda: set(numbers) <= {each.subscription for each in self.of_kind(EventKind.LIVE)}, "the images")

    def sequence(self, topic: str) -> list[int]:
        """The source numbers of a topic's records, refreshes included, in order of arrival."""
        self.receive()
        model = TRADE if topic.endswith("trade") else QUOTE
        return [
            model.view(each.body).source_seq
            for each in list(self.events)
            if each.kind in (EventKind.REFRESH, EventKind.UPDATE) and self.topics.get(each.item) == topic
        ]

    def wait_for(self, topic: str, number: int) -> list[int]:
        """The numbers of a topic, once this one is there."""
        wait_until(lambda: number in self.sequence(topic)[-1:], f"{topic} {number}")
        return self.sequence(topic)

    def _close_ring(self) -> None:
        for each in (self.ring, self.segment):
            if each is not None:
                each.close()
        self.ring = self.segment = None

    def close(self) -> None:
        self.run(self.link.close())
        self.loop.close()
        self._close_ring()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
