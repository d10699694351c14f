"""The distribution engine's adaptive and metered classes, regions, and how classes share the output."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import LimitError, LocalProtocolError
from penstock.engine import (
    EVENT_SIZE_MAX,
    ClassMap,
    DistributionEngine,
    Event,
    EventKind,
    MeteringLimits,
    SessionBuffer,
    read_events,
)
from penstock.engine.config import Weights
from penstock.engine.core.events import (
    Attach,
    ChangeClasses,
    Detach,
    EngineInstruction,
    LearnModel,
    Modify,
    OpenRegion,
    Overrun,
    RegionOpened,
    RegionTooLarge,
    Removed,
    Signals,
    Sinks,
    Subscribe,
    Tick,
    Unsubscribe,
)
from penstock.engine.core.kernel._region_sink import RegionSink
from penstock.engine.core.signals import Readings, SignalThresholds, Threshold
from penstock.model import MessageModel, shipped
from penstock.shm import RegionMarks, RegionReader, RegionWriter, RingReader, RingWriter
from unit.engine_kit import NOW, QUOTE, TRADE, buffer_consumer, drain, engine, record, ring_consumer, told

DEFINE, REFRESH, UPDATE = EventKind.DEFINE, EventKind.REFRESH, EventKind.UPDATE
LIVE, NOTICE, REMOVE = EventKind.LIVE, EventKind.NOTICE, EventKind.REMOVE
BAR = shipped("bar")
ALL = ("critical", "adaptive", "metered")


@dataclass
class RecordsConsumer:
    """A consumer with a ring, a ring of notices, and regions that are created on request."""

    core: DistributionEngine
    number: int
    events: RingReader
    notices: RingReader
    regions: dict[int, tuple[RegionWriter, RegionMarks | None]]
    readers: dict[int, RegionReader]
    has_marks: bool = True

    def carry_out(self, answers: list[EngineInstruction]) -> list[OpenRegion]:
        opened = [each for each in answers if isinstance(each, OpenRegion) and each.consumer == self.number]
        for each in opened:
            writer = RegionWriter.create(each.record_count, [part.size for part in each.model.parts])
            marks = RegionMarks.create(each.record_count) if self.has_marks else None
            self.close_region(each.model.id)
            self.regions[each.model.id] = (writer, marks)
            self.readers[each.model.id] = RegionReader(writer.segment, each.model)
            sink = RegionSink(writer, marks)
            opened += self.carry_out(self.core.handle(RegionOpened(self.number, each.model.id, sink), NOW))
        return opened

    def subscribe(self, number: int, *topics: str, cls: str = "adaptive") -> list[OpenRegion]:
        return self.carry_out(self.core.handle(Subscribe(self.number, number, topics, cls), NOW))  # type: ignore[arg-type]

    def settle(self) -> list[Event]:
        """All notices that are waiting."""
        found = drain(self.notices)
        while (deadline := self.core.next_deadline_ns()) is not None:
            self.carry_out(self.core.handle(Tick(), deadline))
            found += drain(self.notices)
        return found

    def mark(self, model: MessageModel, slot: int, generation: int) -> None:
        marks = self.regions[model.id][1]
        assert marks is not None
        with mmap.mmap(marks.segment.fds[0], 8 * marks.record_count) as memory:
            memory[8 * slot : 8 * slot + 8] = generation.to_bytes(8, "little")

    def value(self, slot: int) -> int:
        """The arguments that record() got for the quote in this slot."""
        found = self.readers[QUOTE.id].read(slot)
        assert found is not None
        return int.from_bytes(found.payload[:8], "little")

    def close_region(self, model_id: int) -> None:
        if model_id in self.regions:
            self.readers.pop(model_id).close()
            writer, marks = self.regions.pop(model_id)
            writer.close()
            if marks is not None:
                marks.close()


@contextmanager
def records_consumer(core: DistributionEngine, number: int, *, has_marks: bool = True) -> Iterator[RecordsConsumer]:
    with (
        RingWriter.create(1 << 20, EVENT_SIZE_MAX) as ring,
        RingWriter.create(1 << 14, 512) as notices,
        RingReader(ring.segment) as events_reader,
        RingReader(notices.segment) as notices_reader,
    ):
        core.handle(Attach(number, f"records-{number}", Sinks(ring=ring, notices=notices)), NOW)
        consumer = RecordsConsumer(core, number, events_reader, notices_reader, {}, {}, has_marks)
        try:
            yield consumer
        finally:
            core.handle(Detach(number), NOW)
            for model_id in list(consumer.regions):
                consumer.close_region(model_id)


def bar(**values: int) -> bytes:
    return bytes(BAR.new(**values))


# Adaptive


@pytest.mark.spec("ADPT-1")
@pytest.mark.spec("ADPT-2")
def test_under_congestion_the_newest_value_wins_and_queues_stay_bounded() -> None:
    core = engine(budget_bytes=0)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.*"], "adaptive"), NOW)
    for value in range(100):
        core.publish(b"md.%d" % (value % 3), QUOTE, record(value), NOW)
    assert core.record(0).pending == 3
    core.serve(NOW)
    events = read_events(buffer.take())
    assert [value for kind, value in told(events) if kind == UPDATE] == [99, 97, 98]
    assert [event.merged for event in events if event.kind == UPDATE] == [34, 33, 33]
    assert core.record(0).classes["adaptive"].conflated == 97
    core.publish(b"md.1", QUOTE, record(500), NOW)
    core.serve(NOW)
    assert told(read_events(buffer.take())) == [(UPDATE, 500)]


@pytest.mark.spec("ADPT-2")
def test_a_failed_write_stays_pending_and_other_consumers_are_served() -> None:
    core = engine()
    slow, _ = buffer_consumer(core, 0, capacity=40_000)
    fast, _ = buffer_consumer(core, 1)
    for consumer in (0, 1):
        core.handle(Subscribe(consumer, 1, ["md.>"], "adaptive"), NOW)
    taken: list[int] = []
    for value in range(1_000):
        core.publish(b"md.%d" % (value % 10), QUOTE, record(value), NOW)
        taken += [each for kind, each in told(read_events(fast.take())) if kind == UPDATE]
    assert core.record(0).pending == 10
    assert core.record(0).classes["adaptive"].congested >= 1
    assert taken == list(range(1_000))
    assert len(slow) < 20_000  # more would only become stale there
    slow.take()
    core.serve(NOW)
    assert sorted(value for _, value in told(read_events(slow.take()))) == list(range(990, 1_000))
    assert core.record(0).pending == 0


def test_a_record_read_once_is_written_for_all_waiting_consumers() -> None:
    core = engine(serves_all_pending=True, budget_bytes=0)
    buffers = [buffer_consumer(core, number)[0] for number in range(3)]
    for number in range(3):
        core.handle(Subscribe(number, 1, ["md.a"], "adaptive"), NOW)
    core.publish(b"md.a", QUOTE, record(1), NOW)
    core.serve(NOW, 1)
    assert [told(read_events(buffer.take()))[-1] for buffer in buffers] == [(UPDATE, 1)] * 3
    core.publish(b"md.a", QUOTE, record(2), NOW)
    core.serve(NOW)
    assert [told(read_events(buffer.take())) for buffer in buffers] == [[(UPDATE, 2)]] * 3


def test_high_low_and_volume_are_correct_across_conflation() -> None:
    core = engine(budget_bytes=0)
    core.handle(LearnModel(BAR), NOW)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["bars.a"], "adaptive"), NOW)
    for high, low, volume in ((10, 5, 1), (30, 9, 2), (20, 2, 4)):
        core.publish(b"bars.a", BAR, bar(open=high, high=high, low=low, close=low, volume=volume), NOW)
    core.serve(NOW)
    event = read_events(buffer.take())[-1]
    got = BAR.view(event.body)
    assert (event.merged, got.open, got.high, got.low, got.close, got.volume) == (3, 10, 30, 2, 2, 7)


@pytest.mark.spec("ADPT-1")
@pytest.mark.spec("ADPT-5")
def test_records_are_written_in_place_and_notified() -> None:
    core = engine()
    core.publish(b"md.a", QUOTE, record(1), NOW, started_ns=7)
    with records_consumer(core, 0) as consumer:
        (asked,) = consumer.subscribe(1, "md.*")
        assert (asked.model, asked.record_count) == (QUOTE, 64)
        core.publish(b"md.a", QUOTE, record(2), NOW, started_ns=8)
        core.publish(b"md.b", QUOTE, record(3), NOW)
        notices = drain(consumer.notices)
        assert [event.kind for event in notices] == [DEFINE, NOTICE, LIVE, NOTICE, DEFINE, NOTICE]
        first, second = notices[0], notices[4]
        assert (first.topic, second.topic) == (b"md.a", b"md.b")
        reader = consumer.readers[QUOTE.id]
        found = reader.read(first.slot)
        assert found is not None
        assert (found.payload, found.started_ns, found.update_count) == (record(2), 8, 2)
        other = reader.read(second.slot)
        assert other is not None
        assert other.payload == record(3)
        assert [event.kind for event in drain(consumer.events)] == [LIVE]
        assert core.record(0).memory == ("ring", "notices", "region quote 64")


def test_only_changed_parts_are_written() -> None:
    core = engine()
    with records_consumer(core, 0) as consumer:
        core.publish(b"md.a", QUOTE, record(1), NOW)
        consumer.subscribe(1, "md.a")
        last = QUOTE.parts[-1]
        for value in (2, 2, 3):
            changed = record(1)[: last.offset] + record(value)[last.offset :]
            core.publish(b"md.a", QUOTE, changed, NOW)
            found = consumer.readers[QUOTE.id].read(0)
            assert found is not None
            assert found.payload == changed
            consumer.mark(QUOTE, 0, 2 * found.update_count)
        assert found.part_update_counts == (1, 1, 4)


def test_updates_that_a_reader_has_not_read_are_merged_into_the_next_one() -> None:
    core = engine()
    core.handle(LearnModel(BAR), NOW)
    with records_consumer(core, 0) as consumer:
        core.publish(b"bars.a", BAR, bar(volume=1, high=5), NOW)
        consumer.subscribe(1, "bars.a")

        def read() -> tuple[int, int, int]:
            found = consumer.readers[BAR.id].read(0)
            assert found is not None
            got = found.message
            return found.merged, got.volume, got.high

        core.publish(b"bars.a", BAR, bar(volume=2, high=9), NOW)
        core.publish(b"bars.a", BAR, bar(volume=4, high=7), NOW)
        assert read() == (2, 6, 9)
        consumer.mark(BAR, 0, 2 * 3)
        core.publish(b"bars.a", BAR, bar(volume=8, high=1), NOW)
        assert read() == (1, 8, 1)
        consumer.mark(BAR, 0, 2 * 2)
        core.publish(b"bars.a", BAR, bar(volume=16, high=2), NOW)
        assert read() == (2, 24, 2)
        for mark in (2**64 - 1, 0, 1):  # a hostile value affects only the reader's own records
            consumer.mark(BAR, 0, mark)
            core.publish(b"bars.a", BAR, bar(volume=1, high=1), NOW)


def test_a_full_region_is_replaced_by_a_larger_one() -> None:
    core = engine(region_records_max=128)
    with records_consumer(core, 0) as consumer:
        assert consumer.subscribe(1, "md.*") == []
        for value in range(64):
            core.publish(b"md.%d" % value, QUOTE, record(value), NOW)
        assert [each.record_count for each in consumer.carry_out(core.take())] == [64]
        slots = {event.topic: event.slot for event in consumer.settle() if event.kind == DEFINE}
        core.publish(b"md.64", QUOTE, record(64), NOW)
        assert [each.record_count for each in consumer.carry_out(core.take())] == [128]
        slots |= {event.topic: event.slot for event in consumer.settle() if event.kind == DEFINE}
        assert [consumer.value(slots[b"md.%d" % value]) for value in range(65)] == list(range(65))
        for value in range(65, 140):
            core.publish(b"md.%d" % value, QUOTE, record(value), NOW)
        assert core.take() == [RegionTooLarge(0, 140)]
        assert core.counters["requests_refused"] > 0
    with records_consumer(core, 1) as consumer, pytest.raises(LimitError, match="region_records_max"):
        consumer.subscribe(1, "md.*")


@pytest.mark.spec("ADPT-3")
def test_offsets_are_common_or_per_consumer() -> None:
    for offsets in ("common", "own"):
        core = engine(offsets=offsets)
        for value in range(100):
            core.publish(b"md.%d" % value, QUOTE, record(value), NOW)
        with records_consumer(core, 0) as first, records_consumer(core, 1) as second:
            counts = [each.record_count for each in first.subscribe(1, "md.*") + second.subscribe(1, "md.0", "md.1")]
            slots = []
            for consumer in (first, second):
                defined = {event.topic: event.slot for event in consumer.settle() if event.kind == DEFINE}
                slots.append(defined)
                assert all(consumer.value(slot) == int(topic[3:]) for topic, slot in defined.items())
            assert len(slots[0]) == 100
            is_same = slots[0][b"md.0"] == slots[1][b"md.0"]
            assert (counts, is_same) == (([128, 128], True) if offsets == "common" else ([128, 64], False))


def test_a_slot_is_reused() -> None:
    core = engine(offsets="own", keeps="wanted")
    with records_consumer(core, 0) as consumer:
        for turn in range(100):
            consumer.subscribe(turn, f"md.{turn}")
            core.publish(b"md.%d" % turn, QUOTE, record(turn), NOW)
            consumer.carry_out(core.take())
            (slot,) = {event.slot for event in drain(consumer.notices) if event.kind == DEFINE}
            assert (slot, consumer.value(slot)) == (0, turn)
            core.handle(Unsubscribe(0, turn), NOW)


@pytest.mark.spec("ADPT-3")
def test_consumers_share_a_region_that_is_written_once() -> None:
    core = engine()
    core.publish(b"md.a", QUOTE, record(1), NOW)
    with RegionWriter.create(64, [part.size for part in QUOTE.parts]) as writer, RegionReader(writer.segment) as reader:
        sink = RegionSink(writer, is_shared=True)
        with records_consumer(core, 0) as first, records_consumer(core, 1) as second:
            for consumer in (first, second):
                core.handle(Subscribe(consumer.number, 1, ["md.a"], "adaptive"), NOW)
                core.handle(RegionOpened(consumer.number, QUOTE.id, sink), NOW)
            core.publish(b"md.a", QUOTE, record(2), NOW)
            found = reader.read(0)
            assert found is not None
            assert (found.payload, found.update_count) == (record(2), 2)
            for consumer in (first, second):
                assert [event.kind for event in drain(consumer.notices)] == [DEFINE, NOTICE, LIVE, NOTICE]
    with pytest.raises(LocalProtocolError), RegionWriter.create(64, [8]) as writer, RegionMarks.create(8) as marks:
        RegionSink(writer, marks)


def test_an_overrun_ring_of_notices_names_all_records() -> None:
    core = engine()
    with records_consumer(core, 0) as consumer:
        consumer.subscribe(1, "md.*")
        for value in range(1_000):
            core.publish(b"md.%d" % (value % 4), QUOTE, record(value), NOW)
            consumer.carry_out(core.take())
        core.handle(Overrun(0, 0, "notices"), NOW)
        assert consumer.notices.restart()
        notices = drain(consumer.notices)
        assert sorted(event.topic for event in notices if event.kind == DEFINE) == [b"md.%d" % n for n in range(4)]
        assert [event.kind for event in notices].count(NOTICE) == 4
        assert [consumer.value(slot) for slot in range(4)] == list(range(996, 1_000))
        assert notices[-1].kind == LIVE  # the previous notice may have been lost


def test_a_removed_item_is_reported() -> None:
    core = engine()
    with records_consumer(core, 0) as consumer, ring_consumer(core, 1, "md.a") as reader:
        consumer.subscribe(1, "md.a")
        core.publish(b"md.a", QUOTE, record(1), NOW)
        consumer.carry_out(core.take())
        drain(consumer.notices)
        drain(reader)
        core.handle(Removed(b"md.a", QUOTE.id), NOW)
        assert [event.kind for event in drain(consumer.notices)] == [REMOVE]
        assert [event.kind for event in drain(reader)] == [REMOVE]
        core.publish(b"md.a", QUOTE, record(2), NOW)
        assert [event.kind for event in drain(reader)] == [DEFINE, UPDATE]


# Metered


def metered(**settings: float) -> DistributionEngine:
    return engine(classes=ALL, limits=MeteringLimits(**settings))  # type: ignore[arg-type]


@pytest.mark.spec("METR-1")
@pytest.mark.spec("METR-4")
def test_the_rate_is_never_exceeded_and_the_last_value_always_arrives() -> None:
    core = metered()
    core.publish(b"md.a", QUOTE, record(0), NOW)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a"], "metered", per_second=4), NOW)
    now, sent = NOW, []
    for value in range(1, 2_001):
        now = NOW + value * NS_PER_MS
        core.publish(b"md.a", QUOTE, record(value), now)
        core.serve(now)
        sent += [(now, each) for each in told(read_events(buffer.take()))]
    while (deadline := core.next_deadline_ns()) is not None and len(sent) < 100:
        core.handle(Tick(), deadline)
        sent += [(deadline, each) for each in told(read_events(buffer.take()))]
    updates = [(at, value) for at, (kind, value) in sent if kind == UPDATE]
    assert 8 <= len(updates) <= 9
    assert updates[-1][1] == 2_000
    assert all(later - earlier >= 249 * NS_PER_MS for (earlier, _), (later, _) in pairwise(updates))
    assert core.record(0).classes["metered"].conflated == 2_000 - len(updates)


@pytest.mark.spec("METR-1", "MDE-3")
def test_a_limited_output_waits_for_the_nodes_rate() -> None:
    core = engine(classes=ALL, limits=MeteringLimits(node_per_second=1), budget_bytes=3_000)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a", "md.b"], "metered", per_second=100), NOW)
    for topic in (b"md.a", b"md.b"):
        core.publish(topic, QUOTE, record(1), NOW)
    assert core.next_deadline_ns() == NOW + NS_PER_SECOND
    core.handle(Tick(), NOW + NS_PER_SECOND)
    assert [kind for kind, _ in told(read_events(buffer.take()))].count(UPDATE) == 2
    assert core.next_deadline_ns() is None


@pytest.mark.spec("METR-1")
def test_a_consumer_whose_rate_allows_an_update_within_a_wheel_slot_has_one_turn() -> None:
    core = engine(classes=ALL, limits=MeteringLimits(consumer_per_second=700))
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.*"], "metered", per_second=100), NOW)
    events = []
    for step in range(200):
        now = NOW + step * 130_000
        core.publish(b"md.%d" % step, QUOTE, record(step), now)
        core.handle(Tick(), now)
        events += read_events(buffer.take())
    while (deadline := core.next_deadline_ns()) is not None:
        core.handle(Tick(), deadline)
        events += read_events(buffer.take())
    assert sorted(value for kind, value in told(events) if kind == UPDATE) == list(range(200))


@pytest.mark.spec("METR-3")
def test_the_strictest_rate_applies_and_can_be_changed() -> None:
    core = metered(per_second_max=10, models={"quote": 2})  # type: ignore[arg-type]
    core.publish(b"md.a", QUOTE, record(0), NOW)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a"], "metered", per_second=100), NOW)

    def count(begin_ns: int) -> int:
        for step in range(1_000):
            core.publish(b"md.a", QUOTE, record(step), begin_ns + step * NS_PER_MS)
            core.serve(begin_ns + step * NS_PER_MS)
        return sum(kind == UPDATE for kind, _ in told(read_events(buffer.take())))

    assert count(NOW) == 1
    core.handle(Modify(0, 1, 1), NOW + NS_PER_SECOND)
    assert count(NOW + NS_PER_SECOND) in (0, 1)


def test_trades_are_never_metered_or_adaptive() -> None:
    core = metered()
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a"], "metered", per_second=1), NOW)
    core.handle(Subscribe(0, 2, ["md.b"], "adaptive"), NOW)
    for value in range(10):
        core.publish(b"md.a", TRADE, record(value, TRADE), NOW)
        core.publish(b"md.b", TRADE, record(value, TRADE), NOW)
    assert [value for kind, value in told(read_events(buffer.take())) if kind == UPDATE] == sorted(2 * [*range(10)])


# Classes


RULES = ClassMap.parse(
    """
    default = "critical"
    [[rule]]
    class = "adaptive"
    models = ["quote"]
    where = "bid_size < 100"
    """
)


def quote(bid_size: int, ask_size: int = 0) -> bytes:
    return bytes(QUOTE.new(bid_size=bid_size, ask_size=ask_size))


@pytest.mark.spec("MDE-1")
def test_the_class_of_each_record_decides() -> None:
    core = engine(budget_bytes=0, rules=RULES)
    buffer, _ = buffer_consumer(core, 0, "md.a")
    for size in (500, 1, 2, 600, 3):
        core.publish(b"md.a", QUOTE, quote(size), NOW)
    core.serve(NOW)
    events = [event for event in read_events(buffer.take()) if event.kind == UPDATE]
    got = [(event.cls, QUOTE.view(event.body).bid_size, event.merged) for event in events]
    # the waiting update is delivered with the critical update that follows it
    assert got == [(1, 500, 1), (1, 600, 3), (2, 3, 1)]


@pytest.mark.spec("MDE-1")
def test_rules_can_be_changed_at_run_time_without_loss() -> None:
    core = engine(budget_bytes=0)
    buffer, _ = buffer_consumer(core, 0, "md.a")
    core.publish(b"md.a", QUOTE, record(1), NOW)
    core.handle(ChangeClasses(ClassMap(default="adaptive")), NOW)
    core.publish(b"md.a", QUOTE, record(2), NOW)
    core.publish(b"md.a", QUOTE, record(3), NOW)
    core.serve(NOW)
    core.publish(b"md.a", QUOTE, record(4), NOW)
    core.handle(ChangeClasses(ClassMap(default="critical")), NOW)
    core.publish(b"md.a", QUOTE, record(5), NOW)
    core.publish(b"md.a", QUOTE, record(6), NOW)
    core.serve(NOW)
    got = [each for each in told(read_events(buffer.take())) if each[0] in (REFRESH, UPDATE)]
    assert got == [(UPDATE, 1), (UPDATE, 3), (UPDATE, 4), (UPDATE, 5), (UPDATE, 6)]


@pytest.mark.spec("MDE-1")
def test_signals_change_the_class_of_items_that_may_be_conflated() -> None:
    core = engine(budget_bytes=0, signals=SignalThresholds(load=Threshold(relieve=0.9, restore=0.5), hold_seconds=0))
    buffer, _ = buffer_consumer(core, 0, "md.*")
    core.publish(b"md.q", QUOTE, record(1), NOW)
    core.publish(b"md.t", TRADE, record(1, TRADE), NOW)
    core.handle(Signals(Readings(load=0.95)), NOW)
    buffer.take()
    for value in (2, 3):
        core.publish(b"md.q", QUOTE, record(value), NOW)
        core.publish(b"md.t", TRADE, record(10 + value, TRADE), NOW)
    core.serve(NOW)
    assert told(read_events(buffer.take())) == [(UPDATE, 12), (UPDATE, 13), (UPDATE, 3)]
    core.handle(Signals(Readings(load=0.1)), NOW + 1)
    core.handle(Signals(Readings(load=0.1)), NOW + 2)
    for value in (4, 5):
        core.publish(b"md.q", QUOTE, record(value), NOW)
    core.serve(NOW)
    assert told(read_events(buffer.take())) == [(UPDATE, 4), (UPDATE, 5)]


@pytest.mark.spec("MDE-4")
def test_a_class_that_is_not_available_is_replaced_or_refused() -> None:
    core = engine(classes=("critical",), rules=ClassMap(default="adaptive"), budget_bytes=0)
    buffer, _ = buffer_consumer(core, 0, "md.a")
    core.publish(b"md.a", QUOTE, record(1), NOW)
    core.publish(b"md.a", QUOTE, record(2), NOW)
    core.serve(NOW)
    assert told(read_events(buffer.take()))[2:] == [(UPDATE, 1), (UPDATE, 2)]
    with pytest.raises(LocalProtocolError, match="does not serve"):
        core.handle(Subscribe(0, 2, ["md.a"], "adaptive"), NOW)


@pytest.mark.spec("MDE-3")
@pytest.mark.parametrize("weights", [(1, 1, 1), (8, 4, 2), (1, 5, 10)])
def test_under_saturation_the_classes_share_the_output_by_weight(weights: tuple[int, int, int]) -> None:
    shares = Weights(critical=weights[0], adaptive=weights[1], metered=weights[2])
    core = engine(classes=ALL, budget_bytes=0, weights=shares, history_bytes=1 << 22)
    buffers = []
    for number, cls in enumerate(ALL):
        buffers.append(buffer_consumer(core, number, capacity=1 << 22)[0])
        core.handle(Subscribe(number, 1, [f"{cls}.*"], cls, per_second=1_000), NOW)  # type: ignore[arg-type]
    sizes, now = [0, 0, 0], NOW
    for _ in range(400):
        now += 2 * NS_PER_MS
        for item in range(30):
            for cls in ALL:
                core.publish(f"{cls}.{item}".encode(), QUOTE, record(item), now)
        core.serve(now, 3_000)
        for number, buffer in enumerate(buffers):
            sizes[number] += sum(len(event.body) + 48 for event in read_events(buffer.take()) if event.kind == UPDATE)
    for size, weight in zip(sizes, weights, strict=True):
        assert abs(size / sum(sizes) - weight / sum(weights)) <= 0.02


@pytest.mark.spec("CRIT-4")
def test_a_reconnected_consumer_gets_the_missed_updates() -> None:
    core = engine()
    buffer, _ = buffer_consumer(core, 0, "md.a", "md.b")
    core.publish(b"md.a", QUOTE, record(1), NOW)
    last = read_events(buffer.take())[-1].number
    core.handle(Detach(0), NOW)
    for value in (2, 3, 4):
        core.publish((b"md.a", b"md.b")[value % 2], QUOTE, record(value), NOW)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a", "md.b"], after=last), NOW)
    core.publish(b"md.a", QUOTE, record(5), NOW)
    got = [value for kind, value in told(read_events(buffer.take())) if kind == UPDATE]
    assert got == [2, 3, 4, 5]


def limited_bars(then: ClassMap) -> tuple[DistributionEngine, SessionBuffer, list[Event]]:
    """Five metered items, four of which wait for the node's rate, when the rules change."""
    rules = ClassMap.parse('default = "adaptive"\n[[rule]]\nclass = "metered"\nmodels = ["bar"]\nwhere = "volume > 0"')
    core = engine(classes=ALL, rules=rules, limits=MeteringLimits(per_second_max=100, node_per_second=10))
    core.handle(LearnModel(BAR), NOW)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["bars.*"]), NOW)
    for high in (5, 9, 3):
        for number in range(5):
            core.publish(b"bars.%d" % number, BAR, bar(high=high, volume=1), NOW)
    assert [event.merged for event in read_events(buffer.take()) if event.kind == UPDATE] == [1]
    core.handle(ChangeClasses(then), NOW)
    return core, buffer, [event for event in read_events(buffer.take()) if event.kind != DEFINE]


@pytest.mark.spec("METR-1", "MDE-2", "MDE-3")
def test_withheld_values_wait_for_the_rate_if_their_items_stay_metered_when_rules_change() -> None:
    then = ClassMap.parse('default = "critical"\n[[rule]]\nclass = "metered"\nmodels = ["bar"]\nwhere = "volume > 9"')
    core, buffer, events = limited_bars(then)
    assert events == []
    times = []
    while (deadline := core.next_deadline_ns()) is not None:
        core.handle(Tick(), deadline)
        for event in read_events(buffer.take()):
            if event.kind == UPDATE:
                times.append(deadline)
                assert BAR.view(event.body).high == 9
    assert times == [NOW + number * NS_PER_SECOND // 10 for number in range(1, 6)]


@pytest.mark.spec("METR-1", "MDE-3")
def test_refreshes_replace_withheld_values_whose_rate_is_used_up_when_rules_change() -> None:
    core, _, events = limited_bars(ClassMap(default="critical"))
    assert [(event.kind, BAR.view(event.body).high) for event in events] == [(REFRESH, 3)] * 5
    assert core.next_deadline_ns() is None
