"""Results of a subscription: an exchange's datagrams through an adapter, and the full rate of a publisher."""

import asyncio
import contextlib
import ctypes
import mmap
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy
from numpy.typing import NDArray

import penstock
from penstock.admin.config import AdminConfig, AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.base.clock import NS_PER_SECOND, NS_PER_US
from penstock.bench.adapters import AdapterProcess, wait_for
from penstock.bench.frontdoor.beside_nats import nats_latency
from penstock.bench.harness import Result, result
from penstock.bench.transports import check, other_process
from penstock.client import ClientConfig, Subscription
from penstock.feed.adapter_config import AdapterConfig, LineAddress, PublishConfig, SourceStreamConfig
from penstock.feed.adapter_config import AdminConfig as AdapterAdmin
from penstock.feed.config import ServiceConfig
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.formats.mold import encode_packet
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastPublisher
from penstock.model import shipped
from penstock.net.secret import write_private
from penstock.net.udp import Channel, Outlet, free_channel, host_socket
from penstock.security import PrivateKey
from penstock.security.core.authentication import scope_of
from penstock.security.core.brokering import AdapterRegistration, ModelReference, SourceStreamName
from penstock.security.core.credentials import Credentials
from penstock.security.live.client import AdminClient
from penstock.wire import MESSAGE_DTYPE, Extension, Origin, OriginFlag, encode_extensions, encode_origin

Way = Literal["for", "async", "batches"]

POLICY = """
[clients.reader]
key = "{reader}"

[clients.feed]
key = "{feed}"
roles = ["adapter"]

[[rule]]
who = ["reader"]
receive = ["md.>"]

[[rule]]
who = ["feed"]
send = ["md.>"]
"""

RATE = 10_000
LATENCY_MESSAGES = 60_000
ROOM = 8 * (LATENCY_MESSAGES + 10_000)
WARM_UP = 10_000
TCP_ROUNDS = 3
SYMBOLS = 100
RATE_SECONDS = 10.0
FOR_RATES = (4_000_000, 3_000_000, 2_500_000, 2_000_000, 1_500_000, 1_250_000, 1_000_000, 500_000, 250_000, 100_000)
BATCH_RATES = (8_000_000, 6_000_000, 5_000_000, 4_000_000, 3_000_000, 2_000_000, 1_000_000, 400_000, 200_000)
PACKET_SIZE = 60_000
BATCH_MESSAGES = 2_000
PAYLOAD_SIZE = 224
STREAM_ID = 1
TERM = 1 << 14
PUBLISHER_ID = 11
QUIET_SECONDS = 1.0
READ_SECONDS_MAX = 25.0
FEED_TOPICS = "md.>"
PR_SET_TIMERSLACK = 29

LIMITS = AdminLimits(adapter_lost_s=3_600.0)  # the publisher of the full rate sends no heartbeats
_SENT = struct.Struct("<q")
_QUOTE = shipped("quote")


class Place(msgspec.Struct, frozen=True):
    """Data for the processes of a run."""

    directory: str
    url: str

    @property
    def reader(self) -> str:
        return f"{self.directory}/reader.toml"


@contextlib.contextmanager
def administration() -> Iterator[Place]:
    """Run an administration server with a reader and a feed."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        keys = {}
        for client, number in (("reader", 1), ("feed", 2)):
            keys[client] = PrivateKey(number.to_bytes(32, "big"))
            keys[client].write(directory / f"{client}.pem")
            write_private(directory / f"{client}.toml", f'client = "{client}"\nkey_file = "{client}.pem"\n'.encode())
        policy = directory / "policy.toml"
        policy.write_text(POLICY.format(**{client: key.public.text for client, key in keys.items()}))
        config = AdminConfig(directory=str(directory / "admin"), policy=str(policy), port=0, limits=LIMITS)
        with AdminServer(config) as server:
            yield Place(name, server.url)


def run() -> Iterator[Result]:
    with administration() as place:
        for transport in ("multicast", "tcp"):
            yield from latency_results(place, transport, "for")
        yield from latency_results(place, "multicast", "async")
        yield tcp_ratio(place)
        yield rate_result(place, "for", FOR_RATES)
        yield rate_result(place, "batches", BATCH_RATES)


# An exchange's datagrams through an adapter


class Latency(msgspec.Struct):
    latencies_us: list[float]
    cpu_us_per_message: float
    lost: int


def latency_results(place: Place, transport: str, way: Way) -> Iterator[Result]:
    found = measure_latency(place, transport, way)
    prefix = {"multicast": "feed_to_client", "tcp": "feed_to_client_tcp"}[transport] + (
        "_async" if way == "async" else ""
    )
    conditions = (
        f"{RATE} ITCH messages per second, one per datagram, from a sender that sleeps in between; one adapter "
        f"process, blocking; subscription in its own process, blocking, `{way}`, transport {transport}; loopback; "
        f"{len(found.latencies_us)} messages; from before the datagram is sent until the application has the message; "
        f"lost {found.lost}"
    )
    for percent in (50, 99):
        value = float(numpy.percentile(found.latencies_us, percent))
        yield result(
            "frontdoor", f"{prefix}_us_p{percent}", value, "µs", against="none", against_value=0, conditions=conditions
        )
    yield result(
        "frontdoor",
        f"{prefix}_cpu_us_per_message",
        found.cpu_us_per_message,
        "µs",
        against="none",
        against_value=0,
        conditions=conditions,
    )


def tcp_ratio(place: Place) -> Result:
    """NATS and a subscription by TCP, in turns."""
    ours, theirs = [], []
    with nats_latency() as nats_us:
        for _ in range(TCP_ROUNDS):
            ours.append(float(numpy.median(measure_latency(place, "tcp", "for").latencies_us)))
            theirs.append(nats_us())
    value, other = statistics.median(ours), statistics.median(theirs)
    shown = ", ".join(f"{a:.0f} and {b:.0f}" for a, b in zip(ours, theirs, strict=True))
    return result(
        "frontdoor",
        "client_tcp_ratio_to_nats",
        other / value,
        "x",
        against="nats-server",
        against_value=1.0,
        conditions=(
            f"median latency at {RATE} messages a second, senders that sleep in between, one `for` loop per message, "
            f"blocking, loopback: {value:.0f} µs from an exchange's datagram through an adapter process and TCP to the "
            f"subscription; {other:.0f} µs from a publisher through nats-server to a subscriber, by bare sockets; "
            f"{TCP_ROUNDS} rounds in turn: {shown}"
        ),
    )


def measure_latency(place: Place, transport: str, way: Way) -> Latency:
    line = free_channel()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        adapter = stack.enter_context(AdapterProcess(adapter_config(place, line, directory), directory))
        wait_for(lambda: adapter.status().role == "active" and adapter.status().is_registered, "the adapter")
        sent = stack.enter_context(mmap_file(directory / "sent", ROOM, is_new=True))
        ours = stack.enter_context(other_process(read_latencies, place, transport, way, str(directory / "sent")))
        check(ours.recv() == "subscribed", "the subscriber")
        send_paced(line, sent, LATENCY_MESSAGES)
        answer = ours.recv()
        check(isinstance(answer, tuple), str(answer))
    return Latency(*answer)


def adapter_config(place: Place, line: Channel, directory: Path) -> AdapterConfig:
    return AdapterConfig(
        name="adapter-0",
        feed="itch",
        table="itch",
        trading_date="2026-01-30",
        streams=(
            SourceStreamConfig(
                id=1, name="itch", lines=(LineAddress(group=line.group, port=line.port, interface=line.interface),)
            ),
        ),
        publish=PublishConfig(channel=free_channel()),
        service=ServiceConfig(open=False),
        admin=AdapterAdmin(url=place.url, credentials=f"{place.directory}/feed.toml", topics=("md.>",)),
        state_directory=str(directory / "state"),
    )


@contextlib.contextmanager
def mmap_file(path: Path, size: int, *, is_new: bool = False) -> Iterator[mmap.mmap]:
    if is_new:
        path.write_bytes(bytes(size))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as memory:
        yield memory


def send_paced(line: Channel, sent: mmap.mmap, count: int) -> None:
    """Send each message at its time; the sender sleeps in between."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    messages = [
        encode_packet("BENCH", number + 1, [message])
        for number, message in enumerate(ItchGenerator(GeneratorConfig(symbols=SYMBOLS, messages=count)))
    ]
    interval_ns = NS_PER_SECOND // RATE
    with host_socket(line.interface) as sending:
        outlet = Outlet(sending.fileno())
        due_ns = time.monotonic_ns()
        for number, packet in enumerate(messages):
            due_ns += interval_ns
            if (left_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / NS_PER_SECOND)
            _SENT.pack_into(sent, 8 * (number + 1), time.monotonic_ns())
            outlet.send(line.key, packet)
        outlet.close()


def read_latencies(place: Place, transport: Any, way: Way, path: str, pipe: Connection) -> None:
    """Read until no message arrives for a moment; then report."""
    with (
        mmap_file(Path(path), ROOM) as sent,
        penstock.connect(place.url, credentials=place.reader, config=ClientConfig(filter="none")) as client,
        client.subscribe(FEED_TOPICS, transport=transport) as subscription,
    ):
        taken: list[tuple[int, int]] = []
        started = [0.0, 0]

        def take(message: Any) -> bool:
            now_ns = time.monotonic_ns()
            number = message.source.source_sequence
            taken.append((now_ns, number))
            if number >= WARM_UP and not started[1]:
                started[:] = [time.process_time(), len(taken)]
            return bool(number >= LATENCY_MESSAGES - 100)

        subscription.next(0.1)
        pipe.send("subscribed")
        if way == "async":
            asyncio.run(_take_async(subscription, take))
        else:
            for message in subscription:
                if take(message):
                    break
        cpu_us = (time.process_time() - started[0]) * 1e6
        first: dict[int, int] = {}
        for now_ns, number in taken:
            if number >= WARM_UP:
                first.setdefault(number, now_ns)
        latencies = [(now_ns - _SENT.unpack_from(sent, 8 * number)[0]) / NS_PER_US for number, now_ns in first.items()]
        pipe.send((latencies, cpu_us / (len(taken) - started[1]), subscription.statistics().lost))


async def _take_async(subscription: Subscription, take: Callable[[Any], bool]) -> None:
    async for message in subscription:
        if take(message):
            return


# A publisher's full rate


class Flood(msgspec.Struct):
    rate: float
    received: int
    lost: int
    cpu_us_per_message: float


def rate_result(place: Place, way: Way, rates: tuple[int, ...], seconds: float = RATE_SECONDS) -> Result:
    """Find the highest of the falling rates that the subscription sustains without a loss, by bisection. If it
    sustains none of them, return the lowest.
    """
    tried: dict[int, Flood] = {}
    first, end = 0, len(rates) - 1
    while first < end:
        middle = (first + end) // 2
        found = tried[rates[middle]] = measure_rate(place, way, rates[middle], seconds)
        if not found.lost and found.rate >= rates[middle] * 0.97:
            end = middle
        else:
            first = middle + 1
    rate = rates[first]
    if rate not in tried:
        tried[rate] = measure_rate(place, way, rate, seconds)
    found = tried[rate]
    attempts = "; ".join(f"{each:,}/s: {flood.rate:,.0f}/s, lost {flood.lost}" for each, flood in tried.items())
    return result(
        "frontdoor",
        f"client_{way}_messages_per_s",
        found.rate,
        "messages/s",
        against="the rate of the publisher",
        against_value=rate,
        conditions=(
            f"one publisher process with ORIGIN and authentication as an adapter, packets of up to {PACKET_SIZE} "
            f"bytes, {PAYLOAD_SIZE}-byte records; {seconds:g} s; `{way}`; {found.cpu_us_per_message:.3f} µs CPU per "
            f"message; tried: {attempts}"
        ),
    )


def measure_rate(place: Place, way: Way, rate: int, seconds: float) -> Flood:
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(other_process(flood, place, rate, seconds))
        check(sender.recv() == "registered", "the publisher")
        reader = stack.enter_context(other_process(read_flood, place, way, int(rate * seconds)))
        check(reader.recv() == "subscribed", "the subscriber")
        sender.send("go")
        answer = reader.recv()
        check(isinstance(answer, tuple), str(answer))
        sender.send("over")
    return Flood(*answer)


class OriginatedBatch:
    """BATCH_MESSAGES messages with an ORIGIN, for publish_batch(); advance() assigns new numbers."""

    def __init__(self) -> None:
        topics = [f"md.us.eq.S{number:03}.quote".encode() for number in range(SYMBOLS)]
        self.topic_data = b"".join(topics)
        size = len(topics[0])
        origin = Origin(STREAM_ID, TERM, 0, int(OriginFlag.SYNCHRONISED), 1, 1)
        extensions = encode_extensions({int(Extension.ORIGIN): encode_origin(origin)})
        stride = len(extensions) + PAYLOAD_SIZE
        self.payloads = numpy.zeros(BATCH_MESSAGES * stride, numpy.uint8)
        self._cells = self.payloads.reshape(BATCH_MESSAGES, stride)
        self._cells[:, : len(extensions)] = numpy.frombuffer(extensions, numpy.uint8)
        record = bytes(_QUOTE.new(bid_size=7)).ljust(PAYLOAD_SIZE, b"\0")[:PAYLOAD_SIZE]
        self._cells[:, len(extensions) :] = numpy.frombuffer(record, numpy.uint8)
        self._size = len(extensions)
        self.rows = numpy.zeros(BATCH_MESSAGES, MESSAGE_DTYPE)
        which = numpy.arange(BATCH_MESSAGES)
        self.rows["topic_offset"] = which % SYMBOLS * size
        self.rows["topic_size"] = size
        self.rows["extensions_offset"] = which * stride
        self.rows["extensions_size"] = len(extensions)
        self.rows["payload_offset"] = which * stride + len(extensions)
        self.rows["payload_size"] = PAYLOAD_SIZE
        self.rows["model_id"], self.rows["model_version"] = _QUOTE.id, _QUOTE.version
        self._next = 1

    def __len__(self) -> int:
        return BATCH_MESSAGES

    def advance(self) -> None:
        numbers: NDArray[Any] = numpy.arange(self._next, self._next + BATCH_MESSAGES, dtype="<u8")
        ends = self._size
        self._cells[:, ends - 16 : ends - 8] = numbers.view(numpy.uint8).reshape(-1, 8)
        self._cells[:, ends - 8 : ends] = numbers.view(numpy.uint8).reshape(-1, 8)
        self._next += BATCH_MESSAGES


def flood(place: Place, rate: int, seconds: float, pipe: Connection) -> None:
    """Publish at a rate as an adapter would."""
    channel = free_channel()
    config = PublisherConfig(packet_size_max=PACKET_SIZE, retransmission_bytes_max=64 * 1024 * 1024)
    with AdminClient.connect(place.url, Credentials.load(f"{place.directory}/feed.toml")) as feed:
        told = feed.register(registration(channel)).authentication
        assert told is not None
        scope = scope_of(told)
        publisher = MulticastPublisher(channel, publisher_id=PUBLISHER_ID, epoch=1, config=config, keys=())
        with publisher:
            publisher.authenticate(scope.keys, scope.active_key_id)
            pipe.send("registered")
            pipe.recv()
            batch = OriginatedBatch()
            due = time.monotonic()
            for _ in range(int(rate * seconds) // BATCH_MESSAGES):
                batch.advance()
                if (left := due - time.monotonic()) > 0:
                    time.sleep(left)
                due += BATCH_MESSAGES / rate
                publisher.publish_batch(batch)
            pipe.recv()


def registration(channel: Channel) -> AdapterRegistration:
    return AdapterRegistration(
        feed="flood",
        adapter="flood-0",
        index=0,
        publisher_id=PUBLISHER_ID,
        transport="multicast",
        group=channel.group,
        port=channel.port,
        interface=channel.interface,
        service_host="127.0.0.1",
        service_port=9,
        topics=["md.us.eq.>"],
        contributions=[],
        source_streams=[SourceStreamName(stream_id=STREAM_ID, name="flood")],
        models=[ModelReference(id=_QUOTE.id, version=_QUOTE.version, name="quote")],
    )


def read_flood(place: Place, way: Way, expected: int, pipe: Connection) -> None:
    expected = expected // BATCH_MESSAGES * BATCH_MESSAGES
    with (
        penstock.connect(place.url, credentials=place.reader, config=ClientConfig(filter="none")) as client,
        client.subscribe(FEED_TOPICS) as subscription,
    ):
        subscription.next(0.1)
        pipe.send("subscribed")
        taken, begun, cpu = 0, 0.0, 0.0
        end = threading.Timer(READ_SECONDS_MAX, subscription.close)  # only if messages were lost
        end.daemon = True
        end.start()
        if way == "batches":
            for batch in subscription.batches(2 * QUIET_SECONDS):
                if not taken:
                    begun, cpu = time.monotonic(), time.process_time()
                taken += sum(len(records) for records in batch.records.values())
                if taken >= expected:
                    break
        else:
            for _ in subscription:
                if not taken:
                    begun, cpu = time.monotonic(), time.process_time()
                taken += 1
                if taken >= expected:
                    break
        end.cancel()
        seconds = time.monotonic() - begun
        cpu = time.process_time() - cpu
        pipe.send((taken / seconds, taken, expected - taken, 1e6 * cpu / max(taken, 1)))
