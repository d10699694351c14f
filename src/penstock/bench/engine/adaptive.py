"""A slow reader of the adaptive class: the staleness of its values, and the growth of memory.

A node in a process of its own publishes; the reader in this process reads changed records through the API and needs a
millisecond for each. pyzmq publishes the same to an equally slow subscriber. The publisher records the publication time
of each update of each item in shared memory, so that the reader can compute how long ago a value was superseded: 0 for
the newest.
"""

import asyncio
import importlib.util
import os
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.bench.harness import Result, result
from penstock.bench.transports import ALL_CORES, PATIENCE_SECONDS, check, now, other_process, pin, tcp_endpoint
from penstock.engine import EngineConfig
from penstock.engine.client import Changes, open_records
from penstock.model import shipped
from penstock.plant.config import PlantAccess, PlantConfig
from penstock.plant.live.driver import LiveNode
from penstock.wire import PacketMessage

QUOTE = shipped("quote")
ITEMS = 100
UPDATES_PER_S = 20_000
WORK_NS = NS_PER_MS
ROUNDS = 3
SECONDS = 5.0
MEMORY_SECONDS = 60.0
SAMPLES = 20
UPDATES_SPARE = 1_000
"""Per item: room for updates before and after those that are read."""

HISTORY_BYTES = 1 << 20
"""Size of the node's history of critical events, which is full before growth is measured."""

TOPICS = [f"md.us.eq.S{item:02}.quote" for item in range(ITEMS)]
HEAD = struct.Struct("<II")
CONDITIONS = (
    f"{UPDATES_PER_S:,} updates/s over {ITEMS} items, published one by one; a reader that needs 1 ms per message, "
    f"both Python processes, on {len(ALL_CORES)} cores; staleness: the age, when a value is read, of the next "
    f"publication of the same item"
)


def run(seconds: float = SECONDS, memory_seconds: float = MEMORY_SECONDS, rounds: int = ROUNDS) -> Iterator[Result]:
    ours, theirs, rates = [], [], []
    for _ in range(rounds):
        stale_ms, rate = _stale_ms(_records, seconds)
        ours.append(stale_ms)
        rates.append(rate)
        if importlib.util.find_spec("zmq") is not None:
            theirs.append(_stale_ms(_zmq_messages, seconds)[0])
    conditions = f"{CONDITIONS}; medians of {rounds} alternating rounds of {seconds:g} s; published "
    conditions += f"{statistics.median(rates):,.0f}/s"
    for metric, pick in (("adaptive_stale_ms_p50", numpy.median), ("adaptive_stale_ms_max", numpy.max)):
        yield result(
            "engine",
            metric,
            statistics.median(float(pick(each)) for each in ours),
            "ms",
            against="pyzmq pub/sub, the same reader",
            against_value=statistics.median(float(pick(each)) for each in theirs) if theirs else 0.0,
            conditions=f"{conditions}; {sum(map(len, ours)):,} reads, pyzmq {sum(map(len, theirs)):,}",
        )
    growth, size = _memory_growth(memory_seconds)
    yield result(
        "engine",
        "adaptive_memory_growth_bytes",
        growth,
        "bytes",
        against="resident memory of node and reader",
        against_value=size,
        conditions=f"{CONDITIONS}; over {memory_seconds:g} s after a tenth of warm-up, history {HISTORY_BYTES} bytes",
    )


# The reader

Read = tuple[int, int]
"""An item, and the number of its update."""


def _stale_ms(reads: Callable[[str, float], Iterator[Read]], seconds: float) -> tuple[NDArray[numpy.float64], float]:
    """Return the staleness of each value, and the number of updates published per second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "times"
        columns = int(seconds * UPDATES_PER_S / ITEMS * 2) + UPDATES_SPARE
        times = numpy.memmap(path, numpy.int64, "w+", shape=(ITEMS, columns))
        times[:] = 0
        found = []
        for item, number in reads(str(path), seconds):
            read_at = now()
            superseded = int(times[item, number + 1])
            found.append(max(0, read_at - superseded) if superseded else 0)
            _work(read_at)
        check(len(found) > 100, f"only {len(found)} values were read")
        made = times[times > 0]
        return numpy.array(found) / NS_PER_MS, len(made) * NS_PER_SECOND / float(made.max() - made.min())


def _records(path: str, seconds: float) -> Iterator[Read]:
    with other_process(_publish_records, path) as orders:
        with open_records(f"127.0.0.1:{orders.recv()}", "md.us.eq.>") as quotes:
            pin(-1)
            orders.send("go")
            with quotes.changes() as changes:
                yield from _changed(changes, seconds)
            pin(0, is_pinned=False)
        orders.send("stop")


def _changed(changes: Changes, seconds: float) -> Iterator[Read]:
    items = {topic: item for item, topic in enumerate(TOPICS)}
    until = now() + int(seconds * NS_PER_SECOND)
    while now() < until:
        message = changes.next(0.1)
        if message is not None:
            yield items[message.topic], message.source_seq


def _zmq_messages(path: str, seconds: float) -> Iterator[Read]:
    import zmq

    endpoint = tcp_endpoint()
    with other_process(_publish_zmq, path, endpoint) as orders, zmq.Context() as context:
        with context.socket(zmq.SUB) as subscriber:
            subscriber.connect(endpoint)
            subscriber.subscribe(b"")
            subscriber.rcvtimeo = int(PATIENCE_SECONDS * 1_000)
            orders.send("go")
            subscriber.recv()
            until = now() + int(seconds * NS_PER_SECOND)
            while now() < until:
                yield HEAD.unpack_from(subscriber.recv())
        orders.send("stop")


def _work(started_ns: int) -> None:
    while now() - started_ns < WORK_NS:
        pass


# Memory


def _memory_growth(seconds: float) -> tuple[int, int]:
    """Return the memory growth of both processes after a tenth of the time, and their memory at that time."""
    with other_process(_publish_records, "") as orders:
        with open_records(f"127.0.0.1:{orders.recv()}", "md.us.eq.>") as quotes, quotes.changes() as changes:
            orders.send("go")
            node: int = orders.recv()
            samples = [_resident(os.getpid()) + _resident(node) for _ in _sampled(changes, seconds)]
        orders.send("stop")
    begin, end = samples[SAMPLES // 10 : SAMPLES // 5 + 1], samples[-SAMPLES // 10 :]
    return max(0, round(statistics.median(end) - statistics.median(begin))), round(statistics.median(begin))


def _sampled(changes: Changes, seconds: float) -> Iterator[None]:
    """Read and process, and yield when a sample is due."""
    for _ in range(SAMPLES):
        for _ in _changed(changes, seconds / SAMPLES):
            _work(now())
        yield


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# Publishers in their own processes


def _publish_records(path: str, orders: Connection) -> None:
    asyncio.run(_node(path, orders))


async def _node(path: str, orders: Connection) -> None:
    engine = EngineConfig(classes=("critical", "adaptive", "metered"), history_bytes=HISTORY_BYTES)
    node = LiveNode(PlantConfig(name="bench", control=PlantAccess(port=0), engine=engine))
    await node.node.start()
    try:
        records = [bytearray(bytes(QUOTE.new(symbol=f"S{item:02}"))) for item in range(ITEMS)]
        at = QUOTE.fields_by_name["source_seq"].offset

        def publish(item: int, number: int) -> None:
            record = records[item]
            record[at : at + 8] = number.to_bytes(8, "little")
            node.take([PacketMessage(TOPICS[item], bytes(record), QUOTE.id, QUOTE.version)])

        for item in range(ITEMS):
            publish(item, 0)
        orders.send(node.control_port)
        thread = threading.Thread(target=_publish, args=(path, orders, publish))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.05)
    finally:
        await node.node.close()


def _publish_zmq(path: str, endpoint: str, orders: Connection) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.linger = 0
        publisher.bind(endpoint)
        record = bytes(QUOTE.record_size)

        def publish(item: int, number: int) -> None:
            publisher.send(HEAD.pack(item, number) + record)

        _publish(path, orders, publish)


def _publish(path: str, orders: Connection, publish: Callable[[int, int], None]) -> None:
    """Publish updates at the rate until stopped; record the time of each update before publishing it."""
    orders.recv()
    if not path:
        orders.send(os.getpid())
    times: Any = numpy.memmap(path, numpy.int64, "r+").reshape(ITEMS, -1) if path else None
    interval_ns = NS_PER_SECOND // UPDATES_PER_S
    due = now()
    for number in range(1, 2**31):
        for item in range(ITEMS):
            due += interval_ns
            while now() < due:
                if due - now() > NS_PER_MS:
                    time.sleep(0.0005)
            if times is not None and number < times.shape[1]:
                times[item, number] = now()
            publish(item, number)
        if orders.poll():
            return
