"""The distribution engine's core: the critical class, subscriptions and recovery."""

import gc
import weakref

import pytest

from penstock.base.errors import LimitError, LocalProtocolError, OverrunError, TopicError
from penstock.engine import DistributionEngine, Event, EventFlag, EventKind, make_event, read_events
from penstock.engine.core.events import (
    Detach,
    Image,
    Lost,
    Overrun,
    Ready,
    Subscribe,
    Tick,
    Unsubscribe,
    Unwanted,
    UpstreamLive,
    Wanted,
)
from penstock.engine.core.kernel._event import ALL_ITEMS, ReceiptCause
from penstock.shm import RingReader
from unit.engine_kit import NOW, QUOTE, TRADE, buffer_consumer, drain, engine, record, ring_consumer, told
from unit.filter_kit import batch_of, packets

AAPL, MSFT = b"md.us.eq.AAPL.quote", b"md.us.eq.MSFT.quote"
DEFINE, REFRESH, UPDATE = EventKind.DEFINE, EventKind.REFRESH, EventKind.UPDATE
RECEIPT, REMOVE, LIVE = EventKind.RECEIPT, EventKind.REMOVE, EventKind.LIVE


def kinds(events: list[Event]) -> list[int]:
    return [event.kind for event in events]


@pytest.mark.spec("TP-2")
def test_a_subscription_gets_the_image_then_every_update() -> None:
    core = engine()
    core.publish(AAPL, QUOTE, record(1), NOW)
    with ring_consumer(core, 0, "md.us.eq.*.quote") as reader:
        core.publish(AAPL, QUOTE, record(2), NOW, started_ns=77)
        core.publish(MSFT, QUOTE, record(3), NOW)
        events = drain(reader)
    assert told(events)[:2] == [(DEFINE, AAPL), (REFRESH, 1)]
    assert kinds(events) == [DEFINE, REFRESH, LIVE, UPDATE, DEFINE, UPDATE]
    assert events[2].subscription == 1
    update = events[3]
    assert (update.version, update.number, update.started_ns, update.merged) == (2, 2, 77, 1)
    assert (update.model_id, update.model_version, update.item) == (QUOTE.id, QUOTE.version, events[0].item)
    assert told(events)[4:] == [(DEFINE, MSFT), (UPDATE, 3)]


@pytest.mark.spec("CRIT-1")
def test_every_consumer_gets_its_items_once_and_in_order() -> None:
    core = engine()
    with ring_consumer(core, 0, ">") as first, ring_consumer(core, 1, MSFT.decode()) as second:
        buffer, _ = buffer_consumer(core, 2, "md.us.eq.AAPL.*", "md.us.eq.AAPL.quote")
        for value in range(10):
            core.publish((AAPL, MSFT)[value % 2], QUOTE, record(value), NOW)
        assert [value for kind, value in told(drain(first)) if kind == UPDATE] == list(range(10))
        assert [value for kind, value in told(drain(second)) if kind == UPDATE] == [1, 3, 5, 7, 9]
        assert [value for kind, value in told(read_events(buffer.take())) if kind == UPDATE] == [0, 2, 4, 6, 8]
    assert len(buffer) == 0


def test_a_batch_is_distributed_as_a_whole() -> None:
    core = engine()
    messages = [(f"md.{index % 3}", record(index)) for index in range(50)]
    with ring_consumer(core, 0, "md.>") as reader:
        assert core.distribute(batch_of(packets(messages)), NOW) == 50
        assert [value for kind, value in told(drain(reader)) if kind == UPDATE] == list(range(50))


@pytest.mark.parametrize("size", [0, 1, 8, 1_993, 2_000, 2_001, 2_008, 32_768])
def test_records_of_any_size_reach_several_rings(size: int) -> None:
    """A ring checks its records: one checksum for all rings, or one per ring, depending on the size."""
    core = engine()
    with ring_consumer(core, 0, "md.a") as first, ring_consumer(core, 1, "md.a") as second:
        core.publish(b"md.a", TRADE, bytes(range(256)) * 128 if size == 32_768 else bytes(size), NOW)
        for reader in (first, second):
            assert [len(event.body) for event in drain(reader) if event.kind == UPDATE] == [size]


def test_an_incomplete_message_is_counted() -> None:
    core = engine()
    assert core.distribute(batch_of(packets([("md.a", bytes(4_000))])), NOW) == 0
    assert core.distribute(batch_of(packets([("md.a", bytes(40_000))], size_max=60_000)), NOW) == 0
    assert core.counters.by_cause("messages_dropped") == {"fragment": 3, "length": 1}


@pytest.mark.spec("TP-1")
def test_a_static_read_is_bounded() -> None:
    core = engine()
    for value in range(5):
        core.publish(b"md.%d" % value, QUOTE, record(value), NOW)
    assert [each.record for each in core.current(["md.*"], 2)] == [record(0), record(1)]
    assert len(core.current(["md.*"])) == 5


def test_one_topic_with_two_models_is_two_items() -> None:
    core = engine()
    with ring_consumer(core, 0, "md.x") as reader:
        core.publish(b"md.x", QUOTE, record(1), NOW)
        core.publish(b"md.x", TRADE, record(2, TRADE), NOW)
        events = drain(reader)
    assert kinds(events) == [LIVE, DEFINE, UPDATE, DEFINE, UPDATE]
    assert events[2].item != events[4].item
    assert [bool(events[at].flags & EventFlag.NONCONFLATABLE) for at in (2, 4)] == [False, True]
    assert [each.version for each in core.current(["md.x"])] == [1, 1]


def test_unsubscribed_items_are_no_longer_delivered() -> None:
    core = engine()
    with ring_consumer(core, 0, "md.>") as reader:
        core.handle(Subscribe(0, 2, ["md.a"]), NOW)
        core.publish(b"md.a", QUOTE, record(1), NOW)
        core.publish(b"md.b", QUOTE, record(2), NOW)
        assert core.handle(Unsubscribe(0, 1), NOW) == [Unwanted(("md.>",))]
        drain(reader)
        core.publish(b"md.a", QUOTE, record(3), NOW)
        core.publish(b"md.b", QUOTE, record(4), NOW)
        assert told(drain(reader)) == [(UPDATE, 3)]
        core.handle(Unsubscribe(0, 2), NOW)
        core.publish(b"md.a", QUOTE, record(5), NOW)
        assert drain(reader) == []


def test_the_number_of_an_item_is_reused_without_confusion() -> None:
    """A node that keeps only wanted items: an event of a removed item never reaches a subscriber of its successor."""
    core = engine(keeps="wanted", budget_bytes=0)
    with ring_consumer(core, 0, "md.a", "md.b") as reader:
        core.publish(b"md.a", QUOTE, record(1), NOW)
        core.handle(Unsubscribe(0, 1), NOW)
        core.handle(Subscribe(0, 2, ["md.c"]), NOW)
        core.publish(b"md.c", QUOTE, record(2), NOW)
        core.serve(NOW)
        assert told(drain(reader))[-2:] == [(DEFINE, b"md.c"), (UPDATE, 2)]
        assert core.kernel.items.used == 1


def test_a_node_keeps_only_wanted_items() -> None:
    core = engine(keeps="wanted")
    assert not core.publish(AAPL, QUOTE, record(1), NOW)
    assert core.counters["messages_unwanted"] == 1
    _, answers = buffer_consumer(core, 0, "md.us.eq.*.quote")
    assert answers[0] == Wanted(("md.us.eq.*.quote",))
    assert core.publish(AAPL, QUOTE, record(1), NOW)
    _, answers = buffer_consumer(core, 1, "md.us.eq.*.quote")
    assert [each for each in answers if isinstance(each, Wanted)] == []
    assert core.handle(Detach(0), NOW) == []
    assert core.handle(Detach(1), NOW) == [Unwanted(("md.us.eq.*.quote",))]
    assert core.kernel.items.used == 0


def test_sessions_are_listed_when_they_have_events_to_send() -> None:
    core = engine()
    buffer, answers = buffer_consumer(core, 5, "md.>")
    assert answers[-1] == Ready((5,))
    core.publish(b"md.a", QUOTE, record(1), NOW)
    core.publish(b"md.a", QUOTE, record(2), NOW)
    assert core.take_ready() == [5]
    assert core.take_ready() == []
    assert kinds(read_events(buffer.take())) == [LIVE, DEFINE, UPDATE, UPDATE]


def test_a_buffer_is_read_in_whole_events() -> None:
    core = engine()
    buffer, _ = buffer_consumer(core, 0, "md.>")
    for value in range(5):
        core.publish(b"md.a", QUOTE, record(value), NOW)
    taken = []
    while len(buffer):
        taken.append(read_events(buffer.take(300)))
    assert kinds([event for events in taken for event in events]) == [LIVE, DEFINE] + [UPDATE] * 5
    assert len(taken) > 2


def overrun(core: DistributionEngine, reader: RingReader, capacity: int) -> None:
    """Write more than the ring holds."""
    for value in range(2 * capacity // 200):
        core.publish(AAPL, QUOTE, record(value), NOW)
    with pytest.raises(OverrunError):
        drain(reader)


@pytest.mark.spec("CRIT-4")
def test_an_overrun_consumer_gets_the_missed_events_again() -> None:
    core = engine()
    with ring_consumer(core, 0, AAPL.decode(), capacity=140_000) as reader:
        core.publish(AAPL, QUOTE, record(10_000), NOW)
        core.publish(AAPL, QUOTE, record(10_001), NOW)
        last = max(event.number for event in drain(reader) if event.kind == UPDATE)
        overrun(core, reader, 140_000)
        core.handle(Overrun(0, last), NOW)
        assert reader.restart()
        events, now = drain(reader), NOW
        while (deadline := core.next_deadline_ns()) is not None:
            now = deadline
            core.handle(Tick(), now)
            events += drain(reader)
        core.publish(AAPL, QUOTE, record(5), NOW)
        events += drain(reader)
    assert kinds(events)[0] == DEFINE
    updates = [event for event in events if event.kind == UPDATE]
    assert [event.number for event in updates] == list(range(last + 1, core.kernel.items.number + 1))
    assert all(event.flags & EventFlag.REPLAYED for event in updates[:-1])
    assert not updates[-1].flags & EventFlag.REPLAYED


@pytest.mark.spec("CRIT-4")
def test_a_refresh_that_may_have_been_lost_is_repeated() -> None:
    core = engine()
    core.publish(AAPL, QUOTE, record(1), NOW)
    core.publish(MSFT, QUOTE, record(7), NOW)
    with ring_consumer(core, 0, AAPL.decode(), MSFT.decode()) as reader:
        core.publish(AAPL, QUOTE, record(2), NOW)
        core.handle(Overrun(0, 0), NOW)
        assert reader.restart()
        events = drain(reader)
    assert kinds(events) == [DEFINE, UPDATE, DEFINE, REFRESH, LIVE]
    assert [told(events)[at] for at in (1, 3)] == [(UPDATE, 2), (REFRESH, 7)]
    assert events[1].flags & EventFlag.REPLAYED
    assert events[3].flags & EventFlag.AFTER_OVERRUN


@pytest.mark.spec("CRIT-4")
def test_events_that_are_no_longer_kept_are_reported_and_refreshed() -> None:
    core = engine(history_bytes=65_536)
    with ring_consumer(core, 0, AAPL.decode()) as reader:
        core.publish(AAPL, QUOTE, record(1), NOW)
        last = core.kernel.items.number
        for value in range(2_000):
            core.publish(AAPL, QUOTE, record(value), NOW)
        core.handle(Overrun(0, last), NOW)
        assert reader.restart()
        events = drain(reader)
        core.publish(AAPL, QUOTE, record(7), NOW)
        events += drain(reader)
    assert kinds(events) == [RECEIPT, DEFINE, REFRESH, LIVE, UPDATE]
    assert [told(events)[2], told(events)[4]] == [(REFRESH, 1_999), (UPDATE, 7)]
    assert (events[0].item, *events[0].lost) == (ALL_ITEMS, last + 1, 2_001, ReceiptCause.OVERRUN)
    assert core.record(0).receipts == 1


def test_a_slow_session_continues_where_it_stopped() -> None:
    core = engine()
    buffer, _ = buffer_consumer(core, 0, AAPL.decode(), capacity=40_000)
    fast, _ = buffer_consumer(core, 1, AAPL.decode())
    for value in range(1_000):
        core.publish(AAPL, QUOTE, record(value), NOW)
    events = []
    while len(buffer):
        events += read_events(buffer.take(1_000))
        core.serve(NOW)
    assert [value for kind, value in told(events) if kind == UPDATE] == list(range(1_000))
    assert kinds(events).count(RECEIPT) == 0
    assert len(told(read_events(fast.take()))) == 1_002


@pytest.mark.spec("CRIT-4")
def test_a_session_that_is_too_slow_gets_a_receipt_and_a_refresh() -> None:
    core = engine(history_bytes=65_536)
    buffer, _ = buffer_consumer(core, 0, AAPL.decode(), capacity=40_000)
    for value in range(1_000):
        core.publish(AAPL, QUOTE, record(value), NOW)
    before = read_events(buffer.take())
    core.serve(NOW)
    events = read_events(buffer.take())
    last = before[-1].number
    assert told(events)[1:] == [(REFRESH, 999)]
    assert events[0].lost == (last + 1, 1_000, ReceiptCause.SLOW)
    core.publish(AAPL, QUOTE, record(5), NOW)
    assert told(read_events(buffer.take())) == [(UPDATE, 5)]


def test_refreshes_wait_for_space_and_cover_updates_in_between() -> None:
    core = engine()
    for index in range(1_000):
        core.publish(b"md.%d" % index, QUOTE, record(index), NOW)
    buffer, _ = buffer_consumer(core, 0, "md.*", capacity=40_000)
    core.publish(b"md.999", QUOTE, record(5_000), NOW)
    events = []
    while len(buffer):
        events += read_events(buffer.take())
        core.serve(NOW)
    values = told(events)
    assert [kind for kind, _ in values].count(REFRESH) == 1_000
    assert (UPDATE, 5_000) not in values
    assert values[-2:] == [(REFRESH, 5_000), (LIVE, (1).to_bytes(8, "little"))]


def test_refreshes_of_many_items_do_not_overrun_a_ring() -> None:
    core = engine()
    for index in range(3_000):
        core.publish(b"md.%d" % index, QUOTE, record(index), NOW)
    with ring_consumer(core, 0, "md.*", capacity=200_000) as reader:
        events = drain(reader)
        assert LIVE not in kinds(events)
        while (deadline := core.next_deadline_ns()) is not None:
            core.handle(Tick(), deadline)
            events += drain(reader)
    assert kinds(events).count(REFRESH) == 3_000
    assert kinds(events)[-1] == LIVE


def test_an_image_from_above_refreshes_items_and_live_updates_wait_for_it() -> None:
    core = engine(keeps="wanted", has_upstream=True)
    buffer, answers = buffer_consumer(core, 0, "md.a")
    assert answers == [Wanted(("md.a",))]
    core.handle(Image(b"md.a", QUOTE.id, QUOTE.version, version=41, record=record(9)), NOW)
    core.handle(UpstreamLive(["md.a"]), NOW)
    core.publish(b"md.a", QUOTE, record(10), NOW, version=42)
    events = read_events(buffer.take())
    assert kinds(events) == [DEFINE, REFRESH, LIVE, UPDATE]
    assert (events[1].version, events[3].version) == (41, 42)
    second, _ = buffer_consumer(core, 1, "md.a")
    assert kinds(read_events(second.take())) == [DEFINE, REFRESH, LIVE]
    core.handle(Lost(), NOW)
    core.handle(Image(b"md.a", QUOTE.id, QUOTE.version, version=50, record=record(11), is_repair=True), NOW)
    events = read_events(buffer.take())
    assert kinds(events) == [RECEIPT, REFRESH]
    assert (events[0].lost[2], events[1].flags) == (ReceiptCause.UPSTREAM, EventFlag.AFTER_OVERRUN)


def test_events_beyond_a_small_output_are_reported() -> None:
    core = engine(budget_bytes=0, history_bytes=65_536)
    buffer, _ = buffer_consumer(core, 0, "md.a")
    for value in range(1_000):
        core.publish(b"md.a", QUOTE, record(value), NOW)
    assert core.serve(NOW) == 0
    events = read_events(buffer.take())
    assert kinds(events)[:4] == [LIVE, RECEIPT, DEFINE, REFRESH]
    assert events[1].lost[2] == ReceiptCause.SATURATED
    assert told(events)[3] == (REFRESH, 999)
    assert len(events) == 4


@pytest.mark.spec("MDE-3", "METR-4")
def test_events_left_by_a_limited_output_are_due_at_once() -> None:
    """The last update is written without a further update."""
    core = engine(budget_bytes=0)
    buffer, _ = buffer_consumer(core, 0, "md.a")
    core.publish(b"md.a", QUOTE, record(1), NOW)
    assert core.next_deadline_ns() == NOW
    core.handle(Tick(), NOW)
    assert kinds(read_events(buffer.take())) == [LIVE, DEFINE, UPDATE]
    assert core.next_deadline_ns() is None


@pytest.mark.parametrize(
    ("topics", "error"),
    [(["md..a"], TopicError), (["#tag"], TopicError), (["!md.a"], TopicError), ([], TopicError)],
)
def test_an_invalid_subscription_changes_nothing(topics: list[str], error: type[Exception]) -> None:
    core = engine()
    buffer_consumer(core, 0)
    with pytest.raises(error):
        core.handle(Subscribe(0, 1, topics), NOW)
    core.handle(Subscribe(0, 1, ["md.a"]), NOW)


def test_limits_are_enforced() -> None:
    core = engine(
        items_max=2, subscriptions_per_consumer_max=2, topics_per_consumer_max=3, consumers_max=1, pairs_max=1
    )
    buffer_consumer(core, 0, "md.a")
    with pytest.raises(LimitError, match="consumers_max"):
        buffer_consumer(core, 1)
    with pytest.raises(LimitError, match="topics"):
        core.handle(Subscribe(0, 2, ["a", "b", "c"]), NOW)
    assert [core.publish(topic, QUOTE, record(1), NOW) for topic in (b"md.a", b"md.b", b"md.c")] == [True, True, False]
    with pytest.raises(LimitError, match="pairs_max"):
        core.handle(Subscribe(0, 2, ["md.b"]), NOW)
    core.handle(Subscribe(0, 2, ["md.z"]), NOW)
    with pytest.raises(LimitError, match="subscriptions"):
        core.handle(Subscribe(0, 3, ["md.c"]), NOW)


def test_mistakes_of_the_driver_are_refused() -> None:
    core = engine()
    buffer_consumer(core, 0, "md.a")
    with pytest.raises(LocalProtocolError, match="already"):
        buffer_consumer(core, 0)
    with pytest.raises(LocalProtocolError, match="subscription 1 already"):
        core.handle(Subscribe(0, 1, ["md.a"]), NOW)
    with pytest.raises(LocalProtocolError, match="unknown consumer 3"):
        core.handle(Subscribe(3, 1, ["md.a"]), NOW)
    with pytest.raises(LocalProtocolError, match="no ring"):
        core.handle(Overrun(0, 0), NOW)
    with pytest.raises(LocalProtocolError, match="does not serve"):
        core.handle(Subscribe(0, 2, ["md.a"], cls="metered"), NOW)
    assert not core.publish(b"md..a", QUOTE, record(1), NOW)
    assert not core.publish(b"md.\xff", QUOTE, record(1), NOW)
    with pytest.raises(LocalProtocolError, match="the limit is"):
        core.publish(b"md.a", QUOTE, bytes(40_000), NOW)


def test_a_detached_consumer_leaves_nothing_behind() -> None:
    core = engine()
    for _ in range(3):
        buffer, _ = buffer_consumer(core, 0, "md.>", "md.a", capacity=40_000)
        for value in range(300):
            core.publish(b"md.%d" % (value % 7), QUOTE, record(value), NOW)
        core.handle(Detach(0), NOW)
        assert core.kernel.pairs.used == 0
        assert core.handle(Detach(0), NOW) == []
        buffer.clear()
        core.serve(NOW)
        assert len(buffer) == 0


def test_an_event_returns_its_values() -> None:
    made = make_event(UPDATE, item=7, body=b"abc", cls=2, flags=4, number=9, version=8, started_ns=-3, merged=5, slot=6)
    assert len(made) == 56
    (event,) = read_events(made)
    assert (event.item, event.kind, event.cls, event.flags, event.number) == (7, 3, 2, 4, 9)
    assert (event.version, event.started_ns, event.merged, event.slot, event.body) == (8, -3, 5, 6, b"abc")
    with pytest.raises(LocalProtocolError):
        assert event.topic


def test_a_dropped_engine_frees_its_history_at_once() -> None:
    """Without waiting for the garbage collector, which does not know how much memory an engine holds."""
    gc.disable()
    try:
        core = engine()
        buffer_consumer(core, 0, ">")
        core.publish(AAPL, QUOTE, record(1), NOW)
        assert core.counters["messages_dropped"] == 0
        dropped = weakref.ref(core)
        del core
        assert dropped() is None
    finally:
        gc.enable()
