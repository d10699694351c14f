"""Trading days of venues in an archive: the sources of each day, and which source replaces which.

    day = feed.trading_day()                                   # None if the file does not give its date
    found = other_sources(catalogue, day, key)                 # files and captured rows of the same day and venue
    replaced = remove_day(archive, staging, found, day)        # their files, without the rows of the day

A file of a day and a capture of the same day have the same messages. To count rows only once, a second source of a day
is refused unless it replaces the first or has a stream of its own. The date of a file is compared before the file is
read; files without a date and captures of several days are compared by the times of their rows, before the commit.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ArchiveError
from penstock.spark.pipeline.archive.archive import Archive, Staging
from penstock.spark.pipeline.archive.commits import Catalogue, FileEntry, TradingDay
from penstock.spark.pipeline.archive.parquet import ROW_GROUP_ROWS
from penstock.spark.pipeline.archive.placing import kept
from penstock.spark.pipeline.archive.writer import rewrite

FEED = "feed:"
JOURNAL = "journal:"
"""Prefixes of source keys."""


class OtherSources(msgspec.Struct, frozen=True):
    """The other archived sources of a day."""

    feeds: dict[str, dict[str, Any]] = {}
    """By key: the positions of recorded files that have rows of this day only."""
    mixed: list[FileEntry] = []
    """Files of the archive with rows of this day, from sources that also have other days (captures of several days)."""
    paths: dict[str, str] = {}
    """By key: the recorded files whose rows are in `mixed`."""

    def __bool__(self) -> bool:
        return bool(self.feeds or self.mixed)

    @property
    def names(self) -> list[str]:
        mixed = {self.paths.get(file.source, file.source.removeprefix(JOURNAL)) for file in self.mixed}
        return sorted({*(position["path"] for position in self.feeds.values()), *mixed})

    @property
    def streams(self) -> set[int]:
        """Return the streams that have rows of the day."""
        mixed = {file.stream for file in self.mixed if file.stream is not None}
        return mixed | {int(position["stream"]) for position in self.feeds.values()}


def other_sources(catalogue: Catalogue, day: TradingDay, key: str, stream: int = 0) -> OtherSources:
    """Return all sources of a day except `key` and files without messages. With a stream, return only the recorded file
    of that stream."""
    by_source: dict[str, list[FileEntry]] = {}
    for file in all_files(catalogue):
        by_source.setdefault(file.source, []).append(file)
    found = OtherSources({}, [], {})
    for other, position in catalogue.sources.items():
        files = by_source.get(other, [])
        of_day = [file for file in files if file.stream is not None and day.has(file)]
        if other.startswith(JOURNAL):
            found.mixed.extend(of_day if day.venue and not stream else ())
        elif other == key or position.get("is_empty") or (stream and position["stream"] != stream):
            continue
        elif _is_of_one_day(catalogue, position, files, day):
            found.feeds[other] = position
        elif of_day:
            found.mixed.extend(of_day)
            found.paths[other] = position["path"]
    return found


def _is_of_one_day(catalogue: Catalogue, position: dict[str, Any], files: list[FileEntry], day: TradingDay) -> bool:
    """True if all rows of a recorded file are of the day. This includes a file of the day's date with a single
    session.
    """
    timed = [file for file in files if file.stream is not None and file.time_min is not None]
    if (position["date"], position["venue"]) == (day.date, day.venue):
        is_one_session = len(catalogue.sessions.get(str(position["stream"]), ())) <= 1
        return is_one_session or all(map(day.has_all_times_of, timed))
    return bool(timed) and all(map(day.has_all_times_of, timed))


def all_files(catalogue: Catalogue) -> Iterator[FileEntry]:
    for files in catalogue.files.values():
        yield from files.values()


def covered_days(catalogue: Catalogue) -> list[TradingDay]:
    """Return the days whose messages come from a file that replaced the captured ones."""
    return [TradingDay(*position["covers"]) for position in catalogue.sources.values() if position.get("covers")]


def refuse_archived_rows(
    archive: Archive,
    files: Iterable[FileEntry],
    positions: Mapping[str, dict[str, Any]],
    *,
    removed: Collection[str] = (),
) -> None:
    """Refuse rows of a table, venue and time if another source has added rows of the same. `positions` belong to the
    sources of these files; `removed` are paths to ignore.

    Journals are not compared with each other, because copies of a message have the same numbers. A file with a stream
    of its own is archived in addition to others.
    """
    sources = {**archive.catalogue.sources, **positions}
    if not any(key.startswith(FEED) for key in sources):
        return
    archived: dict[tuple[str, str], list[FileEntry]] = {}
    for file in all_files(archive.catalogue):
        if file.path not in removed and _is_compared(file, sources):
            archived.setdefault((file.table, file.date), []).append(file)
    for file in files:
        if not _is_compared(file, sources):
            continue
        for other in archived.get((file.table, file.date), ()):
            if _have_same_rows(file, other, sources):
                raise _archived_rows(archive, file, other, sources)


def refuse_other_days(path: Path, day: TradingDay, files: Iterable[FileEntry], sessions: int) -> None:
    """Refuse to replace a day with a file of several sessions that has rows of other days. The only session of a file
    belongs to the day, whatever the times of its rows.
    """
    for file in files:
        if sessions > 1 and file.stream is not None and file.time_min is not None and not day.has_all_times_of(file):
            raise ArchiveError(
                f"the file has {sessions} sessions, and rows of {file.date} (UTC) outside {day}: "
                "--replace replaces a single day",
                where=str(path),
                hint=_how_to_split(path, day),
            )


def _how_to_split(path: Path, day: TradingDay) -> str:
    """Return the commands that extract the packets of the day from a network capture and replace the day with them."""
    if ".pcap" not in path.name:
        return "archive the file without --replace, or replace each day with a file of that day"
    part = shlex.quote(str(path.with_name(f"{path.name.partition('.')[0]}-{day.date}.pcap")))
    begin, end = (datetime.fromtimestamp(ns // NS_PER_SECOND, UTC) for ns in (day.begin_ns, day.end_ns))
    times = f'-A "{begin:%Y-%m-%d %H:%M:%S}" -B "{end:%Y-%m-%d %H:%M:%S}"'
    split = f"TZ=UTC editcap {times} {shlex.quote(str(path))} {part}"
    run = f"penstock pipeline run {part} --date {day.date} --replace"
    return f"split the capture, and replace each day with its part: {split}, then {run}"


def _is_compared(file: FileEntry, sources: Mapping[str, dict[str, Any]]) -> bool:
    if file.stream is None or file.time_min is None or file.source not in sources:
        return False
    return file.source.startswith(JOURNAL) or not sources[file.source]["is_separate"]


def _have_same_rows(file: FileEntry, other: FileEntry, sources: Mapping[str, dict[str, Any]]) -> bool:
    is_journal = file.source.startswith(JOURNAL)
    if file.source == other.source or (is_journal and other.source.startswith(JOURNAL)):
        return False
    covers = sources[other.source].get("covers") if is_journal else None
    if covers and TradingDay(*covers).has_all_times_of(other):
        return False  # captured messages of this day are skipped
    is_same_venue = set(file.venues or [""]) & set(other.venues or [""])  # [] in a table without a venue
    return bool(is_same_venue) and _overlap(file, other)


def _archived_rows(
    archive: Archive, file: FileEntry, other: FileEntry, sources: Mapping[str, dict[str, Any]]
) -> ArchiveError:
    what = f"has messages of {file.date}, {', '.join(file.venues) or 'no venue'}"
    there = sources[other.source].get("path", other.source.removeprefix(JOURNAL))
    if not file.venues and JOURNAL in (file.source[: len(JOURNAL)], other.source[: len(JOURNAL)]):
        kind = "journal" if file.source.startswith(JOURNAL) else "file"
        return ArchiveError(
            f"the {kind} has messages of {file.date} in the table {file.table!r}, and so has {there} in the archive: "
            "both are copies",
            where=str(archive.path),
            hint=f"--replace does not replace the table {file.table!r}, which has no venue: use a separate archive, or "
            "--stream for the file to archive it in addition, as a separate stream",
        )
    if file.source.startswith(JOURNAL):
        return ArchiveError(
            f"the journal {what}, which the archive has from {there}",
            where=str(archive.path),
            hint="run the file again with --replace, which skips captured messages of its day; "
            "or use a separate archive for the journal",
        )
    return ArchiveError(
        f"the file {what}, and so has {there} in the archive: both are copies, or may be parts of one session",
        where=sources[file.source]["path"],
        hint="--date with --replace replaces the archived rows of a day with a file of that day; "
        "--stream archives the file in addition, as a separate stream with its own books; "
        "split a capture of several days by day first (TZ=UTC editcap -A BEGIN -B END), or use a separate "
        "archive",
    )


def _overlap(one: FileEntry, other: FileEntry) -> bool:
    if one.time_min is None or one.time_max is None or other.time_min is None or other.time_max is None:
        return False
    return one.time_min <= other.time_max and other.time_min <= one.time_max


class Removed(msgspec.Struct):
    """The removed files, and the files rewritten with the remaining rows."""

    paths: list[str] = []
    files: list[FileEntry] = []
    rows: dict[str, int] = {}
    """By table: the number of removed rows."""
    dates: set[str] = set()


def remove_day(archive: Archive, staging: Staging, found: OtherSources, day: TradingDay) -> Removed:
    """Remove the rows of a day that come from other sources; captures of several days keep their rows of other days and
    venues.
    """
    removed = Removed()
    for file in all_files(archive.catalogue):
        if file.source in found.feeds:
            _remove(removed, file, file.rows)
    for file in found.mixed:
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
            is_there = pa.scalar(True) if not file.venues else pc.equal(batch.column("venue"), day.venue)
            yield batch.filter(pc.fill_null(pc.invert(pc.and_(is_then, is_there)), True))
