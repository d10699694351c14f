"""The middleware on multicast over loopback, beside a bare loop on the same sockets and beside pyzmq on TCP."""

import socket
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.bench import latency
from penstock.bench.harness import Result, result
from penstock.bench.latency import beside_peers, measure
from penstock.bench.transports import (
    BETWEEN_PROCESSES,
    PAYLOAD_SIZE,
    TRANSPORTS,
    check,
    other_process,
    pin,
    tcp_endpoint,
)
from penstock.middleware import (
    Deliver,
    DeliverBatch,
    LossReceipt,
    OutgoingBatch,
    PublisherConfig,
    ReceiverConfig,
    TopicList,
)
from penstock.middleware.driver import MulticastPublisher, MulticastReceiver, Received
from penstock.net.udp import Channel, Inlet, Outlet, free_channel
from penstock.wire import PACKET_SIZE_MIN, DatagramBatch, PacketStore

ROUNDS = 5
PACKETS_PER_CALL = 64
PACKETS = 4_096 * PACKETS_PER_CALL
LATENCY_RATE = 10_000
PEERS = {"pyzmq_tcp": "pyzmq tcp, blocking", "pyzmq_tcp_spinning": "pyzmq tcp, spinning"}
MESSAGES_PER_BATCH = 512
MESSAGES = 6_000 * MESSAGES_PER_BATCH
PEER_MESSAGES = 300_000
RECORD = numpy.dtype([("number", "<u8"), ("rest", f"V{PAYLOAD_SIZE - 8}")])
TOPICS = TopicList(["md.us.eq.AAPL.quote"])
PACKED = PublisherConfig(packet_size_max=8_972, retransmission_packets_max=1 << 18, retransmission_bytes_max=256 << 20)
ALONE = msgspec.structs.replace(PACKED, packet_size_max=PACKET_SIZE_MIN)  # which has room for one message
PATIENT = ReceiverConfig(join="start", window_packets_max=1 << 18, window_bytes_max=256 << 20)
CONDITIONS = f"{BETWEEN_PROCESSES}, Python on both ends, multicast on loopback"


def run() -> Iterator[Result]:
    yield from _packets()
    yield from _latencies()
    yield from _messages()


# Packets with one message each


def _packets() -> Iterator[Result]:
    rounds = [(_rate(_publish_packets, _read_packets), _rate(_send_bare, _receive_bare)) for _ in range(ROUNDS)]
    ours, bare = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    conditions = (
        f"{CONDITIONS}, spinning reader; {PACKETS} packets of one message, {PACKETS_PER_CALL} a call, as fast as they "
        f"go; medians of {ROUNDS} rounds in turn"
    )
    against = "a bare sendmmsg/recvmmsg loop with the same packets, without receive times"
    yield result("udp", "packets_per_s", ours, "1/s", against=against, against_value=bare, conditions=conditions)
    ratio = statistics.median(ours / bare for ours, bare in rounds)
    yield result(
        "udp", "packets_ratio_to_bare", ratio, "ratio", against=against, against_value=1, conditions=conditions
    )


def _rate(write: Callable[..., None], read: Callable[[Channel, Connection], float], *arguments: Any) -> float:
    """What `read` says, while `write` runs in the other process."""
    channel = free_channel()
    with other_process(write, channel, *arguments) as orders:
        check(orders.recv() == "ready", "the publishing process did not start")
        pin(-1)
        try:
            return read(channel, orders)
        finally:
            pin(0, is_pinned=False)
            orders.send("enough")


def _publish_packets(channel: Channel, orders: Connection) -> None:
    batch = OutgoingBatch(TOPICS, 0, numpy.zeros((PACKETS_PER_CALL, PAYLOAD_SIZE), numpy.uint8))
    publisher = _ready(channel, ALONE, orders)
    for _ in range(PACKETS // PACKETS_PER_CALL):
        publisher.publish_batch(batch)
    orders.recv()
    publisher.close(linger=False)


def _ready(channel: Channel, config: PublisherConfig, orders: Connection) -> MulticastPublisher:
    """A publisher whose reader is listening."""
    publisher = MulticastPublisher(channel, config=config)
    orders.send("ready")
    orders.recv()
    pin(0)
    return publisher


def _read_packets(channel: Channel, orders: Connection) -> float:
    with MulticastReceiver([channel], config=PATIENT, spin=True) as receiver:
        orders.send("go")
        count, lost, started = 0, 0, 0.0
        while count + lost < PACKETS:
            for each in _heard(receiver):
                if isinstance(each, DeliverBatch | Deliver):
                    count += len(each.messages)
                    started = started or time.perf_counter()
                elif isinstance(each, LossReceipt):
                    lost += each.last - each.first + 1
        return count / (time.perf_counter() - started)


def _heard(receiver: MulticastReceiver) -> list[Received]:
    received = receiver.receive(10.0)
    check(bool(received), "the publisher fell silent")
    return received


def _send_bare(channel: Channel, orders: Connection) -> None:
    store = PacketStore(PACKETS_PER_CALL, 1 << 20)
    batch = OutgoingBatch(TOPICS, 0, numpy.zeros((PACKETS_PER_CALL, PAYLOAD_SIZE), numpy.uint8))
    stream = {"publisher_id": 1, "group": channel.group_id, "epoch": 1}
    store.pack(TOPICS.data, batch.payloads, batch.rows, packet_size_max=PACKET_SIZE_MIN, **stream)
    with _bare_socket() as sending:
        outlet = Outlet(sending.fileno())
        orders.send("ready")
        orders.recv()
        pin(0)
        for _ in range(PACKETS // PACKETS_PER_CALL):
            outlet.send_stored(channel.key, store, 1, PACKETS_PER_CALL)
        orders.recv()


def _receive_bare(channel: Channel, orders: Connection) -> float:
    with _bare_socket() as receiving:
        receiving.bind((channel.group, channel.port))
        membership = socket.inet_aton(channel.group) + socket.inet_aton(channel.interface)
        receiving.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        inlet = Inlet([receiving.fileno()], DatagramBatch(PACKETS_PER_CALL))
        orders.send("go")
        count, started, ended = 0, 0.0, 0.0
        while count < PACKETS and (received := inlet.receive(1_000_000_000, True)):  # what overflows does not come
            count += received
            ended = time.perf_counter()
            started = started or ended
        return count / (ended - started)


def _bare_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return made


# One message at a time


def _latencies() -> Iterator[Result]:
    latencies = measure(["udp", *PEERS.values()], LATENCY_RATE)
    conditions = (
        f"{CONDITIONS}; latencies: {LATENCY_RATE} messages/s {latency.CONDITIONS}; "
        f"medians of the least disturbed rounds: {latencies.quietest}"
    )
    yield from beside_peers("udp", "udp", latencies, PEERS, conditions)


# Many messages


def _messages() -> Iterator[Result]:
    has_peer = TRANSPORTS[PEERS["pyzmq_tcp"]].is_available
    ours, peer, pauses = [], [], []
    for _ in range(ROUNDS):
        rate, pause_us = _best_rate_without_loss()
        ours.append(rate)
        pauses.append(pause_us)
        if has_peer:
            peer.append(_zmq_rate())
    yield result(
        "udp",
        "messages_per_s",
        statistics.median(ours),
        "1/s",
        against="pyzmq over tcp, PUSH to PULL, as fast as it goes" if has_peer else "",
        against_value=statistics.median(peer) if has_peer else 0.0,
        conditions=f"{CONDITIONS}, spinning reader; {MESSAGES} messages published in arrays of {MESSAGES_PER_BATCH} in "
        f"packets of at most {PACKED.packet_size_max} bytes, read as arrays, each numbered and none lost; pauses after "
        f"each array in µs, because without one the reader lost some: {pauses}; median of {ROUNDS} rounds",
    )


def _best_rate_without_loss() -> tuple[float, float]:
    """As fast as it goes; when the reader cannot keep up and loses some, again with a pause after each array."""
    pause_us = 0.0
    while True:
        rate = _rate(_publish_messages, _read_messages, pause_us)
        if rate:
            return rate, pause_us
        pause_us = 2 * pause_us or 20.0


def _publish_messages(channel: Channel, pause_us: float, orders: Connection) -> None:
    records = numpy.zeros(MESSAGES_PER_BATCH, RECORD)
    publisher = _ready(channel, PACKED, orders)
    for first in range(0, MESSAGES, MESSAGES_PER_BATCH):
        records["number"] = numpy.arange(first, first + MESSAGES_PER_BATCH)
        publisher.publish_batch(OutgoingBatch(TOPICS, 0, records))
        until = time.perf_counter() + pause_us / 1e6
        while pause_us and time.perf_counter() < until:
            continue
    orders.recv()
    publisher.close(linger=False)


def _read_messages(channel: Channel, orders: Connection) -> float:
    """Messages a second, or 0 when one was lost."""
    with MulticastReceiver([channel], config=PATIENT, spin=True) as receiver:
        orders.send("go")
        expected, started = 0, 0.0
        while expected < MESSAGES:
            for each in _heard(receiver):
                if isinstance(each, LossReceipt):
                    return 0.0
                numbers = _numbers(each)
                wanted = numpy.arange(expected, expected + len(numbers), dtype=numpy.uint64)
                check(bool((numbers == wanted).all()), f"message {expected} is missing and nobody said so")
                expected += len(numbers)
                started = started or time.perf_counter()
        return MESSAGES / (time.perf_counter() - started)


def _numbers(each: Received) -> NDArray[numpy.uint64]:
    if isinstance(each, DeliverBatch):
        records = each.messages.records(RECORD)
    elif isinstance(each, Deliver):
        records = numpy.frombuffer(b"".join(bytes(message.payload) for message in each.messages), RECORD)
    else:
        records = numpy.empty(0, RECORD)
    numbers: NDArray[numpy.uint64] = records["number"]
    return numbers


def _zmq_rate() -> float:
    import zmq

    endpoint = tcp_endpoint()
    with other_process(_publish_zmq, endpoint) as orders, zmq.Context() as context, context.socket(zmq.PULL) as reading:
        reading.setsockopt(zmq.RCVHWM, 0)
        check(orders.recv() == "ready", "the publisher of pyzmq did not start")
        reading.connect(endpoint)
        orders.send("go")
        reading.recv()
        started = time.perf_counter()
        for _ in range(PEER_MESSAGES - 1):
            reading.recv()
        rate = (PEER_MESSAGES - 1) / (time.perf_counter() - started)
        orders.send("enough")
    return rate


def _publish_zmq(endpoint: str, orders: Connection) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUSH) as sending:
        sending.setsockopt(zmq.SNDHWM, 0)
        sending.bind(endpoint)
        orders.send("ready")
        orders.recv()
        payload = bytes(PAYLOAD_SIZE)
        for _ in range(PEER_MESSAGES):
            sending.send(payload)
        orders.recv()
