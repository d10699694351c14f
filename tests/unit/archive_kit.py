"""Archives without Spark: commits of small tables, and their content for every reader of Parquet."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.pipeline.archive.archive import Archive, Staging
from penstock.spark.pipeline.archive.commits import Account, Commit, FileEntry, sync_file
from penstock.spark.pipeline.archive.compaction import TARGET_SIZE, compact, retain, small_files
from penstock.spark.pipeline.archive.parquet import open_parquet
from penstock.spark.pipeline.archive.placing import kept

SCHEMA = pa.schema([("seq", pa.int64()), ("topic", pa.string())])
DDL = "seq BIGINT, topic STRING, date DATE, stream INT"
ROWS = 10
TABLES = ("trade", "quote")


def stage(staging: Staging, table: str, date: str, stream: int | None, numbers: list[int]) -> FileEntry:
    path = staging.new_file(f"{table}/date={date}" + (f"/stream={stream}" if stream is not None else ""))
    target = staging.path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_parquet(target, SCHEMA) as writer:
        writer.write_table(pa.table([numbers, [f"{table}.{number}" for number in numbers]], schema=SCHEMA))
    sync_file(target)
    number = staging.number
    return FileEntry(
        table=table, path=path, rows=len(numbers), size=target.stat().st_size, commit_first=number, commit_last=number,
        date=date, stream=stream, seq_min=min(numbers), seq_max=max(numbers),
    )  # fmt: skip


def step(archive: Archive, date: str = "2024-01-02") -> Commit:
    """Add one commit with ten rows per table; the numbers continue after the existing rows."""
    done = archive.catalogue.sources.get("numbers", {}).get("last", 0)
    numbers = list(range(done + 1, done + 1 + ROWS))
    staging = archive.begin()
    files = [
        stage(staging, table, date, stream, numbers[stream::2]) for table in TABLES for stream in (0, 1)
    ]  # fmt: skip
    account = Account(taken=2 * ROWS, rows=dict.fromkeys(TABLES, ROWS))
    sources = {"numbers": {"last": done + ROWS}}
    schemas = dict.fromkeys(TABLES, DDL)
    return archive.commit(staging, "append", files=files, account=account, sources=sources, schemas=schemas)


def compact_all(archive: Archive) -> Commit | None:
    return compact(archive, small_files(archive, target_size=TARGET_SIZE))


def drop_old(archive: Archive) -> Commit | None:
    return retain(archive, before="2024-01-02")


def replace_all(archive: Archive) -> Commit:
    """Replace all files by other files with the same rows, in one commit."""
    staging = archive.begin()
    partitions: dict[tuple[str, str, int | None], list[int]] = {}
    removed = []
    for table in TABLES:
        for file in archive.files(table):
            rows = pq.ParquetFile(kept(archive.path, file.path)).read(columns=["seq"]).column(0).to_pylist()
            partitions.setdefault((table, file.date, file.stream), []).extend(rows)
            removed.append(file.path)
    files = [stage(staging, *partition, numbers) for partition, numbers in partitions.items()]
    return archive.commit(staging, "replace", files=files, removed=removed)


def numbers_of(path: Path, table: str) -> list[int]:
    """The rows as a plain Parquet reader returns them, sorted."""
    if not (path / table).exists():
        return []
    return sorted(pq.read_table(path / table).column("seq").to_pylist())


def check_whole(path: Path, first: int = 1) -> int:
    """Check that a plain reader and the catalogue both return every row from `first` on exactly once, in every table;
    return the last number."""
    archive = Archive.open(path)
    last = int(archive.catalogue.sources.get("numbers", {}).get("last", 0))
    for table in TABLES:
        assert numbers_of(path, table) == list(range(first, last + 1)), table
        files = archive.catalogue.files.get(table, {})
        assert sum(file.rows for file in files.values()) == last + 1 - first
        assert {str(each.relative_to(path)) for each in (path / table).rglob("*.parquet")} == set(files)
        read = pq.read_table(archive.paths(table)) if files else pa.table({"seq": []})
        assert sorted(read.column("seq").to_pylist()) == list(range(first, last + 1)), table
    there = {str(each.relative_to(path / "_files")) for each in (path / "_files").rglob("*.parquet")}
    named = {file for files in archive.catalogue.files.values() for file in files}
    assert there == named | set(archive.catalogue.replaced)
    assert not list((path / "_staging").iterdir())
    assert archive.catalogue.account.is_balanced
    return last
