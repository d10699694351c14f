"""The plan from messages to rows: the columns, the conditions, and the Arrow batches for Spark.

plan = RowPlan(columns=("topic", "seq", "price"), model=shipped("trade"), interests=("md.us.>",)) plan.batch(rows) #
MessageRows in, a RecordBatch out
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.errors import ConfigurationError
from penstock.capture.core.rows import MessageRows
from penstock.model import MessageModel, shipped
from penstock.model.columns import spark_schema, to_spark
from penstock.spark.envelope import ALWAYS, COLUMNS, envelope_array, envelope_schema
from penstock.topics import InterestTable, Predicate

if TYPE_CHECKING:
    import pyarrow as pa

PAYLOAD = "payload"
"""The column with a message's unread payload, used without a model."""


class Comparison(msgspec.Struct, frozen=True):
    """A condition on an envelope column: = < <= > >= in, or prefix."""

    column: str
    operator: str
    values: tuple[Any, ...]


class RowPlan(msgspec.Struct, frozen=True):
    """Columns and conditions of a query; plain data that is sent with the tasks."""

    columns: tuple[str, ...]
    model: MessageModel | None = None
    interests: tuple[str, ...] = ()
    condition: str = ""
    comparisons: tuple[Comparison, ...] = ()

    def batch(self, rows: MessageRows) -> pa.RecordBatch:
        """Build the batch of selected rows; with a model, every payload must be valid."""
        import pyarrow as pa

        rows = self.chosen(rows)
        arrays = dict(zip(self._fields, self._field_arrays(rows), strict=True))
        for column in self.columns:
            if column == PAYLOAD and self.model is None:
                arrays[column] = rows.contents()
            elif column not in arrays:
                arrays[column] = envelope_array(rows, column)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.columns], names=list(self.columns))

    def chosen(self, rows: MessageRows) -> MessageRows:
        """Return the messages that meet every condition."""
        if self.interests and len(rows):
            offsets, _ = _interest_table(self.interests).match_batch(
                rows.topic_data.data, rows.rows["topic_offset"], rows.rows["topic_size"]
            )
            rows = rows.select(numpy.diff(offsets) > 0)
        for comparison in self.comparisons:
            rows = rows.select(_meets(rows, comparison))
        if self.condition and self.model is not None:
            rows = rows.select(_meets_condition(rows, self.condition, self.model))
        return rows

    @property
    def _fields(self) -> list[str]:
        names = {} if self.model is None else self.model.fields_by_name
        return [name for name in self.columns if name in names]

    def _field_arrays(self, rows: MessageRows) -> list[pa.Array]:
        model = self.model
        if model is None or not self._fields:
            return []
        columns = to_spark(model, rows.fields(model, self._fields), self._fields).columns
        versions = rows.rows["model_version"]
        sinces = [model.fields_by_name[name].since for name in self._fields]
        return [
            array if since <= 1 else _without_older(array, versions < since)
            for since, array in zip(sinces, columns, strict=True)
        ]


def plan_schema(columns: Iterable[str], model: MessageModel | None) -> str:
    """Return the columns as Spark DDL."""
    parts = []
    for name in columns:
        if model is not None and name in model.fields_by_name:
            parts.append(spark_schema(model, [name]).replace(" NOT NULL", ""))
        elif name == PAYLOAD:
            parts.append(f"`{PAYLOAD}` BINARY COMMENT 'the content of the message'")
        else:
            parts.append(envelope_schema([name]))
    return ", ".join(parts)


def plan_columns(wanted: Sequence[str], model: MessageModel | None, where: str) -> tuple[str, ...]:
    """Return the requested columns, or the default ones; refuse an unknown name."""
    fields = [PAYLOAD] if model is None else list(model.fields_by_name)
    known = [*(name for name in COLUMNS if name not in fields), *fields]
    for name in wanted:
        if name not in known:
            raise ConfigurationError(f"unknown column {name!r}", where=where, hint=f"valid columns: {', '.join(known)}")
    return tuple(wanted) or tuple(name for name in known if name in ALWAYS or name in fields)


def load_model(name: str) -> MessageModel | None:
    """Load a shipped model by name, or a model from a TOML file; None for ""."""
    if not name:
        return None
    return MessageModel.load(Path(name)) if name.endswith(".toml") else shipped(name)


def check_conditions(interests: tuple[str, ...], condition: str, model: MessageModel | None, where: str) -> None:
    """Check the conditions when the query is planned, so that an error does not appear only in its tasks."""
    _interest_table(interests)
    if condition and model is None:
        raise ConfigurationError(
            "a condition needs a model, because it compares fields", where=where, hint="set option model"
        )
    if condition and model is not None:
        Predicate.compile(condition, model)


@cache
def _interest_table(interests: tuple[str, ...]) -> InterestTable:
    table = InterestTable()
    for interest in interests:
        table.add(interest, 0)
    if interests and all(interest.startswith("!") for interest in interests):
        table.add(">", 0)
    return table


@cache
def _predicate(condition: str, model: MessageModel, version: int) -> Predicate:
    return Predicate.compile(condition, model, version)


def _meets_condition(rows: MessageRows, condition: str, model: MessageModel) -> NDArray[Any]:
    mask = numpy.zeros(len(rows), numpy.bool_)
    for _, version in rows.kinds():
        chosen = numpy.flatnonzero(rows.rows["model_version"] == version)
        places = rows.rows[chosen]
        predicate = _predicate(condition, model, min(version, model.version))
        mask[chosen] = predicate.select_at(
            rows.payloads.data,
            numpy.ascontiguousarray(places["payload_offset"]),
            numpy.ascontiguousarray(places["payload_size"]),
        )
    return mask


def _meets(rows: MessageRows, comparison: Comparison) -> NDArray[Any]:
    import pyarrow.compute as pc

    values = envelope_array(rows, comparison.column)
    first = comparison.values[0]
    match comparison.operator:
        case "=":
            mask = pc.equal(values, first)
        case "<":
            mask = pc.less(values, first)
        case "<=":
            mask = pc.less_equal(values, first)
        case ">":
            mask = pc.greater(values, first)
        case ">=":
            mask = pc.greater_equal(values, first)
        case "in":
            import pyarrow as pa

            mask = pc.is_in(values, pa.array(comparison.values, values.type))
        case _:
            mask = pc.starts_with(values, first)
    return numpy.asarray(pc.fill_null(mask, False))


def _without_older(array: pa.Array, is_older: NDArray[Any]) -> pa.Array:
    """Set values to null in records whose version does not have the field."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_older.any():
        return array
    return pc.if_else(pa.array(is_older), pa.scalar(None, array.type), array)
