"""Trading days of venues in an archive: the sources of each day, and which source replaces which.

    day = feed.trading_day()                                   # None if the file does not say its date
    found = other_sources(catalogue, day, key)                 # files and captured rows of the same day and venue
    replaced = remove_day(archive, staging, found, day)        # their files, without the rows of the day

A file of a day and a capture of the same day have the same messages. Rows count once: a second source of a day is
refused unless it is to replace the first, or is given a stream of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.base.errors import ArchiveError
from penstock.spark.pipeline.archive import Archive, Staging
from penstock.spark.pipeline.commits import Catalogue, FileEntry, TradingDay
from penstock.spark.pipeline.parquet import ROW_GROUP_ROWS
from penstock.spark.pipeline.placing import kept
from penstock.spark.pipeline.writer import rewrite

FEED = "feed:"
JOURNAL = "journal:"
"""What the keys of sources begin with."""


class OtherSources(msgspec.Struct, frozen=True):
    """The archived sources of a day."""

    feeds: dict[str, dict[str, Any]] = {}
    """By key: the positions of files."""
    captured: list[FileEntry] = []
    """Files of captures with rows of the day."""

    def __bool__(self) -> bool:
        return bool(self.feeds or self.captured)

    @property
    def names(self) -> list[str]:
        journals = {file.source.removeprefix(JOURNAL) for file in self.captured}
        return sorted({*(position["path"] for position in self.feeds.values()), *journals})


def other_sources(catalogue: Catalogue, day: TradingDay, key: str, stream: int = 0) -> OtherSources:
    """All sources of a day but `key`. With a stream: only the file that has it."""
    feeds = {
        other: position
        for other, position in catalogue.sources.items()
        if other.startswith(FEED) and other != key and (position["date"], position["venue"]) == (day.date, day.venue)
    }
    if stream:
        return OtherSources({other: each for other, each in feeds.items() if each["stream"] == stream})
    captured = [file for file in all_files(catalogue) if file.source.startswith(JOURNAL) and day.has(file)]
    return OtherSources(feeds, captured)


def all_files(catalogue: Catalogue) -> Iterator[FileEntry]:
    for files in catalogue.files.values():
        yield from files.values()


def covered_days(catalogue: Catalogue) -> list[TradingDay]:
    """Days whose messages come from a file that has replaced the captured ones."""
    return [TradingDay(*position["covers"]) for position in catalogue.sources.values() if position.get("covers")]


def refuse_archived_days(archive: Archive, files: Iterable[FileEntry]) -> None:
    """Refuse captured rows of a day that a file has brought; a file with a stream of its own stands beside them."""
    catalogue = archive.catalogue
    feeds = {
        key: position
        for key, position in catalogue.sources.items()
        if key.startswith(FEED) and not position["is_separate"] and not position.get("covers")
    }
    if not feeds:
        return
    archived = [file for file in all_files(catalogue) if file.source in feeds and file.time_min is not None]
    for file in files:
        for other in archived:
            if set(file.venues) & set(other.venues) and _overlap(file, other):
                raise ArchiveError(
                    f"the journal has messages of {file.date} of {', '.join(file.venues)}, "
                    f"which the archive has from {feeds[other.source]['path']}",
                    where=str(archive.path),
                    hint="run the file again with --replace: captured messages of its day are then skipped; "
                    "or archive the journal in an archive of its own",
                )


def _overlap(one: FileEntry, other: FileEntry) -> bool:
    if one.time_min is None or one.time_max is None or other.time_min is None or other.time_max is None:
        return False
    return one.time_min <= other.time_max and other.time_min <= one.time_max


class Removed(msgspec.Struct):
    """Removed files, and rewritten files with the remaining rows."""

    paths: list[str] = []
    files: list[FileEntry] = []
    rows: dict[str, int] = {}
    """By table: rows that go."""
    dates: set[str] = set()


def remove_day(archive: Archive, staging: Staging, found: OtherSources, day: TradingDay) -> Removed:
    """The files of other sources of a day; captures keep their rows of other days and venues."""
    removed = Removed()
    for file in all_files(archive.catalogue):
        if file.source in found.feeds:
            _remove(removed, file, file.rows)
    for file in found.captured:
        if day.is_all_of(file):
            _remove(removed, file, file.rows)
            continue
        rest = rewrite(staging, file, _rows_besides(archive, file, day))
        gone = file.rows - (0 if rest is None else rest.rows)
        if gone:
            _remove(removed, file, gone)
            removed.files += [] if rest is None else [rest]
    return removed


def _remove(removed: Removed, file: FileEntry, rows: int) -> None:
    removed.paths.append(file.path)
    removed.rows[file.table] = removed.rows.get(file.table, 0) + rows
    if file.stream is not None:
        removed.dates.add(file.date)


def _rows_besides(archive: Archive, file: FileEntry, day: TradingDay) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(kept(archive.path, file.path)) as opened:
        for batch in opened.iter_batches(ROW_GROUP_ROWS):
            times = batch.column("event_time")
            is_then = pc.and_(pc.greater_equal(times, day.begin_ns), pc.less(times, day.end_ns))
            is_there = pc.equal(batch.column("venue"), day.venue)
            yield batch.filter(pc.fill_null(pc.invert(pc.and_(is_then, is_there)), True))
