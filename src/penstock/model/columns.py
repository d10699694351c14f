"""Records as columns with the types of Spark and of the archive's Parquet files.

The types differ from Arrow's (schema.py) where Spark is slow or lacks a type: a price is DECIMAL(18, d), which Spark
and Parquet store in 64 bits; an unsigned integer is the next wider signed type; a u64 is a BIGINT with the same bits; a
timestamp is a BIGINT of nanoseconds. A price with more than 18 digits becomes null, and beyond_spark() finds the
records with such prices.
"""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import ModelError
from penstock.model._columns import (
    fill_floats,
    fill_integers,
    fill_names,
    fill_prices,
    fill_texts,
    mark_beyond,
    width_of,
)
from penstock.model.layout import Field

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.model.model import MessageModel

PRICE_DIGITS = 18
SPARK_INTEGERS = {1: "TINYINT", 2: "SMALLINT", 4: "INT", 8: "BIGINT"}
SPARK_FLOATS = {"f4": "FLOAT", "f8": "DOUBLE"}
NANOSECONDS = "nanoseconds since 1970-01-01 UTC"


def spark_schema(model: "MessageModel", columns: Iterable[str] | None = None) -> str:
    """Return the columns as Spark DDL: all, or the named ones in the given order."""
    return ", ".join(_spark_column(field) for field in fields_of(model, columns))


def spark_arrow_schema(model: "MessageModel", columns: Iterable[str] | None = None) -> "pa.Schema":
    """Return the schema of the result of to_spark()."""
    import pyarrow as pa

    return pa.schema(
        [pa.field(field.name, _arrow_type(field), nullable=_nullable(field)) for field in fields_of(model, columns)],
        metadata={"penstock.model": model.name, "penstock.id": str(model.id), "penstock.version": str(model.version)},
    )


def to_spark(
    model: "MessageModel", records: np.ndarray[Any, Any], columns: Iterable[str] | None = None
) -> "pa.RecordBatch":
    """Convert records of the model's dtype, or of an older version's (missing fields become null), to columns for
    Spark.
    """
    import pyarrow as pa

    names = _names_of(records)
    arrays = []
    fields = fields_of(model, columns)
    for field in fields:
        if field.name in names:
            if records.dtype[field.name] != model.dtype[field.name]:
                raise ModelError(f"field {field.name!r} of the records is not a {field.type_text}")
            arrays.append(_column(field, records[field.name]))
        elif _nullable(field):
            arrays.append(pa.nulls(len(records), _arrow_type(field)))
        else:
            raise ModelError(f"the records have no field {field.name!r}")
    return pa.RecordBatch.from_arrays(arrays, schema=spark_arrow_schema(model, [field.name for field in fields]))


def beyond_spark(model: "MessageModel", records: np.ndarray[Any, Any]) -> NDArray[np.bool_]:
    """Return a mask of records with a price of more than 18 digits, which is null in Spark without being missing."""
    names = _names_of(records)
    marks = np.zeros(len(records), np.uint8)
    for field in model.fields:
        if field.is_decimal and field.name in names:
            mark_beyond(records[field.name], field.missing, marks)
    return marks.view(np.bool_)


def fields_of(model: "MessageModel", columns: Iterable[str] | None = None) -> list[Field]:
    """Return all fields, or the named ones in the given order; ModelError for an unknown name lists the fields."""
    if columns is None:
        return list(model.fields)
    names = list(columns)
    for name in names:
        if name not in model.fields_by_name:
            known = ", ".join(model.fields_by_name)
            raise ModelError(f"model {model.name!r} has no field {name!r}", hint=f"fields: {known}")
    return [model.fields_by_name[name] for name in names]


def _names_of(records: np.ndarray[Any, Any]) -> tuple[str, ...]:
    if records.ndim != 1 or records.dtype.names is None:
        raise ModelError("records must be a one-dimensional array of the model's dtype")
    names: tuple[str, ...] = records.dtype.names
    return names


def _nullable(field: Field) -> bool:
    return field.optional or field.since > 1 or field.is_decimal


def _spark_column(field: Field) -> str:
    if field.is_decimal:
        kind = f"DECIMAL({PRICE_DIGITS},{field.decimals})"
    elif field.type in ("text", "enum"):
        kind = "STRING"
    else:
        kind = SPARK_FLOATS.get(field.storage) or SPARK_INTEGERS[width_of(field.storage)]
    words = [field.description] if field.description else []
    if field.type == "timestamp":
        words.append(NANOSECONDS)
    column = f"`{field.name}` {kind}" + ("" if _nullable(field) else " NOT NULL")
    comment = ", ".join(words).replace("\\", "\\\\").replace("'", "\\'")
    return f"{column} COMMENT '{comment}'" if comment else column


def _arrow_type(field: Field) -> "pa.DataType":
    import pyarrow as pa

    if field.is_decimal:
        return pa.decimal128(PRICE_DIGITS, field.decimals)
    if field.type in ("text", "enum"):
        return pa.string()
    kind = "f" if field.storage[0] == "f" else "i"
    return pa.from_numpy_dtype(np.dtype(f"{kind}{width_of(field.storage)}"))


def _column(field: Field, values: NDArray[Any]) -> "pa.Array":
    import pyarrow as pa

    count = len(values)
    valid = np.empty((count + 7) // 8, np.uint8) if field.optional or field.is_decimal else None
    if field.type == "text":
        return _text_column(values, valid)
    if field.type == "enum":
        offsets = np.empty(4 * (count + 1), np.uint8)
        data, nulls = fill_names(values, _names(tuple(field.values.items())), offsets, valid)
        return pa.Array.from_buffers(pa.string(), count, _buffers(valid, offsets, data), nulls)
    room = np.empty(count * (16 if field.is_decimal else width_of(field.storage)), np.uint8)
    if field.is_decimal:
        assert valid is not None
        nulls = fill_prices(values, room, valid)
    elif field.storage[0] == "f":
        nulls = fill_floats(values, field.storage, room, valid)
    else:
        nulls = fill_integers(values, field.storage, room, field.missing, valid)
    return pa.Array.from_buffers(_arrow_type(field), count, _buffers(valid, room), nulls)


def _text_column(values: NDArray[Any], valid: NDArray[np.uint8] | None) -> "pa.Array":
    import pyarrow as pa

    count = len(values)
    offsets = np.empty(4 * (count + 1), np.uint8)
    data = np.empty(count * values.dtype.itemsize, np.uint8)
    size, nulls, is_ascii = fill_texts(values, offsets, data, valid)
    buffers = _buffers(valid, offsets, data[:size])
    if is_ascii:
        return pa.Array.from_buffers(pa.string(), count, buffers, nulls)
    binary = pa.Array.from_buffers(pa.binary(), count, buffers, nulls)
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        # Some bytes are not UTF-8: decode them like a Message does.
        texts = [None if text is None else text.decode("utf-8", "replace") for text in binary.to_pylist()]
        return pa.array(texts, type=pa.string())


@cache
def _names(values: tuple[tuple[str, int], ...]) -> tuple[bytes, ...]:
    """Return the text of each of the 256 numbers: its name, or its digits."""
    names = {number: name for name, number in values}
    return tuple(names.get(number, str(number)).encode() for number in range(256))


def _buffers(valid: NDArray[np.uint8] | None, *others: NDArray[np.uint8] | bytearray) -> "list[pa.Buffer | None]":
    import pyarrow as pa

    return [None if valid is None else pa.py_buffer(valid), *(pa.py_buffer(other) for other in others)]
