"""Rate of the pipeline from a feed's file to committed tables."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bench.conversion import write_day
from penstock.bench.harness import Result, result
from penstock.bench.pipeline.follow import CORES, Silent
from penstock.spark.feedslices import Conversion
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.runner import run
from penstock.spark.pipeline.sources.capture import FeedSource

ROUNDS = 3
FEED_MESSAGES = 8_000_000


def archive_messages(spark: Any, folder: Path) -> Iterator[Result]:
    """Archive a generated day, indexed before, into committed zstd Parquet."""
    day = folder / "day.itch"
    count = write_day(day, FEED_MESSAGES)
    source = FeedSource(day, Conversion("itch", 1, "2024-01-02"), cores=CORES, cache=folder / "index")
    seconds = []
    for number in range(ROUNDS + 1):
        with Archive.writing(folder / f"archive-{number}") as archive:
            started = time.perf_counter()
            report = run(spark, archive, [source], (), Silent(), cores=CORES)
            seconds.append(time.perf_counter() - started)
            assert report.account.source.taken == count
            size = sum(table.size for table in archive.tables())
    rows = sum(report.account.rows.values())
    yield result(
        "pipeline",
        "archive_messages_per_s",
        count / statistics.median(seconds[1:]),
        "1/s",
        against="one core that writes prepared rows of this kind as zstd Parquet",
        against_value=_plain_rows_per_s(folder) * count / rows,
        conditions=f"local[{CORES}]; an ITCH file of {count:,} messages with an index, archived as {rows:,} rows of "
        f"{len(report.account.rows)} tables, {size / rows:.1f} bytes per row, committed and synced; median of {ROUNDS}",
    )


def _plain_rows_per_s(folder: Path) -> float:
    """Measure pyarrow alone: rows of book_event written per second."""
    path = next(iter((folder / "archive-0" / "book_event").rglob("*.parquet")))
    rows: pa.Table = pq.ParquetFile(path).read()
    started = time.perf_counter()
    pq.write_table(rows, folder / "plain.parquet", compression="zstd")
    return len(rows) / (time.perf_counter() - started)
