"""Latency of a message from a publisher through a filter module to an application, each in its own process.

Filter and application poll on a core of their own; the publisher sleeps between messages and shares the application's
core, so that the application continues when the publisher sleeps again.
"""

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection

import msgspec
import numpy
from typing_extensions import Buffer

from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.bench.filter.process import running_filter
from penstock.bench.harness import Result, result
from penstock.bench.ticker import Ticker
from penstock.bench.transports import ALL_CORES, PAYLOAD_SIZE, check, now, other_process, pin, stamp
from penstock.filter.client import FilteredReceiver
from penstock.filter.client.ring_offer import RingOffer
from penstock.filter.core.control import Wish
from penstock.middleware.live import MulticastPublisher, MulticastReceiver
from penstock.middleware.live.receiver import SocketReceiver
from penstock.net.live.handover import Handover, receive_segment
from penstock.net.udp import Address, Channel, free_channel
from penstock.shm import RingReader, RingWriter

RATE = 10_000
INTERVAL_NS = NS_PER_SECOND // RATE
ROUNDS = 9
MESSAGES_PER_ROUND = 2_000
WARM_UP = 200
RING_BYTES = 8 * 1024 * 1024
HELD_WITHIN_S = 10.0
TOPIC = "md.us.eq.AAPL.quote"
SEGMENT = "bench"
CONDITIONS = (
    f"three Python processes on {len(ALL_CORES)} cores, {PAYLOAD_SIZE}-byte payloads; filter and application spin on a "
    f"core each; the publisher, on the application's core, sleeps until the next of {RATE} messages/s is due; from "
    f"before the publishing call to the return of the receiving call; median of {ROUNDS} rounds of {MESSAGES_PER_ROUND}"
)


def run() -> Iterator[Result]:
    direct = statistics.median(_measure("", "network")[0])
    ring = _bare_ring_ns()
    by_udp = "an application that receives the group by UDP without a filter"
    by_ring = "a bare ring from the publisher to the application, with the publisher asleep on its core as well"
    for metric, delivery, reach, against, against_ns, how in (
        ("one_way_udp_ns_p50", "unicast", "network", by_udp, direct, "multicast to the filter, unicast from there"),
        ("one_way_shm_ns_p50", "ring", "host", by_ring, ring, "shared memory on both paths, on this host only"),
        ("one_way_shm_and_network_ns_p50", "ring", "both", by_udp, direct, "the same, and to the network afterwards"),
    ):
        p50s, p99s, rates = _measure(delivery, reach)
        yield result(
            "filter",
            metric,
            statistics.median(p50s),
            "ns",
            against=against,
            against_value=against_ns,
            conditions=f"{CONDITIONS}; {how}; {statistics.median(rates):.0f} messages/s; medians of the rounds: "
            f"{_listed(p50s)}; 99th percentiles: {_listed(p99s)}",
        )


def _bare_ring_ns() -> float:
    """Measure the lower bound of this setup: the application continues when the publisher sleeps again."""
    path = f"@penstock-bench-{random_bytes(8).hex()}"
    p50s = []
    with other_process(_write, path) as orders:
        check(orders.recv() == "ready", "the writer did not start")
        with receive_segment(path, SEGMENT) as segment, RingReader(segment) as ring:
            pin(-1)
            for _ in range(ROUNDS):
                orders.send(WARM_UP + MESSAGES_PER_ROUND)
                taken = [_age_ns(event) for event in itertools.islice(ring, WARM_UP + MESSAGES_PER_ROUND)]
                p50s.append(float(numpy.percentile(taken[WARM_UP:], 50)))
            pin(0, is_pinned=False)
        orders.send(0)
    return statistics.median(p50s)


def _age_ns(payload: Buffer) -> int:
    arrived = now()
    stamped: int = stamp.unpack_from(payload)[0]
    return arrived - stamped


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in sorted(values))


def _measure(delivery: str, reach: str) -> tuple[list[float], list[float], list[float]]:
    """Return medians, 99th percentiles and messages per second of all rounds, with one delivery, or without the filter
    if None.
    """
    channel = free_channel()
    p50s, p99s, rates = [], [], []
    with ExitStack() as stack:
        module = stack.enter_context(running_filter(channels=(str(channel),), spin=True, cpu=min(ALL_CORES)))
        orders = stack.enter_context(other_process(_publish, channel, module.address, reach))
        check(orders.recv() == "ready", "the publisher did not start")
        stack.callback(orders.send, 0)
        receiver = _receiver(delivery, module.address, channel)
        stack.enter_context(receiver)
        pin(-1)
        stack.callback(pin, 0, is_pinned=False)
        for _ in range(ROUNDS):
            started = now()
            taken = _round(receiver, orders)
            rates.append((WARM_UP + MESSAGES_PER_ROUND) * NS_PER_SECOND / (now() - started))
            p50s.append(float(numpy.percentile(taken, 50)))
            p99s.append(float(numpy.percentile(taken, 99)))
    return p50s, p99s, rates


def _receiver(delivery: str, address: Address, channel: Channel) -> SocketReceiver:
    if not delivery:
        return MulticastReceiver([channel], spin=True)
    return FilteredReceiver(address, [TOPIC], delivery=msgspec.convert(delivery, Wish), spin=True)


def _round(receiver: SocketReceiver, orders: Connection) -> list[int]:
    """Return the latency of each message in nanoseconds."""
    orders.send(WARM_UP + MESSAGES_PER_ROUND)
    taken: list[int] = []
    for message in receiver:
        taken.append(_age_ns(message.payload))
        if len(taken) == WARM_UP + MESSAGES_PER_ROUND:
            break
    return taken[WARM_UP:]


# The publisher's process


def _publish(channel: Channel, address: Address, reach: str, orders: Connection) -> None:
    """For each number received as an order, publish this number of messages."""
    with ExitStack() as stack:
        ring = None
        if reach != "network":
            ring = stack.enter_context(RingWriter.create(RING_BYTES, PACKET_SIZE_MAX))
        publisher = MulticastPublisher(channel, ring=ring, is_host_only=reach == "host")
        stack.callback(publisher.close, linger=False)
        if ring is not None:
            offer = stack.enter_context(RingOffer(publisher, ring, address))
            check(offer.is_held.wait(HELD_WITHIN_S), "the filter does not read the publisher's ring")
        orders.send("ready")
        pin(-1)
        while count := orders.recv():
            _send_slowly(functools.partial(publisher.publish, TOPIC), count)


def _write(path: str, orders: Connection) -> None:
    """For each number received as an order, write this number of messages into a bare ring."""
    with RingWriter.create(RING_BYTES, PACKET_SIZE_MAX) as ring, Handover(path) as handover:
        handover.offer(SEGMENT, ring.segment)
        orders.send("ready")
        pin(-1)
        while count := orders.recv():
            _send_slowly(ring.write, count)


def _send_slowly(send: Callable[[bytearray], object], count: int) -> None:
    payload = bytearray(PAYLOAD_SIZE)
    with Ticker(INTERVAL_NS) as ticker:
        for _ in range(count):
            ticker.wait()
            stamp.pack_into(payload, 0, now())
            send(payload)
