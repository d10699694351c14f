"""Regulatory and operational halts are separate, each with its market; so are regular and extended hours."""

import struct
from datetime import date
from typing import Any

import pytest

from penstock.base.errors import TableError
from penstock.convert import Converter, ConverterTable, SourceBatch, TableChoice
from penstock.convert.books.state import ConversionState, Statistics
from penstock.convert.table import DIRECTORY
from penstock.model import Message
from unit.itch_messages import add, directory, executed, head, number, trade

DAY = date(2026, 1, 30)
OPEN_NS, CLOSE_NS = 34_200 * 10**9, 57_600 * 10**9


class Feed:
    """A converter and the rows of its last messages."""

    def __init__(self, table: str, venue: str = "") -> None:
        plan = ConverterTable.find(TableChoice(name=table, venue=venue)).compile()
        self.converter = Converter(plan, 1, trading_date=DAY)
        self._models = {output.model.id: output.model for output in plan.outputs}

    def take(self, *messages: bytes) -> list[Message]:
        batch = SourceBatch.from_messages(list(messages), self.converter.next_source_sequence or 1)
        made = self.converter.convert(batch)
        assert self.converter.counters["source_messages_malformed"] == 0
        return [self._models[model].view(record) for _, _, model, record in made]

    def states(self, *messages: bytes) -> list[tuple[str, bool, str | None]]:
        """State, whether an operational halt is on, and the reason."""
        return [(row.state, "operational_halt" in row.restrictions, row.reason) for row in self.take(*messages)]


def itch_state(state: bytes, reason: bytes = b"    ") -> bytes:
    return head(b"H") + b"AAPL    " + state + b" " + reason


def itch_halt(market: bytes, action: bytes) -> bytes:
    return head(b"h") + b"AAPL    " + market + action


def iex_state(state: bytes, reason: bytes = b"    ") -> bytes:
    return b"H" + state + struct.pack("<q8s4s", 5, b"ZIEXT   ", reason)


def iex_halt(status: bytes) -> bytes:
    return b"O" + status + struct.pack("<q8s", 5, b"ZIEXT   ")


def system(code: bytes, time_ns: int) -> bytes:
    return head(b"S", 0, time_ns) + code


def trade_at(time_ns: int, shares: int, price: int, match: int) -> bytes:
    return head(b"P", 1, time_ns) + trade(shares, price, match)[11:]


def cross(time_ns: int, kind: bytes, shares: int, price: int, match: int) -> bytes:
    body = number(shares, 8) + b"AAPL    " + number(price, 4) + number(match, 8) + kind
    return head(b"Q", 1, time_ns) + body


# Halts


@pytest.mark.spec("DAY-7")
def test_an_operational_halt_of_another_market_does_not_affect_this_one() -> None:
    feed = Feed("itch")
    assert feed.states(itch_state(b"T")) == [("trading", False, None)]
    assert feed.states(itch_halt(b"B", b"H"), itch_halt(b"X", b"H")) == []
    assert feed.converter.state.reference(0).restrictions == 0
    assert feed.states(itch_halt(b"Q", b"H")) == [("suspended", True, None)]
    assert feed.states(itch_halt(b"X", b"T"), itch_halt(b"B", b"T")) == []
    assert feed.states(itch_halt(b"Q", b"T")) == [("trading", False, None)]


@pytest.mark.spec("DAY-7")
@pytest.mark.parametrize(("venue", "market"), [("XBOS", b"B"), ("XPSX", b"X"), ("XNAS", b"Q")])
def test_the_venue_of_a_table_decides_its_own_market(venue: str, market: bytes) -> None:
    feed = Feed("itch", venue)
    others = [other for other in (b"Q", b"B", b"X") if other != market]
    assert feed.states(*(itch_halt(other, b"H") for other in others)) == []
    assert feed.states(itch_halt(market, b"H")) == [("suspended", True, None)]
    assert feed.states(itch_halt(market, b"T")) == [("trading", False, None)], "nothing else is known of the instrument"


@pytest.mark.spec("DAY-7", "DAY-10")
@pytest.mark.parametrize("market", [b"Q", b"B", b"X", b"Z"])
def test_every_operational_halt_on_the_feed_of_a_single_venue_is_its_own(market: bytes) -> None:
    feed = Feed("itch", "XTST")
    assert feed.states(itch_halt(market, b"H")) == [("suspended", True, None)]
    assert feed.states(itch_halt(market, b"T")) == [("trading", False, None)]


@pytest.mark.spec("DAY-7")
def test_a_market_without_a_venue_does_not_affect_a_known_venue() -> None:
    assert Feed("itch").states(itch_halt(b"Z", b"H")) == []


def test_a_table_does_not_declare_the_map_of_its_markets() -> None:
    text = (DIRECTORY / "itch.toml").read_text() + "\n[map.own_market]\nQ = 1\n"
    with pytest.raises(TableError, match=r"map\.own_market: the map 'own_market' is declared, but also derived"):
        ConverterTable.parse(text)


@pytest.mark.spec("DAY-7")
def test_itch_halts_of_both_kinds_end_separately() -> None:
    feed = Feed("itch")
    assert feed.states(itch_state(b"H", b"T1  "), itch_halt(b"Q", b"H"), itch_halt(b"Q", b"T"), itch_state(b"T")) == [
        ("halted", False, "T1"),
        ("halted", True, "T1"),
        ("halted", False, "T1"),
        ("trading", False, None),
    ]
    assert feed.states(itch_halt(b"Q", b"H"), itch_state(b"H", b"T1  "), itch_state(b"T"), itch_halt(b"Q", b"T")) == [
        ("suspended", True, None),
        ("halted", True, "T1"),
        ("suspended", True, None),
        ("trading", False, None),
    ]


@pytest.mark.spec("DAY-7")
@pytest.mark.parametrize("table", ["iex-deep", "iex-tops"])
def test_iex_halts_of_both_kinds_end_separately(table: str) -> None:
    feed = Feed(table)
    assert feed.states(iex_halt(b"N")) == [], "an instrument without a halt is published without one"
    assert feed.states(
        iex_state(b"H", b"T1  "), iex_halt(b"O"), iex_halt(b"O"), iex_halt(b"N"), iex_halt(b"N"), iex_state(b"T")
    ) == [("halted", False, "T1"), ("halted", True, "T1"), ("halted", False, "T1"), ("trading", False, None)]
    assert feed.states(iex_halt(b"O"), iex_state(b"P", b"M1  "), iex_state(b"T"), iex_halt(b"N")) == [
        ("suspended", True, None),
        ("paused", True, "M1"),
        ("suspended", True, None),
        ("trading", False, None),
    ]


@pytest.mark.spec("DAY-7")
def test_a_late_subscriber_sees_both_halts() -> None:
    feed = Feed("itch")
    feed.take(itch_state(b"T"), itch_halt(b"Q", b"H"))
    image = [row for row in _read(feed) if row.model.name == "status"]
    assert [(row.state, set(row.restrictions)) for row in image] == [("suspended", {"operational_halt"})]


def test_a_map_of_texts_contains_only_texts() -> None:
    table = """
name = "wrong"
format = "itch50"
[instrument]
key = "locate"
symbol = "stock"
[map.market]
Q = "XNAS"
B = 5
[[message.operational_halt]]
do = "book_clear"
when = "market | map(market) = venue"
"""
    with pytest.raises(TableError, match="5 is not a text of at most 8 bytes"):
        ConverterTable.parse(table).compile()


# Hours


@pytest.mark.spec("DAY-8")
def test_itch_statistics_cover_the_session_that_the_system_events_bound() -> None:
    feed = Feed("itch")
    feed.take(
        system(b"O", 10_800 * 10**9), system(b"S", 14_400 * 10**9), directory(),
        trade_at(28_800 * 10**9, 5, 2_000_000, 1),
        system(b"Q", OPEN_NS),
        cross(OPEN_NS + 1, b"O", 100, 1_000_000, 2), trade_at(OPEN_NS + 2, 10, 1_010_000, 3),
        system(b"M", CLOSE_NS),
        cross(CLOSE_NS + 10**9, b"C", 50, 1_005_000, 4), trade_at(CLOSE_NS + 2 * 10**9, 7, 500_000, 5),
    )  # fmt: skip
    expected = Statistics(
        100_00000000, 101_00000000, 100_00000000, 100_50000000, None, 50, 160,
        (100 * 10_000 + 10 * 10_100 + 50 * 10_050) * 10**6, 3,
        200_00000000, 50_00000000, 50_00000000, 12, (5 * 20_000 + 7 * 5_000) * 10**6, 2,
    )  # fmt: skip
    assert feed.converter.state.statistics("AAPL") == expected
    feed.converter.new_session("next", date(2026, 2, 2))
    assert feed.converter.state.statistics("AAPL").previous_close == 100_50000000, "the price of the closing cross"


@pytest.mark.spec("DAY-8")
def test_without_system_events_the_calendar_decides_the_hours() -> None:
    """An adapter that joins in the middle of the day has missed the system events; that day closed early."""
    feed = Feed("itch")
    feed.converter.new_session("day", date(2026, 11, 27))
    early_close_ns = 46_800 * 10**9
    rows = feed.take(
        directory(), trade_at(OPEN_NS - 1, 1, 1_000_000, 1), trade_at(OPEN_NS, 2, 1_000_000, 2),
        trade_at(early_close_ns - 1, 4, 1_000_000, 3), trade_at(early_close_ns, 8, 1_000_000, 4),
    )  # fmt: skip
    trades = [row for row in rows if row.model.name == "trade"]
    assert ["extended_hours" in row.conditions for row in trades] == [True, False, False, True]
    assert all("hidden" in row.conditions for row in trades)
    statistics = feed.converter.state.statistics("AAPL")
    assert (statistics.volume, statistics.extended_volume) == (6, 9)


@pytest.mark.spec("DAY-8")
@pytest.mark.parametrize("told", [0, 2])
def test_a_corrected_trade_keeps_its_trading_hours(told: int) -> None:
    """Its correction is often printed outside of them, with a mark."""
    state = ConversionState()
    number = state.instrument("AAPL", 1)
    extended = 2
    assert state.add_trade(number, 1, 100, 10, 5, 0) == 0
    assert state.add_trade(number, 2, 200, 20, 6, extended) == 0
    assert state.correct_trade(number, 2, 210, 30, told) == 0
    found = state.statistics("AAPL")
    assert (found.open, found.last, found.volume, found.trade_count) == (100, 100, 10, 1)
    assert (found.extended_high, found.extended_last, found.extended_volume, found.extended_trade_count) == (
        210, 210, 30, 1,
    )  # fmt: skip
    assert state.correct_trade(number, 1, 110, 40, told) == 0
    assert state.break_trade(number, 2) == 0
    found = state.statistics("AAPL")
    assert (found.open, found.last, found.volume) == (110, 110, 40)
    assert (found.extended_high, found.extended_volume, found.extended_trade_count) == (None, 0, 0)


@pytest.mark.spec("DAY-8")
def test_a_broken_trade_of_extended_hours_is_reversed_there() -> None:
    feed = Feed("itch")
    feed.take(system(b"M", CLOSE_NS), directory(), add(1, b"B", 30, 1_000_000), executed(1, 30, 9))
    assert feed.converter.state.statistics("AAPL").extended_volume == 30
    cancel, stats = feed.take(head(b"B") + number(9, 8))
    assert (cancel.action, set(cancel.conditions)) == ("cancel", {"extended_hours"})
    assert (stats.extended_volume, stats.extended_trade_count, stats.extended_last, stats.volume) == (0, 0, None, 0)


@pytest.mark.spec("DAY-8")
@pytest.mark.parametrize("table", ["iex-deep", "iex-tops"])
def test_iex_statistics_follow_the_same_rule(table: str) -> None:
    def sold(flags: int, size: int, price: int, match: int) -> bytes:
        return b"T" + struct.pack("<Bq8sIqq", flags, 5, b"ZIEXT   ", size, price, match)

    feed = Feed(table)
    rows = feed.take(sold(0x40, 100, 1_000_000, 1), sold(0, 200, 900_000, 2), sold(0x60, 7, 2_000_000, 3))
    last = rows[-1]
    assert (last.open, last.high, last.low, last.last, last.volume, last.trade_count) == (90, 90, 90, 90, 200, 1)
    assert (last.extended_high, last.extended_low, last.extended_last) == (100, 100, 100), (
        "odd lots do not change prices"
    )
    assert (last.extended_volume, last.extended_trade_count) == (107, 2)
    assert last.scaled("extended_turnover") == 100 * 1_000_000 + 7 * 2_000_000


@pytest.mark.spec("DAY-8")
def test_a_late_subscriber_sees_a_day_that_only_has_extended_hours() -> None:
    feed = Feed("itch")
    feed.take(system(b"S", 0), directory(), trade_at(28_800 * 10**9, 5, 2_000_000, 1))
    (stats,) = [row for row in _read(feed) if row.model.name == "day_statistics"]
    assert (stats.trade_count, stats.extended_trade_count, stats.extended_last) == (0, 1, 200)


@pytest.mark.spec("DAY-8")
def test_ticks_of_a_venue_with_a_calendar_have_trading_hours() -> None:
    def tick(time: int, size: int) -> bytes:
        return f"trade,{time},AAPL,100.25,{size},{size}".encode()

    midnight_ns = Feed("itch").converter.plan.midnight_ns(DAY)
    for venue, expected in (("XNAS", (4, 3)), ("", (7, 0))):
        feed = Feed("csv-ticks", venue)
        times = (midnight_ns + OPEN_NS - 1, midnight_ns + OPEN_NS, midnight_ns + CLOSE_NS)
        feed.take(*(tick(time, size) for time, size in zip(times, (1, 4, 2), strict=True)))
        statistics = feed.converter.state.statistics("AAPL")
        assert (statistics.volume, statistics.extended_volume) == expected


def _read(feed: Feed) -> list[Any]:
    return [feed._models[model].view(record) for _, _, model, record in feed.converter.image()]
