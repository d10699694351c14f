"""The application's CPU cost of unwanted messages, with and without a filter module."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

import msgspec
import numpy

from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Counters
from penstock.bench.filter.process import running_filter
from penstock.bench.harness import Result, result
from penstock.bench.ticker import Ticker
from penstock.bench.transports import PAYLOAD_SIZE, check, other_process
from penstock.filter.client import FilteredReceiver
from penstock.filter.client.wanted import Condition, WantedInterests
from penstock.middleware import Deliver, DeliverBatch, OutgoingBatch, PublisherConfig, TopicList
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.middleware.live.receiver import SocketReceiver
from penstock.net.udp import Channel, free_channel
from penstock.wire import MessageBatch, PacketMessage

RATE = 500_000
TOPICS = 100_000
WANTED_SHARE = 0.01
MESSAGES_PER_PACKET = 10
INTERVAL_NS = MESSAGES_PER_PACKET * NS_PER_SECOND // RATE
PACKETS = 100_000
MESSAGES = PACKETS * MESSAGES_PER_PACKET
BATCHES = 1_000
ROUNDS = 5
ATTEMPTS = 10
SILENCE_S = 20.0
SEED = 7
LAST = "md.us.eq.LAST.quote"
CONDITIONS = (
    f"CPU time of the application's process, which blocks until messages arrive and wants {WANTED_SHARE:.0%} of them, "
    f"by {round(TOPICS * WANTED_SHARE)} interests; {PAYLOAD_SIZE}-byte payloads in packets of {MESSAGES_PER_PACKET} "
    f"messages; {RATE} messages/s, evenly spread; without a filter the application matches topics itself, compiled and "
    f"in batches; medians of {ROUNDS} alternating rounds of {PACKETS} packets; rounds with missed messages are "
    f"excluded if there are others"
)


class Run(msgspec.Struct, frozen=True):
    cpu_seconds: float
    rate: float
    missed: int
    """Wanted messages that were missed, because nobody waits for a slow application."""


def run() -> Iterator[Result]:
    rounds: list[tuple[Run, Run]] = []
    complete: list[tuple[Run, Run]] = []
    while len(rounds) < ATTEMPTS and len(complete) < ROUNDS:
        rounds.append((_filtered(), _direct()))
        complete = [each for each in rounds if not any(one.missed for one in each)]
    with_filter, without = zip(*(complete or rounds), strict=True)
    ours, theirs = (statistics.median(each.cpu_seconds for each in runs) for runs in (with_filter, without))
    rates = ", ".join(f"{each.rate:.0f} ({each.missed} missed)" for each in (*with_filter, *without))
    yield result(
        "filter",
        "application_cpu_ratio",
        ours / theirs,
        "ratio",
        against=f"without a filter: {1e9 * ours / MESSAGES:.1f} ns per published message compared with "
        f"{1e9 * theirs / MESSAGES:.1f}",
        against_value=1,
        conditions=f"{CONDITIONS}; messages/s with and without: {rates}",
    )


def _topics() -> list[str]:
    return [f"md.us.eq.S{number:06}.quote" for number in range(TOPICS)]


def _wanted() -> list[str]:
    return [*_topics()[:: round(1 / WANTED_SHARE)], LAST]


WANTED = frozenset(_wanted())


def _filtered() -> Run:
    channel = free_channel()
    with (
        running_filter(channels=(str(channel),)) as module,
        FilteredReceiver(module.address, _wanted()) as receiver,
    ):
        return _measure(channel, receiver, lambda messages: messages)


def _direct() -> Run:
    channel = free_channel()
    wishes = WantedInterests(lambda model_id, version: None, Counters("receiver"))
    wishes.add(_wanted(), Condition("", b""), ())
    with MulticastReceiver([channel]) as receiver:
        return _measure(channel, receiver, lambda messages: wishes.chosen(messages, 0))


def _measure(channel: Channel, receiver: SocketReceiver, chosen: Callable[[MessageBatch], MessageBatch]) -> Run:
    count, is_over = 0, False
    with other_process(_publish, channel) as orders:
        wanted = orders.recv()
        orders.send("go")
        started, cpu = time.perf_counter(), time.process_time()
        while not is_over:
            received = receiver.receive(SILENCE_S)
            check(bool(received), f"the publisher fell silent after {count} messages")
            for each in received:
                if isinstance(each, DeliverBatch):
                    messages: Sequence[PacketMessage] | MessageBatch = chosen(each.messages)
                elif isinstance(each, Deliver):  # repaired packets are evaluated one by one
                    messages = [message for message in each.messages if message.topic in WANTED]
                else:
                    continue
                count += len(messages)
                is_over = is_over or (len(messages) > 0 and messages[len(messages) - 1].topic == LAST)
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - started
        orders.send("enough")
        return Run(cpu, MESSAGES / seconds, wanted + 1 - count)


def _publish(channel: Channel, orders: Connection) -> None:
    source = numpy.random.default_rng(SEED)
    topics, payloads = TopicList(_topics()), numpy.zeros((MESSAGES_PER_PACKET, PAYLOAD_SIZE), numpy.uint8)
    chosen = source.integers(0, TOPICS, (BATCHES, MESSAGES_PER_PACKET))
    batches = [OutgoingBatch(topics, each, payloads) for each in chosen]
    wanted = (chosen % round(1 / WANTED_SHARE) == 0).sum()
    publisher = MulticastPublisher(channel, config=PublisherConfig(packet_size_max=8_972))
    orders.send(int(wanted) * PACKETS // BATCHES)
    orders.recv()
    due = 0
    with Ticker(INTERVAL_NS) as ticker:
        for number in range(PACKETS):
            if number >= due:
                due += ticker.wait()
            publisher.publish_batch(batches[number % BATCHES])
    publisher.publish(LAST, b"")
    orders.recv()
    publisher.close(linger=False)
