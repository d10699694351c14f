"""The critical ring between two Python processes, beside pyzmq and iceoryx2 doing the same in the same run."""

import os
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

import numpy

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError
from penstock.bench.harness import Result, result, seconds_per_call
from penstock.bench.transports import (
    ALL_CORES,
    PAYLOAD_SIZE,
    TRANSPORTS,
    Receiver,
    check,
    now,
    other_process,
    pin,
    publish,
    stamp,
    wait_for_segment,
)
from penstock.net.handover import Handover
from penstock.shm import RingReader, RingWriter

RATE = 50_000
ROUNDS = 25
MESSAGES_PER_ROUND = 2_000
WARM_UP = 200

FLOOD = 1_000_000
FLOOD_ROUNDS = 5
FLOOD_ROWS = 500
FLOOD_TIMEOUT_NS = 30 * NS_PER_SECOND
EVENT_SPACE = PAYLOAD_SIZE + 24

CONDITIONS = (
    f"two Python processes, {'a core each' if len(ALL_CORES) > 1 else 'one core'}, {PAYLOAD_SIZE}-byte payloads; "
    f"latencies: {RATE} messages/s by an absolute schedule, spinning reader, from the call that sends to the return of "
    f"the call that receives, median of {ROUNDS} rounds of {MESSAGES_PER_ROUND}, peers in turn; pyzmq PUSH/PULL over "
    "ipc, not pinned and yielding while it waits because of its own threads, blocking or spinning, whichever is better"
)
FLOOD_CONDITIONS = (
    f"throughput: {FLOOD} messages as fast as they go, coalesced by {FLOOD_ROWS}, in a ring that has room for all, "
    f"median of {FLOOD_ROUNDS} rounds"
)


def run() -> Iterator[Result]:
    yield from _latencies()
    yield from _throughput()


def _latencies() -> Iterator[Result]:
    rounds_p50, rounds_p99 = _measure()
    p50, p99 = _medians(rounds_p50), _medians(rounds_p99)
    quietest = ", ".join(f"{name} {min(values):.0f} ns" for name, values in rounds_p50.items())
    conditions = f"{CONDITIONS}; medians of the least disturbed rounds: {quietest}"
    peers = {
        "pyzmq ipc": [name for name in p50 if name.startswith("pyzmq")],
        "iceoryx2": [name for name in p50 if name == "iceoryx2"],
    }
    best = min((name for name in p50 if name != "ring"), key=lambda name: p50[name], default="")
    for metric, values in (("one_way_ns_p50", p50), ("one_way_ns_p99", p99)):
        yield result(
            "ring",
            metric,
            values["ring"],
            "ns",
            against=best,
            against_value=values.get(best, 0),
            conditions=conditions,
        )
    for peer, names in peers.items():
        if names:
            theirs = min(p50[name] for name in names)
            yield result(
                "ring",
                f"speedup_vs_{peer.replace(' ', '_')}",
                theirs / p50["ring"],
                "ratio",
                against=f"{peer}: its median of {theirs:.0f} ns over ours",
                against_value=1,
                conditions=conditions,
            )
    if best:
        theirs = min(p99[name] for name in p99 if name != "ring")
        yield result(
            "ring",
            "p99_speedup_vs_best",
            theirs / p99["ring"],
            "ratio",
            against=f"the best peer: its 99th percentile of {theirs:.0f} ns over ours",
            against_value=1,
            conditions=conditions,
        )


def _measure() -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Each transport's median and 99th percentile, round by round."""
    p50: dict[str, list[float]] = {}
    p99: dict[str, list[float]] = {}
    missing = sorted({transport.module for transport in TRANSPORTS.values() if not transport.is_available})
    if missing:
        print(f"not installed: {', '.join(missing)} (make bench installs the peers)", file=sys.stderr)  # noqa: T201
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ends = {
            name: stack.enter_context(_connected(name, f"{folder}/{number}"))
            for number, (name, transport) in enumerate(TRANSPORTS.items())
            if transport.is_available
        }
        turns = deque(ends.items())
        for _ in range(ROUNDS):
            turns.rotate()  # nobody always comes after the same other one
            for name, (receiver, orders) in turns:
                pin(-1, is_pinned=TRANSPORTS[name].is_pinned)
                orders.send(WARM_UP + MESSAGES_PER_ROUND)
                taken = receiver.receive(WARM_UP + MESSAGES_PER_ROUND)[WARM_UP:]
                p50.setdefault(name, []).append(float(numpy.percentile(taken, 50)))
                p99.setdefault(name, []).append(float(numpy.percentile(taken, 99)))
        pin(0, is_pinned=False)
    return p50, p99


def _medians(rounds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in rounds.items()}


@contextmanager
def _connected(name: str, address: str) -> Iterator[tuple[Receiver, Connection]]:
    """A publishing process and the receiver here; the pipe carries orders to it."""
    with other_process(publish, name, address, NS_PER_SECOND // RATE) as orders:
        check(orders.recv() == "ready", f"the publisher of {name} did not start")
        receiver = TRANSPORTS[name].receiver(address)
        try:
            yield receiver, orders
        finally:
            orders.send(0)
            receiver.close()


def _throughput() -> Iterator[Result]:
    rows = numpy.zeros((FLOOD_ROWS, PAYLOAD_SIZE), numpy.uint8)
    copy = numpy.empty_like(rows)
    copies_per_s = FLOOD_ROWS / seconds_per_call(lambda: numpy.copyto(copy, rows))
    payloads = [bytearray(PAYLOAD_SIZE) for _ in range(FLOOD_ROWS)]
    objects_per_s = FLOOD_ROWS / seconds_per_call(lambda: [bytes(payload) for payload in payloads])
    for metric, against, against_value in (
        ("iterate_messages_per_s", "bytes objects made of as many messages in one process", objects_per_s),
        ("batch_messages_per_s", "memcpy of the same bytes in one process", copies_per_s),
    ):
        rates = [_flood(metric) for _ in range(FLOOD_ROUNDS)]
        yield result(
            "ring",
            metric,
            statistics.median(rates),
            "messages/s",
            against=against,
            against_value=against_value,
            conditions=f"{CONDITIONS}; {FLOOD_CONDITIONS}",
        )


def _flood(metric: str) -> float:
    """Messages per second from the writing of the first one to the reading of the last; every one is counted."""
    address = f"@penstock-bench-{os.getpid()}"
    with (
        other_process(_publish_flood, address) as orders,
        wait_for_segment(address) as segment,
        RingReader(segment) as ring,
    ):
        pin(-1)
        orders.send(1)
        first = ring.read(FLOOD_TIMEOUT_NS)
        if first is None:
            raise PenstockError("the first message did not come")
        if metric == "batch_messages_per_s":
            rows, count = numpy.zeros((4 * FLOOD_ROWS, PAYLOAD_SIZE), numpy.uint8), 1
            while count < FLOOD + 1:
                count += ring.read_batch(rows)
        else:
            count = 1
            for _ in ring:
                count += 1
        seconds: float = (now() - stamp.unpack_from(first)[0]) / NS_PER_SECOND
        pin(0, is_pinned=False)
        orders.send(0)
        check(count == FLOOD + 1, f"{count} messages came instead of {FLOOD + 1}")
    return FLOOD / seconds


def _publish_flood(address: str, orders: Connection) -> None:
    rows = numpy.random.default_rng(1).integers(0, 256, (FLOOD_ROWS, PAYLOAD_SIZE), dtype=numpy.uint8)
    ring = RingWriter.create((FLOOD + FLOOD_ROWS) * EVENT_SPACE, PAYLOAD_SIZE)
    handover = Handover(address)
    handover.offer("bench", ring.segment)
    with handover:
        orders.recv()
        pin(0)
        ring.write(stamp.pack(now()).ljust(PAYLOAD_SIZE))
        for _ in range(FLOOD // FLOOD_ROWS):
            ring.write_batch(rows)
        ring.close()
        orders.recv()
