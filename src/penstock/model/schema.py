"""A model as numpy dtype and Arrow schema, and records as Arrow columns; columns.py has the Spark types."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from penstock.base.errors import ModelError
from penstock.model.layout import Field

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.model.model import MessageModel

Prices: TypeAlias = Literal["decimal", "float"]
"""The type of columns of prices, and of quantities with decimals."""

EXACT_MAX = 1 << 53
"""Integers up to this value are exact as doubles."""


def numpy_dtype(model: "MessageModel") -> np.dtype[np.void]:
    return dtype_of(model.fields, 0, model.record_size)


def dtype_of(fields: Sequence[Field], start: int, size: int) -> np.dtype[np.void]:
    """Return the dtype of `size` bytes of a record from `start`, which contain these fields."""
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [field.storage if field.type == "text" else "<" + field.storage for field in fields],
            "offsets": [field.offset - start for field in fields],
            "itemsize": size,
        }
    )


def arrow_schema(model: "MessageModel", prices: Prices = "decimal") -> "pa.Schema":
    import pyarrow as pa

    if prices not in ("decimal", "float"):
        raise ModelError(f"prices cannot be {prices!r}", hint='"decimal" or "float"')
    return pa.schema(
        [pa.field(field.name, _arrow_type(field, prices), nullable=_nullable(field)) for field in model.fields],
        metadata={"penstock.model": model.name, "penstock.id": str(model.id), "penstock.version": str(model.version)},
    )


def to_arrow(model: "MessageModel", records: np.ndarray[Any, Any], prices: Prices = "decimal") -> "pa.RecordBatch":
    import pyarrow as pa

    types = arrow_schema(model, prices)
    if records.ndim != 1 or records.dtype.names is None:
        raise ModelError("records must be a one-dimensional array of the model's dtype")
    columns = []
    for field in model.fields:
        if field.name in records.dtype.names:
            if records.dtype[field.name] != model.dtype[field.name]:
                raise ModelError(f"field {field.name!r} of the records is not a {field.type_text}")
            columns.append(_arrow_column(field, np.ascontiguousarray(records[field.name]), prices))
        elif _nullable(field):
            columns.append(pa.nulls(len(records), _arrow_type(field, prices)))
        else:
            raise ModelError(f"the records have no field {field.name!r}")
    return pa.RecordBatch.from_arrays(columns, schema=types)


def _nullable(field: Field) -> bool:
    return field.optional or field.since > 1


def _arrow_type(field: Field, prices: Prices = "decimal") -> "pa.DataType":
    import pyarrow as pa

    if field.is_decimal:
        return pa.float64() if prices == "float" else pa.decimal128(19, field.decimals)
    if field.type == "timestamp":
        return pa.timestamp("ns", tz="UTC")
    if field.type in ("text", "enum"):
        return pa.string()
    return pa.from_numpy_dtype(np.dtype(field.storage))


def _arrow_column(field: Field, values: np.ndarray[Any, Any], prices: Prices) -> "pa.Array":
    import pyarrow as pa

    missing = _missing_mask(field, values)
    if field.is_decimal and prices == "float":
        return pa.array(_floats(field, values), mask=missing)
    if field.is_decimal:
        return _decimal_column(field, values, missing)
    if field.type == "text":
        return _text_column(values, missing)
    if field.type == "enum":
        names = {number: name for name, number in field.values.items()}
        indices = pa.array(values, mask=missing)
        return pa.array([names.get(number, str(number)) for number in range(256)]).take(indices)
    if field.type == "timestamp":
        return pa.array(values, mask=missing).cast(_arrow_type(field))
    return pa.array(values, mask=missing)


def _missing_mask(field: Field, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    if not field.optional:
        return None
    if field.storage[0] == "f":
        mask = np.isnan(values)
    elif field.type == "text":
        mask = values == b""
    else:
        mask = values == values.dtype.type(field.missing)
    return np.asarray(mask)


def _floats(field: Field, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the doubles nearest to the decimals, as a Message reads them."""
    # Both operands are exact as doubles, so the quotient is correctly rounded; Python's division of integers always is.
    floats = values / 10.0**field.decimals
    for at in np.flatnonzero((values > EXACT_MAX) | (values < -EXACT_MAX)).tolist():
        floats[at] = int(values[at]) / 10**field.decimals
    return np.asarray(floats)


def _decimal_column(field: Field, values: np.ndarray[Any, Any], missing: np.ndarray[Any, Any] | None) -> "pa.Array":
    """Build Arrow decimals, which are 128-bit scaled integers with sign extension."""
    import pyarrow as pa

    wide = np.empty((len(values), 2), dtype="<i8")
    wide[:, 0] = values
    wide[:, 1] = values >> 63
    present = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(_arrow_type(field), len(values), [present, pa.py_buffer(wide)])


def _text_column(values: np.ndarray[Any, Any], missing: np.ndarray[Any, Any] | None) -> "pa.Array":
    import pyarrow as pa

    binary = pa.array(values, type=pa.binary(), mask=missing)
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        # Some bytes are not UTF-8: decode them like a Message does.
        texts = [None if text is None else text.decode("utf-8", "replace") for text in binary.to_pylist()]
        return pa.array(texts, type=pa.string())
