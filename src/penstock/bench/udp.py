"""The middleware on multicast over loopback, beside a bare loop on the same sockets and beside pyzmq on TCP."""

import secrets
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy

from penstock.bench.harness import Result, result
from penstock.bench.pair import PAYLOAD_SIZE, Report, latency_ns, percentiles_ns, reading, send_paced
from penstock.bench.peers import is_installed, zmq_latency, zmq_rate
from penstock.middleware import (
    Deliver,
    DeliverBatch,
    LossReceipt,
    OutgoingBatch,
    PublisherConfig,
    ReceiverConfig,
    TopicList,
)
from penstock.middleware.driver import MulticastPublisher, MulticastReceiver
from penstock.net.udp import Channel, Inlet, Outlet
from penstock.wire import PACKET_SIZE_MIN, DatagramBatch, PacketStore

ROUNDS = 5
PACKETS = 300_000
LATENCY_MESSAGES = 20_000
LATENCY_RATE = 10_000
MESSAGES = 3_000_000
MESSAGES_PER_BATCH = 512
PACKETS_PER_CALL = 64
PEER_MESSAGES = 300_000
TOPICS = TopicList(["md.us.eq.AAPL.quote"])
PACKED = PublisherConfig(packet_size_max=8_972, retransmission_bytes_max=256 << 20, retransmission_packets_max=1 << 16)
ALONE = PublisherConfig(  # one message a packet
    packet_size_max=PACKET_SIZE_MIN, retransmission_packets_max=1 << 18, retransmission_bytes_max=64 << 20
)
FROM_START = ReceiverConfig(join="start", window_packets_max=1 << 16, window_bytes_max=256 << 20)
CONDITIONS = f"{PAYLOAD_SIZE}-byte payloads, two processes, Python on both ends, multicast on loopback, spinning reader"


def run() -> Iterator[Result]:
    yield from _packets()
    yield from _latency()
    yield from _messages()


def _channel() -> Channel:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return Channel(
            group=f"239.255.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}", port=probe.getsockname()[1]
        )


# Packets, each with one message


def _packets() -> Iterator[Result]:
    rounds = [(_middleware_packets(), _bare_packets()) for _ in range(ROUNDS)]
    ours, bare = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    conditions = f"{CONDITIONS}; one message a packet, {PACKETS_PER_CALL} packets a call; median of {ROUNDS} rounds"
    against = "a bare sendmmsg/recvmmsg loop with the same packets, without receive times"
    yield result("udp", "packets_per_s", ours, "1/s", against=against, against_value=bare, conditions=conditions)
    ratio = statistics.median(ours / bare for ours, bare in rounds)
    yield result("udp", "packets_ratio_to_bare", ratio, "", against=against, against_value=1.0, conditions=conditions)


def _middleware_packets() -> float:
    channel = _channel()
    batch = OutgoingBatch(TOPICS, 0, numpy.zeros((PACKETS_PER_CALL, PAYLOAD_SIZE), numpy.uint8))
    with reading(_read_middleware_packets, channel) as process:
        process.report()
        publisher = MulticastPublisher(channel, config=ALONE)
        for _ in range(PACKETS // PACKETS_PER_CALL):
            publisher.publish_batch(batch)
        rate: float = process.report()
        publisher.close(linger=False)
    return rate


def _read_middleware_packets(report: Report, channel: Channel) -> float:
    with MulticastReceiver([channel], config=FROM_START, spin=True) as receiver:
        report("ready")
        count, lost, total, started = 0, 0, PACKETS // PACKETS_PER_CALL * PACKETS_PER_CALL, 0.0
        while count + lost < total:
            for each in receiver.receive(5.0) or _give_up(count, total):
                if isinstance(each, DeliverBatch | Deliver):
                    count += len(each.messages)
                    started = started or time.perf_counter()
                elif isinstance(each, LossReceipt):
                    lost += each.last - each.first + 1
        return count / (time.perf_counter() - started)


def _bare_packets() -> float:
    channel = _channel()
    store = PacketStore(PACKETS_PER_CALL, 1 << 20)
    batch = OutgoingBatch(TOPICS, 0, numpy.zeros((PACKETS_PER_CALL, PAYLOAD_SIZE), numpy.uint8))
    names = {"publisher_id": 1, "group": channel.group_id, "epoch": 1, "packet_size_max": PACKET_SIZE_MIN}
    store.pack(TOPICS.data, batch.payloads, batch.rows, **names)
    with reading(_read_bare_packets, channel) as process, _bare_socket() as sending:
        process.report()
        outlet = Outlet(sending.fileno())
        for _ in range(PACKETS // PACKETS_PER_CALL):
            outlet.send_stored(channel.key, store, 1, PACKETS_PER_CALL)
        rate: float = process.report()
    return rate


def _read_bare_packets(report: Report, channel: Channel) -> float:
    with _bare_socket() as receiving:
        receiving.bind((channel.group, channel.port))
        membership = socket.inet_aton(channel.group) + socket.inet_aton(channel.interface)
        receiving.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        inlet = Inlet([receiving.fileno()], DatagramBatch(PACKETS_PER_CALL))
        report("ready")
        count, total, started, ended = 0, PACKETS // PACKETS_PER_CALL * PACKETS_PER_CALL, 0.0, 0.0
        while count < total and (received := inlet.receive(500_000_000, True)):  # what overflows does not come
            count += received
            ended = time.perf_counter()
            started = started or ended
        return count / (ended - started)


def _bare_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    return made


# One message at a time, at a rate


def _latency() -> Iterator[Result]:
    has_peer = _has_zmq()
    ours, peer = [], []
    for _ in range(ROUNDS):
        ours.append(_middleware_latency())
        if has_peer:
            peer.append(zmq_latency("tcp://127.0.0.1", LATENCY_MESSAGES, LATENCY_RATE))
    p50, p99 = numpy.median(ours, axis=0)
    peer_p50, peer_p99 = numpy.median(peer, axis=0) if has_peer else (0.0, 0.0)
    conditions = f"{CONDITIONS}; {LATENCY_RATE} messages/s; median of {ROUNDS} rounds"
    against = "pyzmq over tcp, PUSH to PULL" if has_peer else ""
    yield result("udp", "one_way_ns_p50", p50, "ns", against=against, against_value=peer_p50, conditions=conditions)
    yield result("udp", "one_way_ns_p99", p99, "ns", against=against, against_value=peer_p99, conditions=conditions)
    if has_peer:
        yield result(
            "udp", "speedup_vs_pyzmq_tcp", peer_p50 / p50, "", against=against, against_value=1.0, conditions=conditions
        )


def _middleware_latency() -> Any:
    channel = _channel()
    with reading(_read_middleware_latencies, channel) as process:
        process.report()
        publisher = MulticastPublisher(channel)
        send_paced(lambda payload: publisher.publish("md.us.eq.AAPL.quote", payload), LATENCY_MESSAGES, LATENCY_RATE)
        latencies = process.report()
        publisher.close(linger=False)
    return latencies


def _read_middleware_latencies(report: Report, channel: Channel) -> Any:
    latencies: list[int] = []
    with MulticastReceiver([channel], config=FROM_START, spin=True) as receiver:
        report("ready")
        for message in receiver:
            latencies.append(latency_ns(message.payload))  # type: ignore[arg-type]
            if len(latencies) == LATENCY_MESSAGES:
                return percentiles_ns(latencies)


# Many messages


def _messages() -> Iterator[Result]:
    has_peer = _has_zmq()
    ours, peer = [], []
    for _ in range(ROUNDS):
        ours.append(_best_rate_without_loss())
        if has_peer:
            peer.append(zmq_rate("tcp://127.0.0.1", PEER_MESSAGES))
    yield result(
        "udp",
        "messages_per_s",
        statistics.median(ours),
        "1/s",
        against="pyzmq over tcp, PUSH to PULL, flat out" if has_peer else "",
        against_value=statistics.median(peer) if has_peer else 0.0,
        conditions=f"{CONDITIONS}; published in arrays of {MESSAGES_PER_BATCH}, packets of at most "
        f"{PACKED.packet_size_max} bytes, read as arrays, every one numbered and none lost; median of {ROUNDS} rounds",
    )


def _best_rate_without_loss() -> float:
    """Flat out; when the reader cannot keep up and loses some, again with a pause after each batch."""
    pause_us = 0.0
    while True:
        lost, rate = _message_rate(pause_us)
        if lost == 0:
            return rate
        pause_us = 2 * pause_us or 20.0


def _message_rate(pause_us: float) -> tuple[int, float]:
    channel = _channel()
    records = numpy.zeros(MESSAGES_PER_BATCH, [("number", "<u8"), ("rest", f"V{PAYLOAD_SIZE - 8}")])
    with reading(_read_messages, channel) as process:
        process.report()
        publisher = MulticastPublisher(channel, config=PACKED)
        for first in range(0, MESSAGES // MESSAGES_PER_BATCH * MESSAGES_PER_BATCH, MESSAGES_PER_BATCH):
            records["number"] = numpy.arange(first, first + MESSAGES_PER_BATCH)
            publisher.publish_batch(OutgoingBatch(TOPICS, 0, records))
            until = time.perf_counter() + pause_us / 1e6
            while pause_us and time.perf_counter() < until:
                continue
        told: tuple[int, float] = process.report()
        publisher.close(linger=False)
    return told


def _read_messages(report: Report, channel: Channel) -> tuple[int, float]:
    """How many packets were lost first, if any, or 0 and how many messages came a second."""
    dtype = numpy.dtype([("number", "<u8"), ("rest", f"V{PAYLOAD_SIZE - 8}")])
    with MulticastReceiver([channel], config=FROM_START, spin=True) as receiver:
        report("ready")
        expected, total = 0, MESSAGES // MESSAGES_PER_BATCH * MESSAGES_PER_BATCH
        started = ended = 0.0
        while expected < total:
            for each in receiver.receive(2.0) or _give_up(expected, total):
                if isinstance(each, DeliverBatch):
                    numbers = each.messages.records(dtype)["number"]
                elif isinstance(each, LossReceipt):
                    return each.last - each.first + 1, 0.0
                elif isinstance(each, Deliver) and len(each.messages):
                    payloads = b"".join(bytes(message.payload) for message in each.messages)
                    numbers = numpy.frombuffer(payloads, dtype)["number"]
                else:
                    continue
                if not (numbers == numpy.arange(expected, expected + len(numbers), dtype=numpy.uint64)).all():
                    raise RuntimeError(f"message {expected} is missing and nobody said so")
                expected += len(numbers)
                ended = time.perf_counter()
                started = started or ended
        return 0, total / (ended - started)


def _give_up(count: int, total: int) -> list[Any]:
    raise RuntimeError(f"only {count:,} of {total:,} came")


def _has_zmq() -> bool:
    if not is_installed("zmq"):
        sys.stderr.write("pyzmq is not installed, so nothing is measured beside it; `make bench` installs the peers\n")
        return False
    return True
