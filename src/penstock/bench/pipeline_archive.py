"""How fast the pipeline archives: a feed's file into committed tables, and a capture that goes on while it is read."""

import os
import resource
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bench.conversion import write_day
from penstock.bench.harness import Result, result
from penstock.bench.pipeline_data import TradePackets
from penstock.journal import JournalConfig, JournalWriter
from penstock.spark.feedslices import Conversion
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive import Archive
from penstock.spark.pipeline.capture import STEP_RECORDS, FeedSource, JournalSource
from penstock.spark.pipeline.commits import Account
from penstock.spark.pipeline.runner import RunReport, follow, run

CORES = 2
ROUNDS = 3
FEED_MESSAGES = 8_000_000
FOLLOW_RATE = 400_000
"""Messages a second that are captured while the archive follows."""

FOLLOW_SECONDS = float(os.environ.get("PENSTOCK_FOLLOW_SECONDS", "15"))
"""300 in a soak."""

PAUSE_SECONDS = 0.02


class _Silent:
    def begin(self, slices: int) -> None: ...

    def advance(self, slices: int, account: Account) -> None: ...

    def derive(self, name: str) -> None: ...


def archive_messages(spark: Any, folder: Path) -> Iterator[Result]:
    """A generated day, indexed before, into committed zstd Parquet."""
    day = folder / "day.itch"
    count = write_day(day, FEED_MESSAGES)
    source = FeedSource(day, Conversion("itch", 1, "2024-01-02"), cores=CORES, cache=folder / "index")
    seconds = []
    for number in range(ROUNDS + 1):
        with Archive.writing(folder / f"archive-{number}") as archive:
            started = time.perf_counter()
            report = run(spark, archive, [source], (), _Silent(), cores=CORES)
            seconds.append(time.perf_counter() - started)
            assert report.account.source.taken == count
            size = sum(table.size for table in archive.tables())
    rows = sum(report.account.rows.values())
    yield result(
        "pipeline",
        "archive_messages_per_s",
        count / statistics.median(seconds[1:]),
        "1/s",
        against="one core that writes rows like these, made before, as zstd Parquet",
        against_value=_plain_rows_per_s(folder) * count / rows,
        conditions=f"local[{CORES}]; an ITCH file of {count:,} messages, indexed before, into {rows:,} rows of "
        f"{len(report.account.rows)} tables, {size / rows:.1f} bytes a row, committed and synced; median of {ROUNDS}",
    )


def _plain_rows_per_s(folder: Path) -> float:
    """Rows of book_event, written by pyarrow alone."""
    path = next(iter((folder / "archive-0" / "book_event").rglob("*.parquet")))
    rows: pa.Table = pq.ParquetFile(path).read()
    started = time.perf_counter()
    pq.write_table(rows, folder / "plain.parquet", compression="zstd")
    return len(rows) / (time.perf_counter() - started)


def follow_messages(spark: Any, folder: Path) -> Iterator[Result]:
    """A capture that grows at a constant rate, followed into an archive."""
    journal = folder / "followed"
    writer = _Writer(journal)
    with Archive.writing(folder / "follower") as archive:
        source = JournalSource(JournalPlace(str(journal)), CORES, STEP_RECORDS)
        writer.write(FOLLOW_RATE // 10)
        follow(spark, archive, [source], (), _Silent(), is_ended=iter([False, True]).__next__)  # warm
        memory = _Memory()
        thread = threading.Thread(target=writer.run)
        started = time.perf_counter()
        thread.start()
        report = follow(
            spark, archive, [source], (), _Silent(),
            is_ended=lambda: memory.look() or (not thread.is_alive() and _has_all(archive, writer)),
        )  # fmt: skip
        seconds = time.perf_counter() - started
        thread.join()
    yield _follow_result(report, writer, seconds, memory)


def _has_all(archive: Archive, writer: "_Writer") -> bool:
    return any(each.get("last") == writer.records for each in archive.catalogue.sources.values())


def _follow_result(report: RunReport, writer: "_Writer", seconds: float, memory: "_Memory") -> Result:
    delays = sorted(report.delays_s)
    return result(
        "pipeline",
        "follow_messages_per_s",
        report.account.taken / seconds,
        "1/s",
        against="the rate at which they were captured",
        against_value=writer.rate,
        conditions=f"local[{CORES}]; {report.account.taken:,} messages captured over {FOLLOW_SECONDS:.0f} s, archived "
        f"in {seconds:.0f} s and {report.commits} commits; {statistics.median(delays):.1f} s from capture to commit "
        f"(median), {delays[-1]:.1f} s at most; the driver's memory grew by {memory.growth_mb:.0f} MB after a third "
        f"of the time",
    )


class _Writer:
    """Appends packets of trades to a journal, so many messages a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._packets = TradePackets()
        self.records = 0
        self.rate = 0.0

    def write(self, messages: int) -> None:
        with JournalWriter.open(self._path, JournalConfig()) as journal:
            self._append(journal, messages)

    def run(self) -> None:
        started = time.perf_counter()
        written = 0
        with JournalWriter.open(self._path, JournalConfig()) as journal:
            while (elapsed := time.perf_counter() - started) < FOLLOW_SECONDS:
                due = int(elapsed * FOLLOW_RATE) - written
                if due > 0:
                    self._append(journal, due)
                    written += due
                time.sleep(PAUSE_SECONDS)
        self.rate = written / (time.perf_counter() - started)

    def _append(self, journal: JournalWriter, messages: int) -> None:
        self.records = self._packets.append(journal, messages, time.time_ns())


class _Memory:
    """How much this process grows once it has settled."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._settled_kb: int | None = None
        self._last_kb = 0

    def look(self) -> bool:
        self._last_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if self._settled_kb is None and time.monotonic() - self._started > FOLLOW_SECONDS / 3:
            self._settled_kb = self._last_kb
        return False

    @property
    def growth_mb(self) -> float:
        return (self._last_kb - (self._settled_kb or self._last_kb)) / 1024
