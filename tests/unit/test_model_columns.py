"""Records as Spark columns, against a reference that reads each value with a Message."""

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.errors import ModelError
from penstock.model import Field, MessageModel, shipped, shipped_names
from penstock.model.columns import beyond_spark, spark_arrow_schema, spark_schema, to_spark

EVERYTHING = MessageModel.parse(
    """
    id = 901
    name = "everything"
    version = 2
    field = [
        { name = "i1", type = "i8" }, { name = "i2", type = "i16" }, { name = "i4", type = "i32" },
        { name = "i8", type = "i64" }, { name = "u1", type = "u8" }, { name = "u2", type = "u16" },
        { name = "u4", type = "u32" }, { name = "u8", type = "u64" }, { name = "f4", type = "f32" },
        { name = "f8", type = "f64" }, { name = "p", type = "price", decimals = 18 },
        { name = "t", type = "timestamp" }, { name = "s", type = "text", size = 7 },
        { name = "long", type = "text", size = 33, optional = true },
        { name = "e", type = "enum", values = { zero = 0, one = 1, last = 255 } },
        { name = "few", type = "flags", bits = { a = 7 } }, { name = "many", type = "flags", bits = { a = 31 } },
        { name = "oi1", type = "i8", optional = true }, { name = "oi2", type = "i16", optional = true },
        { name = "oi4", type = "i32", optional = true }, { name = "oi8", type = "i64", optional = true },
        { name = "ou1", type = "u8", optional = true }, { name = "ou2", type = "u16", optional = true },
        { name = "ou4", type = "u32", optional = true }, { name = "ou8", type = "u64", optional = true },
        { name = "of4", type = "f32", optional = true }, { name = "of8", type = "f64", optional = true },
        { name = "op", type = "price", decimals = 2, optional = true },
        { name = "ot", type = "timestamp", optional = true },
        { name = "os", type = "text", size = 16, optional = true },
        { name = "oe", type = "enum", values = { one = 1, two = 2 }, optional = true },
        { name = "later", type = "i32", since = 2 },
    ]
    """
)


def expected(field: Field, value: Any, record: Any) -> Any:
    """The value in Spark for a value that a Message reads."""
    if value is None:
        return None
    if field.is_decimal:
        scaled = record.scaled(field.name)
        return Decimal(scaled).scaleb(-field.decimals) if abs(scaled) < 10**18 else None
    if field.type == "u64":
        return value - 2**64 if value >= 2**63 else value
    if field.type == "enum":
        return str(value)
    if field.type == "flags":
        return int.from_bytes(bytes(record)[field.offset : field.end], "little")
    return value


def assert_columns(model: MessageModel, records: np.ndarray) -> None:
    batch = to_spark(model, records)
    batch.validate(full=True)
    assert batch.schema == spark_arrow_schema(model)
    views = [model.view(bytes(record)) for record in records]
    for field in model.fields:
        values = [expected(field, getattr(view, field.name), view) for view in views]
        column = batch.column(field.name)
        assert repr(column.to_pylist()) == repr(values), field.name
        assert column.null_count == values.count(None), field.name


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["everything", *shipped_names()])
def test_any_bytes_give_columns_of_the_same_values(name: str, seed: int) -> None:
    model = EVERYTHING if name == "everything" else shipped(name)
    source = random.Random(f"{name} {seed}")
    pool = [0, 0, 1, 1, 2, 0x41, 0x7F, 0x80, 0xFF, 0xFF] + [source.randrange(256)] * (seed > 0)
    size = model.record_size
    data = bytearray()
    for _ in range(source.choice([0, 1, 7, 8, 9, 100])):
        # Long stretches of one byte hit the greatest, least and missing values.
        while len(data) % size or not data or source.random() < 0.99:
            data += bytes([source.choice(pool)]) * source.choice([1, 2, 8, 16])
            if len(data) > 200 * size:
                break
    records = np.frombuffer(bytes(data[: len(data) // size * size]), model.dtype)
    assert_columns(model, records)
    assert_columns(model, records[::3])
    assert_columns(model, records[::-1])


def test_missing_and_extreme_values_of_every_type() -> None:
    model = EVERYTHING
    records = np.zeros(3, model.dtype)
    for field in model.fields:
        low, high = field.bounds
        if field.storage[0] in "iu":
            records[field.name] = [low, high, high if field.missing is None else field.missing]
        elif field.storage[0] == "f":
            records[field.name] = [-0.0, np.inf, np.nan]
        else:
            records[field.name] = [b"a\0b", b"x" * field.size, b""]
    assert_columns(model, records)


def test_bytes_that_are_not_utf8_are_read_as_in_a_message() -> None:
    trade = shipped("trade")
    records = np.zeros(3, trade.dtype)
    records["symbol"] = ["é".encode(), b"\xff", b"IBM"]
    assert to_spark(trade, records, ["symbol"]).to_pylist() == [
        {"symbol": "é"}, {"symbol": "\N{REPLACEMENT CHARACTER}"}, {"symbol": "IBM"}
    ]  # fmt: skip


def test_columns_are_the_named_ones_in_the_given_order() -> None:
    trade = shipped("trade")
    records = np.zeros(2, trade.dtype)
    assert to_spark(trade, records, ["price", "symbol"]).schema.names == ["price", "symbol"]
    assert spark_schema(trade, ["venue"]) == "`venue` STRING NOT NULL COMMENT 'MIC of the venue'"
    assert to_spark(trade, records, []).num_columns == 0
    with pytest.raises(ModelError, match="no field 'prise'"):
        to_spark(trade, records, ["prise"])


def test_fields_that_an_older_version_lacks_are_null() -> None:
    older = np.zeros(2, np.dtype([(name, EVERYTHING.dtype[name]) for name in EVERYTHING.dtype.names[:-1]]))
    assert to_spark(EVERYTHING, older, ["i1", "later"]).to_pylist() == [{"i1": 0, "later": None}] * 2
    with pytest.raises(ModelError, match="no field 'i1'"):
        to_spark(EVERYTHING, older[["i2"]])
    with pytest.raises(ModelError, match="is not a i8"):
        to_spark(EVERYTHING, np.zeros(1, [("i1", "<f8")]), ["i1"])
    with pytest.raises(ModelError, match="one-dimensional"):
        to_spark(EVERYTHING, np.zeros(1))


def test_prices_of_more_than_18_digits_are_reported() -> None:
    records = np.zeros(5, EVERYTHING.dtype)
    records["p"] = [10**18 - 1, 10**18, 0, 0, -(2**63)]
    records["op"] = [1, 1, -(2**63), -(10**18), 1]
    assert beyond_spark(EVERYTHING, records).tolist() == [False, True, False, True, True]
    assert to_spark(EVERYTHING, records, ["p"]).column("p").null_count == 2


def test_arrow_types() -> None:
    types = dict(zip(spark_arrow_schema(EVERYTHING).names, spark_arrow_schema(EVERYTHING).types, strict=True))
    assert types["u1"] == pa.int16()
    assert types["u8"] == pa.int64()
    assert types["p"] == pa.decimal128(18, 18)
    assert types["t"] == pa.int64()
    assert types["few"] == pa.int16()
    assert types["many"] == pa.int64()
    assert types["f4"] == pa.float32()
