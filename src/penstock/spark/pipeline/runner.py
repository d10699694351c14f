"""The whole way: slices of the sources into the archive's tables, commit by commit, then what is derived from them.

    with Archive.writing("archive.d") as archive:
        report = run(spark, archive, sources, derivations)            # batch: to the end of every source
        follow(spark, archive, sources, derivations, is_wanted)       # streaming: the same steps, without an end

Batch is a few large steps, streaming many small ones, of the same functions. Where the sources stand is in the commits
and nowhere else: a run that is killed at any time goes on after its last commit, and no row comes twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ArchiveError, ConfigurationError, LocalProtocolError
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import Account, Commit, FileEntry
from penstock.spark.pipeline.archive.compaction import compact, crowded_files, retain
from penstock.spark.pipeline.archive.days import (
    Removed,
    covered_days,
    refuse_archived_rows,
    refuse_other_days,
    remove_day,
)
from penstock.spark.pipeline.archive.schemas import evolved
from penstock.spark.pipeline.derive import Derivation
from penstock.spark.pipeline.deriving import derive, derive_dates
from penstock.spark.pipeline.failures import spark_failures
from penstock.spark.pipeline.models import models_in_band, read_again
from penstock.spark.pipeline.sessions import session_changes, sessions_going_on
from penstock.spark.pipeline.sources.capture import FeedSource, Piece, Source, feed_streams
from penstock.spark.pipeline.sources.normalise import Known
from penstock.spark.pipeline.work import SliceResult, write_slices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK_SLICES_PER_CORE = 2
"""Slices of one commit: enough that no core waits long for another."""

POLL_SECONDS = 0.2
"""How often a follower with nothing to do looks for more."""


class Progress(Protocol):
    """Whom a run tells where it is."""

    def begin(self, slices: int) -> None:
        """So many slices are to be read."""

    def advance(self, slices: int, account: Account) -> None:
        """So many of them are committed; `account` is that of the run so far."""

    def derive(self, name: str) -> None:
        """Rows of this derivation are being made."""


class Replaced(msgspec.Struct, frozen=True):
    """What a file has replaced."""

    day: str
    sources: list[str]
    """The files and journals whose rows of the day were removed."""
    rows: dict[str, tuple[int, int]]
    """By table: rows before and after."""


class RunReport(msgspec.Struct):
    """What a run has done."""

    account: Account = msgspec.field(default_factory=Account)
    commits: int = 0
    is_complete: bool = False
    """Nothing was left to do; else somebody ended it."""
    read_again: dict[str, int] = {}
    """By table: messages of `raw` whose model has become known."""
    replaced: list[Replaced] = []
    delays_s: list[float] = []
    """Of a follower: how old the newest message of each step was when it was committed."""


def run(
    spark: SparkSession,
    archive: Archive,
    sources: Sequence[Source],
    derivations: Sequence[Derivation],
    progress: Progress,
    *,
    cores: int,
    is_ended: Callable[[], bool] = lambda: False,
    is_closing: bool = False,
) -> RunReport:
    """Every source as far as it goes, and the derivations too; ended early, what is committed stays, and nothing else.

    What is open at the end of a journal is carried to the next run; `is_closing` says that every session ends here.
    """
    report = RunReport()
    for source in sources:  # one after the other: where a journal's streams stand decides what of the next is a copy
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
    sources: Sequence[Source],
    derivations: Sequence[Derivation],
    progress: Progress,
    *,
    is_ended: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    first_date: Callable[[], date] | None = None,
) -> RunReport:
    """Archive what the sources have, step after step, until `is_ended`; the step in progress is committed whole.

    Between the steps, small files are merged, and rows of dates before `first_date()` are removed. Derivations carry
    their state from step to step, and close a session when it has ended (sessions.py).
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
        if first_date is not None and retain(archive, before=first_date().isoformat()) is not None:
            report.commits += 1
        if is_idle:
            sleep(POLL_SECONDS)
    return report


def append(spark: SparkSession, archive: Archive, pieces: list[Piece], report: RunReport) -> Commit:
    """One commit of the rows of these slices."""
    staging = archive.begin()
    try:
        with spark_failures(archive.path):
            results = write_slices(spark, staging, [piece.slice for piece in pieces], _known(archive))
        account = _account(results, pieces)
        schemas = _schemas(results)
        cursors = {stream: image for result in results for stream, image in result.cursors.items()}
        _refuse_streams_of_feeds(archive, cursors)
        files = _files(results, pieces)
        refuse_archived_rows(archive, files, {piece.source: piece.position for piece in pieces})
    except BaseException:
        archive.abandon(staging)
        raise
    commit = archive.commit(
        staging,
        "append",
        files=files,
        account=account,
        schemas=schemas,
        sources={piece.source: piece.position for piece in pieces},
        cursors=cursors,
        sessions=session_changes(archive.catalogue, (result.sessions for result in results), staging.number),
        watermarks=_watermarks(files),
        models=models_in_band(archive.catalogue, [text for result in results for text in result.documents]),
    )
    report.account.add(account)
    report.commits += 1
    return commit


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
    """One commit: add the rows of a file, remove the rows of other sources of its day, and rebuild the derived tables.

    Ended early, it changes nothing.
    """
    day = source.trading_day()
    if day is None:
        raise ConfigurationError("the date of the file is not known", where=str(source.path), hint="give --date")
    if archive.catalogue.derived and not derivations:
        raise ConfigurationError("--replace makes the derived tables anew", hint="leave out --no-derive")
    catalogue = archive.catalogue
    found, pieces = source.others(catalogue), source.pieces(catalogue)
    position = pieces[-1].position if pieces else catalogue.sources[source.key]
    if source.key in catalogue.sources and pieces:  # a part of it, from a run that did not end
        found.feeds[source.key] = catalogue.sources[source.key]
    covers = {} if source.stream else {"covers": list(day)}
    if not pieces and not found and position.get("covers") == covers.get("covers"):
        return
    mixed = {file.stream for file in found.mixed if file.stream is not None}
    for stream, _ in sessions_going_on(catalogue, mixed if derivations else (), day.end_ns):
        raise ArchiveError(
            f"cannot replace {day} now: the session of stream {stream} that is open has messages after that day, and "
            "would be closed in its middle",
            where=str(archive.path),
            hint="replace the day when the session has ended; --close in a run of the capture ends it now",
        )
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


def _session_count(results: list[SliceResult]) -> int:
    """Different session tags of the messages of a file."""
    return len({run.tag for result in results for runs in result.sessions.values() for run in runs})


def _less(account: Account, removed: dict[str, int], known: Account) -> Account:
    """The account of added rows minus removed rows; both sums still hold."""
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
    """A journal's messages have the stream numbers of their adapters; a file may have got the same number before."""
    feeds = feed_streams(archive.catalogue)
    for stream in sorted(feeds.keys() & set(map(int, streams))):
        raise ArchiveError(
            f"the journal has messages of stream {stream}, which is the stream of {feeds[stream]} in this archive",
            where=str(archive.path),
            hint="archive the journal in an archive of its own, or begin with it: files then get other numbers",
        )


def take_again(archive: Archive, report: RunReport) -> None:
    """Read messages of the table `raw` whose model has become known."""
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
                f"messages in and out do not add up: {result.account}",
                where=piece.slice.name,
                hint="this is a bug; nothing of it was committed",
            )
        whole.add(result.account)
    return whole


def _schemas(results: list[SliceResult]) -> dict[str, str]:
    """The columns of all slices: one may have rows of an older version of a model than another."""
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
    """How many tasks run at the same time, as far as the session tells; a remote one (sc://) does not."""
    from pyspark.errors import PySparkNotImplementedError

    try:
        return max(int(spark.sparkContext.defaultParallelism), 1)
    except PySparkNotImplementedError:
        return os.cpu_count() or 1


def balance(account: Account) -> list[str]:
    """The account as lines of text: what was read, and what became of it."""
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
