"""Bring derived tables up to date: every derivation processes the rows of the commits since its last step.

    derive(spark, archive, DERIVATIONS)

One commit holds the rows of all derivations, the state that each carries to its next step, and the sessions that it
closed. A run that is killed before the commit changes nothing; the next run processes the same and later rows, with the
same result. A session is closed when its source reports its end (sessions.py), or with `is_closing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from penstock.base.errors import ConfigurationError
from penstock.model import shipped, shipped_names
from penstock.spark.pipeline.archive.archive import Archive, Staging, read_frame
from penstock.spark.pipeline.archive.commits import Commit, FileEntry
from penstock.spark.pipeline.archive.placing import FILES, STATES, kept
from penstock.spark.pipeline.archive.tables import table_schema
from penstock.spark.pipeline.archive.writer import PartitionedFiles, StateFile, partitioned
from penstock.spark.pipeline.derive import CARRIED, Derivation, Output, Step, TableWork
from penstock.spark.pipeline.derive.fractional import present
from penstock.spark.pipeline.derive.protocol import is_across_streams
from penstock.spark.pipeline.failures import Failure, attempt, spark_failures
from penstock.spark.pipeline.sessions import (
    StreamSession,
    all_sessions,
    days_since,
    ending_sessions,
    sessions_since,
)
from penstock.spark.pipeline.work import ignoring_interrupts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OUTPUT_ROW = pa.schema([("file", pa.string()), ("failure", pa.string())])
"""Result row of a task: the files it wrote, or its failure."""


def needs_derivation(
    archive: Archive,
    derivations: Sequence[Derivation],
    *,
    is_closing: bool = False,
    closing: Collection[str] = (),
) -> bool:
    catalogue = archive.catalogue
    derivations = present(derivations, catalogue.schemas)
    is_behind = any(catalogue.derived.get(each.name, 0) < catalogue.appended for each in derivations)
    ending = ending_sessions(catalogue, is_closing=is_closing, closing=closing)
    return bool(derivations) and (is_behind or bool(ending))


def derive(
    spark: SparkSession,
    archive: Archive,
    derivations: Sequence[Derivation],
    *,
    is_closing: bool = False,
    closing: Collection[str] = (),
    on_each: Callable[[str], None] = lambda name: None,
) -> Commit | None:
    """Run all derivations; None if there are no new rows. `on_each` is called with the name of each derivation before
    it runs.

    `is_closing`: close every session, whatever its source reports. Later messages begin another session. `closing`: the
    same for the sessions of these streams.
    """
    derivations = present(derivations, archive.catalogue.schemas)
    if not needs_derivation(archive, derivations, is_closing=is_closing, closing=closing):
        return None
    ending = ending_sessions(archive.catalogue, is_closing=is_closing, closing=closing)
    staging = archive.begin()
    try:
        step = _ArchiveStep(spark, archive, staging, all_sessions(archive.catalogue, ending))
        with spark_failures(archive.path):
            for derivation in derivations:
                on_each(derivation.name)
                step.take(derivation)
    except BaseException:
        archive.abandon(staging)
        raise
    return archive.commit(
        staging,
        "derive",
        files=step.files,
        removed=step.removed,
        schemas=step.schemas,
        derived={each.name: staging.number for each in derivations},
        carried=step.carried,
        ended=ending,
    )


class _ArchiveStep:
    """One step of all derivations; a derivation may read the output of earlier ones."""

    def __init__(self, spark: SparkSession, archive: Archive, staging: Staging, sessions: list[StreamSession]) -> None:
        self._spark = spark
        self._archive = archive
        self._staging = staging
        self._known = {name: table_schema(shipped(name)) for name in shipped_names()} | archive.catalogue.schemas
        self._sessions = sessions
        self.files: list[FileEntry] = []
        self.removed: list[str] = []
        self.schemas: dict[str, str] = {}
        self.carried: dict[str, list[FileEntry]] = {}

    def take(self, derivation: Derivation) -> None:
        since = self._archive.catalogue.derived.get(derivation.name, 0)
        sessions = sessions_since(self._sessions, since)
        if is_across_streams(derivation):
            written = (file for table in derivation.tables for file in self._committed(table))
            committed = (file for table in derivation.needs for file in self._committed(table))
            needed = [file for file in (*committed, *self.files) if file.table in derivation.needs]
            sessions, replaced = days_since(self._sessions, since, needed, written)
            self.removed += [file.path for file in replaced]
        step = Step(
            new={table: self._new(derivation, table, since) for table in derivation.needs},
            before={table: self._before(table, since, sessions) for table in derivation.needs},
            carried=self._carried(derivation.name),
            is_final=bool(sessions) and all(each.session.is_ended for each in sessions),
            sessions=[each.session for each in sessions],
            files=self._files(derivation, since),
        )
        self.write(derivation, step)

    def write(self, derivation: Derivation, step: Step) -> None:
        """Write the rows that a derivation makes in a step."""
        self.carried[derivation.name] = []
        for output in derivation.step(step):
            if CARRIED in output.tables:
                self.schemas[f"{STATES}/{derivation.name}"] = output.tables[CARRIED]
            for file in write_output(self._staging, derivation.name, output):
                if file.table.startswith(STATES):
                    self.carried[derivation.name].append(file)
                else:
                    self.files.append(file)
            made = {name: f"{ddl}, `date` DATE" for name, ddl in output.tables.items() if name != CARRIED}
            self.schemas |= made
            self._known |= made

    def _new(self, derivation: Derivation, table: str, since: int) -> DataFrame:
        if table not in self._known:
            raise ConfigurationError(
                f"{derivation.name!r} needs the unknown table {table!r}",
                hint=f"known tables: {', '.join(sorted(self._known))}",
            )
        staged = [file for file in self.files if file.table == table]
        committed = [file for file in self._committed(table) if file.commit_first > since]
        frame = self._frame(committed, table)
        return frame.unionByName(self._frame(staged, table, is_staged=True)) if staged else frame

    def _before(self, table: str, since: int, sessions: list[StreamSession]) -> DataFrame:
        """Return rows of earlier steps, from the files that may have some of these sessions."""
        begun: dict[int, int] = {}
        for each in sessions:
            begun[each.session.stream] = min(begun.get(each.session.stream, since), each.entry.begun)
        files = [
            file
            for file in self._committed(table)
            if file.commit_first <= since and file.stream in begun and file.commit_last >= begun[file.stream]
        ]
        return self._frame(files, table)

    def _files(self, derivation: Derivation, since: int) -> dict[str, list[str]]:
        """Return the paths of the new rows, if all of them are committed."""
        if any(file.table in derivation.needs for file in self.files):
            return {}
        return {
            table: [
                str(kept(self._archive.path, file.path)) for file in self._committed(table) if file.commit_first > since
            ]
            for table in derivation.needs
        }

    def _committed(self, table: str) -> Iterable[FileEntry]:
        return self._archive.catalogue.files.get(table, {}).values()

    def _frame(self, files: Iterable[FileEntry], table: str, *, is_staged: bool = False) -> DataFrame:
        root = self._staging.path if is_staged else self._archive.path / FILES
        return read_frame(self._spark, root, table, files, self._known[table])

    def _carried(self, name: str) -> DataFrame | None:
        files = self._archive.catalogue.carried.get(name)
        if not files:
            return None
        table = f"{STATES}/{name}"
        return read_frame(self._spark, self._archive.path / FILES, table, files, self._known[table])


class _DatesStep(_ArchiveStep):
    """A run of all derivations over the rows of some dates, without earlier steps."""

    def __init__(
        self,
        spark: SparkSession,
        archive: Archive,
        staging: Staging,
        staged: Iterable[FileEntry],
        committed: Iterable[FileEntry],
        streams: Collection[int],
    ) -> None:
        super().__init__(spark, archive, staging, [])
        self._staged = list(staged)
        self._others = list(committed)
        self._streams = streams

    def take(self, derivation: Derivation) -> None:
        new = {table: self._rows(derivation, table) for table in derivation.needs}
        before = {table: self._frame([], table) for table in derivation.needs}
        self.write(derivation, Step(new=new, before=before, is_final=True))

    def _rows(self, derivation: Derivation, table: str) -> DataFrame:
        staged = [file for file in (*self._staged, *self.files) if file.table == table]
        others = [file for file in self._others if file.table == table]
        if not is_across_streams(derivation):
            others = [file for file in others if file.stream in self._streams]
        frame = self._frame(others, table)
        return frame.unionByName(self._frame(staged, table, is_staged=True)) if staged else frame


def derive_dates(
    spark: SparkSession,
    archive: Archive,
    staging: Staging,
    derivations: Sequence[Derivation],
    dates: Collection[str],
    *,
    streams: Collection[int],
    staged: Iterable[FileEntry],
    removed: Collection[str],
    on_each: Callable[[str], None] = lambda name: None,
) -> tuple[list[FileEntry], list[FileEntry], dict[str, str]]:
    """Rebuild the derived rows of these dates and streams. Return the removed files, the added files, and the columns
    of their tables. Sessions of these streams have ended; derivations over all streams rebuild the rows of all streams.

    `staged` are files of the current commit, `removed` are paths that the commit removes. Rows of the previous and the
    next day are read as well, because a session may end under the next date.
    """
    staged = list(staged)
    derivations = present(derivations, {*archive.catalogue.schemas, *(file.table for file in staged)})
    made = {table: is_across_streams(each) for each in derivations for table in each.tables}
    files = [file for each in archive.catalogue.files.values() for file in each.values() if file.path not in removed]
    near = {(date.fromisoformat(each) + timedelta(days)).isoformat() for each in dates for days in (-1, 0, 1)}
    step = _DatesStep(
        spark,
        archive,
        staging,
        staged,
        [file for file in files if file.table not in made and file.date in near],
        streams,
    )
    for derivation in derivations:
        on_each(derivation.name)
        step.take(derivation)
    gone = [
        file
        for file in files
        if file.table in made and file.date in dates and (made[file.table] or file.stream in streams)
    ]
    come = [file for file in step.files if file.date in dates]
    return gone, come, {table: ddl for table, ddl in step.schemas.items() if not table.startswith(STATES)}


def write_output(staging: Staging, name: str, output: Output) -> list[FileEntry]:
    """Let the workers compute and write the rows of an output."""
    work = output.work or OnlyTable(next(iter(output.tables)))
    frame = output.frame.mapInArrow(OutputWork(staging, name, work), "file STRING, failure STRING")
    rows = frame.collect()
    for row in rows:
        if row.failure is not None:
            raise msgspec.json.decode(row.failure, type=Failure).error()
    return [msgspec.json.decode(row.file, type=FileEntry) for row in rows]


class OnlyTable:
    """The work of an output whose frame already has its rows."""

    def __init__(self, table: str) -> None:
        self._table = table

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        return ((self._table, batch) for batch in batches)


class OutputWork:
    """Runs on the workers: writes the rows of a partition into files."""

    def __init__(self, staging: Staging, name: str, work: TableWork) -> None:
        self._staging = msgspec.json.encode(staging)
        self._name = name
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staging = msgspec.json.decode(self._staging, type=Staging)
        with ignoring_interrupts():
            made = attempt(staging, partial(self._written, staging, batches))
        rows = [(None, made)] if isinstance(made, Failure) else [(file, None) for file in made]
        texts = [[None if each is None else msgspec.json.encode(each).decode() for each in row] for row in rows]
        yield pa.RecordBatch.from_pylist([{"file": file, "failure": failure} for file, failure in texts], OUTPUT_ROW)

    def _written(self, staging: Staging, batches: Iterator[pa.RecordBatch]) -> list[FileEntry]:
        files = PartitionedFiles(staging)
        state = StateFile(staging, f"{STATES}/{self._name}")
        try:
            for table, batch in self._work(batches):
                if table == CARRIED:
                    state.add(batch)
                else:
                    files.add(partitioned(table, batch))
            return [*files.finish(), *state.finish()]
        except BaseException:
            files.abandon()
            state.abandon()
            raise
