"""Convert columns of Spark or of the archive back to records, bit for bit: the inverse of to_spark().

Data that columns lack is as in a new record: bytes outside all fields are zero, a missing number is the missing value.
A text that was not UTF-8 cannot be restored.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import ModelError
from penstock.model.layout import Field

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.model.model import MessageModel


def from_spark(model: "MessageModel", columns: "pa.RecordBatch") -> NDArray[Any]:
    """Return records of the model's dtype; a field without a column has the value of a new record."""
    blank = np.frombuffer(bytes(model.new()), model.dtype)
    # as bytes, because numpy leaves bytes between fields undefined
    records = np.frombuffer(bytearray(blank.tobytes() * columns.num_rows), model.dtype)
    names = set(columns.schema.names)
    for field in model.fields:
        if field.name in names:
            _fill(field, columns.column(field.name), records[field.name], blank[field.name][0])
    return records


def record_size_of(model: "MessageModel", version: int) -> int:
    """Return the size of a record of an older version, whose parts were shorter before newer fields were added."""
    if version >= model.version:
        return model.record_size
    last = model.parts[-1]
    ends = [field.end for field in model.fields if field.part == last.name]
    if last.size > _aligned(max(ends) - last.offset):
        return model.record_size  # the size is declared and therefore constant
    older = [field.end for field in model.fields if field.part == last.name and field.since <= version]
    return last.offset + _aligned(max(older, default=last.offset) - last.offset)


def _aligned(size: int) -> int:
    return (size + 7) // 8 * 8


def _fill(field: Field, column: "pa.Array", out: NDArray[Any], missing: Any) -> None:
    if field.type in ("text", "enum"):
        out[:] = _looked_up(field, column, missing)
        return
    if field.is_decimal:
        values = _decimals(column)
    else:
        kind = f"i{column.type.bit_width // 8}" if field.storage[0] != "f" else field.storage
        values = np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]
    out[:] = values.astype(out.dtype)  # the same bits for an unsigned number of this size
    if column.null_count:
        out[np.asarray(column.is_null())] = missing


def _decimals(column: "pa.Array") -> NDArray[np.int64]:
    """Return the lower halves of 128-bit numbers, which hold all 18 digits."""
    halves = np.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)
    return np.asarray(halves[column.offset : column.offset + len(column), 0])


def _looked_up(field: Field, column: "pa.Array", missing: Any) -> NDArray[Any]:
    """Texts and names repeat, so each distinct one is parsed once."""
    import pyarrow as pa

    encoded = column.dictionary_encode() if not pa.types.is_dictionary(column.type) else column
    read = _enumeration if field.type == "enum" else _encoded
    values = [*(read(field, text) for text in encoded.dictionary.to_pylist()), missing]
    indices = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(np.array(values, field.storage)[indices])


def _enumeration(field: Field, text: str) -> int:
    if text in field.values:
        return field.values[text]
    if text.isascii() and text.isdigit() and int(text) < 256:
        return int(text)  # a number without a name
    raise ModelError(f"{text[:80]!r} is not a value of field {field.name!r}")


def _encoded(field: Field, text: str) -> bytes:
    data = text.encode()
    if len(data) > field.size:
        raise ModelError(f"{text[:80]!r} does not fit field {field.name!r} of {field.size} bytes")
    return data
