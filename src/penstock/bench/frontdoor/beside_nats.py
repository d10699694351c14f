"""One publisher to one subscriber, message by message, through Penstock and through a NATS server, in turns."""

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
from penstock.bench.harness import Result, result
from penstock.bench.transports import PATIENCE_SECONDS, PAYLOAD_SIZE, check, other_process

TOPIC = "app.desk.mid"
PATTERN = "app.desk.>"
ROUNDS = 3
RATE = 10_000
LATENCY_MESSAGES = 20_000
RATE_MESSAGES = 200_000
SLEEP_MARGIN_NS = 60_000
END_SECONDS = 0.2
"""Interval of the messages that report the end to the subscriber."""
PING = b"PING\r\n"
_SENT = struct.Struct("<q")

Publish = Callable[[str, bytes], object]
OpenPublisher = Callable[[str], AbstractContextManager[Publish]]
OpenSubscription = Callable[[str], AbstractContextManager[Iterator[bytes]]]


class Way(msgspec.Struct, frozen=True):
    """`publisher` and `subscription` are opened in separate processes, with an address."""

    name: str
    publisher: OpenPublisher
    subscription: OpenSubscription


def compare(metric: str, ours: Way, place: str) -> Iterator[Result]:
    """Yield the ratios to NATS: of the median latency at RATE messages a second, and of the rate without pauses."""
    latencies: dict[str, list[float]] = {ours.name: [], NATS_WAY.name: []}
    rates: dict[str, list[float]] = {ours.name: [], NATS_WAY.name: []}
    lost = 0
    check(NATS.is_installed, f"nats-server is not installed (apt install {NATS.package})")
    with tempfile.TemporaryDirectory() as folder, NATS.running(Path(folder)) as server:
        for _ in range(ROUNDS):
            for way, where in ((ours, place), (NATS_WAY, str(server.port))):
                latencies[way.name].append(_median_us(way, where))
                rate, missed = _rate(way, where)
                rates[way.name].append(rate)
                lost += missed
    found = {name: statistics.median(each) for name, each in latencies.items()}
    fastest = {name: statistics.median(each) for name, each in rates.items()}
    conditions = (
        f"publisher and subscriber in separate processes, over loopback; one call per message of {PAYLOAD_SIZE} "
        f"bytes, one step of a `for` loop per message, blocking; NATS with bare sockets, without a client library; "
        f"medians of {ROUNDS} alternating rounds"
    )
    for unit, values, ratio, messages in (
        ("us", found, found[NATS_WAY.name] / found[ours.name], f"{LATENCY_MESSAGES} messages, {RATE} a second"),
        ("1/s", fastest, fastest[ours.name] / fastest[NATS_WAY.name], f"{RATE_MESSAGES} messages without pauses"),
    ):
        what = "latency" if unit == "us" else "rate"
        shown = ", ".join(f"{name} {value:,.0f} {unit}" for name, value in values.items())
        yield result(
            "frontdoor",
            f"{metric}_{what}_ratio_to_nats",
            ratio,
            "x",
            against="nats-server",
            against_value=1.0,
            conditions=f"{conditions}; {messages}: {shown}; lost {lost}",
        )


@contextmanager
def nats_latency() -> Iterator[Callable[[], float]]:
    """A function that measures the median latency in microseconds through a NATS server, at RATE messages a second."""
    check(NATS.is_installed, f"nats-server is not installed (apt install {NATS.package})")
    with tempfile.TemporaryDirectory() as folder, NATS.running(Path(folder)) as server:
        yield lambda: _median_us(NATS_WAY, str(server.port))


def _median_us(way: Way, place: str) -> float:
    with other_process(_receive, way, place) as reader:
        check(reader.recv() == "ready", f"the subscriber of {way.name} did not start")
        with other_process(_send, way, place, LATENCY_MESSAGES, NS_PER_SECOND // RATE) as writer:
            latencies_ns, _ = _answer(way, reader)
            writer.send("enough")
    latencies_ns = latencies_ns[LATENCY_MESSAGES // 10 :]
    return statistics.median(latencies_ns) / NS_PER_US


def _rate(way: Way, place: str) -> tuple[float, int]:
    """Return the messages received per second, and the number of lost messages."""
    with other_process(_receive, way, place) as reader:
        check(reader.recv() == "ready", f"the subscriber of {way.name} did not start")
        with other_process(_send, way, place, RATE_MESSAGES, 0) as writer:
            latencies_ns, seconds = _answer(way, reader)
            writer.send("enough")
    return len(latencies_ns) / seconds, RATE_MESSAGES - len(latencies_ns)


def _answer(way: Way, reader: Connection) -> tuple[list[int], float]:
    check(reader.poll(PATIENCE_SECONDS), f"{way.name} did not deliver all messages in time")
    latencies_ns, seconds = reader.recv()
    return latencies_ns, seconds


def _receive(way: Way, place: str, orders: Connection) -> None:
    """Read up to the first message without a time, which marks the end."""
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


def _send(way: Way, place: str, count: int, interval_ns: int, orders: Connection) -> None:
    rest = bytes(PAYLOAD_SIZE - _SENT.size)
    with way.publisher(place) as publish:
        due_ns = time.monotonic_ns()
        for _ in range(count):
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
    yield _nats_messages(client)
    client.close()


def _nats_messages(client: NatsClient) -> Iterator[bytes]:
    """All messages have one size, so that the reader need not parse; the server's pings come between them."""
    size = client.received_size(TOPIC, bytes(PAYLOAD_SIZE))
    end = len(b"\r\n")
    waiting = b""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        waiting += client.receive_bytes()
        at = 0
        while len(waiting) - at >= size or waiting.startswith(PING, at):
            if waiting.startswith(PING, at):
                client.send(b"PONG\r\n")
                at += len(PING)
                continue
            yield waiting[at + size - end - PAYLOAD_SIZE : at + size - end]
            at += size
        waiting = waiting[at:]


NATS_WAY = Way("NATS", _nats_publisher, _nats_subscription)
