"""The data source `penstock`: journals as DataFrames, batch and streaming, from a directory or over TCP.

    spark.read.format("penstock").option("journal", "captured.d").option("model", "trade").load()
    spark.readStream.format("penstock").option("connect", "10.0.0.7:7410").option("topics", "md.us.>").load()

docs/how-to/spark.md lists all options. Compiled code in the Python workers builds the rows, which reach Spark as Arrow
batches. A restarted query resumes exactly at its checkpoint. An offset holds, for every journal, the number of the next
record and the cursors for detecting duplicate messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.base.config import Config
from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError, JournalGoneError, PacketError
from penstock.base.log import logger
from penstock.capture.core.cursors import CursorImage
from penstock.model import MessageModel
from penstock.spark.envelope import COLUMNS
from penstock.spark.journals import JournalPlace, find_journals
from penstock.spark.options import parse_place, read_options
from penstock.spark.rowplan import (
    Comparison,
    RowPlan,
    check_conditions,
    load_model,
    plan_columns,
    plan_schema,
)
from penstock.spark.slices import Copies, JournalSlice, JournalSliceReader, cut, decode_slice, encode_slice, scan

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.sink import PenstockStreamWriter, PenstockWriter

WHERE = "format penstock"

RECORDS_MAX = 200_000
"""Journal records per micro-batch, unless set by option max_records."""

SLICE_SCHEMA = "slice STRING COMMENT 'a stretch of a journal, as JSON'"
BAD_SCHEMA = "record BIGINT, captured BIGINT, code STRING, reason STRING, excerpt BINARY"

log = logger("spark.source")


class SourceOptions(Config, frozen=True, rename={"from_": "from"}):
    """Options for reading a journal."""

    journal: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    secret: str = ""
    ca: str = ""
    admin: str = ""
    credentials: str = ""
    topics: tuple[str, ...] = ()
    model: str = ""
    columns: tuple[str, ...] = ()
    condition: str = ""
    from_: str = ""
    to: str = ""
    copies: Copies = "first"
    bad: Literal["skip", "fail"] = "skip"
    rows: Literal["messages", "slices", "bad"] = "messages"
    partitions: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    max_records: Annotated[int, msgspec.Meta(ge=1)] = RECORDS_MAX

    def places(self) -> list[JournalPlace]:
        access = self.secret, self.ca, self.admin, self.credentials
        return find_journals(self.journal + self.path, self.connect, *access)


class PenstockSource(DataSource):
    """The format `penstock` for spark.read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        options = read_options(self.options, SourceOptions, WHERE)
        if options.rows != "messages":
            return SLICE_SCHEMA if options.rows == "slices" else BAD_SCHEMA
        model = load_model(options.model)
        check_conditions(options.topics, options.condition, model, f"{WHERE}: option condition")
        options.places()
        return plan_schema(plan_columns(options.columns, model, f"{WHERE}: option columns"), model)

    def reader(self, schema: StructType) -> JournalReader:
        return JournalReader(*self._planned(schema))

    def streamReader(self, schema: StructType) -> JournalStreamReader:
        return JournalStreamReader(*self._planned(schema))

    def writer(self, schema: StructType, overwrite: bool) -> PenstockWriter:
        from penstock.spark.sink import PenstockWriter, read_sink_options

        if overwrite:
            raise ConfigurationError("published messages cannot be overwritten", where=WHERE, hint="use mode append")
        return PenstockWriter(read_sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> PenstockStreamWriter:
        from penstock.spark.sink import PenstockStreamWriter, read_sink_options

        return PenstockStreamWriter(read_sink_options(self.options), schema)

    def _planned(self, schema: StructType) -> tuple[SourceOptions, RowPlan]:
        options = read_options(self.options, SourceOptions, WHERE)
        model = load_model(options.model)
        check_conditions(options.topics, options.condition, model, f"{WHERE}: option condition")
        columns: tuple[str, ...] = ()
        if options.rows == "messages":
            columns = plan_columns([field.name for field in schema.fields], model, f"{WHERE}: schema")
            _check_types(schema, columns, model)
        return options, RowPlan(columns, model, options.topics, options.condition)


class SlicePartition(InputPartition):
    """The slice that one task reads."""

    def __init__(self, text: str) -> None:
        self.text = text


class JournalReader(DataSourceReader):
    """Reads all records that exist when the query is planned, or those between `from` and `to`."""

    def __init__(self, options: SourceOptions, plan: RowPlan) -> None:
        self._options = options
        self._plan = plan

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        taken = list(self._plan.comparisons)
        for each in filters:
            comparison = _comparison(each) if self._options.rows == "messages" else None
            if comparison is None or (self._plan.model and comparison.column in self._plan.model.fields_by_name):
                yield each
            else:
                taken.append(comparison)
        self._plan = msgspec.structs.replace(self._plan, comparisons=tuple(taken))

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        slices: list[JournalSlice] = []
        for place in options.places():
            extent = place.measure()
            first = max(extent.first_sequence, _place(place, options.from_, extent.first_sequence, "from"))
            last = min(extent.next_sequence - 1, _place(place, options.to, extent.next_sequence, "to") - 1)
            cursors = _cursors_before(place, extent.first_sequence, first, options.copies)
            first, last = _narrowed(first, last, self._plan.comparisons, options.copies)
            slices += cut(
                place,
                first,
                last,
                copies=options.copies,
                cursors=cursors,
                extent=extent,
                slices_min=options.partitions or 2 * (os.cpu_count() or 1),
            )
        return [SlicePartition(encode_slice(piece)) for piece in slices] or [SlicePartition("")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition)
        return read_slice(partition.text, self._options, self._plan)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads records as they arrive, in micro-batches of at most `max_records`."""

    def __init__(self, options: SourceOptions, plan: RowPlan) -> None:
        self._options = options
        self._plan = plan
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, str]:
        offset = {}
        for place in self._options.places():
            extent = place.measure()
            first = max(extent.first_sequence, _place(place, self._options.from_, extent.first_sequence, "from"))
            cursors = _cursors_before(place, extent.first_sequence, first, self._options.copies)
            offset[place.where] = _Offset(first, cursors).encode()
        return offset

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        options = self._options
        ends = self._target if self._target is not None else self._ends()
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = {}
        for place in options.places():
            begin = _offset_of(start, place, options)
            end = max(begin.next, ends.get(place.where, begin.next))
            if room is not None:
                end = min(end, begin.next + max(1, room // max(1, len(ends))))
            cursors = begin.cursors
            if options.copies == "first" and end > begin.next:
                cursors = scan(place, begin.next, end - 1, begin.cursors)
            found[place.where] = _Offset(end, cursors).encode()
        return start | found

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records) if self._options.max_records else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        made: list[InputPartition] = []
        places = {place.where: place for place in self._options.places()}
        for where, text in end.items():
            place = places.get(where)
            if place is None:
                raise ConfigurationError(
                    f"the checkpoint refers to journal {where}, which the options do not name", where=WHERE
                )
            begin = _offset_of(start, place, self._options)
            last = _Offset.decode(text).next - 1
            slices = cut(place, begin.next, last, copies=self._options.copies, cursors=begin.cursors)
            made += [SlicePartition(encode_slice(piece)) for piece in slices]
        return made or [SlicePartition("")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlicePartition)
        return read_slice(partition.text, self._options, self._plan)

    def _ends(self) -> dict[str, int]:
        """Return the end position of every journal: the record after the newest, or after `to`."""
        ends = {}
        for place in self._options.places():
            extent = place.measure()
            ends[place.where] = min(extent.next_sequence, _place(place, self._options.to, extent.next_sequence, "to"))
        return ends


class _Offset(msgspec.Struct, frozen=True, omit_defaults=True):
    """The read position of one journal."""

    next: int
    cursors: list[CursorImage] = []

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> _Offset:
        return msgspec.json.decode(text, type=_Offset)


def _offset_of(offsets: dict[str, str], place: JournalPlace, options: SourceOptions) -> _Offset:
    """Return the position of a journal's next batch; a new journal is read from its beginning."""
    if place.where in offsets:
        return _Offset.decode(offsets[place.where])
    return _Offset(place.measure().first_sequence)


def read_slice(text: str, options: SourceOptions, plan: RowPlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task: messages, slices, or unreadable records."""
    import pyarrow as pa

    if not text:
        return
    if options.rows == "slices":
        yield pa.RecordBatch.from_pydict({"slice": [text]})
        return
    reader = JournalSliceReader(decode_slice(text))
    unsound = 0
    for rows in reader:
        if options.bad == "fail" and reader.bad:
            first = reader.bad[0]
            raise PacketError(
                first.reason, cause=Cause(first.code), where=f"{reader.slice.place.where}: record {first.record}"
            )
        if plan.model is not None:
            is_sound = rows.sound(plan.model)
            if not is_sound.all():
                unsound += int((~is_sound & (rows.rows["model_id"] == plan.model.id)).sum())
                rows = rows.select(is_sound)
        if options.rows == "messages":
            batch = plan.batch(rows)
            if len(batch):
                yield batch
    if options.rows == "bad":
        yield _bad_batch(reader)
    elif unsound or reader.bad:
        quarantined = reader.account.quarantined
        log.warning("messages_left_out", slice=reader.slice.name, records=quarantined, unreadable=unsound)


def _bad_batch(reader: JournalSliceReader) -> pa.RecordBatch:
    import pyarrow as pa

    names = ("record", "captured_ns", "code", "reason", "excerpt")
    columns = [[getattr(each, name) for each in reader.bad] for name in names]
    kinds = [pa.int64(), pa.int64(), pa.string(), pa.string(), pa.binary()]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["record", "captured", "code", "reason", "excerpt"])


OPERATORS = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
    StringStartsWith: "prefix",
}


def _comparison(each: Filter) -> Comparison | None:
    """Translate a Spark filter; None if Spark must apply the filter."""
    operator = OPERATORS.get(type(each))
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if operator is None or len(attribute) != 1 or attribute[0] not in COLUMNS:
        return None
    value: Any = getattr(each, "value", None)
    values = tuple(value) if operator == "in" else (value,)
    wanted = str if COLUMNS[attribute[0]].spark_type == "STRING" else int
    if not values or not all(type(item) is wanted for item in values):
        return None
    return Comparison(attribute[0], operator, values)


def _narrowed(first: int, last: int, comparisons: tuple[Comparison, ...], copies: Copies) -> tuple[int, int]:
    """Drop records that cannot match from the range; leading records are kept if duplicates must be detected."""
    for column, operator, values in ((each.column, each.operator, each.values) for each in comparisons):
        if column != "record":
            continue
        if operator in ("=", "<", "<="):
            last = min(last, values[0] - (operator == "<"))
        if operator in ("=", ">", ">=") and copies == "all":
            first = max(first, values[0] + (operator == ">"))
    return first, last


def _place(place: JournalPlace, text: str, default: int, option: str) -> int:
    """Return the record that an option names: `to` includes the named record, or everything up to the named time."""
    if not text:
        return default
    sequence, time_ns = parse_place(text, f"{WHERE}: option {option}")
    is_end = option == "to"
    if sequence is not None:
        return sequence + is_end
    assert time_ns is not None
    return place.measure(time_ns + is_end).found_sequence or default


def _cursors_before(place: JournalPlace, oldest: int, first: int, copies: Copies) -> list[CursorImage]:
    """Return the cursors for detecting duplicates from record `first` on, which requires a scan of earlier records."""
    if copies == "all" or first <= oldest:
        return []
    try:
        return scan(place, oldest, first - 1, [])
    except JournalGoneError:
        return []  # retention removed the records meanwhile


def _check_types(schema: StructType, columns: tuple[str, ...], model: MessageModel | None) -> None:
    """Refuse a schema that gives a column another type than the source does."""
    for field, column in zip(schema.fields, columns, strict=True):
        kind = plan_schema([column], model).partition("` ")[2].partition(" COMMENT")[0]
        given = field.dataType.simpleString().upper()
        if kind != given:
            raise ConfigurationError(
                f"column {column!r} has type {kind}, but the schema says {given}", where=f"{WHERE}: schema"
            )
