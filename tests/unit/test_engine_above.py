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
def test_an_image_of_a_known_item_drops_no_waiting_update() -> None:
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
def test_a_region_record_written_after_a_reported_loss_causes_a_receipt_with_the_next_record() -> None:
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
        assert RECEIPT not in [event.kind for event in drain(first.events)]  # the loss was reported to this consumer
        (receipt,) = [event for event in drain(late.events) if event.kind == RECEIPT]
        assert receipt.lost[2] == ReceiptCause.UPSTREAM
        assert (first.value(0), late.value(0)) == (9, 9)


@pytest.mark.spec("MUX-1", "ADPT-1")
def test_a_record_of_a_restarted_plant_is_written_into_regions() -> None:
    """A restarted plant counts versions from the start: the same version is another record."""
    core = engine(keeps="wanted", has_upstream=True)
    with records_consumer(core, 0) as consumer:
        consumer.subscribe(1, "md.a")
        consumer.carry_out(core.handle(image(1, version=1), NOW))
        core.handle(Lost(), NOW)
        core.handle(image(2, version=1, is_repair=True), NOW)
        assert consumer.value(0) == 2


@pytest.mark.spec("MUX-1", "CRIT-4")
def test_an_overrun_ring_repeats_nothing_of_the_previous_run_of_a_plant() -> None:
    """The last record of the previous run has the same version as the first record of the new run."""
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
def test_a_consumer_that_reconnects_gets_the_record_of_an_image_received_in_between() -> None:
    """The image's record is not among the updates that can be replayed."""
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
def test_the_image_of_a_known_item_does_not_overtake_the_updates_before_it() -> None:
    core = engine(keeps="wanted", has_upstream=True, budget_bytes=0)
    buffer, _ = buffer_consumer(core, 0, "md.a")
    core.publish(b"md.a", QUOTE, record(1), NOW, version=1)
    core.serve(NOW)
    core.handle(Lost(), NOW)
    for value in (2, 3):  # these wait for the output
        core.publish(b"md.a", QUOTE, record(value), NOW, version=value)
    core.handle(image(3, version=3, is_repair=True), NOW)
    core.serve(NOW)
    events = [event for event in read_events(buffer.take()) if event.kind in (REFRESH, UPDATE)]
    assert [(event.kind, event.version) for event in events] == [(UPDATE, 1), (UPDATE, 2), (UPDATE, 3)]


@pytest.mark.spec("MUX-1", "TP-2")
def test_the_first_update_after_an_item_was_defined_again_has_no_predecessor() -> None:
    """The update belongs to another subscription: updates between the two are missing, and consumers get a receipt."""
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
