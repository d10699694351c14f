"""Coherent reads of a record that another Python process overwrites a million times per second."""

import os
import statistics
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy

from penstock.base.clock import NS_PER_SECOND
from penstock.bench.harness import Result, result
from penstock.bench.transports import PAYLOAD_SIZE, now, other_process, pin, wait_for_segment
from penstock.net.live.handover import Handover
from penstock.shm import RegionReader, RegionWriter

UPDATES_PER_S = 1_000_000
TIMED_READS = 20_000
ROUNDS = 9
READS = 10_000_000
BATCH = 2_000
TIMEOUT_NS = 10 * NS_PER_SECOND


def run() -> Iterator[Result]:
    address = f"@penstock-bench-{os.getpid()}"
    with (
        other_process(_publish, address) as orders,
        wait_for_segment(address) as segment,
        RegionReader(segment) as region,
    ):
        pin(-1)
        quiet_ns = statistics.median(_read_ns(region) for _ in range(ROUNDS))
        orders.send("go")
        orders.recv()
        updates, started = _update_count(region), now()
        busy_ns = statistics.median(_read_ns(region) for _ in range(ROUNDS))
        torn = _torn_reads(region)
        rate = (_update_count(region) - updates) / ((now() - started) / NS_PER_SECOND)
        pin(0, is_pinned=False)
        orders.send("stop")
    conditions = (
        f"a record of {PAYLOAD_SIZE} bytes read from Python while another Python process overwrites it "
        f"{rate:,.0f} times/s; median of {ROUNDS} rounds of {TIMED_READS} reads timed one by one, without the time of "
        f"the clock"
    )
    yield result(
        "region",
        "read_ns_p50",
        busy_ns,
        "ns",
        against="the same without a writer",
        against_value=quiet_ns,
        conditions=conditions,
    )
    yield result(
        "region",
        "torn_reads",
        torn,
        "reads",
        against="reads",
        against_value=READS,
        conditions=f"{conditions}; torn: the number of {READS} batched reads that mix two updates",
    )


def _read_ns(region: RegionReader) -> float:
    """Return the median time of a read, without the time for reading the clock."""
    read, taken, idle = region.read, [], []
    for _ in range(TIMED_READS):
        started = now()
        read(0, TIMEOUT_NS)
        taken.append(now() - started)
        started = now()
        idle.append(now() - started)
    return statistics.median(taken) - statistics.median(idle)


def _torn_reads(region: RegionReader) -> int:
    indices = numpy.zeros(BATCH, numpy.uint32)
    rows = numpy.zeros((BATCH, PAYLOAD_SIZE), numpy.uint8)
    counts = numpy.zeros(BATCH, numpy.uint64)
    words = rows.view("<u8")
    reads = torn = 0
    while reads < READS:
        reads += region.read_batch(indices, rows, counts)
        torn += int(numpy.count_nonzero((words != words[:, :1]).any(axis=1) & (counts > 0)))
    return torn


def _update_count(region: RegionReader) -> int:
    record = region.read(0, TIMEOUT_NS)
    return record.update_count if record else 0


def _publish(address: str, orders: Connection) -> None:
    """Overwrite the record with payloads of one repeated number."""
    payloads = [number.to_bytes(8, "little") * (PAYLOAD_SIZE // 8) for number in range(1_000)]
    interval_ns = NS_PER_SECOND // UPDATES_PER_S
    region, handover = RegionWriter.create(1, [PAYLOAD_SIZE]), Handover(address)
    region.write(0, payloads[0])
    handover.offer("bench", region.segment)
    with region, handover:
        orders.recv()
        pin(0)
        orders.send("going")
        write, due = region.write, now()
        while not orders.poll():
            for payload in payloads:
                due += interval_ns
                while now() < due:
                    pass
                write(0, payload)
