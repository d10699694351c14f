"""The metered class: growth of the timing wheel's insertion cost with the number of pairs, and accuracy of the rate."""

import statistics
import time
from collections.abc import Iterator

from penstock.base.clock import SystemRandomness
from penstock.bench.harness import Result, result
from penstock.bench.transports import check
from penstock.engine import DistributionEngine, EngineConfig, MeteringLimits, SessionBuffer
from penstock.engine.core.events import Attach, Sinks, Subscribe
from penstock.model import shipped

PAIRS_SMALL, PAIRS_LARGE = 1_000, 100_000
ROUNDS = 20
CONSUMERS, ITEMS = 100, 100
PER_SECOND = 4.0
UPDATES_PER_S = 20
SECONDS = 5.0
BUFFER_BYTES = 1 << 20
MS = 1_000_000
STATISTICS = shipped("day_statistics")
RECORD = bytes(STATISTICS.new())


def run() -> Iterator[Result]:
    small_ns, large_ns = _insertions_ns()
    yield result(
        "engine",
        "wheel_growth",
        large_ns / small_ns,
        "ratio",
        against=f"a withheld update with {PAIRS_SMALL} pairs: {small_ns:.1f} ns per pair",
        against_value=1,
        conditions=f"{PAIRS_LARGE} pairs: {large_ns:.1f} ns per pair; updates of all items through the engine, each "
        f"withheld from {CONSUMERS} consumers that got an update a millisecond before; CPU time",
    )
    error, sent = _rate_error()
    yield result(
        "engine",
        "rate_error",
        error,
        "ratio",
        against=f"{PER_SECOND:g} updates per second and pair",
        against_value=1,
        conditions=f"{CONSUMERS} consumers of {ITEMS} items, each updated {UPDATES_PER_S} times per second; "
        f"{SECONDS:g} s, {sent} metered updates sent; one core",
    )


class _Stand:
    """A distribution engine with metered consumers and simulated time. The first update of an item is sent at once; the
    second one puts all its pairs on the wheel.
    """

    def __init__(self, items: int) -> None:
        self.found: list[float] = []
        self._pairs = CONSUMERS * items
        self._now_ns = 1_000 * MS
        self._topics = [f"md.{item}".encode() for item in range(items)]
        self._engine = DistributionEngine(
            EngineConfig(classes=("critical", "metered"), items_max=items, pairs_max=self._pairs),
            SystemRandomness(),
            models=[STATISTICS],
            limits=MeteringLimits(per_second_max=PER_SECOND),
        )
        self._buffers = [SessionBuffer(BUFFER_BYTES) for _ in range(CONSUMERS)]
        self._publish()
        for consumer, buffer in enumerate(self._buffers):
            self._engine.handle(Attach(consumer, f"consumer-{consumer}", Sinks(buffer=buffer)), self._now_ns)
            self._engine.handle(Subscribe(consumer, 1, ["md.>"], "metered", PER_SECOND), self._now_ns)
            empty(buffer)

    def insert(self, times: int) -> None:
        for _ in range(times):
            self._pass()
            self._publish()
            self._now_ns += MS
            started_ns = time.thread_time_ns()
            self._publish()
            self.found.append((time.thread_time_ns() - started_ns) / self._pairs)
            sent = self._engine.record(0).classes["metered"].sent
            self._pass()
            sent = self._engine.record(0).classes["metered"].sent - sent
            check(sent == len(self._topics), f"{sent} of {len(self._topics)} updates had been withheld")

    def _publish(self) -> None:
        for topic in self._topics:
            self._engine.publish(topic, STATISTICS, RECORD, self._now_ns)
        self._drain()

    def _pass(self) -> None:
        """Advance one second, in which all withheld updates are sent."""
        self._now_ns += 1_000 * MS
        self._engine.serve(self._now_ns)
        self._drain()

    def _drain(self) -> None:
        while ready := self._engine.take_ready():
            for number in ready:
                empty(self._buffers[number])
            self._engine.serve(self._now_ns)


def empty(buffer: SessionBuffer) -> None:
    while buffer.take():
        pass


def _insertions_ns() -> tuple[float, float]:
    """Return the medians, measured in turns."""
    small, large = (_Stand(pairs // CONSUMERS) for pairs in (PAIRS_SMALL, PAIRS_LARGE))
    for _ in range(ROUNDS):
        small.insert(PAIRS_LARGE // PAIRS_SMALL)
        large.insert(1)
    return statistics.median(small.found), statistics.median(large.found)


def _rate_error() -> tuple[float, int]:
    """Return the rate error over all pairs in real time; their starts are spread over an interval to reduce edge
    effects.
    """
    quote = shipped("quote")
    engine = DistributionEngine(
        EngineConfig(classes=("critical", "metered"), items_max=ITEMS, pairs_max=CONSUMERS * ITEMS),
        SystemRandomness(),
        models=[quote],
        limits=MeteringLimits(per_second_max=PER_SECOND),
    )
    buffers = [SessionBuffer(BUFFER_BYTES) for _ in range(CONSUMERS)]
    topics = [f"md.{item}" for item in range(ITEMS)]
    record = bytes(quote.new())
    for topic in topics:
        engine.publish(topic.encode(), quote, record, time.monotonic_ns())
    for consumer, buffer in enumerate(buffers):
        engine.handle(Attach(consumer, f"consumer-{consumer}", Sinks(buffer=buffer)), time.monotonic_ns())

    next_ns = time.monotonic_ns()

    def work_until(end_ns: int) -> None:
        nonlocal next_ns
        while (now_ns := time.monotonic_ns()) < end_ns:
            while next_ns <= now_ns:
                next_ns += 1_000 * MS // (UPDATES_PER_S * ITEMS)
                engine.publish(topics[engine.kernel.items.number % ITEMS].encode(), quote, record, now_ns)
            engine.serve(now_ns)
            for number in engine.take_ready():
                empty(buffers[number])

    for consumer in range(CONSUMERS):
        engine.handle(Subscribe(consumer, 1, topics, "metered", PER_SECOND), time.monotonic_ns())
        empty(buffers[consumer])
        work_until(time.monotonic_ns() + round(250 * MS / CONSUMERS))
    work_until(time.monotonic_ns() + 500 * MS)
    before, started_ns = _sent(engine), time.monotonic_ns()
    work_until(started_ns + round(SECONDS * 1_000 * MS))
    sent = _sent(engine) - before
    expected = CONSUMERS * ITEMS * PER_SECOND * (time.monotonic_ns() - started_ns) / (1_000 * MS)
    return abs(sent / expected - 1), sent


def _sent(engine: DistributionEngine) -> int:
    return sum(record.classes["metered"].sent for record in engine.records())
