"""Messages per second from a publisher to an application with many interests, through a filter module and through peer
brokers, in turns.
"""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy

from penstock.bench.brokers import BROKERS, Broker
from penstock.bench.filter.process import running_filter
from penstock.bench.harness import Result, result
from penstock.bench.transports import ALL_CORES, PAYLOAD_SIZE, check, other_process
from penstock.filter.client import FilteredReceiver
from penstock.middleware import Deliver, DeliverBatch, LossReceipt, OutgoingBatch, PublisherConfig, TopicList
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Channel, free_channel

INTERESTS = 100_000
ROUNDS = 3
MESSAGES_PER_BATCH = 512
BATCHES = 64
MESSAGES = 4_000 * MESSAGES_PER_BATCH
AHEAD_MAX = 16_384
"""Maximum number of messages in flight. TCP limits brokers; here the application reports its position."""

PEER_MESSAGES = 16 * BATCHES * MESSAGES_PER_BATCH
PACKET_SIZE = 8_972
SILENCE_S = 20.0
SEED = 7
CONDITIONS = (
    f"publisher, filter or broker, and application in separate processes on {len(ALL_CORES)} cores, over loopback; one "
    f"application with {INTERESTS} interests, each message matches one, drawn at random; {PAYLOAD_SIZE}-byte "
    f"payloads; filter: published in arrays, in packets of at most {PACKET_SIZE} bytes, multicast in, unicast out, no "
    "losses; brokers: clients are bare sockets that write many messages at once and only count received bytes; medians "
    f"of {ROUNDS} alternating rounds"
)


class Run(msgspec.Struct, frozen=True):
    """Results of one round."""

    messages: int
    seconds: float
    cpu_seconds: float
    """CPU time of all processes."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_ns(self) -> float:
        return 1e9 * self.cpu_seconds / self.messages


def run() -> Iterator[Result]:
    installed = [broker for broker in BROKERS if broker.is_installed]
    for broker in BROKERS:
        if broker not in installed:
            sys.stderr.write(f"no speedup_vs_{broker.name}: it is not installed (apt install {broker.package})\n")
    runs: dict[str, list[Run]] = {name: [] for name in ("filter", *(broker.name for broker in installed))}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            runs["filter"].append(_filtered())
            for broker in installed:
                runs[broker.name].append(_brokered(broker, Path(folder)))
    rates = {name: statistics.median(each.rate for each in made) for name, made in runs.items()}
    costs = {name: statistics.median(each.cpu_ns for each in made) for name, made in runs.items()}
    conditions = f"{CONDITIONS}; CPU time of all processes per message: {_costs(costs)}"
    best = max((name for name in rates if name != "filter"), key=lambda name: rates[name], default="")
    yield result(
        "filter",
        "end_to_end_messages_per_s",
        rates["filter"],
        "1/s",
        against=best,
        against_value=rates.get(best, 0.0),
        conditions=conditions,
    )
    for broker in installed:
        yield result(
            "filter",
            f"speedup_vs_{broker.name}",
            rates["filter"] / rates[broker.name],
            "ratio",
            against=f"{broker.name}: {rates['filter']:.0f} messages/s over its {rates[broker.name]:.0f}",
            against_value=1,
            conditions=conditions,
        )


def _costs(costs: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f} ns" for name, value in costs.items())


def _topics(levels: str = ".") -> list[str]:
    return [levels.join(("md", "us", "eq", f"S{number:06}", "quote")) for number in range(INTERESTS)]


# Through a filter


def _filtered() -> Run:
    channel = free_channel()
    taken = get_context("spawn").RawValue("Q", 0)
    with (
        running_filter(channels=(str(channel),)) as module,
        other_process(_publish, channel, taken) as orders,
        FilteredReceiver(module.address, _topics()) as receiver,
    ):
        check(orders.recv() == "ready", "the publisher did not start")
        orders.send("go")
        started, cpu = time.perf_counter(), time.process_time() + module.cpu_seconds()
        while taken.value < MESSAGES:
            received = receiver.receive(SILENCE_S)
            check(bool(received), f"the publisher fell silent after {taken.value} messages")
            for each in received:
                check(not isinstance(each, LossReceipt), "messages were lost")
                if isinstance(each, DeliverBatch | Deliver):
                    taken.value += len(each.messages)
        seconds = time.perf_counter() - started
        cpu = time.process_time() + module.cpu_seconds() - cpu
        orders.send("enough")
        return Run(MESSAGES, seconds, cpu + orders.recv())


def _publish(channel: Channel, taken: Any, orders: Connection) -> None:
    batches = _batches()
    config = PublisherConfig(packet_size_max=PACKET_SIZE)
    publisher = MulticastPublisher(channel, config=config)
    orders.send("ready")
    orders.recv()
    cpu = time.process_time()
    for number in range(MESSAGES // MESSAGES_PER_BATCH):
        while number * MESSAGES_PER_BATCH - taken.value > AHEAD_MAX and not orders.poll():
            time.sleep(0.00005)
        publisher.publish_batch(batches[number % BATCHES])
    cpu = time.process_time() - cpu
    orders.recv()
    orders.send(cpu)
    publisher.close(linger=False)


def _batches() -> list[OutgoingBatch]:
    source = numpy.random.default_rng(SEED)
    topics = TopicList(_topics())
    payloads = numpy.zeros((MESSAGES_PER_BATCH, PAYLOAD_SIZE), numpy.uint8)
    return [OutgoingBatch(topics, source.integers(0, INTERESTS, MESSAGES_PER_BATCH), payloads) for _ in range(BATCHES)]


# Through a broker


def _brokered(broker: Broker, folder: Path) -> Run:
    topics, payload = _topics(broker.client.levels), bytes(PAYLOAD_SIZE)
    with broker.running(folder) as server:
        client = broker.client(server.port)
        client.subscribe(topics)
        with other_process(_publish_to_broker, broker.name, server.port) as orders:
            check(orders.recv() == "ready", f"the publisher of {broker.name} did not start")
            left = PEER_MESSAGES * client.received_size(topics[0], payload)
            orders.send("go")
            started, cpu = time.perf_counter(), time.process_time() + server.cpu_seconds()
            while left > 0:
                left -= client.receive()
            seconds = time.perf_counter() - started
            cpu = time.process_time() + server.cpu_seconds() - cpu
            cpu += orders.recv()
            orders.send("enough")
            client.close()
            return Run(PEER_MESSAGES, seconds, cpu)


def _publish_to_broker(name: str, port: int, orders: Connection) -> None:
    (broker,) = (broker for broker in BROKERS if broker.name == name)
    client = broker.client(port)
    topics, payload = _topics(client.levels), bytes(PAYLOAD_SIZE)
    source = random.Random(SEED)
    count = BATCHES * MESSAGES_PER_BATCH
    data = b"".join(client.encode(source.choice(topics), payload) for _ in range(count))
    orders.send("ready")
    orders.recv()
    cpu = time.process_time()
    for _ in range(PEER_MESSAGES // count):
        client.send(data)
    orders.send(time.process_time() - cpu)
    orders.recv()  # closing the connection earlier would drop messages in flight
    client.close()
