"""Recorded feeds as DataFrames: ITCH files, MoldUDP64 and IEX captures, CSV ticks; plain or compressed.

    from penstock.spark import raw
    raw.messages(spark, "day.itch").groupBy("type").count()
    trades = raw.normalised(spark, "day.itch", table="itch", date="2019-01-30", model="trade")
    raw.quarantine(spark, "day.itch", table="itch", date="2019-01-30")

The same as a format, with the same options:

    spark.read.format("penstock-feed").options(table="itch", date="2019-01-30", model="trade").load("day.itch")

A large file is indexed when it is first read (feedindex.py); then every core reads a part of it. The rows are what a
live adapter publishes for the same input, bit by bit: docs/how-to/spark-feeds.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.base.errors import ConfigurationError
from penstock.spark import feedframes
from penstock.spark.feedindex import Progress
from penstock.spark.feedoptions import WHERE, FeedSourceOptions
from penstock.spark.feedslices import FeedSlice
from penstock.spark.options import read_options
from penstock.spark.rowplan import RowPlan, check_conditions, plan_columns, plan_schema
from penstock.spark.slices import slices_frame
from penstock.spark.sourcerows import SOURCE_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SLICE_SCHEMA = "slice STRING COMMENT 'a stretch of a recorded feed, as JSON'"

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def messages(spark: SparkSession, path: Paths, **options: Any) -> DataFrame:
    """The source messages as they are: source_seq, receive_time, type, message."""
    checked = _options(path, {"rows": "source", **options})
    return feedframes.source_messages(_planned(spark, checked))


def normalised(spark: SparkSession, path: Paths, *, table: str, **options: Any) -> DataFrame:
    """The messages that the converter table makes of a feed: of one `model` its fields as columns, else `payload`.

    `columns` are those wanted, and `date` the trading date where the feed tells only times of the day.
    """
    checked = _options(path, {"table": table, **options})
    return feedframes.normalise(_planned(spark, checked), _row_plan(checked), bad=checked.bad)


def quarantine(spark: SparkSession, path: Paths, *, table: str, **options: Any) -> DataFrame:
    """What of a feed could not be read or converted: slice, place, position, code, reason, excerpt."""
    return feedframes.quarantine(_planned(spark, _options(path, {"table": table, "rows": "bad", **options})))


def _planned(spark: SparkSession, options: FeedSourceOptions) -> DataFrame:
    options.checked_model()
    with shown_progress() as progress:
        return slices_frame(spark, options.slices(progress))


def _options(path: Paths, options: Mapping[str, Any]) -> FeedSourceOptions:
    paths = [path] if isinstance(path, str | PathLike) else list(path)
    texts = {name: _text(value) for name, value in options.items() if value is not None}
    checked = read_options(texts, FeedSourceOptions, "penstock.spark.raw")
    return msgspec.structs.replace(checked, path=tuple(str(each) for each in paths))


def _text(value: Any) -> str:
    """As Spark's options are."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(str(each) for each in value)
    return str(value)


def _row_plan(options: FeedSourceOptions, wanted: Sequence[str] = ()) -> RowPlan:
    model = options.checked_model()
    check_conditions(options.topics, options.condition, model, f"{WHERE}: option condition")
    columns = plan_columns(wanted or options.columns, model, f"{WHERE}: option columns")
    return RowPlan(columns, model, options.topics, options.condition)


@contextmanager
def shown_progress() -> Iterator[Progress | None]:
    """Bars on the terminal, if there is one, for indexes that are made."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


class FeedSource(DataSource):
    """The format `penstock-feed`, for spark.read."""

    @classmethod
    def name(cls) -> str:
        return "penstock-feed"

    def schema(self) -> str:
        options = self._checked()
        options.files()
        return schema_of(options)

    def reader(self, schema: StructType) -> FeedSourceReader:
        options = self._checked()
        names = tuple(schema.fieldNames())
        if options.rows != "messages":
            own = StructType.fromDDL(schema_of(options))
            assert isinstance(own, StructType)
            if names != tuple(own.fieldNames()):
                raise ConfigurationError(f"rows={options.rows} has columns of its own", where=f"{WHERE}: schema")
            return FeedSourceReader(options, None)
        return FeedSourceReader(options, _row_plan(options, names))

    def _checked(self) -> FeedSourceOptions:
        options = read_options(self.options, FeedSourceOptions, WHERE)
        options.checked_model()
        return options


def schema_of(options: FeedSourceOptions) -> str:
    fixed = {"source": SOURCE_SCHEMA, "bad": feedframes.QUARANTINE_SCHEMA, "slices": SLICE_SCHEMA}
    if options.rows in fixed:
        return fixed[options.rows]
    plan = _row_plan(options)
    return plan_schema(plan.columns, plan.model)


class FeedPartition(InputPartition):
    """What one task reads."""

    def __init__(self, piece: FeedSlice) -> None:
        self.text = msgspec.json.encode(piece).decode()


class FeedSourceReader(DataSourceReader):
    def __init__(self, options: FeedSourceOptions, plan: RowPlan | None) -> None:
        self._options = options
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        return [FeedPartition(piece) for piece in self._options.slices()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        assert isinstance(partition, FeedPartition)
        piece = feedframes.decode_feed_slice(partition.text)
        if self._options.rows == "slices":
            return iter([pa.RecordBatch.from_pydict({"slice": [partition.text]})])
        if self._options.rows == "source":
            return feedframes.source_batches(piece)
        if self._plan is None:
            return feedframes.quarantine_batches(piece)
        return feedframes.normalised_batches(piece, self._plan, self._options.bad)
