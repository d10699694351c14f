"""Rate of messages that a filter module evaluates on one core, and the cost of an unwanted message.

The publisher, in another process, keeps a queue of packets at the module's socket; the module's CPU time is measured
while the queue is not empty. Neither waiting nor other load of the machine counts.
"""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy

from penstock.base.clock import SystemRandomness
from penstock.bench.harness import Result, result
from penstock.bench.transports import PATIENCE_SECONDS, check, other_process, pin
from penstock.filter.config import FilterConfig
from penstock.filter.core.events import Attach, FilterInstruction, Interests, Opened, Send, Want
from penstock.filter.core.module import FilterModule
from penstock.filter.live._dispatch import Dispatcher
from penstock.filter.live._relay import Relay
from penstock.middleware import OutgoingBatch, PublisherConfig, ReceiverConfig, TopicList
from penstock.middleware.core._inorder import StreamCursor
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Address, Channel, Inlet, Outlet, address_key, free_channel, group_socket, host_socket
from penstock.wire import DatagramBatch, PacketStore

INTERESTS = 1_000_000
PATTERN_SHARE = 0.1
APPLICATIONS = 64
MESSAGES_PER_PACKET = 10
WANTED_SHARE = 0.05
PAYLOAD_SIZE = 64
PACKET_SIZE = 48 + MESSAGES_PER_PACKET * (16 + 24 + PAYLOAD_SIZE)
PACKETS_PER_CALL = 64
QUEUED_MIN = 1_024
QUEUED_MAX = 2_560
PACKETS = 100_000
ROUNDS = 3
BATCHES_ALONE = 128
SLICE_NS = 2_000_000
SEED = 7

REGIONS, CLASSES = ("us", "eu", "ap", "la"), ("eq", "opt", "fut", "fx")
FIELDS = ("quote", "trade", "book", "close", "bar")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CONDITIONS = (
    f"{INTERESTS} interests over {APPLICATIONS} applications, {PATTERN_SHARE:.0%} with *, > or AA*; packets of "
    f"{MESSAGES_PER_PACKET} messages with {PAYLOAD_SIZE} bytes, topics drawn at random; loopback multicast in, unicast "
    f"out; publisher on another core; CPU time of the module's thread while packets are queued; median of {ROUNDS} "
    f"rounds of {PACKETS} packets"
)


def run() -> Iterator[Result]:
    universe = Universe()
    with Bench(universe) as bench:
        some, none, bare = [], [], []
        for _ in range(ROUNDS):
            some.append(bench.measure(WANTED_SHARE, bench.relay))
            none.append(bench.measure(0.0, bench.relay))
            bare.append(bench.measure(0.0, bench.receive_only))
        some_ns, none_ns, bare_ns = (statistics.median(each) / MESSAGES_PER_PACKET for each in (some, none, bare))
        alone_ns = bench.without_sockets()
    yield result(
        "filter",
        "filtered_messages_per_s",
        1e9 / some_ns,
        "1/s",
        against="a bare recvmmsg loop that discards all data",
        against_value=1e9 / bare_ns,
        conditions=f"{CONDITIONS}; {WANTED_SHARE:.0%} of the messages match, each for one application",
    )
    for metric, value, what in (
        ("unwanted_ns", none_ns, "including the socket"),
        ("unwanted_without_socket_ns", alone_ns, "without the socket: check, order, match and forward"),
    ):
        yield result(
            "filter",
            metric,
            value,
            "ns",
            against="a bare recvmmsg loop, per message",
            against_value=bare_ns,
            conditions=f"{CONDITIONS}; no message wanted; {what}",
        )


class Universe:
    """All topics: those wanted by one application each, and unwanted ones."""

    def __init__(self) -> None:
        source = random.Random(SEED)
        exact = round(INTERESTS * (1 - PATTERN_SHARE))
        per_symbol = len(REGIONS) * len(CLASSES) * len(FIELDS)
        count = exact // per_symbol
        numbers = source.sample(range(len(LETTERS) ** 5), 2 * count)
        symbols = ["".join(LETTERS[number // 26**place % 26] for place in range(5)) for number in numbers]
        patterned, plain, others = symbols[: count // 8], symbols[count // 8 : count], symbols[count:]
        prefixes = {symbol[:4] for symbol in patterned}
        self.wanted = _topics([symbol for symbol in plain if symbol[:4] not in prefixes])
        self.unwanted = _topics([symbol for symbol in others if symbol[:4] not in prefixes])
        self.interests = [*_topics(symbols[:count]), *itertools.islice(_patterns(patterned), INTERESTS - exact)]
        source.shuffle(self.interests)


def _topics(symbols: Sequence[str]) -> list[str]:
    return [
        f"md.{region}.{kind}.{symbol}.{field}"
        for symbol in symbols
        for region, kind, field in itertools.product(REGIONS, CLASSES, FIELDS)
    ]


def _patterns(symbols: Sequence[str]) -> Iterator[str]:
    for symbol in symbols:
        for region, kind in itertools.product(REGIONS, CLASSES):
            yield f"md.{region}.{kind}.{symbol}.*"
            yield f"md.{region}.{kind}.{symbol}.>"
            yield f"md.{region}.{kind}.{symbol[:4]}*.{FIELDS[0]}"
        for kind, field in itertools.product(CLASSES, FIELDS):
            yield f"md.*.{kind}.{symbol}.{field}"
            yield f"md.{kind}.*.{symbol}.{field}"


class Bench:
    """A module's core, its compiled parts and its sockets; publisher and applications are in other processes."""

    def __init__(self, universe: Universe) -> None:
        self._universe = universe
        self.channel = free_channel()
        config = FilterConfig(receiver=ReceiverConfig(join="start", publisher_expiry_ms=60_000))
        self.core = FilterModule(config, SystemRandomness(), groups=[self.channel.group_id])
        self._sockets = ExitStack()
        self._receiving = self._sockets.enter_context(group_socket(self.channel))
        own = self._sockets.enter_context(host_socket("127.0.0.1"))
        self._inlet = Inlet([self._receiving.fileno()], DatagramBatch(PACKETS_PER_CALL))
        self._outlet = Outlet(own.fileno())
        self._dispatcher = Dispatcher(self._outlet, config.applications_max)
        self._relay = Relay(self._inlet, self.core.receiver.in_order, self.core.forwarder, self._dispatcher)

    def __enter__(self) -> "Bench":
        interests = self._universe.interests
        for number in range(APPLICATIONS):
            self._carry_out(self.core.handle(Attach(number, ("127.0.0.1", 1 + number)), 0))
            wanted = Interests(interests[number::APPLICATIONS])
            self._carry_out(self.core.handle(Want(number, add=[wanted]), 0))
        return self

    def __exit__(self, *_: object) -> None:
        self._outlet.close()
        self._sockets.close()

    def measure(self, wanted_share: float, work: Callable[[], int]) -> float:
        """Return CPU nanoseconds per packet."""
        context = get_context("spawn")
        sent, taken = context.RawValue("Q", 0), context.RawValue("Q", 0)
        out_before = self.core.forwarder.messages_out
        with other_process(_publish, self.channel, wanted_share, sent, taken) as orders:
            for number, address in enumerate(orders.recv()):
                self._dispatcher.open(number, address_key(address))
            orders.send("go")
            pin(-1)
            try:
                spent_ns = self._drain(sent, taken, work)
            finally:
                pin(0, is_pinned=False)
            orders.send("enough")
            got = orders.recv()
        out = self.core.forwarder.messages_out - out_before
        check(work != self.relay or abs(got - out) <= out // 100, f"applications got {got} of {out} messages")
        check(not self._inlet.overflows, "packets were lost at the socket")
        return spent_ns / PACKETS

    def _drain(self, sent: Any, taken: Any, work: Callable[[], int]) -> int:
        spent_ns = count = 0
        give_up = time.monotonic() + PATIENCE_SECONDS
        while count < PACKETS:
            while sent.value - count < min(QUEUED_MIN, PACKETS - count):
                check(time.monotonic() < give_up, "the publisher is too slow")
                time.sleep(0.0002)
            started_ns = time.thread_time_ns()
            count += work()
            spent_ns += time.thread_time_ns() - started_ns
            taken.value = count
        return spent_ns

    def relay(self) -> int:
        """Relay for a while; return the number of packets."""
        counters = self.core.counters
        before = counters["packets_received"]
        now_ns = time.monotonic_ns()
        while self._relay.run(now_ns + SLICE_NS, False):
            self._carry_out(self.core.receive_rest(self._inlet.batch, self._relay.start, self._relay.now_ns))
        return counters["packets_received"] - before

    def receive_only(self) -> int:
        until_ns, count = time.monotonic_ns() + SLICE_NS, 0
        while time.monotonic_ns() < until_ns and (received := self._inlet.receive(0)):
            count += received
        return count

    def without_sockets(self) -> float:
        """Return CPU nanoseconds per message for packets in memory."""
        module, in_order = self.core.forwarder, self.core.receiver.in_order
        batches = _batches(self._universe.unwanted)
        cursor = StreamCursor()
        cursor.publisher_id, cursor.group, cursor.epoch, cursor.is_smooth = 1, 1, 1, True
        cursor.source_key = batches[0][1].source_key(0)
        in_order.add(cursor)
        account = module.open(1, 1, 1)
        for number in range(APPLICATIONS):
            account.listen(number, 1)
        spent, out_before = [], module.messages_out
        for _ in range(ROUNDS + 1):
            started_ns = time.thread_time_ns()
            for first, batch in batches:
                cursor.next_sequence = first
                messages = in_order.begin(batch, 0)
                if messages is not None:
                    module.forward(messages)
            spent.append(time.thread_time_ns() - started_ns)
        check(account.position == batches[-1][0] + PACKETS_PER_CALL, "packets were not in order")
        check(module.messages_out == out_before, "an unwanted message was matched")
        return statistics.median(spent[1:]) / (len(batches) * PACKETS_PER_CALL * MESSAGES_PER_PACKET)

    def _carry_out(self, instructions: list[FilterInstruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Opened):
                self._dispatcher.open(instruction.consumer, address_key(instruction.address))
            elif isinstance(instruction, Send):
                self._dispatcher.send(instruction.outbox)


def _batches(topics: list[str]) -> list[tuple[int, DatagramBatch]]:
    """Return batches of packets of one stream, with the number of each batch's first packet."""
    source, store = random.Random(SEED), PacketStore(PACKETS_PER_CALL, 1 << 20)
    made = []
    for _ in range(BATCHES_ALONE):
        names = TopicList([source.choice(topics) for _ in range(PACKETS_PER_CALL * MESSAGES_PER_PACKET)])
        messages = OutgoingBatch(names, numpy.arange(len(names)), numpy.zeros((len(names), PAYLOAD_SIZE), numpy.uint8))
        first, batch = store.next_sequence, DatagramBatch(PACKETS_PER_CALL)
        stream = {"publisher_id": 1, "group": 1, "epoch": 1}
        store.pack(messages.topic_data, messages.payloads, messages.rows, packet_size_max=PACKET_SIZE, **stream)
        for sequence in range(first, store.next_sequence):
            batch.append(store.get(sequence), ("127.0.0.1", 1))
        made.append((first, batch))
    return made


# The other process


def _publish(channel: Channel, wanted_share: float, sent: Any, taken: Any, orders: Connection) -> None:
    """Publish so that the queue at the module's socket is never empty nor full, and read the applications' messages."""
    universe = Universe()
    batches = list(_random_batches(universe, wanted_share))
    config = PublisherConfig(
        packet_size_max=PACKET_SIZE, keep_alive_packets=1 << 20, retransmission_packets_max=1 << 15
    )
    with ExitStack() as stack:
        sockets = [stack.enter_context(host_socket("127.0.0.1")) for _ in range(APPLICATIONS)]
        applications = Inlet([each.fileno() for each in sockets], DatagramBatch(PACKETS_PER_CALL))
        publisher = MulticastPublisher(channel, config=config)
        orders.send(_addresses(sockets))
        orders.recv()
        pin(0)
        got = 0
        for batch in itertools.islice(itertools.cycle(batches), -(-PACKETS // PACKETS_PER_CALL)):
            publisher.publish_batch(batch)
            sent.value += PACKETS_PER_CALL
            while sent.value - taken.value > QUEUED_MAX and not orders.poll():
                got += _read(applications)
        orders.recv()
        while received := _read(applications):
            got += received
        orders.send(got)
        publisher.close(linger=False)


def _addresses(sockets: Sequence[Any]) -> list[Address]:
    return [each.getsockname() for each in sockets]


def _read(applications: Inlet) -> int:
    """Return the number of messages received by applications."""
    received = applications.receive(0)
    return sum(int.from_bytes(applications.batch.datagram(index)[6:8], "little") for index in range(received))


def _random_batches(universe: Universe, wanted_share: float) -> Iterator[OutgoingBatch]:
    source = random.Random(SEED)
    count = PACKETS_PER_CALL * MESSAGES_PER_PACKET
    for _ in range(256):
        wanted = [source.random() < wanted_share for _ in range(count)]
        names = TopicList([source.choice(universe.wanted if each else universe.unwanted) for each in wanted])
        yield OutgoingBatch(names, numpy.arange(count), numpy.zeros((count, PAYLOAD_SIZE), numpy.uint8))
