"""The critical ring between two Python processes, compared with pyzmq and iceoryx2 in the same run."""

import os
import statistics
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError
from penstock.bench import latency
from penstock.bench.harness import Result, result, seconds_per_call, speedup
from penstock.bench.latency import beside_peers, measure
from penstock.bench.transports import (
    BETWEEN_PROCESSES,
    PAYLOAD_SIZE,
    check,
    now,
    other_process,
    pin,
    stamp,
    wait_for_segment,
)
from penstock.net.live.handover import Handover
from penstock.shm import RingReader, RingWriter

RATE = 50_000
PEERS = {
    "pyzmq_ipc": "pyzmq ipc, blocking",
    "pyzmq_ipc_spinning": "pyzmq ipc, spinning",
    "iceoryx2": "iceoryx2",
}

FLOOD = 1_000_000
FLOOD_ROUNDS = 5
FLOOD_ROWS = 500
FLOOD_TIMEOUT_NS = 30 * NS_PER_SECOND
EVENT_SPACE = PAYLOAD_SIZE + 24

CONDITIONS = f"{BETWEEN_PROCESSES}; latencies: {RATE} messages/s {latency.CONDITIONS}"
FLOOD_CONDITIONS = (
    f"throughput: {FLOOD} messages at full speed, in groups of {FLOOD_ROWS}, in a ring with room for all of them, "
    f"median of {FLOOD_ROUNDS} rounds"
)


def run() -> Iterator[Result]:
    yield from _latencies()
    yield from _throughput()


def _latencies() -> Iterator[Result]:
    latencies = measure(["ring", *PEERS.values()], RATE)
    conditions = f"{CONDITIONS}; medians of the least disturbed rounds: {latencies.quietest}"
    yield from beside_peers("ring", "ring", latencies, PEERS, conditions)
    theirs = [p99 for name, p99 in latencies.p99.items() if name != "ring"]
    if theirs:
        yield speedup("ring", "p99_speedup_vs_best", min(theirs), latencies.p99["ring"], "99th percentile", conditions)


def _throughput() -> Iterator[Result]:
    rows = numpy.zeros((FLOOD_ROWS, PAYLOAD_SIZE), numpy.uint8)
    copy = numpy.empty_like(rows)
    copies_per_s = FLOOD_ROWS / seconds_per_call(lambda: numpy.copyto(copy, rows))
    payloads = [bytearray(PAYLOAD_SIZE) for _ in range(FLOOD_ROWS)]
    objects_per_s = FLOOD_ROWS / seconds_per_call(lambda: [bytes(payload) for payload in payloads])
    for metric, against, against_value in (
        ("iterate_messages_per_s", "bytes objects made from as many messages in one process", objects_per_s),
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
            conditions=f"{BETWEEN_PROCESSES}; {FLOOD_CONDITIONS}",
        )


def _flood(metric: str) -> float:
    """Return messages per second from writing the first to reading the last; every message is counted."""
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
            raise PenstockError("the first message did not arrive")
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
        check(count == FLOOD + 1, f"received {count} messages instead of {FLOOD + 1}")
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
