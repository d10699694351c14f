"""Rates of the pipeline on Spark: local[2], warm, each compared with plain Spark.

The files are in a directory below the current one, and are removed afterwards.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.bench.harness import Result, interleaved_seconds, result
from penstock.bench.pipeline.archive import archive_messages
from penstock.bench.pipeline.books import book_events
from penstock.bench.pipeline.data import trades_in_journal
from penstock.bench.pipeline.days import five_days_equal
from penstock.bench.pipeline.feeds import normalise_messages
from penstock.bench.pipeline.follow import follow_messages
from penstock.spark import messages, session

MASTER = "local[2]"
ROUNDS = 5
JOURNAL_MESSAGES = 16_000_000


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=".") as folder, session(MASTER) as spark:
        for metric in METRICS:
            yield from metric(spark, Path(folder).absolute())


def journal_rows(spark: Any, folder: Path) -> Iterator[Result]:
    """Read a journal's rows and aggregate two columns; compare with the same rows from Parquet."""
    from pyspark.sql import functions as F

    journal, parquet = folder / "journal", folder / "parquet"
    trades_in_journal(journal, JOURNAL_MESSAGES)
    options = {"journal": str(journal), "model": "trade"}
    pruned = messages(spark, **options, columns="quantity,event_time")
    source = spark.read.format("penstock").options(**options)
    usual = source.option("columns", "quantity,event_time").load()
    source.option("columns", "").load().write.option("compression", "zstd").parquet(str(parquet))

    def aggregate(frame: Any) -> None:
        count, _, _ = frame.agg(F.count("*"), F.sum("quantity"), F.max("event_time")).first()
        assert count == JOURNAL_MESSAGES

    ours, by_format, theirs = interleaved_seconds(
        lambda: aggregate(pruned),
        lambda: aggregate(usual),
        lambda: aggregate(spark.read.parquet(str(parquet))),
        rounds=ROUNDS,
    )
    conditions = (
        f"{MASTER}; {JOURNAL_MESSAGES:,} trades of one publisher in packets with ORIGIN; "
        f"count, sum(quantity), max(event_time); duplicates removed, scans cached; median of {ROUNDS}"
    )
    for metric, seconds, way in (
        ("journal_rows_per_s", ours, "penstock.spark.messages"),
        ("journal_format_rows_per_s", by_format, "the format penstock"),
    ):
        yield result(
            "pipeline",
            metric,
            JOURNAL_MESSAGES / seconds,
            "rows/s",
            against="the same two columns of a zstd Parquet table of the same rows",
            against_value=JOURNAL_MESSAGES / theirs,
            conditions=f"{way}; {conditions}",
        )


METRICS: list[Callable[[Any, Path], Iterator[Result]]] = [
    journal_rows,
    normalise_messages,
    book_events,
    archive_messages,
    follow_messages,
    five_days_equal,
]
