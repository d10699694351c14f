"""The distribution engine: repair, replay and refresh deliver every update and no stale one."""

import pytest

from penstock.engine import ClassMap, EventKind, read_events
from penstock.engine.config import Weights
from penstock.engine.core.classes import ClassRule
from penstock.engine.core.events import ChangeClasses, Detach, Image, LearnModel, Overrun, Removed, Subscribe, Tick
from penstock.model import shipped
from unit.engine_kit import NOW, QUOTE, buffer_consumer, drain, engine, record, ring_consumer, told
from unit.test_engine_classes import bar, records_consumer

DEFINE, REFRESH, UPDATE = EventKind.DEFINE, EventKind.REFRESH, EventKind.UPDATE
RECEIPT, REMOVE = EventKind.RECEIPT, EventKind.REMOVE
BAR = shipped("bar")


ADAPTIVE = ClassMap(default="adaptive")


@pytest.mark.spec("CRIT-4")
def test_updates_before_a_refresh_are_replayed_too() -> None:
    """The updates were in the ring that was overrun, before the refresh."""
    core = engine()
    with ring_consumer(core, 0, "md.a") as reader:
        for value in (1, 2):
            core.publish(b"md.a", QUOTE, record(value), NOW)
        core.handle(Image(b"md.a", QUOTE.id, QUOTE.version, 2, record(2)), NOW)
        core.publish(b"md.a", QUOTE, record(3), NOW)
        core.handle(Overrun(0, 0), NOW)
        assert reader.restart()
        events = drain(reader)
    assert [value for kind, value in told(events) if kind == UPDATE] == [1, 2, 3]
    assert RECEIPT not in [event.kind for event in events]


@pytest.mark.spec("CRIT-4")
def test_a_history_that_begins_later_is_complete_for_a_later_consumer() -> None:
    core = engine(history_bytes=65_536)
    for value in range(2_000):
        core.publish(b"md.a", QUOTE, record(value), NOW)
    with ring_consumer(core, 0, "md.a") as reader:
        core.publish(b"md.a", QUOTE, record(2_000), NOW)
        core.handle(Overrun(0, 0), NOW)
        assert reader.restart()
        events = drain(reader)
    assert [each for each in told(events) if each[0] in (REFRESH, UPDATE, RECEIPT)] == [(UPDATE, 2_000)]


@pytest.mark.spec("CRIT-4")
def test_a_reconnected_consumer_gets_a_receipt_for_updates_that_are_not_kept() -> None:
    core = engine(keeps="wanted")
    buffers = [buffer_consumer(core, number, "md.a")[0] for number in (0, 1)]
    core.publish(b"md.a", QUOTE, record(1), NOW)
    last = read_events(buffers[0].take())[-1].number
    core.handle(Detach(0), NOW)
    core.publish(b"md.a", QUOTE, record(2), NOW)
    core.handle(Detach(1), NOW)
    buffer_consumer(core, 2, "md.b", "md.a")
    core.publish(b"md.b", QUOTE, record(100), NOW)  # has the former number of md.a
    core.publish(b"md.a", QUOTE, record(4), NOW)
    back, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a", "md.b"], after=last), NOW)
    events = read_events(back.take())
    assert [each for each in told(events) if each[0] == UPDATE] == []
    assert sorted(each for each in told(events) if each[0] == REFRESH) == [(REFRESH, 4), (REFRESH, 100)]
    assert (events[0].kind, events[0].lost[:2]) == (RECEIPT, (last + 1, core.kernel.items.number))


@pytest.mark.spec("ADPT-1")
def test_a_record_that_waits_for_another_notice_is_written_with_all_updates() -> None:
    core = engine()
    core.handle(LearnModel(BAR), NOW)
    with records_consumer(core, 0) as consumer:
        consumer.subscribe(1, "bars.*")
        slots: dict[bytes, int] = {}
        for value in range(200):
            core.publish(b"bars.%d" % value, BAR, bar(volume=1, high=1), NOW)
            consumer.carry_out(core.take())
            slots |= {event.topic: event.slot for event in consumer.settle() if event.kind == DEFINE}
        core.handle(Overrun(0, 0, "notices"), NOW)
        assert consumer.notices.restart()
        for value in range(200):  # most of them wait: the ring of notices takes a limited share at a time
            core.publish(b"bars.%d" % value, BAR, bar(volume=2, high=3), NOW)
        consumer.settle()
        found = [consumer.readers[BAR.id].read(slots[b"bars.%d" % value]) for value in range(200)]
        seen = {(bars.volume, bars.high) for bars in (BAR.view(each.payload) for each in found if each is not None)}
    assert seen == {(3, 3)}


@pytest.mark.spec("ADPT-3")
def test_a_slot_of_a_replaced_region_is_not_a_slot_of_the_new_one() -> None:
    core = engine(offsets="own", rules=ADAPTIVE)
    with records_consumer(core, 0) as consumer:
        consumer.subscribe(1, "md.*", cls="auto")
        slots: dict[bytes, int] = {}
        for value in range(64):
            core.publish(b"md.%d" % value, QUOTE, record(value), NOW)
            consumer.carry_out(core.take())
            slots |= {event.topic: event.slot for event in consumer.settle() if event.kind == DEFINE}
        core.handle(
            ChangeClasses(ClassMap(default="adaptive", rule=(ClassRule(cls="critical", topics=("md.0",)),))), NOW
        )
        core.handle(Subscribe(0, 2, ["other.*"], "adaptive"), NOW)
        for value in range(64, 100):
            core.publish(b"other.%d" % value, QUOTE, record(value), NOW)
            consumer.carry_out(core.take())
            slots |= {event.topic: event.slot for event in consumer.settle() if event.kind == DEFINE}
        consumer.carry_out(core.handle(ChangeClasses(ADAPTIVE), NOW))
        slots |= {event.topic: event.slot for event in consumer.settle() if event.kind == DEFINE}
        current = {topic: int(topic.partition(b".")[2]) for topic in slots}
        assert {topic: consumer.value(slot) for topic, slot in slots.items()} == current
        assert len(set(slots.values())) == len(slots) == 100


@pytest.mark.spec("ADPT-1")
def test_a_record_that_becomes_adaptive_again_is_not_the_old_one() -> None:
    core = engine(rules=ADAPTIVE)
    with records_consumer(core, 0) as consumer:
        consumer.subscribe(1, "md.*", cls="auto")
        core.publish(b"md.a", QUOTE, record(1), NOW)
        consumer.carry_out(core.take())
        core.handle(ChangeClasses(ClassMap(default="critical")), NOW)
        core.publish(b"md.a", QUOTE, record(2), NOW)
        consumer.settle()
        core.handle(ChangeClasses(ADAPTIVE), NOW)
        assert [event.kind for event in consumer.settle()] == [EventKind.NOTICE]
        assert consumer.value(0) == 2


@pytest.mark.spec("ADPT-2")
def test_a_waiting_record_keeps_its_own_length() -> None:
    """The class depends on the record; the newest record, a longer one, has not been fanned out yet."""
    quiet = ClassMap(rule=(ClassRule(cls="adaptive", models=("bar",), where="volume < 10"),))
    core = engine(budget_bytes=0, rules=quiet, weights=Weights(critical=1))
    core.handle(LearnModel(BAR), NOW)
    buffer, _ = buffer_consumer(core, 0, "md.*", "bars.a")
    first, second = bar(volume=1), bar(volume=100) + bytes(200)
    core.publish(b"bars.a", BAR, first, NOW)
    for value in range(10):
        core.publish(b"md.a", QUOTE, record(value), NOW)
    core.publish(b"bars.a", BAR, second, NOW)
    core.serve(NOW, 1_024)
    core.serve(NOW, 64)
    core.serve(NOW)
    events = [event for event in read_events(buffer.take()) if event.kind == UPDATE and event.model_id == BAR.id]
    assert [(event.cls, event.version, event.body) for event in events] == [(2, 1, first), (1, 2, second)]


@pytest.mark.spec("CRIT-4")
@pytest.mark.parametrize("cls", ["critical", "adaptive"])
def test_an_item_is_removed_before_its_number_is_reused(cls: str) -> None:
    """Also while refreshes that wait for the ring's reader come first."""
    core = engine(rules=ClassMap(default=cls))  # type: ignore[arg-type]
    for value in range(300):
        core.publish(b"md.%d" % value, QUOTE, record(value), NOW)
    with ring_consumer(core, 0, "old.*", capacity=140_000) as reader:
        core.publish(b"old.a", QUOTE, record(1), NOW)
        core.handle(Subscribe(0, 2, ["md.*"]), NOW)
        core.handle(Subscribe(0, 3, ["new.*"]), NOW)
        core.handle(Removed(b"old.a", QUOTE.id), NOW)
        for value in (1_000, 1_001):
            core.publish(b"new.a", QUOTE, record(value), NOW)
        events = drain(reader)
        while (deadline := core.next_deadline_ns()) is not None:
            core.handle(Tick(), deadline)
            events += drain(reader)
    names: dict[int, bytes] = {}
    got = []
    for event in events:
        if event.kind == DEFINE:
            names[event.item] = event.topic
        elif event.kind == REMOVE:
            assert names.pop(event.item) == b"old.a"
        elif event.kind == UPDATE and names[event.item] == b"new.a":
            got.append(int.from_bytes(event.body[:8], "little"))
    assert got == ([1_000, 1_001] if cls == "critical" else [1_001])
    assert b"new.a" in names.values()
