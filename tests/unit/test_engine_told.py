"""Loss receipts for consumers, and state that survives a change of classes, rates and models."""

import pytest

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import LimitError
from penstock.engine import (
    ClassMap,
    Event,
    EventKind,
    MeteringLimits,
    SessionBuffer,
    TransmissionClass,
    read_events,
)
from penstock.engine.core.events import (
    ChangeClasses,
    LearnModel,
    Lost,
    Modify,
    Overrun,
    RegionOpened,
    Removed,
    Subscribe,
    Tick,
)
from penstock.engine.core.kernel._event import ReceiptCause
from penstock.engine.core.kernel._region_sink import RegionSink
from penstock.model import shipped
from penstock.shm import RegionReader, RegionWriter
from unit.engine_kit import NOW, QUOTE, TRADE, buffer_consumer, drain, engine, record, ring_consumer
from unit.test_engine import batch_of, packets
from unit.test_engine_classes import records_consumer

BAR = shipped("bar")
METERED = ("critical", "metered")
RECEIPT, UPDATE = EventKind.RECEIPT, EventKind.UPDATE


def taken(buffer: SessionBuffer, kind: EventKind = UPDATE) -> list[Event]:
    return [event for event in read_events(buffer.take()) if event.kind == kind]


def test_a_consumer_of_a_fragmented_message_gets_a_receipt() -> None:
    core = engine()
    buffer, _ = buffer_consumer(core, 0, "md.a")
    other, _ = buffer_consumer(core, 1, "md.b")
    core.publish(b"md.a", QUOTE, record(1), NOW)
    buffer.take()
    core.distribute(batch_of(packets([("md.a", bytes(4_000))])), NOW)
    (receipt,) = taken(buffer, RECEIPT)
    assert receipt.lost == (2, 2, ReceiptCause.UPSTREAM)
    assert not taken(other, RECEIPT)


@pytest.mark.spec("METR-1", "METR-3")
def test_frequent_rate_changes_cause_no_additional_updates() -> None:
    core = engine(classes=METERED, limits=MeteringLimits(per_second_max=10))
    core.publish(b"md.a", QUOTE, record(0), NOW)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a"], "metered", 2.0), NOW)
    buffer.take()
    came, now_ns = 0, NOW
    for step in range(300):
        now_ns += 10 * NS_PER_MS
        core.publish(b"md.a", QUOTE, record(step), now_ns)
        core.handle(Modify(0, 1, 2.0 + step % 2), now_ns)
        core.handle(Tick(), now_ns)
        came += sum(event.kind in (UPDATE, EventKind.REFRESH) for event in read_events(buffer.take()))
    assert came <= 3 * 3 + 1
    assert came >= 3 * 2 - 1


def test_all_receipts_that_an_overrun_may_have_lost_are_repeated() -> None:
    core = engine()
    with ring_consumer(core, 0, "md.>") as reader:
        for topic in (b"md.a", b"md.b"):
            core.publish(topic, QUOTE, record(1), NOW)
        read = [event.number for event in drain(reader) if event.kind == UPDATE][-1]
        for number in (1, 2):
            core.handle(Lost(), NOW + number)
        lost = (read + 1, read + 2)
        core.handle(Overrun(0, read), NOW + 3)
        reader.restart()
        receipts = [event.lost for event in drain(reader) if event.kind == RECEIPT]
        assert min(first for first, _, _ in receipts) <= lost[0]
        assert max(last for _, last, _ in receipts) >= lost[1]


def test_a_refused_subscription_changes_nothing_for_the_others() -> None:
    core = engine(classes=METERED, limits=MeteringLimits(per_second_max=10), pairs_max=3)
    for index in range(2):
        core.publish(b"md.%d" % index, QUOTE, record(0), NOW)
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.>"], "metered", 10.0), NOW)
    for index in range(3):
        core.publish(b"tr.%d" % index, TRADE, record(0, TRADE), NOW)
    buffer.take()
    with pytest.raises(LimitError):
        core.handle(Subscribe(0, 2, [">"], "critical"), NOW)
    core.publish(b"md.0", QUOTE, record(1), NOW + NS_PER_SECOND)
    core.handle(Tick(), NOW + NS_PER_SECOND)
    assert [event.cls for event in taken(buffer)] == [TransmissionClass.METERED]


@pytest.mark.spec("MDE-1", "METR-1")
@pytest.mark.parametrize("after", ["critical", "adaptive"])
def test_conflated_updates_are_kept_when_the_class_changes(after: str) -> None:
    limits = MeteringLimits(per_second_max=1)
    core = engine(classes=("critical", "adaptive", "metered"), limits=limits, rules=ClassMap(default="metered"))
    core.handle(LearnModel(BAR), NOW)
    core.publish(b"bars.a", BAR, bytes(BAR.new(volume=1)), NOW)
    buffer, _ = buffer_consumer(core, 0, "bars.a")
    buffer.take()
    for volume in (2, 4, 8):
        core.publish(b"bars.a", BAR, bytes(BAR.new(volume=volume)), NOW + 1)
    assert not taken(buffer)
    core.handle(ChangeClasses(ClassMap(default=after)), NOW + 2)  # type: ignore[arg-type]
    core.publish(b"bars.a", BAR, bytes(BAR.new(volume=16)), NOW + 3)
    events = taken(buffer)
    assert [BAR.view(event.body).volume for event in events] == [14, 16]
    assert [event.merged for event in events] == [3, 1]


def test_in_a_shared_region_a_slot_that_now_belongs_to_another_item_is_written() -> None:
    core = engine()
    with RegionWriter.create(64, [part.size for part in QUOTE.parts]) as writer, RegionReader(writer.segment) as reader:
        sink = RegionSink(writer, is_shared=True)
        with records_consumer(core, 0) as consumer:
            core.handle(Subscribe(consumer.number, 1, ["md.>"], "adaptive"), NOW)
            core.publish(b"md.a", QUOTE, record(1), NOW)
            core.handle(RegionOpened(consumer.number, QUOTE.id, sink), NOW)
            core.handle(Removed(b"md.a", QUOTE.id), NOW)
            core.publish(b"md.b", QUOTE, record(2), NOW)  # with the same version, in the same place
            found = reader.read(0)
            assert found is not None
            assert found.payload == record(2)


@pytest.mark.spec("MUX-1")
def test_updates_that_stand_for_several_do_so_along_a_chain() -> None:
    core = engine(classes=METERED, limits=MeteringLimits(per_second_max=10))
    critical, _ = buffer_consumer(core, 0, "md.a")
    metered, _ = buffer_consumer(core, 1)
    core.handle(Subscribe(1, 1, ["md.a"], "metered", 10.0), NOW)
    for merged in (5, 1, 2**32 - 1):
        core.kernel.publish(b"md.a", QUOTE.id, QUOTE.version, record(1), 0, 0, NOW, merged)
    core.handle(Tick(), NOW + NS_PER_SECOND)
    assert [event.merged for event in taken(critical)] == [5, 1, 2**32 - 1]
    assert [event.merged for event in taken(metered)] == [5, 2**32 - 1], "and no more than that"


def test_a_model_that_is_learned_late_applies_to_existing_items() -> None:
    core = engine(rules=ClassMap(default="adaptive"))
    core.publish(b"bars.a", BAR, bytes(BAR.new(volume=1)), NOW)
    buffer, _ = buffer_consumer(core, 0, "bars.a")
    core.publish(b"bars.a", BAR, bytes(BAR.new(volume=1)), NOW)
    assert [event.cls for event in taken(buffer)] == [TransmissionClass.CRITICAL], "unknown model: never conflated"
    core.handle(LearnModel(BAR), NOW)
    core.publish(b"bars.a", BAR, bytes(BAR.new(volume=1)), NOW)
    assert [event.cls for event in taken(buffer)] == [TransmissionClass.ADAPTIVE]
