"""Metered pairs, driven as a node drives them: the rate is never exceeded, and the last value is always sent."""

from bisect import bisect_right
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import LocalProtocolError
from penstock.engine.core.kernel._metering import Metering, MeterState
from penstock.engine.core.kernel._pairs import Pairs
from penstock.engine.core.kernel._wheel import SLOT_NS

CONSUMERS, ITEMS = 3, 4
PAIRS = CONSUMERS * ITEMS
MS = 1_000_000

intervals_ns = st.sampled_from([MS, 3 * MS, 7_333_333, 50 * MS, 1_000 * MS])
consumer_intervals_ns = st.sampled_from([0, 0, MS // 5, 2 * MS, 20 * MS])
steps = st.lists(
    st.tuples(st.sampled_from(["update", "update", "flow", "subscribe", "unsubscribe"]), st.integers(0, PAIRS - 1))
    | st.tuples(st.sampled_from(["stop", "resume"]), st.integers(0, CONSUMERS - 1))
    | st.tuples(st.just("wait"), st.sampled_from([0, 1, 300_000, MS, 5 * MS, 77 * MS, 3_000 * MS])),
    min_size=1,
    max_size=60,
)


class Driver:
    """A node: items with a current value, consumers whose sinks may be full, and a meter between them."""

    def __init__(self, intervals: list[int], consumers: list[int], node_interval_ns: int, late_ns: int) -> None:
        self.metering = Metering(Pairs(PAIRS, CONSUMERS, 0), CONSUMERS, node_interval_ns)
        self.now_ns = 10**18 + 7
        self.late_ns = late_ns
        self.intervals = intervals
        self.consumers = consumers
        self.values = [0] * ITEMS
        self.subscribed: set[int] = set()
        self.stopped: set[int] = set()
        self.sent: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for consumer, interval_ns in enumerate(consumers):
            self.metering.limit(consumer, interval_ns, self.now_ns)

    def subscribe(self, pair: int) -> None:
        if pair in self.subscribed:
            return
        self.subscribed.add(pair)
        self.sent[pair] = []
        self.metering.subscribe(pair, pair % CONSUMERS, self.intervals[pair])
        assert not self.metering.owe(pair, self.now_ns), "the refresh includes all earlier updates"
        self.metering.refreshed(pair, self.now_ns)
        self.sent[pair].append((self.now_ns, self.values[pair // CONSUMERS]))

    def unsubscribe(self, pair: int) -> None:
        self.subscribed.discard(pair)
        self.metering.unsubscribe(pair)

    def update(self, item: int) -> None:
        self.values[item] += 1
        for pair in range(item * CONSUMERS, (item + 1) * CONSUMERS):
            assert self.metering.owe(pair, self.now_ns) == (pair in self.subscribed)
        self.serve()

    def flow(self, count: int) -> None:
        for step in range(4 * count):
            self.update(step % ITEMS)
            self.wait(MS // 2)

    def stop(self, consumer: int) -> None:
        self.stopped.add(consumer)

    def serve(self) -> None:
        while (pair := self.metering.take(self.now_ns)) is not None:
            assert pair in self.subscribed
            is_sent = pair % CONSUMERS not in self.stopped
            if is_sent:
                self.sent[pair].append((self.now_ns, self.values[pair // CONSUMERS]))
            self.metering.give_back(pair, self.now_ns, is_sent)

    def wait(self, span_ns: int) -> None:
        """The node wakes at the meter's deadline, or a little later."""
        end_ns = self.now_ns + span_ns
        while (due_ns := self.metering.next_due_ns(self.now_ns)) is not None and due_ns <= end_ns:
            self.now_ns = min(end_ns, max(due_ns, self.now_ns) + self.late_ns)
            self.serve()
            if self.now_ns == end_ns:
                break
        self.now_ns = max(self.now_ns, end_ns)

    def resume(self, consumer: int) -> None:
        self.stopped.discard(consumer)
        self.metering.go_on(consumer, self.now_ns)
        self.serve()


def assert_rate(times_ns: list[int], interval_ns: int) -> None:
    """Any k intervals hold at most k + 1 updates; intervals shorter than the wheel's slots may also catch up one slot's
    updates."""
    catch_up = 1 + (SLOT_NS // interval_ns if interval_ns < 2 * SLOT_NS else 0)
    for index, start_ns in enumerate(times_ns):
        for k in (1, 2, 5, 20):
            count = bisect_right(times_ns, start_ns + k * interval_ns - 1) - index
            assert count <= k + catch_up, f"{count} in {k} intervals of {interval_ns} ns"


@pytest.mark.spec("METR-1", "METR-4")
@settings(max_examples=200, deadline=None)
@given(
    steps=steps,
    intervals=st.lists(intervals_ns, min_size=PAIRS, max_size=PAIRS),
    consumers=st.lists(consumer_intervals_ns, min_size=CONSUMERS, max_size=CONSUMERS),
    node_interval_ns=consumer_intervals_ns,
    late_ns=st.sampled_from([0, 100, 400_000]),
)
def test_rates_hold_and_the_last_value_is_sent(
    steps: list[tuple[str, int]], intervals: list[int], consumers: list[int], node_interval_ns: int, late_ns: int
) -> None:
    driver = Driver(intervals, consumers, node_interval_ns, late_ns)
    for pair in range(0, PAIRS, 2):
        driver.subscribe(pair)
    for what, argument in steps:
        getattr(driver, what)(argument % ITEMS if what == "update" else argument)
    for consumer in range(CONSUMERS):
        driver.resume(consumer)
    driver.wait(20_000 * MS)

    for pair in driver.subscribed:
        times_ns, values = zip(*driver.sent[pair], strict=True)
        assert values[-1] == driver.values[pair // CONSUMERS], f"pair {pair} was not sent the last value"
        assert len(set(values)) == len(values), f"pair {pair} was sent a value twice"
        assert_rate(list(times_ns), intervals[pair])
    for consumer, interval_ns in enumerate(consumers):
        if interval_ns:  # refreshes are not metered
            own = [driver.sent[pair][1:] for pair in driver.subscribed if pair % CONSUMERS == consumer]
            assert_rate(sorted(time_ns for sent in own for time_ns, _ in sent), interval_ns)
    if node_interval_ns:
        everything = [time_ns for pair in driver.subscribed for time_ns, _ in driver.sent[pair][1:]]
        assert_rate(sorted(everything), node_interval_ns)

    for pair in list(driver.subscribed):
        driver.unsubscribe(pair)
    assert (driver.metering.metered, driver.metering.ready) == (0, 0)
    assert driver.metering.next_due_ns(driver.now_ns) is None
    assert {driver.metering.state(pair) for pair in range(PAIRS)} == {MeterState.METER_NONE}


@pytest.mark.spec("METR-4")
def test_a_busy_item_is_sent_at_its_rate_exactly() -> None:
    driver = Driver([7_333_333] * PAIRS, [0] * CONSUMERS, 0, 100_000)
    driver.subscribe(0)
    start_ns = driver.now_ns
    while driver.now_ns < start_ns + 5_000 * MS:
        driver.update(0)
        driver.wait(200_000)
    rate = (len(driver.sent[0]) - 1) / (driver.now_ns - start_ns)
    assert abs(rate * 7_333_333 - 1) < 0.003  # one interval in 682 is at the edge


@pytest.mark.spec("METR-2")
def test_consumers_take_turns_one_pair_each() -> None:
    metering = Metering(Pairs(200, 2, 0), 2)
    for pair in range(101):
        metering.subscribe(pair, int(pair == 100), MS)
        metering.refreshed(pair, 0)
    for pair in range(101):
        metering.owe(pair, 0)
    order = []
    while (pair := metering.take(10 * MS)) is not None:
        order.append(pair)
        metering.give_back(pair, 10 * MS, True)
    assert 100 in order[:2]
    assert len(order) == 101


def test_misuse_is_refused() -> None:
    metering = Metering(Pairs(4, 2, 0), 2)
    metering.subscribe(1, 1, MS)
    for call in (
        lambda: metering.subscribe(1, 1, MS),
        lambda: metering.subscribe(2, 1, 0),
        lambda: metering.subscribe(4, 1, MS),
        lambda: metering.subscribe(2, 2, MS),
        lambda: metering.refreshed(2, 0),
        lambda: metering.give_back(1, 0, True),
        lambda: metering.unsubscribe(4),
        lambda: metering.owe(4, 0),
        lambda: metering.go_on(2, 0),
        lambda: metering.limit(2, 0, 0),
    ):
        with pytest.raises(LocalProtocolError):
            call()
