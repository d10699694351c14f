"""Small files merged, and old ones removed: commits like others, which readers see whole or not at all.

    compact(archive, small_files(archive))             # as far as it goes
    compact(archive, crowded_files(archive))           # what a follower does between its steps
    retain(archive, before="2024-01-01")

Rows keep their order. The files that are replaced stay for the grace period of the archive, where readers of an earlier
commit find them.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.base.files import make_directory
from penstock.spark.pipeline.archive.archive import Archive, Staging
from penstock.spark.pipeline.archive.commits import Commit, FileEntry, cannot, reached, sync_file
from penstock.spark.pipeline.archive.parquet import ROW_GROUP_ROWS, open_parquet
from penstock.spark.pipeline.archive.placing import kept
from penstock.spark.pipeline.archive.writer import VENUES_MAX

TARGET_SIZE = 256 << 20
"""Bytes of a file that is big enough."""

CROWD = 16
"""Neighbouring files of about the same size that a follower merges."""

LEVEL_SIZES = (1 << 20, 16 << 20)
"""Sizes that files of about the same size are told apart by; a follower leaves larger ones to `pipeline compact`."""

STEP_BYTES = 64 << 20
"""Bytes that a follower merges at a time, about: the next step waits for it."""


class Group(msgspec.Struct, frozen=True):
    """Files of one partition, in order, that become one."""

    files: list[FileEntry]


def small_files(archive: Archive, *, target_size: int = TARGET_SIZE, tables: Iterable[str] = ()) -> list[Group]:
    """Files below the target's size, to be merged up to it."""
    return [Group(run) for files in _neighbours(archive, tables) for run in _runs(files, target_size) if len(run) > 1]


def crowded_files(archive: Archive) -> list[Group]:
    """What a follower merges between its steps: CROWD or more neighbours of about the same size, up to STEP_BYTES.

    A row is rewritten only a few times, and no partition has more than some CROWD files of each size.
    """
    groups: list[Group] = []
    total = 0
    for files in _neighbours(archive):
        for level, found in groupby(files, key=_level):
            run = list(found)
            if level < len(LEVEL_SIZES) and len(run) >= CROWD and total < STEP_BYTES:
                groups.append(Group(run))
                total += sum(file.size for file in run)
    return groups


def _level(file: FileEntry) -> int:
    return bisect_right(LEVEL_SIZES, file.size)


def _neighbours(archive: Archive, tables: Iterable[str] = ()) -> Iterator[list[FileEntry]]:
    """Files of one partition and source, in order, whose rows are all before or all after each step of the derivations.

    A derivation takes the files that begin after its last step: one file must not have rows from before it as well.
    """
    catalogue = archive.catalogue
    steps = sorted(set(catalogue.derived.values()))
    for table in tables or sorted(catalogue.files):
        files = sorted(archive.files(table), key=_order)
        for _, found in groupby(
            files, key=lambda file: (file.directory, file.source, bisect_left(steps, file.commit_first))
        ):
            yield list(found)


def _order(file: FileEntry) -> tuple[Any, ...]:
    return file.directory, file.source, file.commit_first, file.path


def _runs(files: Iterable[FileEntry], target_size: int) -> Iterator[list[FileEntry]]:
    run: list[FileEntry] = []
    for file in files:
        if run and sum(each.size for each in run) + file.size > target_size:
            yield run
            run = []
        if file.size < target_size:
            run.append(file)
    yield run


def compact(archive: Archive, groups: list[Group]) -> Commit | None:
    """Merge each group into one file; None when there is nothing to do, neither files whose grace period is over."""
    if not groups and not archive.expired(time.time_ns()):
        return None
    staging = archive.begin()
    try:
        files = [merge_group(staging, group) for group in groups]
    except OSError as error:
        archive.abandon(staging)
        raise cannot("compact", archive.path, error) from None
    except BaseException:
        archive.abandon(staging)
        raise
    reached("merged")
    return archive.commit(
        staging, "compact", files=files, removed=[file.path for group in groups for file in group.files]
    )


def merge_group(staging: Staging, group: Group) -> FileEntry:
    """One file with the rows of all, in their order; what an older one has no column for is null."""
    first = group.files[0]
    sources = [kept(Path(staging.root), file.path) for file in group.files]
    schema = pa.unify_schemas([pq.read_schema(source) for source in reversed(sources)])
    path = staging.new_file(first.directory)
    target = staging.path / path
    make_directory(target.parent)
    with open_parquet(target, schema) as writer:
        for batch in _collected(sources, schema):
            writer.write_table(batch, row_group_size=ROW_GROUP_ROWS)
    sync_file(target)
    return msgspec.structs.replace(
        first,
        path=path,
        rows=sum(file.rows for file in group.files),
        size=target.stat().st_size,
        commit_first=min(file.commit_first for file in group.files),
        commit_last=max(file.commit_last for file in group.files),
        venues=sorted({venue for file in group.files for venue in file.venues})[:VENUES_MAX],
        has_untimed=any(file.has_untimed for file in group.files),
        **{name: _bound(min, group, name) for name in ("seq_min", "time_min")},
        **{name: _bound(max, group, name) for name in ("seq_max", "time_max", "captured_max")},
    )


def _bound(pick: Callable[[list[int]], int], group: Group, name: str) -> int | None:
    values = [value for file in group.files if (value := getattr(file, name)) is not None]
    return pick(values) if values else None


def _collected(sources: list[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all, in pieces of a row group."""
    held: list[pa.Table] = []
    count = 0
    for source in sources:
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches(ROW_GROUP_ROWS):
                held.append(_as(pa.table(batch), schema))
                count += len(batch)
                if count >= ROW_GROUP_ROWS:
                    yield pa.concat_tables(held)
                    held, count = [], 0
    if held:
        yield pa.concat_tables(held)


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def retain(archive: Archive, *, before: str, tables: Iterable[str] = ()) -> Commit | None:
    """Remove the partitions of dates before one (ISO); None when there are none, nor files whose grace is over."""
    removed = [
        file.path
        for table in tables or sorted(archive.catalogue.files)
        for file in archive.files(table)
        if file.date and file.date < before
    ]
    if not removed and not archive.expired(time.time_ns()):
        return None
    return archive.commit(archive.begin(), "retain", removed=removed)
