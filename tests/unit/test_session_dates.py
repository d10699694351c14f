"""State dropped by a new session, and the session's date: from the datagrams of a feed to the messages of an
adapter."""

from datetime import date, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock.base.calendar import TradingCalendar, every_day
from penstock.base.core import Tick
from penstock.base.errors import LocalProtocolError
from penstock.convert import Converter, ConverterTable, SourceBatch, TableChoice
from penstock.feed import FeedAdapter, LineArbiter, LineConfig, SynchroniserConfig
from penstock.feed.core.contribution import TABLE as CONTRIBUTION_TABLE
from penstock.feed.core.events import (
    AdapterEvent,
    Announce,
    LaneAdvanced,
    PersistTerm,
    PublishConverted,
    SessionBegan,
    SessionOver,
    SourceDatagram,
    SourceMessages,
    TermPersisted,
    TimeOfDay,
)
from penstock.feed.core.lines.events import SessionStarted, SourceReady
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.formats.mold import MoldUDP64, encode_end, encode_packet
from penstock.feed.recorded.conversion import RecordedConversion
from penstock.middleware.core.source_stream import END, DiscontinuityNote
from sim.toy_conversion import ToyConversion
from unit.itch_messages import add, directory, head, number, trade

PLAN = ConverterTable.load("itch").compile()
MODELS = {output.model.id: output.model for output in PLAN.outputs}
MODEL = next(output.model for output in PLAN.outputs if output.name == "trade")
STREAM = 7
MS = 1_000_000
NEW_YORK = ZoneInfo("America/New_York")
CALENDAR = TradingCalendar.of_venue("XNAS")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=NEW_YORK).timestamp()) * 10**9


def halt(locate: int, stock: bytes) -> bytes:
    return head(b"H", locate) + stock.ljust(8) + b"H" + b" " + b"T1  "


def collar(locate: int, stock: bytes) -> bytes:
    return (
        head(b"J", locate)
        + stock.ljust(8)
        + number(1_000_000, 4)
        + number(1_100_000, 4)
        + number(900_000, 4)
        + bytes(4)
    )


class Plant:
    """One adapter with lines, run like by its driver; `rows` has the published rows."""

    def __init__(self, dates: SessionDates | None) -> None:
        self.now_ns = 0
        self.converter = Converter(PLAN, STREAM)
        arbiter = LineArbiter(LineConfig(jump_wait_ms=1), MoldUDP64())
        self.core = FeedAdapter(
            {STREAM: arbiter},
            {STREAM: self.converter},
            SynchroniserConfig(startup_ms=1),
            term=0,
            now_ns=0,
            dates=None if dates is None else {STREAM: dates},
        )
        self.rows: list[tuple[str, Any]] = []
        self.notes: list[DiscontinuityNote] = []
        self.wait(500)

    def hear(self, data: bytes, receive_ns: int) -> None:
        self.handle(SourceDatagram(STREAM, 0, data, receive_ns))

    def handle(self, event: AdapterEvent) -> None:
        self._carry_out(self.core.handle(event, self.now_ns))

    def wait(self, ms: int) -> None:
        end_ns = self.now_ns + ms * MS
        while (deadline_ns := self.core.next_deadline_ns()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self._carry_out(self.core.handle(Tick(), self.now_ns))
        self.now_ns = end_ns

    def day(self, name: str, messages: list[bytes], receive_ns: int) -> None:
        """A session of the feed, from its first message to its end."""
        self.hear(encode_packet(name, 1, []), receive_ns)
        self.wait(10)
        self.hear(encode_packet(name, 1, messages), receive_ns)
        self.hear(encode_end(name, len(messages) + 1), receive_ns)
        self.wait(10)

    def _carry_out(self, instructions: list[Any]) -> None:
        for instruction in instructions:
            match instruction:
                case PersistTerm(term):
                    self._carry_out(self.core.handle(TermPersisted(term), self.now_ns))
                case PublishConverted(_, converted):
                    topics, payloads = bytes(converted.topic_data), converted.payloads.tobytes()
                    for row in converted.rows:
                        topic = topics[row["topic_offset"] :][: row["topic_size"]].decode()
                        record = payloads[row["payload_offset"] :][: row["payload_size"]]
                        self.rows.append((topic, MODELS[int(row["model_id"])].view(record)))
                case Announce(_, message):
                    self.notes.append(DiscontinuityNote.decode(message.payload))


@pytest.mark.spec("DAY-1", "DAY-2")
def test_a_running_adapter_publishes_the_second_day_under_its_own_instruments_and_date() -> None:
    plant = Plant(SessionDates(CALENDAR))
    plant.day(
        "FRIDAY",
        [directory(), halt(1, b"AAPL"), trade(100, 1_600_000, 1)],
        at("2026-01-30T10:00"),
    )
    plant.rows.clear()
    plant.day("MONDAY", [directory(1, b"MSFT"), trade(100, 4_200_000, 1, 1, b"MSFT")], at("2026-02-01T19:30"))
    assert {topic for topic, _ in plant.rows} == {"md.us.eq.MSFT.trade", "md.us.eq.MSFT.stats"}
    midnight_ns = at("2026-02-02T00:00")
    assert {row.event_time for _, row in plant.rows} == {midnight_ns + 34_200 * 10**9}
    begun = [note for note in plant.notes if note.reason == "session"]
    assert [(note.session, note.trading_date) for note in begun] == [
        ("FRIDAY", "2026-01-30"),
        ("MONDAY", "2026-02-02"),
    ]
    assert plant.converter.state.statistics("AAPL").previous_close == 160_00000000
    assert plant.converter.trading_date == date(2026, 2, 2)


@pytest.mark.spec("DAY-1")
def test_orders_halts_and_price_limits_end_with_their_session() -> None:
    plant = Plant(SessionDates(CALENDAR))
    first_day = [directory(), halt(1, b"AAPL"), collar(1, b"AAPL"), add(11, b"B", 100, 1_000_000, 1, b"AAPL")]
    plant.day("ONE", first_day, at("2026-01-29T10:00"))
    plant.rows.clear()
    resumption = head(b"H", 2) + b"AAPL    " + b"T" + b" " + b"    "
    plant.day(
        "TWO",
        [
            head(b"E", 1) + number(11, 8) + number(100, 4) + number(9, 8),  # an order of the first day
            add(12, b"B", 100, 1_000_000, 1, b"MSFT"),
            resumption,
        ],
        at("2026-01-30T10:00"),
    )
    unmatched = plant.converter.counters.by_cause("source_messages_unmatched")
    assert {str(cause): count for cause, count in unmatched.items() if count} == {"unknown_order": 1}
    book, quote, status = [row for _, row in plant.rows]
    assert (book.symbol, quote.symbol, status.symbol) == ("MSFT", "MSFT", "AAPL")
    assert (status.state, status.upper_limit, status.lower_limit) == ("trading", None, None)
    assert plant.converter.state.reference(plant.converter.state.find("MSFT")).status == 0


@pytest.mark.spec("DAY-1")
def test_a_directory_message_assigns_its_locate_also_within_a_session() -> None:
    converter = Converter(PLAN, STREAM)
    converter.convert(SourceBatch.from_messages([directory(), directory(1, b"MSFT")], 1))
    assert converter.state.find_locate(1) == converter.state.find("MSFT")
    assert converter.state.reference(converter.state.find("AAPL")).locate is None


@pytest.mark.spec("DAY-1")
def test_an_image_omits_instruments_that_the_session_has_not_named() -> None:
    converter = Converter(PLAN, STREAM, trading_date=date(2026, 1, 29))
    converter.convert(SourceBatch.from_messages([directory(), add(1, b"B", 9, 1_000, 1, b"AAPL")], 1))
    converter.new_session("two", date(2026, 1, 30))
    assert len(converter.image()) == 0
    converter.convert(SourceBatch.from_messages([directory(1, b"MSFT")], 1))
    assert {topic.split(".")[3] for topic, *_ in converter.image()} == {"MSFT"}


@pytest.mark.spec("DAY-2")
def test_a_calendar_ends_the_day_of_a_feed_that_keeps_its_session() -> None:
    """Messages received on another trading date belong to that date, although the session continues."""
    plant = Plant(SessionDates(CALENDAR))
    plant.hear(encode_packet("S", 1, [directory(), trade(100, 1_600_000, 1)]), at("2026-01-30T15:00"))
    plant.wait(10)
    plant.rows.clear()
    plant.hear(encode_packet("S", 3, []), at("2026-01-31T12:00"))  # a heartbeat on Saturday changes nothing
    assert plant.converter.trading_date == date(2026, 1, 30)
    plant.hear(
        encode_packet("S", 3, [directory(1, b"MSFT"), trade(7, 4_200_000, 1, 1, b"MSFT")]), at("2026-02-02T09:30")
    )
    plant.wait(10)
    assert {topic for topic, _ in plant.rows} == {"md.us.eq.MSFT.trade", "md.us.eq.MSFT.stats"}
    assert {row.event_time for _, row in plant.rows} == {at("2026-02-02T09:30")}
    assert plant.notes[-1] == DiscontinuityNote("session", [], "S#2", "2026-02-02")
    assert plant.core.roll_ns(STREAM) == at("2026-02-02T21:00")
    plant.hear(encode_packet("S", 5, [trade(8, 4_210_000, 2, 1, b"MSFT")]), at("2026-02-02T20:00"))
    assert len(plant.rows) == 4


@pytest.mark.spec("DAY-1", "DAY-2")
def test_a_feed_that_keeps_its_session_keeps_its_instrument_definitions() -> None:
    """For weeks, on a real calendar: locate codes belong to the source's session, books and trading states to the
    day."""
    plant = Plant(SessionDates(CALENDAR))
    recorded = RecordedConversion(Converter(PLAN, STREAM), SessionDates(CALENDAR))
    days = [f"2026-01-{day}T15:00" for day in (26, 27, 28, 29, 30)] + [f"2026-02-0{day}T15:00" for day in (2, 3)]
    first = [directory(), halt(1, b"AAPL"), collar(1, b"AAPL"), add(11, b"B", 100, 1_000_000, 1, b"AAPL")]
    plant.hear(encode_packet("S", 1, first), at(days[0]))
    plant.wait(10)
    lot = plant.converter.state.reference(plant.converter.state.find("AAPL")).round_lot
    assert lot > 0
    execution = head(b"E", 1) + number(11, 8) + number(100, 4) + number(9, 8)
    batches = [first]
    for index, moment in enumerate(days[1:], 1):
        plant.rows.clear()
        batches.append([trade(index, 1_600_000, index), execution])
        plant.hear(encode_packet("S", 3 + 2 * index, batches[-1]), at(moment))
        plant.wait(10)
        assert {topic for topic, _ in plant.rows} == {"md.us.eq.AAPL.trade", "md.us.eq.AAPL.stats"}
        assert {row.event_time for _, row in plant.rows} == {at(moment[:10] + "T09:30")}
        found = plant.converter.state.reference(plant.converter.state.find_locate(1))
        assert (found.symbol, found.round_lot, found.status, found.upper_limit) == ("AAPL", lot, 0, None)
        unmatched = plant.converter.counters.by_cause("source_messages_unmatched")
        assert unmatched == {"unknown_order": index}, "the order was of the first day"
    sequence = 1
    events: list[Any] = [SessionStarted("S", 1, receive_ns=at(days[0]))]
    for moment, messages in zip(days, batches, strict=True):
        events.append(SourceReady(SourceBatch.from_messages(messages, sequence, at(moment))))
        sequence += len(messages)
    for event in events:
        for batch in recorded.take(event):
            recorded.converter.convert(batch)
    assert recorded.converter.state.differences(plant.converter.state) == []


@pytest.mark.spec("DAY-1")
def test_a_feed_that_has_ended_its_day_assigns_new_codes_also_under_the_same_name() -> None:
    """The feed's own events take precedence over the calendar: nothing is kept after the end of messages."""
    plant = Plant(SessionDates(CALENDAR))
    plant.hear(encode_packet("S", 1, [directory(), system_event(b"C")]), at("2026-01-29T20:05"))
    plant.wait(10)
    plant.rows.clear()
    plant.hear(encode_packet("S", 3, [add(11, b"B", 100, 1_000_000, 1, b"MSFT")]), at("2026-01-30T10:00"))
    plant.wait(10)
    assert plant.notes[-1] == DiscontinuityNote("session", [], "S#2", "2026-01-30")
    assert {row.symbol for _, row in plant.rows} == {"MSFT"}
    assert plant.converter.state.reference(plant.converter.state.find("AAPL")).locate is None


def system_event(code: bytes) -> bytes:
    return head(b"S", 0) + code


def ends_of(plant: Plant) -> list[tuple[str, str]]:
    return [(note.session, note.trading_date) for note in plant.notes if note.reason == END]


@pytest.mark.spec("DAY-3")
def test_the_end_of_messages_ends_the_session() -> None:
    """ITCH announces it with the system event C; the later end of MoldUDP64 is not announced again."""
    plant = Plant(SessionDates(CALENDAR))
    messages = [directory(), trade(100, 1_600_000, 1), *(system_event(code) for code in (b"M", b"E"))]
    plant.hear(encode_packet("S", 1, messages), at("2026-01-30T15:00"))
    plant.wait(10)
    assert ends_of(plant) == []
    plant.hear(encode_packet("S", 5, [system_event(b"C")]), at("2026-01-30T20:05"))
    assert ends_of(plant) == [("S", "2026-01-30")]
    assert plant.core.is_ended(STREAM)
    plant.hear(encode_end("S", 6), at("2026-01-30T20:06"))
    plant.handle(TimeOfDay(STREAM, at("2026-01-30T22:00")))
    plant.wait(10)
    assert len(ends_of(plant)) == 1
    plant.day("T", [directory(), system_event(b"C")], at("2026-02-02T15:00"))
    assert ends_of(plant) == [("S", "2026-01-30"), ("T", "2026-02-02")]


@pytest.mark.spec("DAY-3")
def test_a_driver_that_converts_itself_learns_of_the_end_of_messages() -> None:
    plant = Plant(SessionDates(CALENDAR))
    plant.hear(encode_packet("S", 1, [directory()]), at("2026-01-30T15:00"))
    plant.wait(10)
    plant.converter.convert(SourceBatch.from_messages([system_event(b"C")], 2, at("2026-01-30T20:05")))
    plant.handle(LaneAdvanced(STREAM))
    plant.handle(LaneAdvanced(STREAM))
    assert ends_of(plant) == [("S", "2026-01-30")]


@pytest.mark.spec("DAY-3")
@pytest.mark.parametrize("table", ["iex-tops", "iex-deep"])
def test_iex_ends_its_session_with_its_messages(table: str) -> None:
    converter = Converter(ConverterTable.load(table).compile(), STREAM)
    for sequence, code in enumerate((b"O", b"S", b"R", b"M", b"E"), 1):
        converter.convert(SourceBatch.from_messages([b"S" + code + bytes(8)], sequence))
        assert not converter.is_over
    converter.convert(SourceBatch.from_messages([b"S" + b"C" + bytes(8)], 6))
    assert converter.is_over
    converter.new_session("next", None)
    assert not converter.is_over


@pytest.mark.spec("DAY-3")
def test_the_calendar_ends_a_session_that_does_not_end_itself() -> None:
    plant = Plant(SessionDates(CALENDAR))
    assert plant.core.day_end_ns(STREAM) is None
    plant.hear(encode_packet("S", 1, [directory(), trade(100, 1_600_000, 1)]), at("2026-01-30T15:00"))
    plant.wait(10)
    end_ns = plant.core.day_end_ns(STREAM)
    assert end_ns == at("2026-01-30T21:00:01")
    plant.handle(TimeOfDay(STREAM, end_ns - 1))
    assert ends_of(plant) == []
    for wall_ns in (end_ns, end_ns + 1):
        plant.handle(TimeOfDay(STREAM, wall_ns))
    plant.handle(SessionOver(STREAM))
    assert ends_of(plant) == [("S", "2026-01-30")]
    assert plant.core.day_end_ns(STREAM) is None
    plant.hear(encode_packet("S", 3, [directory(), trade(100, 1_600_000, 1)]), at("2026-02-02T15:00"))
    plant.wait(10)
    assert plant.notes[-1] == DiscontinuityNote("session", [], "S#2", "2026-02-02")
    assert plant.core.day_end_ns(STREAM) == at("2026-02-02T21:00:01")


@pytest.mark.spec("DAY-3")
def test_a_replayed_day_does_not_end_by_the_clock() -> None:
    plant = Plant(SessionDates(CALENDAR, date(2019, 1, 30)))
    plant.hear(encode_packet("S", 1, [directory()]), at("2026-01-30T15:00"))
    plant.wait(10)
    assert plant.core.day_end_ns(STREAM) is None
    plant.handle(TimeOfDay(STREAM, at("2026-02-02T15:00")))
    assert ends_of(plant) == []


@pytest.mark.spec("DAY-1", "DAY-3")
def test_without_a_calendar_of_the_venue_the_session_of_the_feed_continues() -> None:
    """A venue that trades around the clock keeps its orders at midnight, and no end is announced."""
    plant = Plant(SessionDates(every_day("UTC")))
    plant.hear(encode_packet("S", 1, [directory(), add(11, b"B", 100, 1_000_000, 1, b"AAPL")]), at("2026-01-30T15:00"))
    plant.wait(10)
    assert (plant.core.roll_ns(STREAM), plant.core.day_end_ns(STREAM)) == (None, None)
    plant.handle(TimeOfDay(STREAM, at("2026-01-31T15:00")))
    execution = head(b"E", 1) + number(11, 8) + number(100, 4) + number(9, 8)
    plant.hear(encode_packet("S", 3, [execution]), at("2026-01-31T15:00"))
    plant.wait(10)
    assert not any(plant.converter.counters.by_cause("source_messages_unmatched").values())
    assert ends_of(plant) == []
    assert [note.session for note in plant.notes if note.reason == "session"] == ["S"]
    plant.day("T", [directory()], at("2026-02-01T15:00"))
    assert plant.converter.trading_date == date(2026, 2, 1), "the feed's own session starts a day"


@pytest.mark.spec("DAY-2", "DAY-3")
def test_without_a_calendar_times_that_count_from_midnight_get_the_next_date() -> None:
    plan = ConverterTable.find(TableChoice(name="itch", venue="XXXX")).compile()
    assert plan.counts_from_midnight
    assert plan.calendar.is_fallback
    plant = Plant(SessionDates.of_plan(plan))
    plant.hear(encode_packet("S", 1, [directory(), trade(100, 1_600_000, 1)]), at("2026-01-30T15:00"))
    plant.wait(10)
    assert plant.core.roll_ns(STREAM) == at("2026-01-31T00:00")
    assert plant.core.day_end_ns(STREAM) is None, "no calendar ends the session"
    plant.rows.clear()
    plant.hear(encode_packet("S", 3, [directory(), trade(100, 1_600_000, 2)]), at("2026-01-31T15:00"))
    plant.wait(10)
    assert {row.event_time for _, row in plant.rows} == {at("2026-01-31T09:30")}
    assert not ConverterTable.load(CONTRIBUTION_TABLE).compile().counts_from_midnight


@pytest.mark.spec("DAY-2")
def test_messages_repeated_after_the_day_do_not_start_another() -> None:
    """A SoupBinTCP client that logs in again in the evening gets the day again."""
    plant = Plant(SessionDates(CALENDAR))
    messages = [directory(), trade(100, 1_600_000, 1)]
    plant.handle(SessionBegan(STREAM, "S", 1, receive_ns=at("2026-01-30T15:00")))
    plant.handle(SourceMessages(STREAM, SourceBatch.from_messages(messages, 1, at("2026-01-30T15:00"))))
    count = len(plant.rows)
    plant.handle(SessionBegan(STREAM, "S", 1, receive_ns=at("2026-01-30T22:00")))
    plant.handle(SourceMessages(STREAM, SourceBatch.from_messages(messages, 1, at("2026-01-30T22:00"))))
    assert len(plant.rows) == count
    assert plant.converter.trading_date == date(2026, 1, 30)


@pytest.mark.spec("DAY-2")
def test_a_replay_counts_trading_dates_from_the_configured_one() -> None:
    plant = Plant(SessionDates(CALENDAR, date(2019, 1, 18)))
    for name in ("ONE", "TWO", "THREE"):
        plant.day(name, [directory(), trade(100, 1_600_000, 1)], at("2026-01-30T15:00"))
    dates = [datetime.fromtimestamp(row.event_time / 10**9, NEW_YORK).date() for _, row in plant.rows[::2]]
    assert dates == [date(2019, 1, 18), date(2019, 1, 22), date(2019, 1, 23)], "over a weekend and a holiday"
    assert plant.core.roll_ns(STREAM) is None


@pytest.mark.spec("DAY-2")
def test_a_session_without_a_date_does_not_inherit_the_previous_one() -> None:
    converter = Converter(PLAN, STREAM, trading_date=date(2026, 1, 29))
    with pytest.raises(LocalProtocolError, match="session 'two' has no trading date"):
        converter.new_session("two", None)
    undated = Converter(PLAN, STREAM)
    undated.new_session("two", None)
    assert undated.trading_date is None


@pytest.mark.spec("DAY-2")
@pytest.mark.parametrize("receive_ns", [-1, 2**63, 2**80])
def test_an_impossible_receive_time_gives_no_date(receive_ns: int) -> None:
    dates = SessionDates(CALENDAR)
    assert dates.date_of(None, is_first=True, receive_ns=receive_ns) is None
    assert dates.date_of(date(2026, 1, 30), is_first=False, receive_ns=receive_ns) == date(2026, 2, 2)
    assert dates.date_of(date(2026, 1, 30), is_first=False, is_reset=True, receive_ns=receive_ns) == date(2026, 1, 30)


@pytest.mark.spec("DAY-1", "DAY-2")
def test_the_date_and_the_forgotten_codes_are_in_a_state_image() -> None:
    active, backup = Converter(PLAN, STREAM), Converter(PLAN, STREAM)
    for converter in (active, backup):
        converter.new_session("one", date(2026, 1, 29))
        converter.convert(SourceBatch.from_messages([directory(), halt(1, b"AAPL")], 1))
    active.new_session("two", date(2026, 1, 30))
    assert active.state.digest != backup.state.digest
    chunks, image = [], active.state.begin_image(backup.state.unit_digests())
    while chunk := image.chunk(65_536):
        chunks.append(chunk)
    backup.state.install(chunks)
    assert backup.state.digest == active.state.digest
    assert backup.trading_date == date(2026, 1, 30)
    assert backup.state.find_locate(1) == -1
    backup.new_session("three", date(2026, 2, 2))
    active.new_session("three", date(2026, 2, 2))
    assert backup.state.differences(active.state) == []


@pytest.mark.spec("DAY-2")
def test_a_recording_over_several_days_has_the_dates_of_an_adapter() -> None:
    """For any division of its messages into batches."""
    messages = [directory(), *(trade(100, 1_600_000 + n, n) for n in range(1, 7))]
    times = [at(f"2026-01-{day}T12:00") for day in (28, 28, 29, 29, 30, 30)] + [at("2026-02-02T08:00")]
    whole = SourceBatch()
    whole.point_at(b"".join(messages))
    offset = 0
    for index, message in enumerate(messages):
        whole.append(index + 1, offset, len(message), times[index])
        offset += len(message)
    found = []
    for cuts in ([0, 7], list(range(8)), [0, 3, 4, 7]):
        converter = Converter(PLAN, STREAM)
        recorded = RecordedConversion(converter, SessionDates(CALENDAR))
        rows: list[tuple[str, bytes]] = []
        events: list[Any] = [SessionStarted("S", 1, receive_ns=times[0])]
        events += [SourceReady(whole.part(start, end)) for start, end in pairwise(cuts)]
        for event in events:
            for batch in recorded.take(event):
                rows += [(topic, record) for topic, _, _, record in converter.convert(batch)]
        found.append((rows, converter.state.digest, recorded.session))
    assert found[0] == found[1] == found[2]
    assert found[0][2] == "S#4"
    trades = [MODEL.view(record) for topic, record in found[0][0] if topic.endswith(".trade")]
    assert [each.event_time for each in trades] == [
        at(f"{day}T09:30") for day in ("2026-01-28", *["2026-01-29"] * 2, *["2026-01-30"] * 2, "2026-02-02")
    ]


@pytest.mark.spec("DAY-1", "DAY-2")
def test_a_reset_after_a_day_that_began_by_the_calendar_has_a_separate_name() -> None:
    """The arbiter does not know the calendar's session S#2, and gives its first reset the same name."""
    recorded = RecordedConversion(Converter(PLAN, STREAM), SessionDates(CALENDAR))
    friday, monday = at("2026-01-30T12:00"), at("2026-02-02T12:00")
    names = []
    for event in (
        SessionStarted("S", 1, receive_ns=friday),
        SourceReady(SourceBatch.from_messages([directory()], 1, friday)),
        SourceReady(SourceBatch.from_messages([directory()], 2, monday)),
        SessionStarted("S#2", 1, is_reset=True, receive_ns=monday),
    ):
        for batch in recorded.take(event):
            recorded.converter.convert(batch)
        names.append(recorded.session)
    assert names == ["S", "S", "S#2", "S#3"]


def test_a_conversion_without_dates_stays_without() -> None:
    conversion = ToyConversion(STREAM)
    assert SessionDates(CALENDAR).date_of(conversion.trading_date, is_first=False) is None
    assert SessionDates(CALENDAR).roll_ns(None) is None
