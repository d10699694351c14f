"""Archives with tables written by hand, for tests of their readers."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import FileEntry, sync_file
from penstock.spark.pipeline.archive.parquet import open_parquet

MESSAGES = (
    "topic STRING, seq BIGINT, source_seq BIGINT, part INT, captured BIGINT, term BIGINT, origin INT, "
    "publisher BIGINT, packet BIGINT, event_time BIGINT"
)
KINDS = {"STRING": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32(), "DOUBLE": pa.float64()}


def schema_of(ddl: str) -> pa.Schema:
    words = [column.split() for column in ddl.split(", ")]
    return pa.schema([pa.field(name.strip("`"), KINDS[kind]) for name, kind in words])


def write_tables(
    path: Path, tables: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]], *, date: str = "2024-01-02"
) -> None:
    """One commit: rows by table, each table with its columns as a Spark schema. A row's `stream` is its partition."""
    with Archive.writing(path) as archive:
        staging = archive.begin()
        files = []
        for table, (ddl, rows) in tables.items():
            for stream in sorted({row.get("stream", 1) for row in rows}):
                chosen = [row for row in rows if row.get("stream", 1) == stream]
                name = staging.new_file(f"{table}/date={date}/stream={stream}")
                target = staging.path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                schema = schema_of(ddl)
                with open_parquet(target, schema) as writer:
                    plain = [{key: row.get(key) for key in schema.names} for row in chosen]
                    writer.write_table(pa.Table.from_pylist(plain, schema=schema))
                sync_file(target)
                files.append(
                    FileEntry(
                        table=table, path=name, rows=len(chosen), size=target.stat().st_size,
                        commit_first=staging.number, commit_last=staging.number, date=date, stream=stream,
                    )
                )  # fmt: skip
        schemas = {table: f"{ddl}, date DATE, stream INT" for table, (ddl, _) in tables.items()}
        archive.commit(staging, "append", files=files, schemas=schemas, sources={"test": {"at": time.time_ns()}})
