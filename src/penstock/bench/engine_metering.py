"""The metered class: how the timing wheel's insertion grows with the pairs on it, and how exactly a rate is kept."""

import statistics
import time
from collections.abc import Iterator

import numpy

from penstock.base.clock import SystemRandomness
from penstock.bench.harness import Result, result
from penstock.engine import DistributionEngine, EngineConfig, MeteringLimits, SessionBuffer, TimingWheel
from penstock.engine.events import Attach, Sinks, Subscribe
from penstock.model import shipped

PAIRS_SMALL, PAIRS_LARGE = 1_000, 100_000
ROUNDS = 60
CONSUMERS, ITEMS = 100, 100
PER_SECOND = 4.0
UPDATES_PER_S = 20
SECONDS = 5.0
BUFFER_BYTES = 1 << 20
MS = 1_000_000
SEED = 7


def run() -> Iterator[Result]:
    small_ns, large_ns = _insertions_ns()
    yield result(
        "engine",
        "wheel_growth",
        large_ns / small_ns,
        "ratio",
        against=f"one insertion with {PAIRS_SMALL} pairs on the wheel: {small_ns:.1f} ns",
        against_value=1,
        conditions=f"{PAIRS_LARGE} pairs: {large_ns:.1f} ns; pairs at random, due within 250 ms; one core",
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


class _Wheel:
    """A wheel that all its pairs are put on, again and again."""

    def __init__(self, pairs: int) -> None:
        self.wheel, self.random = TimingWheel(pairs), numpy.random.default_rng(SEED)
        self.now_ns = 1_000 * MS
        self.found: list[float] = []

    def fill(self, times: int) -> None:
        pairs = self.wheel.entries_max
        for _ in range(times):
            order = self.random.permutation(pairs).astype(numpy.uint32)
            dues_ns = self.now_ns + self.random.integers(1, 250 * MS, pairs)
            started_ns = time.perf_counter_ns()
            self.wheel.insert_many(order, dues_ns, self.now_ns)
            self.found.append((time.perf_counter_ns() - started_ns) / pairs)
            self.now_ns += 300 * MS
            while self.wheel.expire(self.now_ns):
                pass


def _insertions_ns() -> tuple[float, float]:
    """Medians, taken in turns."""
    small, large = _Wheel(PAIRS_SMALL), _Wheel(PAIRS_LARGE)
    for _ in range(ROUNDS):
        small.fill(PAIRS_LARGE // PAIRS_SMALL)
        large.fill(1)
    return statistics.median(small.found), statistics.median(large.found)


def _rate_error() -> tuple[float, int]:
    """Of all pairs together, in real time; they begin spread over an interval, so that no edge counts for many."""
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
                engine.publish(topics[engine.kernel.number % ITEMS].encode(), quote, record, now_ns)
            engine.serve(now_ns)
            for number in engine.take_ready():
                buffers[number].take()

    for consumer in range(CONSUMERS):
        engine.handle(Subscribe(consumer, 1, topics, "metered", PER_SECOND), time.monotonic_ns())
        work_until(time.monotonic_ns() + round(250 * MS / CONSUMERS))
    work_until(time.monotonic_ns() + 500 * MS)
    before, started_ns = _sent(engine), time.monotonic_ns()
    work_until(started_ns + round(SECONDS * 1_000 * MS))
    sent = _sent(engine) - before
    expected = CONSUMERS * ITEMS * PER_SECOND * (time.monotonic_ns() - started_ns) / (1_000 * MS)
    return abs(sent / expected - 1), sent


def _sent(engine: DistributionEngine) -> int:
    return sum(record.classes["metered"].sent for record in engine.records())
