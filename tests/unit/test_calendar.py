"""Trading calendars: the date of a moment in the venue's time zone, and the session times of a date."""

from collections.abc import Callable
from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest

from penstock.base.calendar import TradingCalendar, every_day, shipped_calendars
from penstock.base.errors import ConfigurationError

NEW_YORK = ZoneInfo("America/New_York")
US = TradingCalendar.of_venue("XNAS")

CHICAGO = """
name = "futures"
timezone = "America/Chicago"
venues = ["XCME"]
open = 17:00:00
close = 16:00:00
day_ends = 16:30:00
"""


def at(text: str, zone: str = "America/New_York") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 10**9


@pytest.mark.spec("DAY-2")
@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-01-30T09:30", date(2026, 1, 30)),
        ("2026-01-30T00:00", date(2026, 1, 30)),
        ("2026-01-30T20:05", date(2026, 1, 30)),  # the last messages of the day
        ("2026-01-30T21:00", date(2026, 2, 2)),  # Friday evening
        ("2026-02-01T19:00", date(2026, 2, 2)),  # Sunday evening
        ("2026-02-02T03:00", date(2026, 2, 2)),
        ("2026-01-16T22:00", date(2026, 1, 20)),  # a weekend and a holiday follow
        ("2026-12-24T12:00", date(2026, 12, 24)),
        ("2026-12-25T12:00", date(2026, 12, 28)),
        ("2026-03-08T23:00", date(2026, 3, 9)),  # daylight saving time began that day
    ],
)
def test_a_moment_belongs_to_a_trading_date_of_new_york(moment: str, expected: date) -> None:
    assert US.trading_date(at(moment)) == expected


@pytest.mark.spec("DAY-2")
def test_the_time_zone_of_the_host_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 21:30 in New York the date in UTC is the next one, and on some days in Auckland the one after."""
    moment = at("2026-01-29T20:30")
    for zone in ("UTC", "Pacific/Auckland", "Pacific/Honolulu"):
        monkeypatch.setenv("TZ", zone)
        assert US.trading_date(moment) == date(2026, 1, 29)


@pytest.mark.spec("DAY-2")
def test_hours_follow_early_closes_and_daylight_saving_time() -> None:
    usual, early = US.hours(date(2026, 11, 25)), US.hours(date(2026, 11, 27))
    assert usual is not None
    assert early is not None
    assert usual == tuple(at(f"2026-11-25T{time}") for time in ("04:00", "09:30", "16:00", "20:00"))
    assert early == tuple(at(f"2026-11-27T{time}") for time in ("04:00", "09:30", "13:00", "17:00"))
    before, after = US.hours(date(2026, 3, 6)), US.hours(date(2026, 3, 9))
    assert before is not None
    assert after is not None
    assert after.open_ns - before.open_ns == (3 * 24 - 1) * 3_600 * 10**9


def test_a_day_ends_when_the_next_one_begins() -> None:
    for day in (date(2026, 1, 16), date(2026, 11, 25), date(2026, 7, 2)):
        end_ns = US.ends_ns(day)
        assert US.trading_date(end_ns - 1) == day
        assert US.trading_date(end_ns) == US.next_date(day)
    every = every_day("Asia/Tokyo")
    end_ns = every.ends_ns(date(2026, 1, 31))
    assert end_ns == at("2026-02-01T00:00", "Asia/Tokyo")
    assert (every.trading_date(end_ns - 1), every.trading_date(end_ns)) == (date(2026, 1, 31), date(2026, 2, 1))


def test_a_session_can_open_on_the_evening_before() -> None:
    futures = TradingCalendar.parse(CHICAGO)
    assert futures.trading_date(at("2026-02-01T17:00", "America/Chicago")) == date(2026, 2, 2)
    assert futures.trading_date(at("2026-02-02T15:59", "America/Chicago")) == date(2026, 2, 2)
    assert futures.trading_date(at("2026-02-02T17:00", "America/Chicago")) == date(2026, 2, 3)
    hours = futures.hours(date(2026, 2, 2))
    assert hours is not None
    assert (hours.open_ns, hours.close_ns) == (
        at("2026-02-01T17:00", "America/Chicago"),
        at("2026-02-02T16:00", "America/Chicago"),
    )


def test_venues_share_a_calendar_and_other_venues_trade_every_day() -> None:
    assert {TradingCalendar.of_venue(venue).name for venue in ("XNAS", "XBOS", "XPSX", "IEXG")} == {"us-equities"}
    other = TradingCalendar.of_venue("XXXX", "Europe/Berlin")
    assert other.trading_date(at("2026-01-31T23:30", "Europe/Berlin")) == date(2026, 1, 31)
    assert other.hours(date(2026, 1, 31)) is None
    assert other.is_fallback
    assert not TradingCalendar.of_venue("XNAS").is_fallback
    assert not TradingCalendar.parse(CHICAGO).is_fallback


def test_shipped_holidays_fall_on_weekdays() -> None:
    """A holiday on a weekend would be a mistake in the table."""
    for calendar in shipped_calendars().values():
        document = calendar.document
        assert document.years is not None
        for day in (*document.holidays, *document.early_closes):
            assert day.weekday() < 5, day
            assert calendar.lists(day), day
        assert len(set(document.holidays)) == len(document.holidays)
    assert not US.lists(date(2099, 1, 1))
    assert US.is_trading_date(date(2099, 1, 1)), "beyond the listed years only weekends are known"


@pytest.mark.spec("DAY-2")
def test_a_date_beyond_the_listed_years_causes_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def warned(ask: Callable[[TradingCalendar], object]) -> list[dict[str, str]]:
        caplog.clear()
        ask(TradingCalendar(US.document))
        return [record.fields for record in caplog.records if record.message == "holidays_unlisted"]  # type: ignore[attr-defined]

    assert not warned(
        lambda calendar: (calendar.trading_date(at("2035-12-31T12:00")), calendar.hours(date(2013, 1, 2)))
    )
    for ask in (
        lambda calendar: calendar.trading_date(at("2035-12-31T22:00")),
        lambda calendar: calendar.next_date(date(2035, 12, 31)),
        lambda calendar: calendar.hours(date(2036, 1, 1)),
        lambda calendar: [calendar.on_or_after(date(2036, 1, day)) for day in range(1, 30)],
    ):
        [warning] = warned(ask)
        assert (warning["calendar"], warning["date"], warning["listed"]) == (
            "us-equities",
            "2036-01-01",
            "2013 to 2035",
        )
    assert len(warned(lambda calendar: calendar.trading_date(at("2012-06-21T12:00")))) == 1
    caplog.clear()
    TradingCalendar.parse(CHICAGO).next_date(date(2099, 1, 1))
    assert not caplog.records, "a calendar without years has no listed range"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('timezone = "Mars/Olympus"', "unknown time zone 'Mars/Olympus'"),
        ("weekdays = []", "no weekday has trading"),
        ("early_closes = [2026-01-02]", "early_closes has dates, but early_close is missing"),
        ("early_close = 12:00:00\nearly_closes = [2026-01-02]\nholidays = [2026-01-02]", "2026-01-02 is both"),
        ("holiday = []", "unknown key 'holiday'"),
        ('open = "late"', "open"),
    ],
)
def test_an_invalid_calendar_is_refused(text: str, expected: str) -> None:
    zone = "" if "timezone" in text else 'timezone = "UTC"\n'
    with pytest.raises(ConfigurationError, match=expected):
        TradingCalendar.parse(f'name = "mine"\n{zone}{text}')


def test_a_calendar_without_trading_dates_is_refused() -> None:
    holidays = ", ".join(f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29))
    never = TradingCalendar.parse(f'name = "never"\ntimezone = "UTC"\nweekdays = ["monday"]\nholidays = [{holidays}]')
    with pytest.raises(ConfigurationError, match="unknown calendar 'moon'"):
        TradingCalendar.load("moon")
    assert never.next_date(date(2025, 12, 29)) == date(2026, 3, 30)


@pytest.mark.spec("DAY-2")
def test_a_trading_date_begins_where_the_previous_one_ends() -> None:
    assert US.bounds_ns(date(2026, 1, 30)) == (at("2026-01-29T21:00"), at("2026-01-30T21:00"))
    assert US.bounds_ns(date(2026, 1, 20)) == (at("2026-01-16T21:00"), at("2026-01-20T21:00")), "over a long weekend"
    assert US.bounds_ns(date(2026, 1, 17)) == (at("2026-01-16T21:00"), at("2026-01-17T21:00")), "Saturday"
    for moment in ("2026-01-16T21:00", "2026-01-19T12:00", "2026-01-20T20:59"):
        begin_ns, end_ns = US.bounds_ns(US.trading_date(at(moment)))
        assert begin_ns <= at(moment) < end_ns
