"""Trading calendars: on which dates a venue trades, when its sessions are, and which trading date a moment belongs to.

    calendar = TradingCalendar.of_venue("XNAS")
    calendar.trading_date(receive_ns)           # in the venue's time zone, weekends and holidays left out
    calendar.hours(date(2026, 11, 27))          # an early close: the regular session ends at 13:00 in New York

A calendar is a TOML document (docs/reference/calendars.md). Nothing here reads a clock: the moment is an argument. A
calendar that is asked about a year whose holidays it does not list answers by its weekdays, and logs one warning.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.config import Config, load_toml, parse_toml
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger

DIRECTORY = Path(__file__).parent / "calendars"
MIDNIGHT = time(0)
CLOSED_DAYS_MAX = 366
"""Days without trading that may follow each other; a calendar with more has no next trading date."""

Weekday: TypeAlias = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: tuple[Weekday, ...] = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
Venue = Annotated[str, msgspec.Meta(pattern=r"^[A-Z0-9]{4}\Z")]
Year = Annotated[int, msgspec.Meta(ge=1970, le=2200)]

log = logger("calendar")


class CalendarDocument(Config, frozen=True):
    """A calendar as TOML declares it. Times are those of the venue's time zone."""

    name: str
    timezone: str
    description: str = ""
    venues: tuple[Venue, ...] = ()
    """Market identifier codes (ISO 10383) of the venues that use this calendar."""

    weekdays: tuple[Weekday, ...] = WEEKDAYS[:5]
    open: time = MIDNIGHT
    """The regular session. An opening time at or after the closing time is on the calendar day before."""

    close: time = MIDNIGHT
    pre_open: time | None = None
    """Extended hours before and after the regular session; none by default."""

    post_close: time | None = None
    early_close: time | None = None
    """The close and the end of extended hours on a day of `early_closes`."""

    early_post_close: time | None = None
    day_ends: time = MIDNIGHT
    """From this time on, a session belongs to the next trading date. At midnight, trading dates are calendar dates."""

    years: tuple[Year, Year] | None = None
    """The first and the last year whose holidays are listed; for other years only weekends are known."""

    holidays: tuple[date, ...] = ()
    early_closes: tuple[date, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"calendar {self.name}"
        if not self.weekdays:
            raise ConfigurationError("no weekday has trading", where=f"{where}: weekdays", hint='like ["monday"]')
        if self.early_closes and self.early_close is None:
            raise ConfigurationError("early_closes are listed without their time", where=where, hint="set early_close")
        if both := set(self.holidays) & set(self.early_closes):
            what = f"{min(both).isoformat()} is both a holiday and an early close"
            raise ConfigurationError(what, where=where, hint="list it once")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise ConfigurationError(
                f"there is no time zone {self.timezone!r}", where=f"{where}: timezone", hint="like America/New_York"
            ) from None


class TradingHours(NamedTuple):
    """The sessions of one trading date, in nanoseconds since 1970 UTC."""

    pre_open_ns: int
    open_ns: int
    close_ns: int
    post_close_ns: int


class TradingCalendar:
    """The calendar of one or several venues; its answers never change."""

    def __init__(self, document: CalendarDocument, *, is_fallback: bool = False) -> None:
        self.document = document
        self.is_fallback = is_fallback
        """Whether no calendar of the venue is known: the calendar dates sessions, but ends none of them."""
        self.zone = ZoneInfo(document.timezone)
        self._holidays = frozenset(document.holidays)
        self._early_closes = frozenset(document.early_closes)
        self._weekdays = frozenset(WEEKDAYS.index(each) for each in document.weekdays)
        self._has_warned = False

    @staticmethod
    def load(name: str, beside: Path = Path()) -> TradingCalendar:
        """A shipped calendar by its name, or a TOML file by its path (it ends in .toml), relative to the directory
        `beside`."""
        if name.endswith(".toml"):
            return TradingCalendar(load_toml(beside / name, CalendarDocument))
        known = shipped_calendars()
        if name not in known:
            raise ConfigurationError(
                f"no calendar {name!r} is shipped", where="calendar", hint=f"there are: {', '.join(sorted(known))}"
            )
        return known[name]

    @staticmethod
    def parse(text: str, where: str = "calendar") -> TradingCalendar:
        return TradingCalendar(parse_toml(text, CalendarDocument, where=where))

    @staticmethod
    def of_venue(venue: str, timezone: str = "UTC") -> TradingCalendar:
        """The shipped calendar of a venue; every_day() for a venue that no shipped calendar lists."""
        for calendar in shipped_calendars().values():
            if venue in calendar.document.venues:
                return calendar
        return every_day(timezone)

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def opens_day_before(self) -> bool:
        """True if the sessions of a trading date open on the calendar day before it."""
        hours = self.document
        if hours.open == hours.close:
            return False
        return hours.open > hours.close or (hours.pre_open is not None and hours.pre_open > hours.open)

    # Dates

    def is_trading_date(self, day: date) -> bool:
        return day.weekday() in self._weekdays and day not in self._holidays

    def lists(self, day: date) -> bool:
        """Whether the holidays of that year are listed."""
        years = self.document.years
        return years is None or years[0] <= day.year <= years[1]

    def on_or_after(self, day: date) -> date:
        """The first trading date that is not before this date."""
        for distance in range(CLOSED_DAYS_MAX):
            if self.is_trading_date(found := day + timedelta(days=distance)):
                self._warn_unlisted(found)
                return found
        raise ConfigurationError(
            f"there is no trading date in the {CLOSED_DAYS_MAX} days from {day.isoformat()} on",
            where=f"calendar {self.name}",
            hint="look at its holidays and weekdays",
        )

    def next_date(self, day: date) -> date:
        """The trading date after this date."""
        return self.on_or_after(day + timedelta(days=1))

    def trading_date(self, at_ns: int) -> date:
        """The trading date of a moment: the date of its session, or of the next session if none is open."""
        local = datetime.fromtimestamp(at_ns // NS_PER_SECOND, self.zone)
        day = local.date()
        if self.document.day_ends != MIDNIGHT and local.time() >= self.document.day_ends:
            day += timedelta(days=1)
        return self.on_or_after(day)

    # Times

    def ends_ns(self, day: date) -> int:
        """The time from which sessions belong to the trading date after `day`."""
        ends = self.document.day_ends
        return self._ns(day + timedelta(days=1), ends) if ends == MIDNIGHT else self._ns(day, ends)

    def bounds_ns(self, day: date) -> tuple[int, int]:
        """Begin and end of a trading date: from the end of the trading date before it to its own end. A date without
        trading begins with the end of the calendar day before it."""
        self._warn_unlisted(day)
        before = day - timedelta(days=1)
        if self.is_trading_date(day):
            earlier = (day - timedelta(days=distance) for distance in range(1, CLOSED_DAYS_MAX))
            before = next((each for each in earlier if self.is_trading_date(each)), before)
        return self.ends_ns(before), self.ends_ns(day)

    def hours(self, day: date) -> TradingHours | None:
        """The sessions of a trading date; None if the calendar declares no regular session."""
        document = self.document
        if document.open == document.close:
            return None
        self._warn_unlisted(day)
        close, post_close = document.close, document.post_close
        if day in self._early_closes and document.early_close is not None:
            close, post_close = document.early_close, document.early_post_close
        open_day = day if document.open < close else day - timedelta(days=1)
        open_ns, close_ns = self._ns(open_day, document.open), self._ns(day, close)
        pre_open_ns = open_ns
        if document.pre_open is not None:
            pre_day = open_day if document.pre_open <= document.open else open_day - timedelta(days=1)
            pre_open_ns = self._ns(pre_day, document.pre_open)
        post_close_ns = close_ns
        if post_close is not None:
            post_close_ns = self._ns(day if post_close >= close else day + timedelta(days=1), post_close)
        return TradingHours(pre_open_ns, open_ns, close_ns, post_close_ns)

    def _warn_unlisted(self, day: date) -> None:
        """Log the first date that is outside the listed years; every later one has the same cause."""
        years = self.document.years
        if self._has_warned or years is None or self.lists(day):
            return
        self._has_warned = True
        log.warning(
            "holidays_unlisted",
            calendar=self.name,
            date=day.isoformat(),
            listed=f"{years[0]} to {years[1]}",
            effect="only weekdays are known: holidays count as trading dates, and early closes as full days",
            hint="configure a calendar file that lists the holidays of that year (docs/reference/calendars.md)",
        )

    def _ns(self, day: date, at: time) -> int:
        return round(datetime.combine(day, at, self.zone).timestamp()) * NS_PER_SECOND


def locate(name: str, beside: Path) -> str:
    """The name of a shipped calendar as it is, the path of a TOML file as an absolute path."""
    return str((beside / name).absolute()) if name.endswith(".toml") else name


@cache
def every_day(timezone: str) -> TradingCalendar:
    """The fallback for a venue without a calendar: the trading date is the date in the time zone."""
    document = CalendarDocument(name=f"every-day {timezone}", timezone=timezone, weekdays=WEEKDAYS)
    return TradingCalendar(document, is_fallback=True)


@cache
def shipped_calendars() -> dict[str, TradingCalendar]:
    """The calendars that come with Penstock, by name."""
    return {path.stem: TradingCalendar(load_toml(path, CalendarDocument)) for path in sorted(DIRECTORY.glob("*.toml"))}
