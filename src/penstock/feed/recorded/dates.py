"""The trading date of a recorded feed: given, or taken from the capture's timestamps and the file's name.

    find_date(Path("01302019.NASDAQ_ITCH50.gz"), plan.calendar)        # 2019-01-30
    replay_date(Path("01302019.NASDAQ_ITCH50.gz"), plan)               # the same, or an error if a date is missing

A wrong date would put a whole day of messages under another date, so contradictory dates are an error, and so is a
missing date where the feed's times count from midnight.
"""

import re
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

from penstock.base.calendar import TradingCalendar
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError
from penstock.convert import Plan
from penstock.feed.core.session_dates import RECEIVE_NS_MAX
from penstock.feed.formats.pcap import CaptureReader, is_capture
from penstock.feed.formats.stream import ByteStream
from penstock.feed.recorded.files import open_file

YEARS = range(1990, 2100)
"""Years that eight digits in a name are taken for."""

SEPARATED = re.compile(r"(?<!\d)(\d{4})([-_.])(\d{2})\2(\d{2})(?!\d)")
DIGITS = re.compile(r"(?<!\d)(\d{8})(?!\d)")
DATE_OPTION = "give --date for the file, like --date 2019-01-30"
"""The hint of commands if no date is found."""


def replay_date(path: Path, plan: Plan, given: date | None = None, *, hint: str = DATE_OPTION) -> date | None:
    """Return the trading date of the first session of a replayed file: `given`, or the date in the file's name.

    None if sessions get their dates otherwise: the feed's times have dates, or a capture has receive times, which
    date each session as in an adapter of the live feed. A file without any of these is refused.
    """
    if given is not None or not plan.counts_from_midnight:
        return given
    found = find_date(path, plan.calendar, hint=hint)
    if found is None:
        raise ConfigurationError(
            f"the table {plan.name!r} needs a date, and neither the file's content nor its name has one",
            where=str(path),
            hint=hint,
        )
    return None if capture_begins_ns(path) is not None else found


def find_date(path: Path, calendar: TradingCalendar, *, hint: str = DATE_OPTION) -> date | None:
    """The trading date in the file's content or name; None where neither has one.

    For a capture it is the trading date of the first datagram by the venue's calendar. The name of a capture may have
    that date or the calendar date of the first datagram at the venue: a capture of Monday may begin on Sunday.
    """
    named = sorted(set(dates_in_name(path.name)))
    begins_ns = capture_begins_ns(path)
    if begins_ns is None:
        found, sources = named, "its name has several dates"
    else:
        trading_date = calendar.trading_date(begins_ns)
        begins = datetime.fromtimestamp(begins_ns // NS_PER_SECOND, calendar.zone).date()
        found = [trading_date, *(each for each in named if each not in (trading_date, begins))]
        sources = f"the capture begins with the trading date {trading_date}"
    if len(found) > 1:
        raise ConfigurationError(
            f"the trading date is ambiguous: {sources}, the name says {' and '.join(map(str, named))}",
            where=str(path),
            hint=hint,
        )
    return found[0] if found else None


def dates_in_name(name: str) -> Iterator[date]:
    """Yield dates written as 2019-01-30 (also with _ or .), 20190130 or 01302019."""
    for year, _, month, day in SEPARATED.findall(name):
        yield from _date(year, month, day)
    for text in DIGITS.findall(name):
        yield from _date(text[:4], text[4:6], text[6:])
        yield from _date(text[4:], text[:2], text[2:4])  # never both: no month is 19 or 20


def _date(year: str, month: str, day: str) -> Iterator[date]:
    try:
        found = date(int(year), int(month), int(day))
    except ValueError:
        return
    if found.year in YEARS:
        yield found


def capture_begins_ns(path: Path) -> int | None:
    """The receive time of a capture's first datagram; None for other files, or if there is no datagram or valid
    time."""
    with open_file(path) as file:
        stream = ByteStream(file)
        if not is_capture(stream.peek(4)):
            return None
        first = next(iter(CaptureReader(stream)), None)
    return first.time_ns if first is not None and 0 < first.time_ns <= RECEIVE_NS_MAX else None
