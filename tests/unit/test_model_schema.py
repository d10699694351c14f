"""Schemas of models for numpy, Arrow and Spark."""

import re
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.errors import ModelError
from penstock.model import MessageModel, shipped, shipped_names

OLDER = 'id = 9\nname = "sample"\nversion = 1\n[[field]]\nname = "a"\ntype = "i64"\n'
NEWER = OLDER.replace("version = 1", "version = 2") + '[[field]]\nname = "b"\ntype = "price"\ndecimals = 2\nsince = 2\n'


def records(*messages: object) -> bytes:
    return b"".join(bytes(message) for message in messages)  # type: ignore[call-overload]


def test_numpy_reads_records_in_place() -> None:
    quote = shipped("quote")
    data = records(quote.new(symbol="IBM", bid_price="1.5"), quote.new(symbol="AAPL"))
    array = np.frombuffer(data, quote.dtype)
    assert array["symbol"].tolist() == [b"IBM", b"AAPL"]
    assert array["bid_price"].tolist() == [150_000_000, -(2**63)]


def test_arrow_columns_have_the_expected_types() -> None:
    trade = shipped("trade")
    message = trade.new(
        symbol="IBM", price="100.25", event_time=1_700_000_000_123_456_789, action="trade", conditions={"odd_lot"}
    )
    batch = trade.to_arrow(np.frombuffer(message, trade.dtype))
    assert batch.schema.field("price").type == pa.decimal128(19, 8)
    assert batch.schema.field("event_time").type == pa.timestamp("ns", tz="UTC")
    assert not batch.schema.field("price").nullable
    assert batch.schema.field("receive_time").nullable
    assert batch.column("price").to_pylist() == [Decimal("100.25")]
    assert batch.column("event_time").cast("int64").to_pylist() == [1_700_000_000_123_456_789]
    assert batch.column("receive_time").to_pylist() == [None]
    assert batch.column("action").to_pylist() == ["trade"]
    assert batch.column("aggressor").to_pylist() == [None]
    assert batch.column("conditions").to_pylist() == [1]
    assert batch.schema.metadata[b"penstock.model"] == b"trade"


def test_numbers_without_a_name_and_bytes_that_are_not_utf8_become_text() -> None:
    trade = shipped("trade")
    data = bytearray(trade.new(action=99))
    data[trade.fields_by_name["symbol"].offset] = 0xFF
    batch = trade.to_arrow(np.frombuffer(data, trade.dtype))
    assert batch.column("action").to_pylist() == ["99"]
    assert batch.column("symbol").to_pylist() == ["\N{REPLACEMENT CHARACTER}"]


def test_records_of_an_older_version_fill_the_newer_schema_with_nulls() -> None:
    older, newer = MessageModel.parse(OLDER), MessageModel.parse(NEWER)
    batch = newer.to_arrow(np.frombuffer(older.new(a=5), older.dtype))
    assert batch.schema == newer.arrow_schema()
    assert batch.to_pylist() == [{"a": 5, "b": None}]
    with pytest.raises(ModelError, match="no field 'a'"):
        newer.to_arrow(np.zeros(1, np.dtype([("b", "<i8")])))
    with pytest.raises(ModelError, match="is not a i64"):
        newer.to_arrow(np.zeros(1, np.dtype([("a", "<f8")])))
    with pytest.raises(ModelError, match="one-dimensional"):
        newer.to_arrow(np.zeros(1))


def test_no_records_give_an_empty_batch() -> None:
    for name in shipped_names():
        model = shipped(name)
        assert model.to_arrow(np.zeros(0, model.dtype)).num_rows == 0


def test_arrow_is_imported_on_first_use() -> None:
    code = "import sys, penstock.model as m; m.shipped('quote').new().to_json(); print('pyarrow' in sys.modules)"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout == "False\n"


def test_the_spark_schema_has_types_that_fit_64_bits() -> None:
    schema = shipped("trade").spark_schema()
    assert "`price` DECIMAL(18,8) COMMENT 'Price of the execution'" in schema
    assert "`event_time` BIGINT NOT NULL" in schema
    assert "nanoseconds since 1970-01-01 UTC" in schema
    assert "`receive_time` BIGINT COMMENT" in schema
    assert "`trade_id` BIGINT NOT NULL" in schema
    assert "`conditions` INT NOT NULL" in schema
    assert "The venue\\'s number of the trade" in schema


def test_a_timestamp_has_the_right_instant() -> None:
    bar = shipped("bar")
    batch = bar.to_arrow(np.frombuffer(bar.new(end_time=1_700_000_000_000_000_000), bar.dtype))
    moment = batch.column("end_time").cast(pa.timestamp("us", tz="UTC"))[0].as_py()
    assert moment == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_column_names_need_no_escaping() -> None:
    for name in shipped_names():
        assert all(re.fullmatch("[a-z_0-9]+", field.name) for field in shipped(name).fields)
