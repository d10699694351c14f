"""Publishers and receivers by multicast, one to one and one to eight, and an application behind a filter module."""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy

from penstock.base.clock import NS_PER_SECOND
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.bench.brokers import NATS, NatsClient
from penstock.bench.filter.process import running_filter
from penstock.bench.harness import Result, result, rounds, speedup, unmeasured
from penstock.bench.ticker import Ticker
from penstock.bench.transports import ALL_CORES, PAYLOAD_SIZE, check, now, other_process, pin, stamp, tcp_endpoint
from penstock.filter.client import FilteredReceiver
from penstock.filter.client.ring_offer import RingOffer
from penstock.middleware import ReceiverConfig
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.net.udp import Address, Channel, free_channel
from penstock.shm import RingWriter

TOPIC = "md.us.eq.AAPL.quote"
ROUNDS = 5
ROUNDS_SECONDS = 40.0
MESSAGES = 2_000_000
PEER_MESSAGES = 300_000
FANOUT = 8
FANOUT_MESSAGES = 200_000
PAUSE_EVERY = 256
PAUSE_GROWTH = 4
LOOK_EVERY = 4_096  # messages between two looks of a reader whether messages were lost
END_SECONDS = 0.1
LATENCY_RATE = 10_000
LATENCY_MESSAGES = 5_000
WARM_UP = 500
RING_BYTES = 8 << 20
HELD_WITHIN_S = 10.0
PATIENT = ReceiverConfig(join="start")
CONDITIONS = (
    f"a Python process per publisher and receiver on {len(ALL_CORES)} cores, {PAYLOAD_SIZE}-byte payloads, one "
    "publish() and one step of a `for` loop per message, default settings"
)

HAS_ZMQ = importlib.util.find_spec("zmq") is not None
NO_ZMQ = "pyzmq is not installed (pip install pyzmq)"

Reader = Callable[..., Any]


def run() -> Iterator[Result]:
    yield from _rates()
    yield from _latencies()
    yield from _filtered()


# Rates: MESSAGES as fast as they go, to one receiver and to several


def _rates() -> Iterator[Result]:
    peers: dict[str, list[float]] = {"pyzmq": [], "nats": []}
    ours: list[float] = []
    wide: dict[str, list[float]] = {"ours": [], "pyzmq": []}
    pauses: list[float] = []
    for _ in rounds(ROUNDS, ROUNDS_SECONDS):
        rate, pause_us = _rate_without_loss(1, MESSAGES)
        ours.append(rate)
        pauses.append(pause_us)
        rate, pause_us = _rate_without_loss(FANOUT, FANOUT_MESSAGES)
        wide["ours"].append(rate)
        if HAS_ZMQ:
            peers["pyzmq"].append(_rate(_publish_zmq, _read_zmq, tcp_endpoint(), 1, PEER_MESSAGES, 0.0))
            wide["pyzmq"].append(_rate(_publish_zmq, _read_zmq, tcp_endpoint(), FANOUT, PEER_MESSAGES // 4, 0.0))
        if NATS.is_installed:
            with tempfile.TemporaryDirectory() as folder, NATS.running(Path(folder)) as server:
                peers["nats"].append(_rate(_publish_nats, _read_nats, server.port, 1, PEER_MESSAGES, 0.0))
    value = statistics.median(ours)
    nats = statistics.median(peers["nats"]) if peers["nats"] else 0.0
    conditions = (
        f"{CONDITIONS}; {MESSAGES} messages, none lost, blocking reader; median of {len(ours)} rounds, from "
        f"{min(ours):.0f} to {max(ours):.0f}; pause after each {PAUSE_EVERY} messages by which none was lost: "
        f"{statistics.median(pauses):.0f} us"
    )
    against = "nats-server, bare sockets as clients, one send() per message" if nats else "nats-server: not installed"
    metric = "publish_messages_per_s"
    yield result("frontdoor", metric, value, "messages/s", against=against, against_value=nats, conditions=conditions)
    if not HAS_ZMQ:
        yield unmeasured("frontdoor", "publish_ratio_to_pyzmq", NO_ZMQ)
        yield unmeasured("frontdoor", "fanout8_ratio_to_pyzmq", NO_ZMQ)
    else:
        theirs = statistics.median(peers["pyzmq"])
        ratio = statistics.median(a / b for a, b in zip(ours, peers["pyzmq"], strict=True))
        against = f"pyzmq PUB/SUB over tcp, the same loop: {theirs:.0f} messages/s"
        yield _ratio("publish_ratio_to_pyzmq", ratio, against, conditions)
        ratio = statistics.median(a / b for a, b in zip(wide["ours"], wide["pyzmq"], strict=True))
        against = f"pyzmq over tcp: {statistics.median(wide['pyzmq']):.0f} deliveries/s in all"
        conditions = (
            f"{CONDITIONS}; {FANOUT} receivers, {FANOUT_MESSAGES} messages, none lost: "
            f"{statistics.median(wide['ours']):.0f} deliveries/s in all; pause after each {PAUSE_EVERY} messages by "
            f"which none was lost: {pause_us:.0f} us in the last round"
        )
        yield _ratio("fanout8_ratio_to_pyzmq", ratio, against, conditions)


def _ratio(metric: str, ratio: float, against: str, conditions: str) -> Result:
    return result("frontdoor", metric, ratio, "ratio", against=against, against_value=1, conditions=conditions)


def _rate_without_loss(readers: int, messages: int) -> tuple[float, float]:
    """The rate, and the pause in microseconds after each PAUSE_EVERY messages that was needed for it."""
    pause_us = 0.0
    while not (rate := _rate(_publish, _read, free_channel(), readers, messages, pause_us)):
        pause_us = PAUSE_GROWTH * pause_us or 50.0
        check(pause_us < 1e5, "messages are lost at every rate")
    return rate, pause_us


def _rate(publish: Reader, read: Reader, place: Any, readers: int, messages: int, pause_us: float) -> float:
    """Deliveries per second to all readers; 0 if a message was lost."""
    with ExitStack() as stack:
        sending = stack.enter_context(other_process(publish, place, messages, pause_us))
        check(sending.recv() == "ready", "the publisher did not start")
        reading = [stack.enter_context(other_process(read, place, messages)) for _ in range(readers)]
        for each in reading:
            check(each.recv() == "ready", "a reader did not start")
        sending.send("go")
        times: list[tuple[float, float] | None] = [each.recv() for each in reading]
        sending.send("enough")
    complete = [each for each in times if each is not None]
    if len(complete) < readers:
        return 0.0
    started, ended = min(first for first, _ in complete), max(last for _, last in complete)
    return readers * messages / (ended - started)


def _publish(channel: Channel, messages: int, pause_us: float, orders: Connection) -> None:
    payload = bytes(PAYLOAD_SIZE)
    with MulticastPublisher(channel) as publisher:
        orders.send("ready")
        orders.recv()
        publish = publisher.publish
        if pause_us:
            for first in range(0, messages, PAUSE_EVERY):
                for _ in range(min(PAUSE_EVERY, messages - first)):
                    publish(TOPIC, payload)
                time.sleep(pause_us / 1e6)
        else:
            for _ in range(messages):
                publish(TOPIC, payload)
        while not orders.poll(END_SECONDS):  # a reader that has lost messages must see further ones
            for _ in range(LOOK_EVERY):
                publish(TOPIC, payload)
        publisher.close(linger=False)


def _read(channel: Channel, messages: int, orders: Connection) -> None:
    count, started = 0, 0.0
    with MulticastReceiver([channel], config=PATIENT) as receiver:
        orders.send("ready")
        for _ in receiver:
            count += 1
            if count == 1:
                started = time.perf_counter()
            if count == messages or count % LOOK_EVERY == 0:
                if receiver.counters["packets_lost"]:
                    orders.send(None)
                    return
                if count == messages:
                    orders.send((started, time.perf_counter()))
                    return


def _publish_zmq(endpoint: str, messages: int, pause_us: float, orders: Connection) -> None:
    import zmq

    payload = bytes(PAYLOAD_SIZE)
    with zmq.Context() as context, context.socket(zmq.PUB) as sending:
        sending.setsockopt(zmq.SNDHWM, 0)
        sending.bind(endpoint)
        orders.send("ready")
        orders.recv()
        time.sleep(0.5)  # subscriptions arrive; a PUB socket does not say when
        for _ in range(messages):
            sending.send(payload)
        orders.recv()


def _read_zmq(endpoint: str, messages: int, orders: Connection) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.SUB) as reading:
        reading.setsockopt(zmq.RCVHWM, 0)
        reading.setsockopt(zmq.SUBSCRIBE, b"")
        reading.connect(endpoint)
        orders.send("ready")
        reading.recv()
        started = time.perf_counter()
        for _ in range(messages - 1):
            reading.recv()
        orders.send((started, time.perf_counter()))


def _publish_nats(port: int, messages: int, pause_us: float, orders: Connection) -> None:
    client = NatsClient(port)
    encoded = client.encode(TOPIC, bytes(PAYLOAD_SIZE))
    orders.send("ready")
    orders.recv()
    for _ in range(messages):
        client.send(encoded)
    orders.recv()
    client.close()


def _read_nats(port: int, messages: int, orders: Connection) -> None:
    client = NatsClient(port)
    client.subscribe([TOPIC])
    missing = messages * client.received_size(TOPIC, bytes(PAYLOAD_SIZE))
    orders.send("ready")
    missing -= client.receive()
    started = time.perf_counter()
    while missing > 0:
        missing -= client.receive()
    orders.send((started, time.perf_counter()))
    client.close()


# Latencies at LATENCY_RATE


def _latencies() -> Iterator[Result]:
    names = {
        "one_way_busy_ns_p50": (_send_slowly, True, True),
        "one_way_idle_ns_p50": (_send_slowly, False, True),
        "blocking": (_send_slowly, False, False),
    }
    found: dict[str, list[float]] = {name: [] for name in (*names, "pyzmq")}
    for _ in rounds(ROUNDS, ROUNDS_SECONDS):
        for name, (send, is_busy, is_spinning) in names.items():
            found[name].append(_latency(send, _read_slowly, free_channel(), is_busy, is_spinning))
        if HAS_ZMQ:
            found["pyzmq"].append(_latency(_send_zmq_slowly, _read_zmq_slowly, tcp_endpoint(), False, False))
    for name, sender in (("one_way_busy_ns_p50", "busy-waits"), ("one_way_idle_ns_p50", "sleeps")):
        conditions = (
            f"{CONDITIONS}; {LATENCY_RATE} messages/s by an absolute schedule, the sender {sender} between messages, "
            "a core each, spinning reader; from before publish() to the next step of the loop; median of "
            f"{len(found[name])} rounds of {LATENCY_MESSAGES}: "
            f"{', '.join(f'{each:.0f}' for each in sorted(found[name]))}"
        )
        value, theirs = statistics.median(found[name]), statistics.median(found["pyzmq"]) if HAS_ZMQ else 0.0
        against = "pyzmq PUB/SUB over tcp, blocking" if HAS_ZMQ else "pyzmq: not installed"
        yield result("frontdoor", name, value, "ns", against=against, against_value=theirs, conditions=conditions)
    if not HAS_ZMQ:
        yield unmeasured("frontdoor", "one_way_blocking_ratio_to_pyzmq", NO_ZMQ)
    else:
        count = len(found["blocking"])
        conditions = f"{CONDITIONS}; {LATENCY_RATE} messages/s, the sender sleeps, blocking readers; {count} rounds"
        theirs, ours = statistics.median(found["pyzmq"]), statistics.median(found["blocking"])
        yield speedup("frontdoor", "one_way_blocking_ratio_to_pyzmq", theirs, ours, "median", conditions)


def _latency(send: Reader, read: Reader, place: Any, is_busy: bool, is_spinning: bool) -> float:
    with other_process(send, place, is_busy) as sending, other_process(read, place, is_spinning) as reading:
        check(sending.recv() == "ready" and reading.recv() == "ready", "a process did not start")
        sending.send("go")
        p50: float = reading.recv()
        sending.send("enough")
    return p50


def _paced(publish: Callable[[bytearray], object], is_busy: bool) -> None:
    payload = bytearray(PAYLOAD_SIZE)
    interval_ns = NS_PER_SECOND // LATENCY_RATE
    if is_busy:
        due = now()
        for _ in range(WARM_UP + LATENCY_MESSAGES):
            due += interval_ns
            while now() < due:
                pass
            stamp.pack_into(payload, 0, now())
            publish(payload)
        return
    with Ticker(interval_ns) as ticker:
        for _ in range(WARM_UP + LATENCY_MESSAGES):
            ticker.wait()
            stamp.pack_into(payload, 0, now())
            publish(payload)


def _median(taken: list[int]) -> float:
    return float(numpy.percentile(taken[WARM_UP:], 50))


def _send_slowly(channel: Channel, is_busy: bool, orders: Connection) -> None:
    pin(0)
    with MulticastPublisher(channel) as publisher:
        orders.send("ready")
        orders.recv()
        _paced(lambda payload: publisher.publish(TOPIC, payload), is_busy)
        orders.recv()
        publisher.close(linger=False)


def _read_slowly(channel: Channel, is_spinning: bool, orders: Connection) -> None:
    pin(-1)
    with MulticastReceiver([channel], config=PATIENT, spin=is_spinning) as receiver:
        orders.send("ready")
        orders.send(_median(_ages(receiver)))


def _ages(receiver: Any) -> list[int]:
    taken: list[int] = []
    for message in receiver:
        arrived = now()
        taken.append(arrived - stamp.unpack_from(message.payload)[0])
        if len(taken) == WARM_UP + LATENCY_MESSAGES:
            break
    return taken


def _send_zmq_slowly(endpoint: str, is_busy: bool, orders: Connection) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUB) as sending:
        sending.bind(endpoint)
        orders.send("ready")
        orders.recv()
        time.sleep(0.5)  # subscriptions arrive; a PUB socket does not say when
        _paced(sending.send, is_busy)
        orders.recv()


def _read_zmq_slowly(endpoint: str, is_spinning: bool, orders: Connection) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.SUB) as reading:
        reading.setsockopt(zmq.SUBSCRIBE, b"")
        reading.connect(endpoint)
        orders.send("ready")
        taken = []
        for _ in range(WARM_UP + LATENCY_MESSAGES):
            payload: Any = reading.recv()
            arrived = now()
            taken.append(arrived - stamp.unpack_from(payload)[0])
        orders.send(_median(taken))


# An application behind a filter module's ring


def _filtered() -> Iterator[Result]:
    p50s = []
    for _ in rounds(ROUNDS, ROUNDS_SECONDS):
        channel = free_channel()
        with running_filter(channels=(str(channel),), spin=False) as module:
            p50s.append(_latency(_send_to_ring, _read_from_ring, (channel, module.address), False, False))
    conditions = (
        f"{CONDITIONS}; publisher, filter module and application by shared memory, {LATENCY_RATE} messages/s, the "
        f"sender sleeps, filter module and reader block; median of {len(p50s)} rounds: "
        f"{', '.join(f'{each:.0f}' for each in sorted(p50s))}"
    )
    value = statistics.median(p50s)
    name = "filter_ring_one_way_ns_p50"
    yield result("frontdoor", name, value, "ns", against="no peer", against_value=0, conditions=conditions)


def _send_to_ring(place: tuple[Channel, Address], is_busy: bool, orders: Connection) -> None:
    channel, address = place
    with (
        RingWriter.create(RING_BYTES, PACKET_SIZE_MAX) as ring,
        MulticastPublisher(channel, ring=ring) as publisher,
        RingOffer(publisher, ring, address) as offer,
    ):
        check(offer.is_held.wait(HELD_WITHIN_S), "the filter does not read the publisher's ring")
        orders.send("ready")
        orders.recv()
        _paced(lambda payload: publisher.publish(TOPIC, payload), is_busy)
        orders.recv()
        publisher.close(linger=False)


def _read_from_ring(place: tuple[Channel, Address], is_spinning: bool, orders: Connection) -> None:
    with FilteredReceiver(place[1], [TOPIC], delivery="ring", spin=is_spinning) as receiver:
        orders.send("ready")
        orders.send(_median(_ages(receiver)))
