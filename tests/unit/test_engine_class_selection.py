"""Class selection for many (consumer, item) pairs at once, before and after a change of the rules."""

from penstock.engine import (
    ClassMap,
    DistributionEngine,
    Event,
    EventKind,
    SessionBuffer,
    TransmissionClass,
    read_events,
)
from penstock.engine.core.events import ChangeClasses, Removed, Subscribe, Tick, Unsubscribe
from penstock.engine.core.interests import RESELECTED_MAX
from unit.engine_kit import NOW, QUOTE, TRADE, buffer_consumer, engine, record

CRITICAL, ADAPTIVE = TransmissionClass.CRITICAL, TransmissionClass.ADAPTIVE
EVEN = ClassMap.parse('[[rule]]\nclass = "adaptive"\ntopics = ["md.even.>"]')
ODD = ClassMap.parse('[[rule]]\nclass = "adaptive"\ntopics = ["md.odd.>"]')
COUNT = 2 * RESELECTED_MAX + 3


def publish_all(core: DistributionEngine, value: int) -> None:
    for index in range(COUNT):
        model = TRADE if index % 3 == 2 else QUOTE
        core.publish(f"md.{'odd' if index % 2 else 'even'}.{index}".encode(), model, record(value, model), NOW)


def classes(core: DistributionEngine, buffer: SessionBuffer, value: int) -> list[int]:
    """The class of an update of each item, in the items' order."""
    drain(core, buffer)
    publish_all(core, value)
    found = {event.item: event.cls for event in drain(core, buffer) if event.kind == EventKind.UPDATE}
    assert len(found) == COUNT
    return [found[item] for item in sorted(found)]


def drain(core: DistributionEngine, buffer: SessionBuffer) -> list[Event]:
    found = []
    while data := buffer.take():
        found += read_events(data)
        core.serve(NOW)
    return found


def expected(parity: int) -> list[int]:
    return [ADAPTIVE if index % 2 == parity and index % 3 != 2 else CRITICAL for index in range(COUNT)]


def test_each_item_of_a_subscription_has_the_class_of_its_topic_and_model() -> None:
    core = engine(rules=EVEN)
    publish_all(core, 1)
    buffer, _ = buffer_consumer(core, 0, capacity=1 << 22)
    core.handle(Subscribe(0, 1, ["md.>"]), NOW)
    assert classes(core, buffer, 2) == expected(0)


def test_new_rules_apply_to_some_pairs_at_once_and_to_all_soon() -> None:
    core = engine(rules=EVEN)
    publish_all(core, 1)
    buffer, _ = buffer_consumer(core, 0, capacity=1 << 22)
    core.handle(Subscribe(0, 1, ["md.>"]), NOW)
    core.handle(ChangeClasses(ODD), NOW + 1)
    between = classes(core, buffer, 2)
    assert between[:RESELECTED_MAX] == expected(1)[:RESELECTED_MAX]
    assert between[RESELECTED_MAX:] == expected(0)[RESELECTED_MAX:], "no caller waits for all pairs"
    slices = 0
    while core.next_deadline_ns() is not None:
        core.handle(Tick(), NOW + 1)
        slices += 1
    assert slices == 2
    assert classes(core, buffer, 3) == expected(1)


def test_a_subscription_that_ends_while_rules_change_is_skipped() -> None:
    core = engine(rules=EVEN)
    publish_all(core, 1)
    buffer_consumer(core, 0, capacity=1 << 22)
    core.handle(Subscribe(0, 1, ["md.>"]), NOW)
    core.handle(ChangeClasses(ODD), NOW + 1)
    core.handle(Unsubscribe(0, 1), NOW + 1)
    core.handle(Tick(), NOW + 1)
    assert core.next_deadline_ns() is None
    assert core.record(0).items == 0


def test_a_removed_item_is_removed_from_every_subscription_that_had_it() -> None:
    core = engine()
    publish_all(core, 1)
    buffer_consumer(core, 0, capacity=1 << 22)
    for number, topic in enumerate(["md.>", "md.even.*"], start=1):
        core.handle(Subscribe(0, number, [topic]), NOW)
    core.handle(Removed(b"md.even.0", QUOTE.id), NOW)
    assert core.record(0).items == COUNT - 1
    core.publish(b"md.late.0", QUOTE, record(1), NOW)  # the subscription may have the number that is free again
    core.handle(Unsubscribe(0, 2), NOW)
    assert core.record(0).items == COUNT
    core.handle(Unsubscribe(0, 1), NOW)
    assert core.record(0).items == 0
