"""Models and filter expressions compared with Spark itself. These tests run where the extra `spark` is installed."""

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.model import MessageModel, shipped, shipped_names
from penstock.model.columns import to_spark
from penstock.topics import Predicate

MODEL = MessageModel.parse(
    """
    id = 900
    name = "sample"
    version = 1
    field = [
        { name = "number", type = "i32" },
        { name = "symbol", type = "text", size = 6 },
        { name = "price", type = "price", decimals = 4, optional = true },
        { name = "limit_price", type = "price", decimals = 2, optional = true },
        { name = "size", type = "u64", optional = true },
        { name = "ratio", type = "f64" },
        { name = "side", type = "enum", values = { buy = 1, sell = 2 }, optional = true },
        { name = "event_time", type = "timestamp" },
    ]
    """
)

CONDITIONS = [
    "symbol = 'IBM' and price > 100",
    "price > 99.99995",
    "price >= 100.0001 or price is null",
    "not (price > 100)",
    "not (price > 100 or size = 7)",
    "price <> limit_price",
    "price <= limit_price",
    "price between 99.5 and 100.5",
    "price not between 99.5 and 100.5",
    "size in (1, 7, 9223372036854775807)",
    "size not in (1, 7)",
    "size >= 9223372036854775807",
    "side = 'buy'",
    "side <> 'buy'",
    "side is null",
    "side in ('sell') and size is not null",
    "symbol like 'I%'",
    "symbol like '_B%'",
    "symbol not like '%M'",
    "symbol < 'IBN'",
    "symbol >= 'é'",
    "ratio > 0.5",
    "ratio = 0.5",
    "not (ratio <= 0.5)",
    "number = -1 or number > 2",
    "number < 2.5 and number <> 0",
    "event_time >= 1700000000000000001",
    "true",
    "false or size = 1",
    "not (side = 'buy' and price > 100)",
    "(price > 100 and size > 1) or (symbol = 'AAPL' and not (size = 7))",
]


def sample_records() -> np.ndarray:
    chance = random.Random(5)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    records = [
        MODEL.new(
            number=chance.choice([-1, 0, 1, 2, 3]),
            symbol=chance.choice(["IBM", "AAPL", "I", "", "IBMX", "éa", "ZZZZZZ"]),
            price=maybe(chance.choice([Decimal("99.9999"), 100, Decimal("100.0001"), Decimal("100.5"), -3])),
            limit_price=maybe(chance.choice([100, Decimal("99.5"), Decimal("100.5")])),
            size=maybe(chance.choice([0, 1, 7, 2**63 - 1])),
            ratio=chance.choice([0.0, -0.0, 0.5, 0.75, float("nan"), float("inf")]),
            side=maybe(chance.choice(["buy", "sell"])),
            event_time=1_700_000_000_000_000_000 + chance.randrange(3),
        )
        for _ in range(400)
    ]
    return np.frombuffer(b"".join(bytes(record) for record in records), MODEL.dtype)


@pytest.mark.parametrize("name", shipped_names())
def test_spark_reads_the_schema(spark: Any, name: str) -> None:
    frame = spark.createDataFrame([], schema=shipped(name).spark_schema())
    assert frame.columns == [field.name for field in shipped(name).fields]


def test_the_same_text_selects_the_same_records(spark: Any) -> None:
    records = sample_records()
    numbers = pa.array(range(len(records)), pa.int64())
    table = pa.Table.from_batches([to_spark(MODEL, records)]).append_column("index", numbers)
    schema = f"{MODEL.spark_schema()}, index BIGINT"
    frame = spark.createDataFrame(table, schema=schema).cache()
    for condition in CONDITIONS:
        selected = sorted(row["index"] for row in frame.filter(condition).select("index").collect())
        assert np.flatnonzero(Predicate.compile(condition, MODEL).select(records)).tolist() == selected, condition
