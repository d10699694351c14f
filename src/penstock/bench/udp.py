"""The middleware on loopback multicast, compared with a bare loop on the same sockets and with pyzmq on TCP."""

import socket
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.clock import NS_PER_SECOND
from penstock.bench import latency
from penstock.bench.harness import Result, result
from penstock.bench.latency import beside_peers, measure
from penstock.bench.transports import (
    BETWEEN_PROCESSES,
    KEY,
    PAYLOAD_SIZE,
    PUBLISHER,
    TRANSPORTS,
    authenticator,
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
from penstock.middleware.live import MulticastPublisher, MulticastReceiver, Received
from penstock.net.udp import Channel, Inlet, Outlet, free_channel
from penstock.wire import PACKET_SIZE_MIN, Authenticator, DatagramBatch, PacketStore, encode_nack

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
ALONE = msgspec.structs.replace(PACKED, packet_size_max=PACKET_SIZE_MIN)  # room for a single message
PATIENT = ReceiverConfig(join="start", window_packets_max=1 << 18, window_bytes_max=256 << 20)
FLOOD_ROUNDS = 7
FLOOD_RATE = 10_000
FLOOD_RANGE = 1_024
FLOOD_MESSAGES = 4_000
FLOOD_PAYLOAD = bytes(PAYLOAD_SIZE)
CONDITIONS = f"{BETWEEN_PROCESSES}, Python on both ends, multicast on loopback"


def run() -> Iterator[Result]:
    yield from _packets()
    yield from _latencies()
    yield from _messages()
    yield from _authentic()
    yield from _flooded()


# Packets with one message each


def _packets() -> Iterator[Result]:
    rounds = [(_rate(_publish_packets, _read_packets), _rate(_send_bare, _receive_bare)) for _ in range(ROUNDS)]
    ours, bare = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    conditions = (
        f"{CONDITIONS}, spinning reader; {PACKETS} packets of one message, {PACKETS_PER_CALL} per call, at full "
        f"speed; medians of {ROUNDS} alternating rounds"
    )
    against = "a bare sendmmsg/recvmmsg loop with the same packets, without receive times"
    yield result("udp", "packets_per_s", ours, "1/s", against=against, against_value=bare, conditions=conditions)
    ratio = statistics.median(ours / bare for ours, bare in rounds)
    yield result(
        "udp", "packets_ratio_to_bare", ratio, "ratio", against=against, against_value=1, conditions=conditions
    )


def _rate(write: Callable[..., None], read: Callable[[Channel, Connection], float], *arguments: Any) -> float:
    """Return the result of `read` while `write` runs in the other process."""
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


def _ready(
    channel: Channel, config: PublisherConfig, orders: Connection, *, is_authentic: bool = False
) -> MulticastPublisher:
    """Return a publisher whose reader is listening."""
    options: dict[str, Any] = {**PUBLISHER, "keys": (KEY,)} if is_authentic else {}
    publisher = MulticastPublisher(channel, config=config, **options)
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
        while count < PACKETS and (received := inlet.receive(1_000_000_000, True)):  # overflowed packets never arrive
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
        against="pyzmq over tcp, PUSH to PULL, at full speed" if has_peer else "",
        against_value=statistics.median(peer) if has_peer else 0.0,
        conditions=f"{CONDITIONS}, spinning reader; {MESSAGES} messages published in arrays of {MESSAGES_PER_BATCH} in "
        f"packets of at most {PACKED.packet_size_max} bytes, read as arrays, each numbered and none lost; pauses after "
        f"each array in µs, needed to avoid losses: {pauses}; median of {ROUNDS} rounds",
    )


def _best_rate_without_loss(*, is_authentic: bool = False) -> tuple[float, float]:
    """Measure at full speed; if the reader loses messages, repeat with a pause after each array."""
    pause_us = 0.0
    read = _read_authentic_messages if is_authentic else _read_messages
    while True:
        rate = _rate(_publish_messages, read, pause_us, is_authentic)
        if rate:
            return rate, pause_us
        pause_us = 2 * pause_us or 20.0


def _publish_messages(channel: Channel, pause_us: float, is_authentic: bool, orders: Connection) -> None:
    records = numpy.zeros(MESSAGES_PER_BATCH, RECORD)
    publisher = _ready(channel, PACKED, orders, is_authentic=is_authentic)
    for first in range(0, MESSAGES, MESSAGES_PER_BATCH):
        records["number"] = numpy.arange(first, first + MESSAGES_PER_BATCH)
        publisher.publish_batch(OutgoingBatch(TOPICS, 0, records))
        until = time.perf_counter() + pause_us / 1e6
        while pause_us and time.perf_counter() < until:
            continue
    orders.recv()
    publisher.close(linger=False)


def _read_authentic_messages(channel: Channel, orders: Connection) -> float:
    return _read_messages(channel, orders, authenticator())


def _read_messages(channel: Channel, orders: Connection, checked_by: Authenticator | None = None) -> float:
    """Return messages per second, or 0 when one was lost."""
    with MulticastReceiver([channel], config=PATIENT, spin=True, authenticator=checked_by) as receiver:
        orders.send("go")
        expected, started = 0, 0.0
        while expected < MESSAGES:
            for each in _heard(receiver):
                if isinstance(each, LossReceipt):
                    return 0.0
                numbers = _numbers(each)
                wanted = numpy.arange(expected, expected + len(numbers), dtype=numpy.uint64)
                check(bool((numbers == wanted).all()), f"message {expected} is missing and was not reported")
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


# Authentic packets


def _authentic() -> Iterator[Result]:
    rounds = [(_best_rate_without_loss(is_authentic=True)[0], _best_rate_without_loss()[0]) for _ in range(ROUNDS)]
    ratio = statistics.median(authentic / plain for authentic, plain in rounds)
    conditions = (
        f"{CONDITIONS}, spinning reader; {MESSAGES} messages in packets of at most {PACKED.packet_size_max} bytes, "
        f"each with an authentication trailer that the reader checks, and without; median of {ROUNDS} rounds in turn"
    )
    against = "the same without trailers"
    yield result("udp", "authentic_ratio", ratio, "ratio", against=against, against_value=1, conditions=conditions)
    latencies = measure(["udp, authentic", "udp"], LATENCY_RATE)
    conditions = f"{CONDITIONS}; {LATENCY_RATE} messages/s {latency.CONDITIONS}; median of the differences"
    yield result(
        "udp",
        "authentic_added_ns_p50",
        latencies.added("udp, authentic", "udp"),
        "ns",
        against=against,
        against_value=latencies.p50["udp"],
        conditions=conditions,
    )


# Publishing during a flood of repair requests


def _flooded() -> Iterator[Result]:
    channel = free_channel()
    with MulticastPublisher(channel) as publisher, other_process(_flood, channel.group_id) as orders:
        check(orders.recv() == "ready", "the process that requests repairs did not start")
        for _ in range(FLOOD_MESSAGES):
            publisher.publish("md.us.eq.AAPL.quote", FLOOD_PAYLOAD)
        orders.send((publisher.address, publisher.publisher_id))
        quiet, flooded = [], []
        for _ in range(FLOOD_ROUNDS):
            quiet.append(_publishing_ns(publisher))
            orders.send("flood")
            check(orders.recv() == "flooding", "no process requests repairs")
            flooded.append(_publishing_ns(publisher))
            orders.send("rest")
            check(orders.recv() == "resting", "the process that requests repairs did not end")
        orders.send("enough")
        limited = publisher.counters["nacks_limited"]
    ratio = statistics.median(before / under for before, under in zip(quiet, flooded, strict=True))
    conditions = (
        f"publish() of {PAYLOAD_SIZE} bytes {LATENCY_RATE} times per second, medians of {FLOOD_MESSAGES} calls, quiet "
        f"and while another process sends {FLOOD_RATE} requests/s for {FLOOD_RANGE} packets each; {limited} requests "
        f"were dropped or answered in part; median of {FLOOD_ROUNDS} rounds in turn"
    )
    yield result(
        "udp",
        "publish_under_nack_flood_ratio",
        ratio,
        "ratio",
        against=f"quiet: {statistics.median(quiet):.0f} ns over {statistics.median(flooded):.0f} ns",
        against_value=1,
        conditions=conditions,
    )


def _publishing_ns(publisher: MulticastPublisher) -> float:
    """Return the median duration of a call."""
    taken = []
    due = time.perf_counter_ns()
    for _ in range(FLOOD_MESSAGES):
        due += NS_PER_SECOND // LATENCY_RATE
        while (started := time.perf_counter_ns()) < due:
            time.sleep(0)
        publisher.publish("md.us.eq.AAPL.quote", FLOOD_PAYLOAD)
        taken.append(time.perf_counter_ns() - started)
    return statistics.median(taken)


def _flood(group: int, orders: Connection) -> None:
    """The other process: sends requests between the orders `flood` and `rest`."""
    orders.send("ready")
    address, publisher_id = orders.recv()
    request = encode_nack(publisher_id, group, 1, [(1, FLOOD_RANGE)])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        while orders.recv() == "flood":
            orders.send("flooding")
            due = time.perf_counter_ns()
            while not orders.poll():
                due += NS_PER_SECOND // FLOOD_RATE
                while time.perf_counter_ns() < due:
                    time.sleep(0)
                asking.sendto(request, address)
            check(orders.recv() == "rest", "an order that nobody knows")
            orders.send("resting")


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
