"""Two processes, one publishing and one reading, each on a core of its own where there are two: how benches between
processes are run."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy
from numpy.typing import NDArray

PAYLOAD_SIZE = 128
STAMP_SIZE = 8
PATIENCE_SECONDS = 60.0

Report = Callable[[Any], None]
Reader = Callable[[Report, Any], Any]


@contextmanager
def reading(reader: Reader, argument: Any = None) -> Iterator["ReadingProcess"]:
    """Run `reader(report, argument)` in another process; what it reports first says that it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(reader, argument, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        with _pinned(0):
            yield ReadingProcess(ours)
    finally:
        process.join(1.0)
        process.kill()
        process.join()
        process.close()
        ours.close()


class ReadingProcess:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def report(self) -> Any:
        """What the reader reports next; the last thing is what it returned."""
        if not self._connection.poll(PATIENCE_SECONDS):
            raise TimeoutError(f"the reading process said nothing for {PATIENCE_SECONDS} s")
        return self._connection.recv()


def _run(reader: Reader, argument: Any, connection: Connection) -> None:
    with _pinned(1):
        connection.send(reader(connection.send, argument))


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    """On a core of its own, as far as there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def send_paced(send: Callable[[bytes], None], count: int, rate: float) -> None:
    """Send stamped messages, each at its time, however late the one before was."""
    padding = bytes(PAYLOAD_SIZE - STAMP_SIZE)
    interval_ns = round(1e9 / rate)
    now_ns = time.perf_counter_ns
    due_ns = now_ns() + interval_ns
    for _ in range(count):
        while now_ns() < due_ns:
            continue
        send(now_ns().to_bytes(STAMP_SIZE, "little") + padding)
        due_ns += interval_ns


def latency_ns(payload: bytes) -> int:
    """How long ago a message of send_paced() was sent."""
    return time.perf_counter_ns() - int.from_bytes(payload[:STAMP_SIZE], "little")


def percentiles_ns(latencies: list[int]) -> NDArray[numpy.float64]:
    """The median and the 99th percentile, without the first tenth, while caches and branch predictors warm up."""
    measured = latencies[len(latencies) // 10 :]
    result: NDArray[numpy.float64] = numpy.percentile(measured, [50, 99])
    return result
