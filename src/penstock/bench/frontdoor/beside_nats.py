"""One publisher to one subscriber, message by message, through Penstock and through a NATS server, in turns."""

import contextlib
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from penstock.base.clock import NS_PER_SECOND, NS_PER_US
from penstock.bench.brokers import NATS, NatsClient
from penstock.bench.harness import Result, result, rounds, unmeasured
from penstock.bench.transports import PAYLOAD_SIZE, check, other_process

TOPIC = "app.desk.mid"
PATTERN = "app.desk.>"
ROUNDS = 3
ROUNDS_SECONDS = 40.0
RATE = 10_000
LATENCY_MESSAGES = 20_000
RATE_MESSAGES = 200_000
PAUSE_EVERY = 256
PAUSE_GROWTH = 4
PAUSE_US_MAX = 20_000.0
US_PER_SECOND = 1e6
SLEEP_MARGIN_NS = 60_000
END_SECONDS = 0.2
"""Interval of the messages that tell the subscriber the end."""
_SENT = struct.Struct("<q")

Publish = Callable[[str, bytes], object]
OpenPublisher = Callable[[str], AbstractContextManager[Publish]]
OpenSubscription = Callable[[str], AbstractContextManager[Iterator[bytes]]]


class Way(msgspec.Struct, frozen=True):
    """`publisher` and `subscription` are opened in processes of their own, with the place in question."""

    name: str
    publisher: OpenPublisher
    subscription: OpenSubscription


def compare(metric: str, ours: Way, place: str) -> Iterator[Result]:
    """The ratios to NATS: of the median latency at RATE messages a second, and of the rate without losses."""
    ways = [(ours, place)]
    found: dict[str, list[_Round]] = {ours.name: [], NATS_WAY.name: []}
    with contextlib.ExitStack() as stack:
        if NATS.is_installed:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            ways.append((NATS_WAY, str(stack.enter_context(NATS.running(Path(folder))).port)))
        for _ in rounds(ROUNDS, ROUNDS_SECONDS):
            for way, where in ways:
                rate, pause_us = _rate_without_loss(way, where)
                found[way.name].append(_Round(_median_us(way, where), rate, pause_us))
    conditions = (
        f"publisher and subscriber in processes of their own, over loopback; one call per message of {PAYLOAD_SIZE} "
        f"bytes, one turn of a `for` loop per message, blocking; NATS by bare sockets without a client library; "
        f"medians of {len(found[ours.name])} rounds in turn"
    )
    latencies = {way.name: statistics.median(each.latency_us for each in found[way.name]) for way, _ in ways}
    rates = {way.name: statistics.median(each.rate for each in found[way.name]) for way, _ in ways}
    pause_us = max(each.pause_us for each in found[ours.name])
    paused = f", a pause of up to {pause_us:.0f} us after each {PAUSE_EVERY} messages" if pause_us else ""
    for what, unit, values, messages in (
        ("latency", "us", latencies, f"{LATENCY_MESSAGES} messages, {RATE} a second"),
        ("rate", "1/s", rates, f"{RATE_MESSAGES} messages as fast as they go, none lost{paused}"),
    ):
        shown = ", ".join(f"{name} {value:,.0f} {unit}" for name, value in values.items())
        name, whole = f"{metric}_{what}_ratio_to_nats", f"{conditions}; {messages}: {shown}"
        if len(ways) == 1:
            yield unmeasured("frontdoor", name, f"nats-server is not installed (apt install {NATS.package})", whole)
            continue
        ratio = values[ours.name] / values[NATS_WAY.name]
        ratio = 1 / ratio if what == "latency" else ratio
        yield result("frontdoor", name, ratio, "x", against="nats-server", against_value=1.0, conditions=whole)


class _Round(msgspec.Struct, frozen=True):
    latency_us: float
    rate: float
    pause_us: float


@contextmanager
def nats_latency() -> Iterator[Callable[[], float]]:
    """A function that measures the median latency in microseconds through a NATS server, at RATE messages a second."""
    check(NATS.is_installed, f"nats-server is not installed (apt install {NATS.package})")
    with tempfile.TemporaryDirectory() as folder, NATS.running(Path(folder)) as server:
        yield lambda: _median_us(NATS_WAY, str(server.port))


def _median_us(way: Way, place: str) -> float:
    latencies_ns, _ = _measure(way, place, LATENCY_MESSAGES, NS_PER_SECOND // RATE, 0.0)
    check(len(latencies_ns) > LATENCY_MESSAGES // 2, f"{way.name} lost more than half of the messages")
    return statistics.median(latencies_ns[len(latencies_ns) // 10 :]) / NS_PER_US


def _rate_without_loss(way: Way, place: str) -> tuple[float, float]:
    """The rate, and the pause in microseconds after each PAUSE_EVERY messages with which nothing was lost: multicast
    does not slow a publisher down."""
    pause_us = 0.0
    while True:
        latencies_ns, seconds = _measure(way, place, RATE_MESSAGES, 0, pause_us)
        if len(latencies_ns) == RATE_MESSAGES:
            return RATE_MESSAGES / seconds, pause_us
        pause_us = PAUSE_GROWTH * pause_us or 50.0
        check(pause_us < PAUSE_US_MAX, f"{way.name} loses messages at every rate")


def _measure(way: Way, place: str, count: int, interval_ns: int, pause_us: float) -> tuple[list[int], float]:
    """The latencies of the received messages, and the time that they took."""
    with other_process(_receive, way, place) as reader:
        check(reader.recv() == "ready", f"the subscriber of {way.name} did not start")
        with other_process(_send, way, place, count, interval_ns, pause_us) as writer:
            latencies_ns, seconds = reader.recv()
            writer.send("enough")
    return latencies_ns, seconds


def _receive(way: Way, place: str, orders: Connection) -> None:
    """Up to the first message without a time, which says that it was the last one."""
    latencies_ns: list[int] = []
    with way.subscription(place) as messages:
        orders.send("ready")
        first_ns = 0
        for payload in messages:
            sent_ns = _SENT.unpack_from(payload)[0]
            if not sent_ns:
                break
            now_ns = time.monotonic_ns()
            first_ns = first_ns or now_ns
            latencies_ns.append(now_ns - sent_ns)
        orders.send((latencies_ns, (now_ns - first_ns) / NS_PER_SECOND))


def _send(way: Way, place: str, count: int, interval_ns: int, pause_us: float, orders: Connection) -> None:
    rest = bytes(PAYLOAD_SIZE - _SENT.size)
    with way.publisher(place) as publish:
        due_ns = time.monotonic_ns()
        for number in range(count):
            if pause_us and not number % PAUSE_EVERY:
                time.sleep(pause_us / US_PER_SECOND)
            while interval_ns and (left_ns := due_ns - time.monotonic_ns()) > 0:
                if left_ns > SLEEP_MARGIN_NS:
                    time.sleep((left_ns - SLEEP_MARGIN_NS) / NS_PER_SECOND)
            publish(TOPIC, _SENT.pack(time.monotonic_ns()) + rest)
            due_ns += interval_ns
        while not orders.poll(END_SECONDS):
            publish(TOPIC, bytes(PAYLOAD_SIZE))


@contextmanager
def _nats_publisher(place: str) -> Iterator[Publish]:
    client = NatsClient(int(place))
    yield lambda topic, payload: client.send(client.encode(topic, payload))
    client.close()


@contextmanager
def _nats_subscription(place: str) -> Iterator[Iterator[bytes]]:
    client = NatsClient(int(place))
    client.subscribe([PATTERN])
    yield client.payloads(TOPIC, PAYLOAD_SIZE)
    client.close()


NATS_WAY = Way("NATS", _nats_publisher, _nats_subscription)
