"""Rows into staged Parquet files, in whichever process has them: a file per table and partition.

    files = PartitionedFiles(staging)
    files.add(TableRows(...))
    entries = files.finish()                   # what the commit will say of them

Files are whole and on the disk when finish() returns. Their names are nobody else's: a task that Spark runs twice
leaves files that no commit names, and which go with the staging directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.base.files import make_directory
from penstock.spark.pipeline.archive.archive import Staging
from penstock.spark.pipeline.archive.bounds import partition_keys, partition_of
from penstock.spark.pipeline.archive.commits import FileEntry, sync_file
from penstock.spark.pipeline.archive.parquet import ROW_GROUP_ROWS, open_parquet
from penstock.spark.pipeline.archive.tables import BY_DATE_ONLY, TableRows

BOUNDED = ("seq", "event_time", "captured")
"""Columns whose extremes the catalogue has."""

EPOCH = date(1970, 1, 1)

VENUES_MAX = 16
"""Venues that the catalogue has of a file."""


class PartitionedFiles:
    """The files that one task makes; whoever brings the rows bounds how many partitions they are of."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._open: dict[tuple[str, int, int | None], _OpenFile] = {}

    def add(self, rows: TableRows) -> None:
        """Keep these rows, in their order."""
        if not len(rows.batch):
            return
        different, which = partition_keys(rows.times_ns, rows.streams)
        for index, key in enumerate(different.tolist()):
            chosen = rows.batch if len(different) == 1 else rows.batch.take(pa.array(np.flatnonzero(which == index)))
            self._file(rows.table, *partition_of(key)).add(chosen)

    def finish(self) -> list[FileEntry]:
        entries = [file.finish() for file in self._open.values()]
        self._open.clear()
        return entries

    def abandon(self) -> None:
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def _file(self, table: str, day: int, stream: int) -> _OpenFile:
        key = table, day, None if table in BY_DATE_ONLY else stream
        file = self._open.get(key)
        if file is None:
            file = self._open[key] = _OpenFile(self._staging, *key)
        return file


class _OpenFile:
    """One file; rows are written in groups."""

    def __init__(self, staging: Staging, table: str, day: int | None, stream: int | None) -> None:
        self._table = table
        self._number = staging.number
        self._date = "" if day is None else (EPOCH + timedelta(days=day)).isoformat()
        self._stream = stream
        directory = table if day is None else f"{table}/date={self._date}"
        self._name = staging.new_file(directory if stream is None else f"{directory}/stream={stream}")
        self._path: Path = staging.path / self._name
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._rows = 0
        self._bounds: dict[str, tuple[int, int]] = {}
        self._venues: set[str] = set()
        self._has_untimed = False

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._held

    def add(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_rows += len(batch)
        if self._held_rows >= ROW_GROUP_ROWS:
            self._flush()

    def finish(self) -> FileEntry:
        self._flush()
        assert self._writer is not None
        self._writer.close()
        sync_file(self._path)
        seqs, times, captured = (self._bounds.get(name, (None, None)) for name in BOUNDED)
        return FileEntry(
            table=self._table,
            path=self._name,
            rows=self._rows,
            size=self._path.stat().st_size,
            commit_first=self._number,
            commit_last=self._number,
            date=self._date,
            stream=self._stream,
            seq_min=seqs[0],
            seq_max=seqs[1],
            time_min=times[0],
            time_max=times[1],
            captured_max=captured[1],
            venues=sorted(self._venues),
            has_untimed=self._has_untimed,
        )

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            make_directory(self._path.parent)
            self._writer = open_parquet(self._path, self._held[0].schema)
        rows = pa.Table.from_batches(self._held)
        for name in BOUNDED:
            if name in rows.column_names:
                self._note_bounds(name, rows[name])
        if "venue" in rows.column_names and len(self._venues) < VENUES_MAX:
            self._venues.update(pc.unique(rows["venue"]).drop_null().to_pylist()[: VENUES_MAX - len(self._venues)])
        self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        self._rows += len(rows)
        self._held, self._held_rows = [], 0

    def _note_bounds(self, name: str, column: pa.ChunkedArray) -> None:
        if name == "event_time":  # 0 is no time, and would make any file overlap with any other
            rows = len(column)
            column = column.filter(pc.not_equal(column, 0))
            self._has_untimed |= len(column) < rows
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            low, high = self._bounds.get(name, (found["min"], found["max"]))
            self._bounds[name] = min(low, found["min"]), max(high, found["max"])


def rewrite(staging: Staging, file: FileEntry, batches: Iterable[pa.RecordBatch]) -> FileEntry | None:
    """A file with these rows, in the place of one that has others as well; None without rows."""
    day = (date.fromisoformat(file.date) - EPOCH).days if file.date else None
    made = _OpenFile(staging, file.table, day, file.stream)
    for batch in batches:
        if len(batch):
            made.add(batch)
    if made.is_empty:
        return None
    kept = {name: getattr(file, name) for name in ("commit_first", "commit_last", "source")}
    return msgspec.structs.replace(made.finish(), **kept)


class StateFile:
    """What a derivation carries to its next step, of one task: a file without a partition."""

    def __init__(self, staging: Staging, table: str) -> None:
        self._staging = staging
        self._table = table
        self._file: _OpenFile | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        if len(batch):
            self._file = self._file or _OpenFile(self._staging, self._table, None, None)
            self._file.add(batch)

    def finish(self) -> list[FileEntry]:
        return [self._file.finish()] if self._file is not None else []

    def abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()


def partitioned(table: str, batch: pa.RecordBatch) -> TableRows:
    """Rows that bring their partition as columns `stream` and `event_time`, as those of derived tables do."""
    return TableRows(table, batch.drop_columns(["stream"]), _integers(batch, "event_time"), _integers(batch, "stream"))


def _integers(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    filled = pc.fill_null(batch.column(name).cast(pa.int64()), 0)
    return np.asarray(filled.to_numpy(zero_copy_only=False))
