"""The complete pipeline: slices of the sources into the archive's tables, commit by commit, then the derivations.

    with Archive.writing("archive.d") as archive:
        report = run(spark, archive, sources, derivations)            # batch: to the end of every source
        follow(spark, archive, sources, derivations, is_wanted)       # streaming: the same steps, endlessly

Batch is a few large steps and streaming many small steps of the same functions. Only the commits hold the positions of
the sources, so a killed run resumes after its last commit, and no row is added twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow.parquet as pq

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ArchiveError, ConfigurationError, LocalProtocolError
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import Account, Catalogue, Commit, FileEntry, TradingDay
from penstock.spark.pipeline.archive.compaction import compact, crowded_files, retain
from penstock.spark.pipeline.archive.days import (
    FEED,
    OtherSources,
    Removed,
    covered_days,
    refuse_archived_rows,
    refuse_other_days,
    remove_day,
)
from penstock.spark.pipeline.archive.placing import kept
from penstock.spark.pipeline.archive.schemas import evolved
from penstock.spark.pipeline.derive import Derivation
from penstock.spark.pipeline.deriving import derive, derive_dates
from penstock.spark.pipeline.failures import spark_failures
from penstock.spark.pipeline.models import models_in_band, read_again
from penstock.spark.pipeline.sessions import session_changes, sessions_going_on
from penstock.spark.pipeline.sources.capture import FeedSource, Piece, PipelineSource, feed_streams
from penstock.spark.pipeline.sources.normalise import Known
from penstock.spark.pipeline.work import SliceResult, write_slices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK_SLICES_PER_CORE = 2
"""Slices per commit and core; several, so that cores do not wait for each other."""

REASONS_MAX = 3
"""Reasons that a run without any converted message shows."""

POLL_SECONDS = 0.2
"""Polling interval of a follower without new input."""


class Progress(Protocol):
    """Receives the progress of a run."""

    def begin(self, slices: int) -> None:
        """Called with the number of slices to read."""

    def advance(self, slices: int, account: Account) -> None:
        """Called with the number of slices committed; `account` is the account of the run so far."""

    def derive(self, name: str) -> None:
        """Called before the rows of this derivation are computed."""


class Replaced(msgspec.Struct, frozen=True):
    """The sources and rows that a file replaced."""

    day: str
    sources: list[str]
    """The files and journals whose rows of the day were removed."""
    rows: dict[str, tuple[int, int]]
    """By table: number of rows before and after."""


class RunReport(msgspec.Struct):
    """The result of a run."""

    account: Account = msgspec.field(default_factory=Account)
    commits: int = 0
    is_complete: bool = False
    """True if nothing was left to do; False if the run was stopped early."""
    read_again: dict[str, int] = {}
    """By table: messages of `raw` whose model has become known."""
    replaced: list[Replaced] = []
    delays_s: list[float] = []
    """For a follower: the age of the newest message of each step at its commit."""


def run(
    spark: SparkSession,
    archive: Archive,
    sources: Sequence[PipelineSource],
    derivations: Sequence[Derivation],
    progress: Progress,
    *,
    cores: int,
    is_ended: Callable[[], bool] = lambda: False,
    is_closing: bool = False,
) -> RunReport:
    """Process every source to its end, then the derivations. If stopped early, committed work remains and other work is
    discarded.

    Sessions that are open at the end of a journal are carried to the next run, unless `is_closing` closes them.
    """
    report = RunReport()
    # one after the other: the stream positions of a journal decide which messages of the next one are duplicates
    for source in sources:
        if isinstance(source, FeedSource) and source.is_replacing:
            replace(spark, archive, source, derivations, progress, report, cores=cores, is_ended=is_ended)
            continue
        pieces = source.pieces(archive.catalogue)
        progress.begin(len(pieces))
        for chunk in _chunks(pieces, CHUNK_SLICES_PER_CORE * cores):
            if is_ended():
                return report
            append(spark, archive, chunk, report)
            progress.advance(len(chunk), report.account)
    take_again(archive, report)
    report.is_complete = not is_ended()
    if report.is_complete:
        commit = derive(spark, archive, derivations, is_closing=is_closing, on_each=progress.derive)
        report.commits += commit is not None
    return report


def follow(
    spark: SparkSession,
    archive: Archive,
    sources: Sequence[PipelineSource],
    derivations: Sequence[Derivation],
    progress: Progress,
    *,
    is_ended: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    first_date: Callable[[], date | None] = lambda: None,
) -> RunReport:
    """Archive the sources step by step until `is_ended`; the current step is still committed.

    Between the steps, small files are merged, and rows of dates before `first_date()` are removed. Derivations run
    incrementally, and close a session when it has ended (sessions.py).
    """
    report = RunReport()
    while not is_ended():
        is_idle = True
        for source in sources:
            pieces = source.pieces(archive.catalogue)
            if pieces:
                is_idle = False
                progress.begin(len(pieces))
                commit = append(spark, archive, pieces, report)
                _note_delay(commit, report)
                progress.advance(len(pieces), report.account)
        take_again(archive, report)
        if derive(spark, archive, derivations, on_each=progress.derive) is not None:
            report.commits += 1
        if (crowded := crowded_files(archive)) and compact(archive, crowded) is not None:
            report.commits += 1
        if (first := first_date()) is not None and retain(archive, before=first.isoformat()) is not None:
            report.commits += 1
        if is_idle:
            sleep(POLL_SECONDS)
    return report


def append(spark: SparkSession, archive: Archive, pieces: list[Piece], report: RunReport) -> Commit:
    """Commit the rows of these slices."""
    staging = archive.begin()
    try:
        with spark_failures(archive.path):
            results = write_slices(spark, staging, [piece.slice for piece in pieces], _known(archive))
        account = _account(results, pieces)
        schemas = _schemas(results)
        cursors = {stream: image for result in results for stream, image in result.cursors.items()}
        _refuse_streams_of_feeds(archive, cursors)
        files = _files(results, pieces)
        positions = _positions(archive.catalogue, pieces, files)
        refuse_archived_rows(archive, files, positions)
    except BaseException:
        archive.abandon(staging)
        raise
    commit = archive.commit(
        staging,
        "append",
        files=files,
        account=account,
        schemas=schemas,
        sources=positions,
        cursors=cursors,
        sessions=session_changes(archive.catalogue, (result.sessions for result in results), staging.number),
        watermarks=_watermarks(files),
        models=models_in_band(archive.catalogue, [text for result in results for text in result.documents]),
    )
    report.account.add(account)
    report.commits += 1
    return commit


def _positions(catalogue: Catalogue, pieces: list[Piece], files: list[FileEntry]) -> dict[str, dict[str, Any]]:
    """Return the position of each source after these pieces, with a mark on feeds that have added no message yet."""
    found = {piece.source: piece.position for piece in pieces}
    with_rows = {file.source for file in files if file.stream is not None}
    for source, position in found.items():
        was_empty = source not in catalogue.sources or catalogue.sources[source].get("is_empty", False)
        if source.startswith(FEED) and was_empty and source not in with_rows:
            found[source] = {**position, "is_empty": True}
    return found


def replace(
    spark: SparkSession,
    archive: Archive,
    source: FeedSource,
    derivations: Sequence[Derivation],
    progress: Progress,
    report: RunReport,
    *,
    cores: int,
    is_ended: Callable[[], bool],
) -> None:
    """Replace a day in one commit: add the rows of a file, remove the rows of other sources of its day, and rebuild the
    derived tables.

    If stopped early, nothing changes.
    """
    catalogue, day = archive.catalogue, _day_of(source)
    if catalogue.derived and not derivations:
        raise ConfigurationError("--replace rebuilds the derived tables", hint="leave out --no-derive")
    found, pieces = source.others(catalogue), source.pieces(catalogue)
    position = pieces[-1].position if pieces else catalogue.sources[source.key]
    if source.key in catalogue.sources and pieces:  # a part of the file was archived by an interrupted run
        found.feeds[source.key] = catalogue.sources[source.key]
    covers = {} if source.stream else {"covers": list(day)}
    if not pieces and not found and position.get("covers") == covers.get("covers"):
        return
    if derivations:
        _refuse_open_sessions(archive, found, day)
    closing = {str(stream) for stream in found.streams}
    if derive(spark, archive, derivations, closing=closing, on_each=progress.derive) is not None:
        report.commits += 1
    progress.begin(len(pieces))
    staging = archive.begin()
    results: list[SliceResult] = []
    try:
        with spark_failures(archive.path):
            for chunk in _chunks(pieces, CHUNK_SLICES_PER_CORE * cores):
                if is_ended():
                    archive.abandon(staging)
                    return
                results += write_slices(spark, staging, [piece.slice for piece in chunk], _known(archive))
                progress.advance(len(chunk), report.account)
            account, schemas, files = _account(results, pieces), _schemas(results), _files(results, pieces)
            removed = remove_day(archive, staging, found, day)
            refuse_archived_rows(archive, files, {source.key: position}, removed=removed.paths)
            refuse_other_days(source.path, day, files, _session_count(results))
            dates = removed.dates | {file.date for file in files if file.stream is not None}
            gone, come, columns = derive_dates(
                spark, archive, staging, derivations, dates, streams=found.streams | {int(position["stream"])},
                staged=[*files, *removed.files], removed=removed.paths, on_each=progress.derive,
            )  # fmt: skip
    except BaseException:
        archive.abandon(staging)
        raise
    report.account.add(account)
    forgotten = {str(each["stream"]) for each in found.feeds.values()}
    seen = (result.sessions for result in results)
    sessions = session_changes(catalogue, seen, staging.number, forgotten=forgotten)
    archive.commit(
        staging,
        "replace",
        files=[*files, *removed.files, *come],
        removed=[*removed.paths, *(file.path for file in gone)],
        account=_less(account, removed.rows, catalogue.account),
        schemas=schemas | columns,
        sources={source.key: position | covers},
        forgotten=list(found.feeds),
        watermarks=_watermarks(files),
        derived={each.name: staging.number for each in derivations},
        sessions=sessions,
        ended={stream: [entry.place for entry in entries] for stream, entries in sessions.items()},
    )
    report.commits += 1
    report.replaced.append(Replaced(day=str(day), sources=found.names, rows=_changes(removed, gone, [*files, *come])))


def _day_of(source: FeedSource) -> TradingDay:
    day = source.trading_day()
    if day is None:
        raise ConfigurationError("the date of the file is not known", where=str(source.path), hint="give --date")
    return day


def _refuse_open_sessions(archive: Archive, found: OtherSources, day: TradingDay) -> None:
    """Refuse to replace a day if an open session has messages of the day and after it."""
    mixed = {file.stream for file in found.mixed if file.stream is not None}
    for stream, _ in sessions_going_on(archive.catalogue, mixed, day.end_ns):
        raise ArchiveError(
            f"cannot replace {day} now: the open session of stream {stream} has messages after that day, and "
            "would be cut",
            where=str(archive.path),
            hint="replace the day when the session has ended; --close in a run of the capture ends it now",
        )


def _session_count(results: list[SliceResult]) -> int:
    """Return the number of distinct session tags of a file's messages."""
    return len({run.tag for result in results for runs in result.sessions.values() for run in runs})


def _less(account: Account, removed: dict[str, int], known: Account) -> Account:
    """Return the account of added rows minus removed rows; both sums still hold."""
    less = Account()
    less.add(account)
    for table, rows in removed.items():
        counts = less.facts if table in known.facts else less.rows
        counts[table] = counts.get(table, 0) - rows
        less.taken -= rows if counts is less.rows else 0
    return less


def _changes(removed: Removed, gone: list[FileEntry], come: list[FileEntry]) -> dict[str, tuple[int, int]]:
    before, after = dict(removed.rows), dict[str, int]()
    for counts, files in ((before, gone), (after, come)):
        for file in files:
            counts[file.table] = counts.get(file.table, 0) + file.rows
    return {table: (before.get(table, 0), after.get(table, 0)) for table in sorted(before.keys() | after.keys())}


def _files(results: list[SliceResult], pieces: list[Piece]) -> list[FileEntry]:
    return [
        msgspec.structs.replace(file, source=piece.source)
        for result, piece in zip(results, pieces, strict=True)
        for file in result.files
    ]


def _known(archive: Archive) -> Known:
    return Known(list(archive.catalogue.models.values()), covered_days(archive.catalogue))


def _refuse_streams_of_feeds(archive: Archive, streams: Iterable[str]) -> None:
    """Refuse a journal whose stream numbers, assigned by its adapters, are already used by archived files."""
    feeds = feed_streams(archive.catalogue)
    for stream in sorted(feeds.keys() & set(map(int, streams))):
        raise ArchiveError(
            f"the journal has messages of stream {stream}, which this archive uses for {feeds[stream]}",
            where=str(archive.path),
            hint="use a separate archive for the journal, or archive the journal first: files then get other numbers",
        )


def take_again(archive: Archive, report: RunReport) -> None:
    """Read the messages of the table `raw` whose model has become known."""
    commit = read_again(archive)
    if commit is not None:
        report.commits += 1
        for table, rows in commit.account.rows.items():
            if rows > 0:
                report.read_again[table] = report.read_again.get(table, 0) + rows


def _account(results: list[SliceResult], pieces: list[Piece]) -> Account:
    whole = Account()
    for result, piece in zip(results, pieces, strict=True):
        if not result.account.is_balanced:
            raise LocalProtocolError(
                f"internal error: messages in and out do not add up: {result.account}",
                where=piece.slice.name,
                hint="please report this bug; nothing was committed",
            )
        whole.add(result.account)
    return whole


def _schemas(results: list[SliceResult]) -> dict[str, str]:
    """Return the union of the columns of all slices, because slices may have different versions of a model."""
    merged: dict[str, str] = {}
    for result in results:
        for table, ddl in result.schemas.items():
            merged[table] = evolved(table, merged.get(table, ddl), ddl)
    return merged


def _watermarks(files: list[FileEntry]) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in files:
        if file.stream is not None and file.time_max is not None:
            found[str(file.stream)] = max(file.time_max, found.get(str(file.stream), file.time_max))
    return found


def _note_delay(commit: Commit, report: RunReport) -> None:
    newest = max((file.captured_max for file in commit.files if file.captured_max is not None), default=None)
    if newest is not None:
        report.delays_s.append((time.time_ns() - newest) / NS_PER_SECOND)


def _chunks(pieces: list[Piece], size: int) -> Iterator[list[Piece]]:
    for start in range(0, len(pieces), size):
        yield pieces[start : start + size]


def cores_of(spark: SparkSession) -> int:
    """Return the number of concurrent tasks, if the session reports it; a remote session (sc://) does not."""
    from pyspark.errors import PySparkNotImplementedError

    try:
        return max(int(spark.sparkContext.defaultParallelism), 1)
    except PySparkNotImplementedError:
        return os.cpu_count() or 1


def balance(account: Account) -> list[str]:
    """Format the account as lines of text: the messages read, and their outcomes."""
    lines = []
    source = account.source
    if source.taken or source.damages:
        parts = [f"{source.used:,} converted"]
        parts += [f"{source.repeated:,} repeated"] if source.repeated else []
        parts += [f"{count:,} quarantined ({code})" for code, count in sorted(source.quarantined.items())]
        parts += [f"{count:,} unmatched ({code})" for code, count in sorted(source.unmatched.items())]
        lines.append(f"{source.taken:,} source messages = {' + '.join(parts)}")
        if source.lost or source.damages:
            lines.append(
                f"not in this sum: {source.lost:,} messages missing in the source, {source.damages:,} damaged places"
            )
    if source.removed:
        lines.append(f"not in this sum: {source.removed:,} records that retention removed before they were archived")
    parts = [f"{count:,} {table}" for table, count in sorted(account.rows.items())]
    parts += [f"{account.repeated:,} repeated"] if account.repeated else []
    parts += [f"{count:,} quarantined ({code})" for code, count in sorted(account.quarantined.items())]
    parts += [f"{count:,} skipped ({cause})" for cause, count in sorted(account.skipped.items())]
    lines.append(f"{account.taken:,} messages = {' + '.join(parts) or '0'}")
    for model, count in sorted(account.unknown_models.items()):
        if count:
            lines.append(
                f"{count:,} messages of the unknown model {model} are in the table raw; "
                "a run with --model FILE moves them to the model's table"
            )
    if account.sealed:
        lines.append(f"{account.sealed:,} sealed messages are in the table raw, with their whole content")
    if account.in_quarantine:
        lines.append(f"the table quarantine has {account.in_quarantine:,} rows with the reasons")
    return lines


def quarantine_reasons(archive: Archive, report: RunReport) -> list[str]:
    """Return the place and the reason of the first REASONS_MAX rows that the run added to the table `quarantine`."""
    first = archive.catalogue.number - report.commits + 1
    found: list[str] = []
    for file in archive.files("quarantine"):
        if file.commit_last >= first and len(found) < REASONS_MAX:
            rows = pq.ParquetFile(kept(archive.path, file.path)).read(["place", "position", "reason"]).to_pylist()
            found += [f"{row['place']}, at {row['position']}: {row['reason']}" for row in rows]
    return found[:REASONS_MAX]
