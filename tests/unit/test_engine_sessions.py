"""Records after the end of their session."""

import pytest

from penstock.base.clock import NS_PER_SECOND
from penstock.engine import DistributionEngine, Event, EventKind, MeteringLimits, SessionBuffer, make_event, read_events
from penstock.engine.core.events import (
    Image,
    Lost,
    Overrun,
    Reconcile,
    RecordWithdrawn,
    SessionChanged,
    SessionTold,
    Subscribe,
    Tick,
    Updates,
)
from penstock.engine.core.session_events import decode_session, encode_session, session_id
from penstock.middleware import SessionEvent
from penstock.plant.core.incoming import Incoming, Updated
from penstock.wire import Extension, Origin, OriginFlag, PacketMessage, encode_origin
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag
from unit.engine_kit import NOW, QUOTE, buffer_consumer, drain, engine, record, ring_consumer, told
from unit.test_engine_classes import records_consumer

REFRESH, UPDATE, WITHDRAW, SESSION = EventKind.REFRESH, EventKind.UPDATE, EventKind.WITHDRAW, EventKind.SESSION
ALL = ("critical", "adaptive", "metered")
DAY_1, DAY_2 = "20240102", "20240103"


def quote(topic: str, value: int, session: str = DAY_1, stream: int = 1) -> PacketMessage:
    flags = int(OriginFlag.SYNCHRONISED) | session_tag(session) << SESSION_TAG_SHIFT
    origin = encode_origin(Origin(stream, 1, 0, flags, value, value))
    return PacketMessage(topic, record(value), QUOTE.id, QUOTE.version, extensions={Extension.ORIGIN: origin})


def take(core: DistributionEngine, *messages: PacketMessage, feed: str = "itch") -> None:
    core.handle(Updates(messages, feed), NOW)


def change(core: DistributionEngine, kind: str, session: str, stream: int = 1, feed: str = "itch") -> None:
    date = f"{session[:4]}-{session[4:6]}-{session[6:]}"
    event = SessionEvent(kind, stream, session, date, session_tag(session), feed)  # type: ignore[arg-type]
    core.handle(SessionChanged(event), NOW)


def kinds(events: list[Event]) -> list[EventKind]:
    return [EventKind(event.kind) for event in events if event.kind not in (EventKind.DEFINE, EventKind.LIVE)]


def taken(buffer: SessionBuffer) -> list[Event]:
    return read_events(buffer.take())


@pytest.mark.spec("DAY-3", "CRIT-1")
@pytest.mark.parametrize("cls", ["critical", "adaptive", "metered"])
def test_a_new_session_withdraws_the_records_of_the_previous_one(cls: str) -> None:
    core = engine(classes=ALL, limits=MeteringLimits())
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.>"], cls, per_second=10), NOW)  # type: ignore[arg-type]
    take(core, quote("md.a", 1), quote("md.b", 2), quote("md.c", 3, stream=2))
    assert kinds(taken(buffer)) == [UPDATE, UPDATE, UPDATE]
    change(core, "begin", DAY_2)
    core.handle(Tick(), NOW)
    events = taken(buffer)
    assert sorted(kinds(events)) == [WITHDRAW, WITHDRAW, SESSION]
    session = decode_session(next(event.session for event in events if event.kind == SESSION))
    assert (session.kind, session.session, session.trading_date) == ("begin", DAY_2, "2024-01-03")
    assert [each.record for each in core.current([">"])] == [None, None, record(3)]
    assert core.counters["records_withdrawn"] == 2
    take(core, quote("md.b", 5, DAY_2))
    core.handle(Tick(), NOW + NS_PER_SECOND)
    assert told(taken(buffer)) == [(UPDATE, 5)]


@pytest.mark.spec("DAY-3", "CRIT-1")
def test_critical_updates_of_a_session_precede_the_event_of_its_end() -> None:
    """Also for a slow consumer that is served from the history."""
    core = engine()
    buffer, _ = buffer_consumer(core, 0, "md.>", capacity=33_000)
    for value in range(1, 1_000):
        take(core, quote("md.a", value))
    change(core, "end", DAY_1)
    change(core, "begin", DAY_2)
    take(core, quote("md.b", 1_000, DAY_2))
    events: list[Event] = []
    while some := taken(buffer):
        events += some
        core.serve(NOW)
    assert kinds(events) == [UPDATE] * 999 + [WITHDRAW, SESSION, SESSION, UPDATE]
    assert [decode_session(event.session).kind for event in events if event.kind == SESSION] == ["end", "begin"]
    assert [event.version for event in events if event.kind == WITHDRAW] == [1_000]


@pytest.mark.spec("DAY-3")
def test_the_end_of_a_session_withdraws_its_records_and_the_next_begin_withdraws_no_more() -> None:
    core = engine()
    buffer, _ = buffer_consumer(core, 0, "md.>")
    take(core, quote("md.a", 1))
    change(core, "end", DAY_1)
    assert kinds(taken(buffer)) == [UPDATE, WITHDRAW, SESSION]
    change(core, "end", DAY_1)  # reported by another adapter
    assert not taken(buffer)
    change(core, "begin", DAY_2)
    change(core, "begin", DAY_2)
    assert kinds(taken(buffer)) == [SESSION]


@pytest.mark.spec("DAY-3")
def test_sessions_of_different_streams_and_feeds_are_independent() -> None:
    core = engine()
    take(core, quote("md.a", 1, stream=1), quote("md.b", 2, stream=2), feed="itch")
    take(core, quote("md.c", 3, stream=1), feed="iex")
    change(core, "end", DAY_1, stream=1, feed="iex")
    assert [each.record for each in core.current([">"])] == [record(1), record(2), None]
    change(core, "begin", DAY_2, stream=2)
    assert [each.record for each in core.current([">"])] == [record(1), None, None]


@pytest.mark.spec("DAY-3")
def test_a_record_of_the_new_session_that_arrives_before_its_begin_is_kept() -> None:
    """An image of another adapter may contain it."""
    core = engine()
    take(core, quote("md.a", 1), quote("md.b", 2))
    take(core, quote("md.a", 9, DAY_2))
    change(core, "running", DAY_2)
    assert [each.record for each in core.current([">"])] == [record(9), None]


@pytest.mark.spec("DAY-3", "TP-1")
@pytest.mark.parametrize("cls", ["critical", "adaptive", "metered"])
def test_a_later_subscriber_gets_no_records_of_an_ended_session(cls: str) -> None:
    core = engine(classes=ALL, limits=MeteringLimits())
    take(core, quote("md.a", 1), quote("md.b", 2))
    change(core, "begin", DAY_2)
    take(core, quote("md.b", 3, DAY_2))
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.>"], cls, per_second=10), NOW)  # type: ignore[arg-type]
    core.handle(Tick(), NOW + NS_PER_SECOND)
    assert [(kind, value) for kind, value in told(taken(buffer)) if kind in (REFRESH, UPDATE, WITHDRAW)] == [
        (REFRESH, 3)
    ]


@pytest.mark.spec("DAY-3", "METR-4")
def test_waiting_records_are_never_sent_after_their_session_has_ended() -> None:
    core = engine(classes=ALL, limits=MeteringLimits())
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.a"], "metered", per_second=1), NOW)
    take(core, quote("md.a", 1), quote("md.a", 2))
    assert [value for kind, value in told(taken(buffer)) if kind == UPDATE] == [1]
    change(core, "begin", DAY_2)
    core.handle(Tick(), NOW + 10 * NS_PER_SECOND)
    assert UPDATE not in kinds(taken(buffer))


@pytest.mark.spec("DAY-3", "ADPT-1")
def test_a_record_in_a_region_is_marked_as_withdrawn_and_written_again_in_the_next_session() -> None:
    core = engine()
    with records_consumer(core, 0) as consumer:
        consumer.subscribe(1, "md.>")
        consumer.carry_out(core.handle(Updates([quote("md.a", 1), quote("md.b", 2)], "itch"), NOW))
        drain(consumer.notices)
        change(core, "begin", DAY_2)
        assert [EventKind(event.kind) for event in drain(consumer.notices)] == [
            EventKind.NOTICE,
            EventKind.NOTICE,
            SESSION,
        ]
        region = consumer.readers[QUOTE.id]
        assert [region.read(slot).is_withdrawn for slot in (0, 1)] == [True, True]
        take(core, quote("md.b", 7, DAY_2))
        assert [region.read(slot).is_withdrawn for slot in (0, 1)] == [True, False]
        assert consumer.value(1) == 7


@pytest.mark.spec("DAY-3", "CRIT-3")
def test_an_overrun_consumer_learns_of_records_withdrawn_in_between() -> None:
    core = engine()
    with ring_consumer(core, 0, "md.>") as reader:
        take(core, quote("md.a", 1))
        last = drain(reader)[-1].number
        change(core, "begin", DAY_2)
        core.handle(Overrun(0, last), NOW)
        reader.restart()
        assert kinds(drain(reader)) == [WITHDRAW, SESSION]


@pytest.mark.spec("DAY-3", "CRIT-3")
def test_an_overrun_consumer_learns_of_withdrawn_records_when_the_history_is_gone() -> None:
    core = engine(history_bytes=65_536)
    with ring_consumer(core, 0, "md.>") as reader:
        take(core, quote("md.a", 1))
        last = drain(reader)[-1].number
        change(core, "begin", DAY_2)
        for value in range(2, 1_000):
            take(core, quote("md.b", value, DAY_2))
        core.handle(Overrun(0, last), NOW)
        reader.restart()
        core.handle(Tick(), NOW + NS_PER_SECOND)
        events = drain(reader)
        assert sorted(kinds(events)) == [REFRESH, EventKind.RECEIPT, WITHDRAW, SESSION]
        (session,) = [decode_session(event.session) for event in events if event.kind == SESSION]
        assert (session.kind, session.session) == ("running", DAY_2), "the begin is among the lost events"


@pytest.mark.spec("DAY-3", "MUX-1")
def test_a_node_below_withdraws_the_records_that_the_node_above_withdraws() -> None:
    plant, below = engine(), engine(keeps="wanted", has_upstream=True)
    buffer, _ = buffer_consumer(plant, 0, "md.>")
    incoming = Incoming(lambda _: ["md.>"])
    consumer, _ = buffer_consumer(below, 0, "md.>")

    def pass_on() -> None:
        for event in incoming.read(buffer.take()):
            if hasattr(event, "merged"):
                below.kernel.publish(*event[:-2], NOW, event.merged, None, event.session_id)  # type: ignore[index]
            else:
                below.handle(event, NOW)  # type: ignore[arg-type]

    incoming.begin(is_again=False)
    take(plant, quote("md.a", 1), quote("md.b", 2))
    pass_on()
    change(plant, "begin", DAY_2)
    take(plant, quote("md.b", 3, DAY_2))
    pass_on()
    assert kinds(taken(consumer)) == [UPDATE, UPDATE, WITHDRAW, WITHDRAW, SESSION, UPDATE]
    assert [each.record for each in below.current([">"])] == [None, record(3)]


@pytest.mark.spec("DAY-3", "MUX-1")
def test_after_a_disconnect_a_node_below_withdraws_records_that_the_node_above_no_longer_has() -> None:
    below = engine(keeps="wanted", has_upstream=True)
    consumer, _ = buffer_consumer(below, 0, "md.>")
    for topic, value in ((b"md.a", 1), (b"md.b", 2)):
        below.handle(Image(topic, QUOTE.id, QUOTE.version, 1, record(value)), NOW)
    taken(consumer)
    incoming = Incoming(lambda _: ["md.>"])
    incoming.begin(is_again=False)
    incoming.repair()
    define = make_event(EventKind.DEFINE, item=0, body=b"md.b", model_id=QUOTE.id, model_version=QUOTE.version)
    refresh = make_event(REFRESH, item=0, body=record(5), version=3, number=3, model_id=QUOTE.id)
    live = make_event(EventKind.LIVE, item=0xFFFFFFFF, body=(1).to_bytes(8, "little"))
    events = list(incoming.read(define + refresh + live))
    assert Reconcile in map(type, events)
    for event in events:
        below.handle(event, NOW)  # type: ignore[arg-type]
    assert (WITHDRAW, b"") in told(taken(consumer))
    assert [each.record for each in below.current([">"])] == [None, record(5)]
    again = Incoming(lambda _: ["md.>"])
    again.begin(is_again=True)
    assert Reconcile not in map(type, again.read(define + live))  # another run of it may get its images only now
    assert again.told == {(b"md.b", QUOTE.id)}


@pytest.mark.spec("DAY-3", "TP-1")
def test_a_reconnected_consumer_learns_of_records_withdrawn_in_its_absence() -> None:
    core = engine(history_bytes=65_536)
    take(core, quote("md.a", 1))
    change(core, "begin", DAY_2)
    for value in range(2, 1_000):
        take(core, quote("md.b", value, DAY_2))
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.>"], after=1), NOW)
    assert WITHDRAW in kinds(taken(buffer))


@pytest.mark.spec("DAY-3", "TP-1")
@pytest.mark.parametrize("cls", ["critical", "adaptive", "metered"])
def test_a_late_consumer_learns_of_the_running_sessions(cls: str) -> None:
    core = engine(classes=ALL, limits=MeteringLimits())
    early, _ = buffer_consumer(core, 1, "md.>")
    change(core, "begin", DAY_1)
    take(core, quote("md.a", 1))
    change(core, "begin", DAY_2, stream=2)
    change(core, "end", DAY_1, stream=3)
    assert sessions(taken(early)) == [("begin", 1, DAY_1), ("begin", 2, DAY_2), ("end", 3, DAY_1)]
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.>"], cls, per_second=10), NOW)  # type: ignore[arg-type]
    core.handle(Tick(), NOW + NS_PER_SECOND)
    events = taken(buffer)
    assert sessions(events) == [("running", 1, DAY_1), ("running", 2, DAY_2)]
    assert kinds(events) == [SESSION, SESSION, REFRESH]
    core.handle(Subscribe(0, 2, ["md.a"], cls, per_second=10), NOW)  # type: ignore[arg-type]
    core.handle(Tick(), NOW + 2 * NS_PER_SECOND)
    assert sessions(taken(buffer)) == []
    assert sessions(taken(early)) == []
    change(core, "end", DAY_1)
    assert sessions(taken(buffer)) == sessions(taken(early)) == [("end", 1, DAY_1)]


@pytest.mark.spec("DAY-3", "TP-1")
def test_a_consumer_learns_of_the_running_session_that_its_node_joined() -> None:
    core = engine()
    buffer, _ = buffer_consumer(core, 0, "md.>")
    change(core, "running", DAY_1)
    change(core, "running", DAY_1)
    assert sessions(taken(buffer)) == [("running", 1, DAY_1)]
    change(core, "running", DAY_2)
    assert sessions(taken(buffer)) == [("begin", 1, DAY_2)]


@pytest.mark.spec("DAY-3", "ADPT-1")
def test_a_late_consumer_with_rings_learns_of_the_sessions_in_both_rings() -> None:
    core = engine()
    change(core, "begin", DAY_1)
    with records_consumer(core, 0) as consumer:
        consumer.subscribe(1, "md.>")
        assert sessions(drain(consumer.notices)) == [("running", 1, DAY_1)]
    with ring_consumer(core, 1, "md.>") as reader:
        assert sessions(drain(reader)) == [("running", 1, DAY_1)]


@pytest.mark.spec("DAY-3", "TP-1")
def test_a_consumer_that_resumes_gets_session_events_only_in_their_position() -> None:
    core = engine()
    take(core, quote("md.a", 1))
    change(core, "begin", DAY_2)
    take(core, quote("md.a", 2, DAY_2))
    buffer, _ = buffer_consumer(core, 0)
    core.handle(Subscribe(0, 1, ["md.>"], after=1), NOW)
    assert sessions(taken(buffer)) == [("begin", 1, DAY_2)]


@pytest.mark.spec("DAY-3")
def test_session_events_beyond_the_space_of_a_late_consumer_are_sent_later() -> None:
    core = engine()
    for stream in range(1_000):
        change(core, "begin", DAY_1, stream=stream)
    buffer, _ = buffer_consumer(core, 0, "md.>", capacity=33_000)
    streams = [stream for _, stream, _ in sessions(taken(buffer))]
    assert 100 < len(streams) < 1_000
    for _ in range(20):  # as often as there is space again
        core.handle(Tick(), NOW)
        streams += [stream for _, stream, _ in sessions(taken(buffer))]
    assert streams == list(range(1_000))
    assert core.counters["sessions_deferred"] == 1


@pytest.mark.spec("DAY-3", "MUX-1")
def test_a_node_below_reports_sessions_to_its_late_consumers_and_repeats_none_after_a_reconnect() -> None:
    below = engine(keeps="wanted", has_upstream=True)
    early, _ = buffer_consumer(below, 0, "md.>")

    def hear(kind: str, session: str) -> None:
        event = SessionEvent(kind, 1, session, "", session_tag(session), "itch")  # type: ignore[arg-type]
        below.handle(SessionTold(encode_session(event)), NOW)

    hear("running", DAY_1)
    hear("running", DAY_1)  # the node above was reconnected
    assert sessions(taken(early)) == [("running", 1, DAY_1)]
    late, _ = buffer_consumer(below, 1, "md.>")
    assert sessions(taken(late)) == [("running", 1, DAY_1)]
    hear("running", DAY_2)
    assert sessions(taken(early)) == sessions(taken(late)) == [("begin", 1, DAY_2)]
    below.handle(SessionTold(b"{]"), NOW)
    assert taken(early) == []
    assert below.counters.by_cause("messages_dropped")["message"] == 1


class Chain:
    """A plant with a multiplexer below it, connected by a session."""

    def __init__(self) -> None:
        self.below = engine(keeps="wanted", has_upstream=True)
        self.consumer, _ = buffer_consumer(self.below, 0, "md.>")
        self._incoming = Incoming(lambda number: ["md.>"])
        self.start(is_again=False)

    def start(self, *, is_again: bool) -> None:
        self.above = engine()
        self._incoming.begin(is_again=is_again)
        if is_again:
            self.below.handle(Lost(), NOW)
        self._buffer, _ = buffer_consumer(self.above, 0)

    def subscribe(self) -> None:
        self.above.handle(Subscribe(0, 1, ["md.>"], "critical"), NOW)
        self.carry()

    def carry(self) -> None:
        for said in self._incoming.read(self._buffer.take()):
            if isinstance(said, Updated):
                self.below.kernel.publish(*said[:-2], NOW, said.merged, None, said.session_id)
            else:
                self.below.handle(said, NOW)

    def current(self) -> list[bytes | None]:
        return [each.record for each in self.below.current([">"])]


@pytest.mark.spec("DAY-3", "MUX-1")
@pytest.mark.parametrize("is_refresh", [True, False])
@pytest.mark.parametrize("restarted_in", [DAY_1, DAY_2])
def test_a_restarted_plant_leaves_no_record_of_an_ended_session_below(restarted_in: str, is_refresh: bool) -> None:
    """The restarted plant does not know the record, so only the multiplexer can withdraw it."""
    chain = Chain()
    change(chain.above, "begin", DAY_1)
    if not is_refresh:
        chain.subscribe()
    take(chain.above, quote("md.a", 1), quote("md.b", 2, stream=2))
    if is_refresh:
        chain.subscribe()
    chain.carry()
    assert chain.current() == [record(1), record(2)]
    taken(chain.consumer)

    chain.start(is_again=True)
    change(chain.above, "running", DAY_2, stream=2)  # of another feed's stream, which implies nothing about stream 1
    chain.subscribe()
    assert chain.current() == [record(1), None]
    change(chain.above, "running", restarted_in)
    chain.carry()
    assert chain.current() == [record(1) if restarted_in == DAY_1 else None, None]
    withdrawn = [event for event in taken(chain.consumer) if event.kind == WITHDRAW]
    assert len(withdrawn) == chain.below.counters["records_withdrawn"] == (1 if restarted_in == DAY_1 else 2)


def test_an_update_names_the_session_of_its_record() -> None:
    core = engine(classes=ALL, limits=MeteringLimits())
    buffers = [buffer_consumer(core, number)[0] for number in range(3)]
    for number, cls in enumerate(ALL):
        core.handle(Subscribe(number, 1, ["md.>"], cls, per_second=10), NOW)  # type: ignore[arg-type]
    take(core, quote("md.a", 1))
    core.handle(Updates([PacketMessage("md.b", record(2), QUOTE.id, QUOTE.version)]), NOW)
    core.handle(Tick(), NOW + NS_PER_SECOND)
    day = session_id(SessionEvent("begin", 1, DAY_1, "", session_tag(DAY_1), "itch"))
    late, _ = buffer_consumer(core, 3, "md.>")
    for buffer in (*buffers, late):
        assert [event.session_id for event in taken(buffer) if event.kind in (UPDATE, REFRESH)] == [day, 0]
    assert day
    assert session_id(SessionEvent("begin", 1, DAY_1, "", 0, "itch")) == 0


def sessions(events: list[Event]) -> list[tuple[str, int, str]]:
    told = [decode_session(event.session) for event in events if event.kind == SESSION]
    return [(each.kind, each.stream_id, each.session) for each in told]


def test_withdrawing_an_unknown_item_changes_nothing() -> None:
    core = engine()
    core.handle(RecordWithdrawn(b"md.a", QUOTE.id, 3), NOW)
    assert core.current([">"]) == []


@pytest.mark.spec("DAY-3", "DAY-5")
@pytest.mark.parametrize("has_date_tags", [True, False])
def test_records_of_the_previous_day_are_withdrawn_if_the_venue_reuses_the_session_name(has_date_tags: bool) -> None:
    core = engine()
    buffer, _ = buffer_consumer(core, 0, "md.>")
    days = ["2024-01-02", "2024-01-03"]
    tags = [session_tag("day", day if has_date_tags else "") for day in days]
    for day, tag, value in zip(days, tags, (1, 2), strict=True):
        core.handle(SessionChanged(SessionEvent("begin", 1, "day", day, tag, "itch")), NOW)
        assert [each.record for each in core.current([">"])] == ([None] if value > 1 else [])
        flags = int(OriginFlag.SYNCHRONISED) | tag << SESSION_TAG_SHIFT
        origin = encode_origin(Origin(1, 1, 0, flags, 1, value))
        extensions = {int(Extension.ORIGIN): origin}
        take(core, PacketMessage("md.a", record(value), QUOTE.id, QUOTE.version, extensions=extensions))
    told_days = [decode_session(event.session).trading_date for event in taken(buffer) if event.kind == SESSION]
    assert told_days == days
    core.handle(SessionChanged(SessionEvent("running", 1, "day", days[1], tags[1], "itch")), NOW)
    assert not taken(buffer), "a repeated event"


@pytest.mark.spec("DAY-3")
def test_a_late_consumer_does_not_learn_of_sessions_that_ended_before_it_connected() -> None:
    """Waiting SESSION events are older than the events that a late consumer gets first."""
    core = engine(budget_bytes=0)
    early, _ = buffer_consumer(core, 0, "md.>")
    change(core, "begin", DAY_1)
    core.serve(NOW)
    taken(early)
    take(core, quote("md.a", 1))
    change(core, "end", DAY_1)
    change(core, "begin", DAY_2)
    take(core, quote("md.a", 2, DAY_2))
    late, _ = buffer_consumer(core, 1, "md.>")
    change(core, "end", DAY_2)
    sessions: dict[str, list[tuple[str, str]]] = {"early": [], "late": []}
    for _ in range(10):
        core.serve(NOW)
        for name, buffer in (("early", early), ("late", late)):
            events = [decode_session(each.session) for each in taken(buffer) if each.kind == SESSION]
            sessions[name] += [(each.kind, each.session) for each in events]
    assert sessions["early"] == [("end", DAY_1), ("begin", DAY_2), ("end", DAY_2)]
    assert sessions["late"] == [("running", DAY_2), ("end", DAY_2)]
