"""Events from the node above, and their effect on consumers."""

import pytest

from penstock.base.clock import NS_PER_MS
from penstock.engine import EventKind, MeteringLimits, TransmissionClass, make_event, read_events
from penstock.engine.core.events import Detach, Image, Lost, Overrun, Subscribe, Tick
from penstock.engine.core.kernel._event import ReceiptCause
from penstock.plant.core.incoming import Incoming, Updated
from unit.engine_kit import NOW, QUOTE, buffer_consumer, drain, engine, record, ring_consumer, told
from unit.test_engine_classes import records_consumer

RECEIPT, REFRESH, UPDATE = EventKind.RECEIPT, EventKind.REFRESH, EventKind.UPDATE


def image(value: int, *, version: int, is_repair: bool = False) -> Image:
    return Image(b"md.a", QUOTE.id, QUOTE.version, version=version, record=record(value), is_repair=is_repair)


@pytest.mark.spec("MUX-1", "METR-4")
def test_an_image_of_what_is_there_takes_nothing_away_that_waits() -> None:
    """After an unsubscription above, an update may arrive before the image of the next subscription."""
    core = engine(classes=("critical", "metered"), keeps="wanted", has_upstream=True, limits=MeteringLimits())
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a"], "metered", per_second=10), NOW)
    for value in (1, 2, 3):
        core.publish(b"md.a", QUOTE, record(value), NOW, version=value)
    core.handle(image(3, version=3), NOW)
    core.handle(Tick(), NOW + 200 * NS_PER_MS)
    events = [event for event in read_events(buffer.take()) if event.kind in (REFRESH, UPDATE)]
    assert [(event.kind, event.version, event.merged) for event in events] == [(UPDATE, 1, 1), (UPDATE, 3, 2)]


@pytest.mark.spec("MUX-1", "ADPT-3")
def test_who_got_an_old_record_into_its_region_after_a_loss_was_told_gets_a_receipt_with_the_new_one() -> None:
    core = engine(keeps="wanted", has_upstream=True)
    with records_consumer(core, 0) as first, records_consumer(core, 1) as late:
        first.subscribe(1, "md.a")
        late.subscribe(1, "md.b")
        first.carry_out(core.handle(image(1, version=1), NOW))
        core.handle(Lost(), NOW)
        drain(first.events)
        drain(late.events)
        late.subscribe(2, "md.a")  # and has the record from before the loss
        core.handle(image(9, version=9, is_repair=True), NOW)
        assert RECEIPT not in [event.kind for event in drain(first.events)]  # which was told
        (receipt,) = [event for event in drain(late.events) if event.kind == RECEIPT]
        assert receipt.lost[2] == ReceiptCause.UPSTREAM
        assert (first.value(0), late.value(0)) == (9, 9)


@pytest.mark.spec("MUX-1", "ADPT-1")
def test_a_record_of_a_plant_that_was_started_anew_is_written_into_regions() -> None:
    """It counts versions anew: the same one is another record."""
    core = engine(keeps="wanted", has_upstream=True)
    with records_consumer(core, 0) as consumer:
        consumer.subscribe(1, "md.a")
        consumer.carry_out(core.handle(image(1, version=1), NOW))
        core.handle(Lost(), NOW)
        core.handle(image(2, version=1, is_repair=True), NOW)
        assert consumer.value(0) == 2


@pytest.mark.spec("MUX-1", "CRIT-4")
def test_an_overrun_ring_gets_nothing_again_of_a_plant_that_was_started_anew() -> None:
    """What the one before said last has the same version as the record of the new one."""
    core = engine(keeps="wanted", has_upstream=True)
    with ring_consumer(core, 0, "md.a") as reader:
        core.publish(b"md.a", QUOTE, record(1), NOW, version=1)
        core.handle(Lost(), NOW)
        core.handle(image(2, version=1, is_repair=True), NOW)
        core.handle(Overrun(0, 0), NOW)
        assert reader.restart()
        events = drain(reader)
    assert [each for each in told(events) if each[0] in (REFRESH, UPDATE)] == [(REFRESH, 2)]
    assert [event.kind for event in events].index(RECEIPT) < [event.kind for event in events].index(REFRESH)


@pytest.mark.spec("MUX-1", "CRIT-4")
def test_who_comes_back_gets_the_record_of_an_image_that_came_meanwhile() -> None:
    """It is not among the updates that can be replayed."""
    core = engine(keeps="wanted", has_upstream=True)
    buffer_consumer(core, 1, "md.a")
    first, _ = buffer_consumer(core, 0, "md.a")
    core.publish(b"md.a", QUOTE, record(1), NOW, version=1)
    last = read_events(first.take())[-1].number
    core.handle(Detach(0), NOW)
    core.handle(Lost(), NOW)
    core.handle(image(5, version=5, is_repair=True), NOW)
    back, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a"], after=last), NOW)
    events = [each for each in told(read_events(back.take())) if each[0] in (RECEIPT, REFRESH, UPDATE)]
    assert [kind for kind, _ in events] == [RECEIPT, REFRESH]
    assert events[-1] == (REFRESH, 5)


@pytest.mark.spec("MUX-1", "CRIT-4")
def test_the_image_of_what_is_there_does_not_come_before_the_updates_that_led_to_it() -> None:
    core = engine(keeps="wanted", has_upstream=True, budget_bytes=0)
    buffer, _ = buffer_consumer(core, 0, "md.a")
    core.publish(b"md.a", QUOTE, record(1), NOW, version=1)
    core.serve(NOW)
    core.handle(Lost(), NOW)
    for value in (2, 3):  # which wait for the output
        core.publish(b"md.a", QUOTE, record(value), NOW, version=value)
    core.handle(image(3, version=3, is_repair=True), NOW)
    core.serve(NOW)
    events = [event for event in read_events(buffer.take()) if event.kind in (REFRESH, UPDATE)]
    assert [(event.kind, event.version) for event in events] == [(UPDATE, 1), (UPDATE, 2), (UPDATE, 3)]


@pytest.mark.spec("MUX-1", "TP-2")
def test_the_first_update_after_an_item_was_defined_again_stands_for_itself() -> None:
    """It is of another subscription: what came between the two is not there, and consumers are to be told."""
    incoming = Incoming(lambda number: ())
    incoming.begin(is_again=False)

    def update(item: int, version: int) -> bytes:
        return make_event(UPDATE, item=item, cls=TransmissionClass.CRITICAL, version=version)

    list(incoming.read(make_event(EventKind.DEFINE, item=1, body=b"md.a")))
    (first,) = incoming.read(update(1, 1))
    list(incoming.read(make_event(EventKind.DEFINE, item=5, body=b"md.a")))
    (again,) = incoming.read(update(5, 7))
    (next_one,) = incoming.read(update(5, 8))
    assert [type(each) for each in (first, again, next_one)] == [Updated, Image, Updated]
