"""The sources that a run reads: journals and recorded feeds, each with its table, date, venue and stream."""

from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.base.calendar import locate
from penstock.base.errors import ConfigurationError
from penstock.convert.core.document import chosen_table
from penstock.spark.feedslices import Conversion, FeedOptions, open_as_told
from penstock.spark.pipeline.sources.capture import (
    STEP_RECORDS,
    FeedSource,
    JournalSource,
    PipelineSource,
    place_of,
    same_day,
)

T = TypeVar("T", str, int)


class SourceSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The user's selection of sources."""

    sources: list[str]
    """Journals (a directory, tcp://HOST:PORT) and recorded feeds (files)."""

    tables: list[str] = []
    """One for all files, or one per file in their order; the same applies to venues, prefixes and calendars."""

    venues: list[str] = []
    prefixes: list[str] = []
    calendars: list[str] = []
    quantity_decimals: int | None = None
    """For all files; None: each table's value."""

    modules: tuple[str, ...] = ()
    trading_dates: list[str] = []
    """None, or one per file in their order; the same applies to streams."""

    streams: list[int] = []
    is_following: bool = False
    is_skipping: bool = False
    is_replacing: bool = False
    secret: str = ""
    ca: str = ""
    admin: str = ""
    credentials: str = ""


def find_sources(options: SourceSelection, cores: int) -> list[PipelineSource]:
    """The sources to read, journals first; raises for the first unreadable source."""
    journals: list[PipelineSource] = []
    files = []
    for text in options.sources:
        place = place_of(text, options.secret, options.ca, options.admin, options.credentials)
        if place is None:
            files.append(Path(text))
            continue
        place.measure()
        records_max = STEP_RECORDS if options.is_following else None
        journals.append(JournalSource(place, cores, records_max, is_skipping=options.is_skipping))
    if options.is_replacing and (journals or not files):
        raise ConfigurationError(
            "--replace takes recorded files, not journals", where="--replace", hint="archive the journal without it"
        )
    return [*journals, *find_feeds(options, files, cores)]


def find_feeds(options: SourceSelection, files: list[Path], cores: int) -> list[FeedSource]:
    """Each file with its own table, date, venue and stream."""
    if files and options.is_following:
        raise ConfigurationError("a file ends, and cannot be followed", where=str(files[0]), hint="leave out --follow")
    if files and not options.tables:
        raise ConfigurationError(
            "is a recorded feed and needs a converter table", where=str(files[0]), hint="--table itch"
        )
    tables, venues, prefixes, calendars = (
        shared(given, len(files), name)
        for given, name in (
            (options.tables, "table"),
            (options.venues, "venue"),
            (options.prefixes, "prefix"),
            (options.calendars, "calendar"),
        )
    )
    dates = one_each(options.trading_dates, len(files), "date", "")
    streams = one_each(options.streams, len(files), "stream", 0)
    reading = FeedOptions(modules=options.modules)
    found: list[FeedSource] = []
    each = zip(files, tables, venues, prefixes, calendars, dates, streams, strict=True)
    for path, table, venue, prefix, calendar, day, stream in each:
        choice = chosen_table(table, venue, prefix, options.quantity_decimals, locate(calendar, Path()))
        conversion = Conversion(
            table,
            stream,
            day,
            venue=venue,
            prefix=prefix,
            quantity_decimals=choice.quantity_decimals,
            calendar=choice.calendar,
            modules=options.modules,
        ).dated(path)
        open_as_told(path, reading).close()
        found.append(FeedSource(path, conversion, reading, cores=cores, is_replacing=options.is_replacing))
    _refuse_same_day(found)
    return found


def shared(given: list[str], count: int, name: str) -> list[str]:
    """One value per file, from one value for all files or one per file."""
    if len(given) not in (0, 1, count):
        raise ConfigurationError(
            f"--{name} is given {len(given)} times for {count} files",
            where=f"--{name}",
            hint=f"give one --{name} for all files, or one for each, in their order",
        )
    return given if len(given) == count else (given or [""]) * count


def one_each(given: list[T], count: int, name: str, default: T) -> list[T]:
    """One value per file; a single value does not apply to several files."""
    if len(given) not in (0, count):
        raise ConfigurationError(
            f"--{name} is given {len(given)} {'time' if len(given) == 1 else 'times'} for {count} files",
            where=f"--{name}",
            hint=f"give one --{name} for each file, in their order, or none",
        )
    return given or [default] * count


def _refuse_same_day(feeds: list[FeedSource]) -> None:
    """Refuse files of one day and venue without separate streams. A copy has the same size, and is skipped later."""
    known: dict[tuple[str, str], FeedSource] = {}
    for feed in feeds:
        if feed.stream or not feed.day:
            continue
        other = known.setdefault((feed.day, feed.venue), feed)
        if other is not feed and other.path.stat().st_size != feed.path.stat().st_size:
            raise same_day(feed, other.path)
