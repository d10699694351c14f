"""What a worker does with a slice: read it, convert it, and write its rows into staged Parquet files.

    for result in write_slices(spark, staging, slices): ...

Rows do not go through the JVM: Spark hands out slices, and gets back which files were written and what became of every
message. A slice of which nothing comes says why.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.base.log import configure
from penstock.spark.pipeline.archive.archive import Staging
from penstock.spark.pipeline.archive.commits import Account, FileEntry
from penstock.spark.pipeline.archive.sessiontags import SeenRun
from penstock.spark.pipeline.archive.writer import PartitionedFiles
from penstock.spark.pipeline.failures import Failure, attempt
from penstock.spark.pipeline.sources.normalise import Known, Slice, read_slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SliceResult(msgspec.Struct, omit_defaults=True):
    """What came of a slice."""

    files: list[FileEntry] = []
    account: Account = msgspec.field(default_factory=Account)
    schemas: dict[str, str] = {}
    cursors: dict[str, Any] = {}
    """By source stream: how far it has come after a slice of a journal."""
    documents: list[str] = []
    """Of models that came in band."""
    sessions: dict[str, list[SeenRun]] = {}
    """By source stream: the sessions of its messages."""
    failure: Failure | None = None
    """Why nothing came of it."""


def write_slices(
    spark: SparkSession, staging: Staging, slices: list[Slice], known: Known | None = None
) -> list[SliceResult]:
    """The results in the order of the slices; each is a task of its own. The first failure of one is raised."""
    work = SliceWork(staging, [msgspec.json.encode(each) for each in slices], known or Known())
    tasks = spark.range(0, len(slices), 1, len(slices))
    rows = tasks.mapInArrow(work, "number BIGINT, result STRING").collect()
    results = [msgspec.json.decode(row.result, type=SliceResult) for row in sorted(rows, key=lambda row: row.number)]
    for result in results:
        if result.failure is not None:
            raise result.failure.error()
    return results


class SliceWork:
    """Sent to the workers: slices by number to results."""

    def __init__(self, staging: Staging, slices: list[bytes], known: Known) -> None:
        self._staging = msgspec.json.encode(staging)
        self._slices = slices
        self._known = msgspec.json.encode(known)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        configure(level="ERROR")  # what is wrong with messages goes into the quarantine, not to standard error
        staging = msgspec.json.decode(self._staging, type=Staging)
        known = msgspec.json.decode(self._known, type=Known)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with ignoring_interrupts():
                    piece = msgspec.json.decode(self._slices[number], type=Slice)
                    made = attempt(staging, partial(write_slice, staging, piece, known))
                result = SliceResult(failure=made) if isinstance(made, Failure) else made
                text = msgspec.json.encode(result).decode()
                yield pa.RecordBatch.from_pydict({"number": [number], "result": [text]})


@contextlib.contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Ctrl-C in a terminal reaches the workers as well; whether the work is ended is the driver's to say."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write_slice(staging: Staging, piece: Slice, known: Known | None = None) -> SliceResult:
    """In this process."""
    files = PartitionedFiles(staging)
    reading = read_slice(piece, known)
    try:
        for rows in reading:
            files.add(rows)
        entries = files.finish()
    except BaseException:
        files.abandon()
        raise
    return SliceResult(entries, reading.account, reading.schemas, reading.cursors, reading.documents, reading.sessions)
