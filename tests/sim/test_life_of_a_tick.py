"""The walk that opens docs/ARCHITECTURE.md, on the simulator's network and on real sockets."""

import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import pytest
from tests.assured_kit import Router, queue

from penstock.assured.wire._layout import OUTCOME_STORED
from penstock.assured.wire.frames import Published
from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.core import Tick
from penstock.base.errors import PenstockError
from penstock.base.ids import parse_group
from penstock.convert import Converter, ConverterTable
from penstock.demo.generator import QUOTE, TickGenerator
from penstock.engine import EVENT_SIZE_MAX, DistributionEngine, EngineConfig, EventKind, read_events
from penstock.engine.client._intake import Intake
from penstock.engine.control import OpenRegion
from penstock.engine.core import events as engine_events
from penstock.feed import FeedAdapter, GeneratorConfig, ItchGenerator, LineArbiter, LineConfig, SynchroniserConfig
from penstock.feed.core.events import PersistTerm, PublishConverted, SourceDatagram, TermPersisted
from penstock.feed.formats import MoldUDP64
from penstock.feed.formats.mold import encode_packet
from penstock.filter import FilterConfig, FilterModule
from penstock.filter.core.events import Attach, Attached, Interests, Send, Want
from penstock.middleware import (
    DatagramReceived,
    DatagramsReceived,
    Deliver,
    DeliverBatch,
    LossReceipt,
    Merged,
    MergedBatch,
    Merger,
    MergerConfig,
    MulticastStored,
    PublishBatch,
    Publisher,
    PublisherConfig,
    Receiver,
    ReceiverConfig,
    Unicast,
)
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.net.live.handover import Handover
from penstock.net.udp import free_channel
from penstock.plant.config import NodeConfig
from penstock.plant.live.data_path import DataPath
from penstock.shm import RingReader, RingWriter
from penstock.sim import LinkFaults, World
from penstock.sim.network import Network
from penstock.sim.tree.plant import TreePlant, TreePlantOptions
from penstock.topics import InterestTable, Predicate
from penstock.wire import DatagramBatch

ROOT = Path(__file__).resolve().parents[2]
GROUP = parse_group("239.7.7.7")
PUBLISHER, RECEIVER = ("publisher", 1), ("receiver", 2)
SOCKETS = ("penstock.net.", "penstock.middleware.live.")
"""Steps that happen only on real sockets; the simulator's network replaces them."""

SIMULATOR = ("penstock.middleware.core.receiver.Receiver.receive_batch",)
"""Functions that replace the driver's fast path (a lane) in the simulator."""


def documented_steps() -> dict[str, list[str]]:
    """For each step of the walk: the functions that the step names, in order."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    walk = text[text.index("## The life of a tick") : text.index("Where a quote may go from there")]
    steps = re.findall(r"^\d+\. \*\*(\w+)\.\*\*(.*?)(?=^\d+\. |\Z)", walk, flags=re.MULTILINE | re.DOTALL)
    named = {title: re.findall(r"`([a-z_]+\.[a-z_]+(?:\.\w+)+)`", body) for title, body in steps}
    return {title: [f"penstock.{name}" for name in names] for title, names in named.items()}


def resolve(name: str) -> Any:
    """The function of that name; AttributeError or ImportError when there is none."""
    return pkgutil.resolve_name(name)


def is_compiled(name: str) -> bool:
    return not hasattr(resolve(name), "__code__") or not resolve(name).__code__.co_filename.endswith(".py")


@contextmanager
def calls_noted() -> Iterator[list[str]]:
    """The Python functions of Penstock in the order they are called; compiled ones cannot be seen."""
    noted: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            noted.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        yield noted
    finally:
        sys.setprofile(None)


def assert_called_in_order(expected: list[str], noted: list[str]) -> None:
    at = 0
    for name in expected:
        assert name in noted[at:], f"{name} was not called after {expected[: expected.index(name)]}"
        at = noted.index(name, at) + 1


def visible(steps: dict[str, list[str]], *titles: str, sockets: bool) -> list[str]:
    return [
        name
        for title in titles
        for name in steps[title]
        if not is_compiled(name) and (name not in SIMULATOR if sockets else not name.startswith(SOCKETS))
    ]


def test_every_function_of_the_walk_exists() -> None:
    steps = documented_steps()
    assert list(steps) == [
        "Take", "Convert", "Publish", "Pack", "Send", "Filter", "Receive", "Order", "Repair", "Merge", "Match", "Read",
        "Distribute", "Consume", "Descend", "Assure",
    ]  # fmt: skip
    for names in steps.values():
        assert names
        for name in names:
            assert callable(resolve(name)), name


class SimulatedPair:
    """A publisher and a receiver on the simulator's network."""

    def __init__(self) -> None:
        self.world = World(1)
        self.network = Network(self.world, LinkFaults())
        self.publisher = Publisher(1, 1, PublisherConfig())
        self.receiver = Receiver(ReceiverConfig(join="start"), self.world.randomness.fork("receiver"))
        self.batch = DatagramBatch(16)
        self.delivered: list[Any] = []
        self.network.attach(PUBLISHER, self._publisher_gets)
        self.network.attach(RECEIVER, self._receiver_gets)
        self.network.join(RECEIVER, GROUP)

    def publish(self, outgoing: Any) -> None:
        for instruction in self.publisher.handle(PublishBatch(GROUP, outgoing), self.world.now_ns()):
            assert isinstance(instruction, MulticastStored)
            for sequence in range(instruction.first, instruction.last + 1):
                self.network.multicast(PUBLISHER, GROUP, instruction.store.get(sequence))

    def settle(self) -> None:
        """Run the world until no packet is on its way."""
        self.world.run_until(self.world.now_ns() + 1_000_000)
        while (deadline_ns := self.receiver.next_deadline_ns()) is not None and deadline_ns < 10**9:
            self.world.run_until(max(deadline_ns, self.world.now_ns()))
            self._carry_out(self.receiver.handle(Tick(), self.world.now_ns()))
            self.world.run_until(self.world.now_ns() + 1_000_000)

    def _publisher_gets(self, data: bytes, source: Any) -> None:
        for instruction in self.publisher.handle(DatagramReceived(data, source), self.world.now_ns()):
            assert isinstance(instruction, Unicast)
            self.network.unicast(PUBLISHER, instruction.destination, instruction.data)

    def _receiver_gets(self, data: bytes, source: Any) -> None:
        self.batch.clear()
        self.batch.append(data, source)
        self._carry_out(self.receiver.handle(DatagramsReceived(self.batch), self.world.now_ns()))

    def _carry_out(self, instructions: list[Any]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Unicast):
                self.network.unicast(RECEIVER, instruction.destination, instruction.data)
            elif isinstance(instruction, DeliverBatch):
                self.delivered.append(instruction.messages.records(QUOTE.dtype, QUOTE.id).copy())
                self.delivered += read(instruction)
            else:
                assert not isinstance(instruction, LossReceipt)
                self.delivered += read(instruction)


TABLE = InterestTable()
TABLE.add("md.demo.eq.*.quote", subscriber=7)
POSITIVE = Predicate.compile("bid_price > 0 and ask_price > bid_price", QUOTE)


def read(instruction: Any) -> list[tuple[str, float]]:
    """The last steps of the walk: a client processes the result of a receiver."""
    prices = []
    for merged in Merger(MergerConfig()).handle(instruction, 0):
        if isinstance(merged, Deliver | DeliverBatch | Merged | MergedBatch):
            for message in merged.messages:
                assert TABLE.match(message.topic) == [7]
                assert POSITIVE(message.payload)
                prices.append((message.topic, QUOTE.view(message.payload).bid_price))
    return prices


def ticks(generator: TickGenerator, count: int) -> Any:
    return generator.take(numpy.full(count, time.time_ns(), numpy.int64))


def prices_of(told: list[Any]) -> list[float]:
    return [each[1] for each in told if isinstance(each, tuple)]


@pytest.fixture(scope="module")
def expected_prices() -> list[float]:
    generator = TickGenerator(3, 5)
    records = [ticks(generator, 4).payloads.view(QUOTE.dtype) for _ in range(3)]
    power = 10 ** QUOTE.fields_by_name["bid_price"].decimals
    return [price / power for each in records for price in each["bid_price"].tolist()]


def test_the_walk_on_the_simulator(expected_prices: list[float]) -> None:
    steps, pair = documented_steps(), SimulatedPair()
    generator = TickGenerator(3, 5)
    pair.publish(ticks(generator, 4))  # the stream's first packet introduces it
    pair.settle()

    with calls_noted() as noted:
        pair.publish(ticks(generator, 4))
        pair.settle()
    titles = ("Publish", "Pack", "Send", "Receive", "Order", "Merge", "Match", "Read")
    assert_called_in_order(visible(steps, *titles, sockets=False), noted)
    assert "penstock.middleware.core.receiver.Receiver._receive" not in noted, "a packet in order took the slow path"

    pair.network.faults = LinkFaults(loss=1.0)
    lost = ticks(generator, 4)
    with calls_noted() as noted:
        pair.publish(lost)
        pair.settle()
        pair.network.faults = LinkFaults()
        keep_alive_ns = pair.publisher.next_deadline_ns()
        assert keep_alive_ns is not None
        pair.world.run_until(keep_alive_ns)
        for instruction in pair.publisher.handle(Tick(), keep_alive_ns):  # shows the receiver the gap
            pair.network.multicast(PUBLISHER, GROUP, instruction.data)  # type: ignore[union-attr]
        pair.settle()
    assert_called_in_order(visible(steps, "Repair", sockets=False), noted)
    assert prices_of(pair.delivered) == expected_prices
    arrays = [each for each in pair.delivered if isinstance(each, numpy.ndarray)]
    assert sum(map(len, arrays)) == 4, "of three packets, the second came in order"


def test_the_walk_through_an_adapter() -> None:
    """From the exchange's datagram to the published messages."""
    steps = documented_steps()
    converter = Converter(ConverterTable.load("itch").compile(), stream_id=1)
    adapter = FeedAdapter(
        {1: LineArbiter(LineConfig(), MoldUDP64())}, {1: converter}, SynchroniserConfig(startup_ms=1), term=0, now_ns=0
    )

    def handle(event: Any, now_ns: int) -> int:
        """Return the number of published messages; writes to the disk complete at once."""
        published = 0
        for each in adapter.handle(event, now_ns):
            if isinstance(each, PersistTerm):
                published += handle(TermPersisted(each.term), now_ns)
            elif isinstance(each, PublishConverted):
                published += len(each.converted)
        return published

    now_ns = 0
    while adapter.synchroniser.role != "active":  # it becomes active when its term is on the disk
        now_ns = max(adapter.next_deadline_ns() or 0, now_ns + 1)
        handle(Tick(), now_ns)
    source = list(ItchGenerator(GeneratorConfig(symbols=3, messages=200)))
    published = 0
    with calls_noted() as noted:
        for number, message in enumerate(source, 1):
            datagram = encode_packet("DAY", number, [message])
            for line in (0, 1):
                published += handle(SourceDatagram(1, line, datagram, now_ns), now_ns)
    assert published > 100
    assert_called_in_order(visible(steps, "Take", "Convert", sockets=False), noted)


def test_the_walk_through_a_filter_module(expected_prices: list[float]) -> None:
    """From the published packets to an application; the other application has no matching interests."""
    steps, randomness = documented_steps(), World(1).randomness
    module = FilterModule(FilterConfig(applications_max=4, conditions_max=4), randomness, groups=[GROUP])
    for number, topics in ((7, "md.demo.eq.*.quote"), (8, "md.demo.eq.*.trade")):
        (_, attached) = module.handle(Attach(number, ("application", number)), 0)
        assert isinstance(attached, Attached)
        module.handle(Want(number, [Interests([topics])]), 0)
    publisher, receiver = Publisher(1, 1, PublisherConfig()), Receiver(ReceiverConfig(join="start"), randomness)
    generator, batch, told = TickGenerator(3, 5), DatagramBatch(16), []
    for _ in range(3):
        batch.clear()
        for instruction in publisher.handle(PublishBatch(GROUP, ticks(generator, 4)), 0):
            assert isinstance(instruction, MulticastStored)
            batch.append(instruction.store.get(instruction.first), PUBLISHER)
        with calls_noted() as noted:
            instructions = module.handle(DatagramsReceived(batch), 0)
        for instruction in instructions:
            for consumer, data in instruction.outbox.packets() if isinstance(instruction, Send) else ():
                assert consumer == 0, "nobody else wants it"
                told += [each for said in receiver.handle(DatagramReceived(data, PUBLISHER), 0) for each in read(said)]
    assert_called_in_order(visible(steps, "Filter", sockets=False), noted)
    assert [price for _, price in told] == expected_prices


class Node:
    """The ticker plant around the data path. This test has no sessions, and no consumer that fails."""

    def events_ready(self, consumer: int, data: bytes) -> None:
        raise AssertionError(consumer)

    def tell(self, consumer: int, message: OpenRegion) -> None:
        raise AssertionError(consumer)

    def end(self, consumer: int, error: PenstockError) -> None:
        raise error

    def wanted(self, topics: Sequence[str]) -> None: ...

    def unwanted(self, topics: Sequence[str]) -> None: ...

    def failed(self, error: Exception) -> None:
        raise error


@contextmanager
def stopping(data_path: DataPath) -> Iterator[None]:
    try:
        yield
    finally:
        data_path.stop()


def test_the_walk_through_a_ticker_plant(expected_prices: list[float]) -> None:
    """From received packets to the events in a consumer's ring, all in shared memory."""
    steps, randomness = documented_steps(), World(1).randomness
    engine = DistributionEngine(EngineConfig(), randomness, models=[QUOTE])
    handover = Handover(f"@penstock-test-{random_bytes(8).hex()}")
    data_path = DataPath(NodeConfig(name="node"), engine, None, Node(), handover)
    publisher, receiver = Publisher(1, 1, PublisherConfig()), Receiver(ReceiverConfig(join="start"), randomness)
    generator, batch, prices = TickGenerator(3, 5), DatagramBatch(16), []
    with (
        closing(handover),
        stopping(data_path),
        RingWriter.create(1 << 18, EVENT_SIZE_MAX) as ring,
        RingReader(ring.segment) as reader,
    ):
        engine.handle(engine_events.Attach(7, "screen", engine_events.Sinks(ring=ring)), 0)
        engine.handle(engine_events.Subscribe(7, 1, ["md.demo.eq.*.quote"], "critical"), 0)
        intake = Intake(64, lambda *_: (None, None))
        for _ in range(3):
            batch.clear()
            for instruction in publisher.handle(PublishBatch(GROUP, ticks(generator, 4)), 0):
                assert isinstance(instruction, MulticastStored)
                batch.append(instruction.store.get(instruction.first), PUBLISHER)
            with calls_noted() as noted:
                for delivered in receiver.handle(DatagramsReceived(batch), 0):
                    if isinstance(delivered, Deliver | DeliverBatch):
                        data_path.take(delivered.messages)
            while data := intake.take(reader, 0):
                events = [each for each in read_events(data) if each.kind in (EventKind.REFRESH, EventKind.UPDATE)]
                prices += [QUOTE.view(event.body).bid_price for event in events]
    assert_called_in_order(visible(steps, "Distribute", "Consume", sockets=False), noted)
    assert prices == expected_prices


def test_the_walk_down_a_tree() -> None:
    """From a publisher through the root and an agent below it to a subscriber; simulated links replace the lane's
    sockets."""
    plant = TreePlant(World(1), TreePlantOptions(agents=1, subscribers=1, streams=1, publishers=1))
    with calls_noted() as noted:
        plant.start()
        plant.run(NS_PER_SECOND)
        plant.finish()
    assert_called_in_order(visible(documented_steps(), "Descend", sockets=False), noted)
    assert plant.summary().messages_delivered > 0


def test_the_walk_through_a_message_router() -> None:
    order = bytes(QUOTE.new(symbol="AAPL", bid_price=187.25))
    with calls_noted() as noted:
        router = Router(queue("orders", "orders.>"))
        router.link(1)
        router.publish(1, router.publisher(1), 1, Published(b"orders.new", order))
        assert router.outcomes(1) == {1: OUTCOME_STORED}
        flow = router.flow(1, "orders")
        (delivered,) = router.delivered(1)
        router.settle(1, flow, delivered.id)
    assert_called_in_order(visible(documented_steps(), "Assure", sockets=False), noted)
    assert delivered.payload == order
    assert router.core.tables.message_count == 0


def test_the_walk_on_real_sockets(expected_prices: list[float]) -> None:
    steps, channel = documented_steps(), free_channel()
    generator, told = TickGenerator(3, 5), []
    config = ReceiverConfig(join="start")
    with (
        MulticastReceiver([channel], config=config) as receiver,
        MulticastPublisher(channel, config=PublisherConfig(linger_ms=1)) as publisher,
    ):
        for _ in range(3):
            expected = len(prices_of(told)) + 4
            with calls_noted() as noted:
                publisher.publish_batch(ticks(generator, 4))
                deadline = time.monotonic() + 20
                while len(prices_of(told)) < expected:
                    assert time.monotonic() < deadline, "the ticks did not arrive"
                    for each in receiver.receive(0.1):
                        told += read(each)
    titles = ("Publish", "Pack", "Send", "Receive", "Order", "Merge", "Match", "Read")
    assert_called_in_order(visible(steps, *titles, sockets=True), noted)
    assert prices_of(told) == expected_prices


def test_single_messages_take_the_short_way() -> None:
    """publish() of one message calls no Python function of the core."""
    channel, prices = free_channel(), []
    with (
        MulticastReceiver([channel], config=ReceiverConfig(join="start")) as receiver,
        MulticastPublisher(channel, config=PublisherConfig(linger_ms=1)) as publisher,
    ):
        quotes = [QUOTE.new(symbol="AAPL", bid_price=number, ask_price=number + 1) for number in range(1, 21)]
        publisher.publish("md.demo.eq.AAPL.quote", quotes[0])  # the stream's first packet
        with calls_noted() as noted:
            for quote in quotes[1:]:
                publisher.publish("md.demo.eq.AAPL.quote", quote)
        deadline = time.monotonic() + 20
        while len(prices) < len(quotes):
            assert time.monotonic() < deadline, "the quotes did not arrive"
            for each in receiver.receive(0.1):
                prices += prices_of(read(each)) if isinstance(each, Deliver | DeliverBatch) else []
    assert not [name for name in noted if name.startswith("penstock.middleware.core.")]
    assert prices == list(range(1, 21))


@pytest.mark.parametrize("sabotage", [lambda steps: steps["Order"].reverse(), lambda steps: steps["Pack"].append("x")])
def test_a_wrong_walk_is_noticed(sabotage: Callable[[dict[str, list[str]]], None]) -> None:
    order = ["a", "b", "c"]
    steps = {"Order": list(order), "Pack": []}
    sabotage(steps)
    with pytest.raises(AssertionError):
        assert_called_in_order(steps["Order"] + steps["Pack"], order)
