"""Latency of messages between processes with several transports, measured in turns in one run."""

import os
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

import numpy

from penstock.base.clock import NS_PER_SECOND
from penstock.bench.harness import Result, result, speedup
from penstock.bench.transports import TRANSPORTS, Receiver, check, now, other_process, pin

ROUNDS = 25
MESSAGES_PER_ROUND = 2_000
WARM_UP = 200

CONDITIONS = (
    "by an absolute schedule, spinning reader, from the sending call to the return of the receiving call, "
    f"median of {ROUNDS} rounds of {MESSAGES_PER_ROUND}, alternating transports; pyzmq PUSH/PULL, not pinned and "
    "yielding while it waits, because it has threads of its own"
)


class Latencies:
    """Each transport's medians and 99th percentiles, round by round, in nanoseconds."""

    def __init__(self) -> None:
        self._p50: dict[str, list[float]] = {}
        self._p99: dict[str, list[float]] = {}

    def add(self, name: str, taken: list[int]) -> None:
        self._p50.setdefault(name, []).append(float(numpy.percentile(taken, 50)))
        self._p99.setdefault(name, []).append(float(numpy.percentile(taken, 99)))

    @property
    def p50(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self._p50.items()}

    @property
    def p99(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self._p99.items()}

    def added(self, name: str, beside: str) -> float:
        """Return the added latency: the median over all rounds of the difference of the medians."""
        return statistics.median(a - b for a, b in zip(self._p50[name], self._p50[beside], strict=True))

    @property
    def quietest(self) -> str:
        """The medians of the least disturbed rounds, for the conditions."""
        return ", ".join(f"{name} {min(values):.0f} ns" for name, values in self._p50.items())


def measure(names: Sequence[str], rate: int) -> Latencies:
    """Measure the installed transports in turns at `rate` messages per second."""
    chosen = [name for name in names if TRANSPORTS[name].is_available]
    missing = sorted({TRANSPORTS[name].module for name in names if name not in chosen})
    if missing:
        sys.stderr.write(f"not installed: {', '.join(missing)} (make bench installs the peers)\n")
    latencies = Latencies()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ends = {name: stack.enter_context(_connected(name, f"{folder}/{chosen.index(name)}", rate)) for name in chosen}
        turns = deque(ends.items())
        for _ in range(ROUNDS):
            turns.rotate()  # no transport always follows the same other one
            for name, (receiver, orders) in turns:
                pin(-1, is_pinned=TRANSPORTS[name].is_pinned)
                orders.send(WARM_UP + MESSAGES_PER_ROUND)
                latencies.add(name, receiver.receive(WARM_UP + MESSAGES_PER_ROUND)[WARM_UP:])
        pin(0, is_pinned=False)
    return latencies


def beside_peers(
    bench: str, ours: str, latencies: Latencies, peers: Mapping[str, str], conditions: str
) -> Iterator[Result]:
    """Yield our percentiles, and the ratio of each peer's median to ours (metric name to transport)."""
    p50, p99 = latencies.p50, latencies.p99
    best = min((name for name in p50 if name != ours), key=lambda name: p50[name], default="")
    for metric, values in (("one_way_ns_p50", p50), ("one_way_ns_p99", p99)):
        value, theirs = values[ours], values.get(best, 0)
        yield result(bench, metric, value, "ns", against=best, against_value=theirs, conditions=conditions)
    for peer, name in peers.items():
        if name in p50:
            yield speedup(bench, f"speedup_vs_{peer}", p50[name], p50[ours], "median", conditions)


@contextmanager
def _connected(name: str, path: str, rate: int) -> Iterator[tuple[Receiver, Connection]]:
    """Start a publishing process and a receiver in this process; the pipe carries orders."""
    address = TRANSPORTS[name].address(path)
    with other_process(publish, name, address, NS_PER_SECOND // rate) as orders:
        check(orders.recv() == "ready", f"the publisher of {name} did not start")
        receiver = TRANSPORTS[name].receiver(address)
        try:
            yield receiver, orders
        finally:
            orders.send(0)
            receiver.close()


def publish(name: str, address: str, interval_ns: int, orders: Connection) -> None:
    """The publishing process: for each number received as an order, send this number of messages, one per interval."""
    transport = TRANSPORTS[name]
    sender = transport.sender(address)
    orders.send("ready")
    pin(0, is_pinned=transport.is_pinned)
    while count := orders.recv():
        due = now()
        for _ in range(count):
            due += interval_ns
            while now() < due:
                if not transport.is_pinned:
                    os.sched_yield()
            sender.send()
    sender.close()
