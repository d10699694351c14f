"""The trading date of a recorded feed: given, or taken from the capture's timestamps and the file's name.

    find_date(Path("01302019.NASDAQ_ITCH50.gz"), plan.timezone)        # 2019-01-30

A wrong date would put a whole day of rows under another date, so contradictory dates are an error.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path

from penstock.base.errors import ConfigurationError
from penstock.feed.formats.pcap import CaptureReader, is_capture
from penstock.feed.formats.stream import ByteStream
from penstock.feed.lines.sources import open_file

YEARS = range(1990, 2100)
"""Years that eight digits in a name are taken for."""

SEPARATED = re.compile(r"(?<!\d)(\d{4})([-_.])(\d{2})\2(\d{2})(?!\d)")
DIGITS = re.compile(r"(?<!\d)(\d{8})(?!\d)")


def find_date(path: Path, timezone: tzinfo) -> date | None:
    """The date in the file's content or name; None where neither has one.

    The time of a capture's first packet is taken in `timezone`, that of the venue.
    """
    named = sorted(set(dates_in_name(path.name)))
    captured = capture_date(path, timezone)
    found = [captured, *(each for each in named if each != captured)] if captured is not None else named
    if len(found) > 1:
        sources = f"the capture begins on {captured}" if captured is not None else "its name has several dates"
        raise ConfigurationError(
            f"the trading date is ambiguous: {sources}, the name says {' and '.join(map(str, named))}",
            where=str(path),
            hint="give --date for the file",
        )
    return found[0] if found else None


def dates_in_name(name: str) -> Iterator[date]:
    """Dates written as 2019-01-30 (also with _ or .), 20190130 or 01302019."""
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


def capture_date(path: Path, timezone: tzinfo) -> date | None:
    """The date of a capture's first packet; None for files that are no captures, or have no packets."""
    with open_file(path) as file:
        stream = ByteStream(file)
        if not is_capture(stream.peek(4)):
            return None
        first = next(iter(CaptureReader(stream)), None)
    if first is None:
        return None
    return datetime.fromtimestamp(first.time_ns // 1_000_000_000, UTC).astimezone(timezone).date()
