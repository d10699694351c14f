"""Trading days of venues in an archive: the sources of each day, and which source replaces which.

    day = feed.trading_day()                                   # None if the file does not say its date
    found = other_sources(catalogue, day, key)                 # files and captured rows of the same day and venue
    replaced = remove_day(archive, staging, found, day)        # their files, without the rows of the day

A file of a day and a capture of the same day have the same messages. Rows count once: a second source of a day is
refused unless it is to replace the first, or is given a stream of its own. The date of a file is compared before it is
read; the times of its rows before they are committed, for files without a date and captures of several days.
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
"""What the keys of sources begin with."""


class OtherSources(msgspec.Struct, frozen=True):
    """The archived sources of a day."""

    feeds: dict[str, dict[str, Any]] = {}
    """By key: the positions of recorded files of this day only."""
    mixed: list[FileEntry] = []
    """Files of the archive with rows of the day, of sources that have other days as well: captures of several days."""
    paths: dict[str, str] = {}
    """By key: the recorded files that rows of `mixed` come from."""

    def __bool__(self) -> bool:
        return bool(self.feeds or self.mixed)

    @property
    def names(self) -> list[str]:
        mixed = {self.paths.get(file.source, file.source.removeprefix(JOURNAL)) for file in self.mixed}
        return sorted({*(position["path"] for position in self.feeds.values()), *mixed})

    @property
    def streams(self) -> set[int]:
        """Streams that have rows of the day."""
        mixed = {file.stream for file in self.mixed if file.stream is not None}
        return mixed | {int(position["stream"]) for position in self.feeds.values()}


def other_sources(catalogue: Catalogue, day: TradingDay, key: str, stream: int = 0) -> OtherSources:
    """All sources of a day but `key`. With a stream: only the recorded file that has it."""
    by_source: dict[str, list[FileEntry]] = {}
    for file in all_files(catalogue):
        by_source.setdefault(file.source, []).append(file)
    found = OtherSources({}, [], {})
    for other, position in catalogue.sources.items():
        files = by_source.get(other, [])
        of_day = [file for file in files if file.stream is not None and day.has(file)]
        if other.startswith(JOURNAL):
            found.mixed.extend(of_day if day.venue and not stream else ())
        elif other == key or (stream and position["stream"] != stream):
            continue
        elif _is_of_one_day(catalogue, position, files, day):
            found.feeds[other] = position
        elif of_day:
            found.mixed.extend(of_day)
            found.paths[other] = position["path"]
    return found


def _is_of_one_day(catalogue: Catalogue, position: dict[str, Any], files: list[FileEntry], day: TradingDay) -> bool:
    """Whether all rows of a recorded file are of the day. A file of the day's date with one session is."""
    timed = [file for file in files if file.stream is not None and file.time_min is not None]
    if (position["date"], position["venue"]) == (day.date, day.venue):
        is_one_session = len(catalogue.sessions.get(str(position["stream"]), ())) <= 1
        return is_one_session or all(map(day.has_all_times_of, timed))
    return bool(timed) and all(map(day.has_all_times_of, timed))


def all_files(catalogue: Catalogue) -> Iterator[FileEntry]:
    for files in catalogue.files.values():
        yield from files.values()


def covered_days(catalogue: Catalogue) -> list[TradingDay]:
    """Days whose messages come from a file that has replaced the captured ones."""
    return [TradingDay(*position["covers"]) for position in catalogue.sources.values() if position.get("covers")]


def refuse_archived_rows(
    archive: Archive,
    files: Iterable[FileEntry],
    positions: Mapping[str, dict[str, Any]],
    *,
    removed: Collection[str] = (),
) -> None:
    """Refuse rows of a table, venue and time of which another source has brought rows; `positions` are those of the
    sources of these files, `removed` paths that do not count.

    Journals are not compared with each other: copies of a message have the same numbers. A file with a stream of its
    own is archived in addition to others.
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
    """Refuse a file of several sessions to replace a day if it has rows of other days. The only session of a file is of
    the day, whatever the times of its rows."""
    for file in files:
        if sessions > 1 and file.stream is not None and file.time_min is not None and not day.has_all_times_of(file):
            raise ArchiveError(
                f"has {sessions} sessions, and rows of {file.date} (UTC) that are not of {day}: "
                "--replace replaces one day",
                where=str(path),
                hint=_how_to_split(path, day),
            )


def _how_to_split(path: Path, day: TradingDay) -> str:
    """The commands that copy the packets of the day from a network capture, and replace the day with them."""
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
    is_journal, is_other_journal = file.source.startswith(JOURNAL), other.source.startswith(JOURNAL)
    if file.source == other.source or (is_journal and is_other_journal):
        return False
    covers = sources[other.source].get("covers") if is_journal else None
    if covers and TradingDay(*covers).has_all_times_of(other):
        return False  # captured messages of its day are skipped
    if not is_journal and not is_other_journal:
        is_same_venue = set(file.venues or [""]) & set(other.venues or [""])
    else:
        is_same_venue = set(file.venues) & set(other.venues)
    return bool(is_same_venue) and _overlap(file, other)


def _archived_rows(
    archive: Archive, file: FileEntry, other: FileEntry, sources: Mapping[str, dict[str, Any]]
) -> ArchiveError:
    what = f"has messages of {file.date} of {', '.join(file.venues) or 'no venue'}"
    there = sources[other.source].get("path", other.source.removeprefix(JOURNAL))
    if file.source.startswith(JOURNAL):
        return ArchiveError(
            f"the journal {what}, which the archive has from {there}",
            where=str(archive.path),
            hint="run the file again with --replace: captured messages of its day are then skipped; "
            "or archive the journal in an archive of its own",
        )
    return ArchiveError(
        f"{what}, and so has {there} in the archive: they have the same messages, or may be parts of one session",
        where=sources[file.source]["path"],
        hint="--date with --replace puts a file of one day in the place of what is archived of the day; "
        "--stream archives the file in addition, as a stream of its own with its own books; "
        "a capture of several days is split by day first (TZ=UTC editcap -A BEGIN -B END), or goes into an archive of "
        "its own",
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
    """The files of other sources of a day; captures of several days keep their rows of other days and venues."""
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
