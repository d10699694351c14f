"""Quantities with decimals: exact in orders, levels, trades, statistics, messages and columns."""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from command_here import run_here
from penstock.base.errors import ModelError, TableError
from penstock.convert import ConversionState, Converter, ConverterTable, SourceBatch, TableChoice
from penstock.convert.books._units import STATE_INVALID, STATE_OK
from penstock.model import MessageModel, shipped
from penstock.model.columns import spark_schema, to_spark
from penstock.spark.feedoptions import FeedSourceOptions
from penstock.spark.feedslices import Conversion
from penstock.spark.options import read_options
from penstock.spark.raw import schema_of
from penstock.topics.predicate import Predicate

FRACTIONS = TableChoice(name="csv-ticks", quantity_decimals=8)
TIME = 1_700_000_000_000_000_000
MODELS = {name: shipped(f"{name}_8") for name in ("trade", "quote", "day_statistics", "book_event", "book_snapshot")}


def converted(lines: list[str], choice: TableChoice = FRACTIONS) -> tuple[Converter, list[tuple[str, object]]]:
    converter = Converter(ConverterTable.find(choice).compile(), stream_id=1)
    models = {output.model.id: output.model for output in converter.plan.outputs}
    batch = SourceBatch.from_messages([line.encode() for line in lines], 1)
    made = [
        (models[number].name, models[number].view(bytes(record))) for _, _, number, record in converter.convert(batch)
    ]
    return converter, made


def trade(price: str, quantity: str, number: int = 1) -> str:
    return f"trade,{TIME + number},BTCUSDT,{price},{quantity},{number}"


@pytest.mark.spec("DAY-9")
def test_fractions_are_exact_in_messages_and_statistics() -> None:
    converter, made = converted([trade("61837.63", "0.0046"), trade("61840.01", "0.00000001", 2), trade("1", "3", 3)])
    trades = [message for name, message in made if name == "trade_8"]
    assert [each.scaled("quantity") for each in trades] == [460_000, 1, 300_000_000]
    assert trades[0].quantity == 0.0046
    assert trades[2].quantity == 3
    assert '"quantity":0.00460000' in trades[0].to_json()
    day = [message for name, message in made if name == "day_statistics_8"][-1]
    assert Decimal(day.scaled("volume")).scaleb(-8) == Decimal("3.00460001")
    turnover = Decimal("61837.63") * Decimal("0.0046") + Decimal("61840.01") * Decimal("0.00000001") + 3
    assert Decimal(day.scaled("turnover")).scaleb(-4) == turnover.quantize(Decimal("0.0001"), rounding="ROUND_DOWN")
    assert converter.counters.by_cause("source_messages_malformed") == {}
    assert converter.state.statistics("BTCUSDT").volume == 300_460_001


@pytest.mark.spec("DAY-9")
def test_quote_sizes_are_exact() -> None:
    _, made = converted([f"quote,{TIME},BTCUSDT,61685.99,1.25869,61686.00,2.44807"])
    ((name, quote),) = made
    assert name == "quote_8"
    assert (quote.scaled("bid_size"), quote.scaled("ask_size")) == (125_869_000, 244_807_000)
    assert json.loads(quote.to_json(), parse_float=Decimal)["bid_size"] == Decimal("1.25869")


@pytest.mark.spec("DAY-9")
def test_whole_quantities_are_unchanged() -> None:
    _, made = converted([f"quote,{TIME},AAPL,190.25,300,190.26,100"], TableChoice(name="csv-ticks"))
    ((name, quote),) = made
    assert name == "quote"
    assert quote.bid_size == 300
    assert type(quote.bid_size) is int
    assert '"bid_size":300,' in quote.to_json()
    assert np.frombuffer(bytes(quote), shipped("quote").dtype)["bid_size"].tolist() == [300]
    assert "`bid_size` BIGINT" in spark_schema(shipped("quote"))


@pytest.mark.spec("DAY-9")
def test_too_many_decimals_are_malformed_and_never_rounded() -> None:
    converter, made = converted([trade("1", "0.000000001")])
    assert made == []
    assert converter.counters.by_cause("source_messages_malformed") == {"range": 1}
    converter, made = converted([trade("1", "0.0046")], TableChoice(name="csv-ticks"))
    assert made == []
    assert converter.counters.by_cause("source_messages_malformed") == {"number": 1}


@pytest.mark.spec("DAY-9")
def test_a_table_that_would_lose_fractions_is_refused() -> None:
    text = """
name = "probe"
format = "csv_ticks"
[output.out]
model = "trade"
topic = "probe"
[[message.trade]]
emit = "out"
quantity = "quantity | decimal(8)"
"""
    with pytest.raises(TableError) as refused:
        ConverterTable.parse(text).compile()
    assert "fractions would be lost" in str(refused.value)
    assert "rescale(0)" not in str(refused.value)
    assert "quantity_decimals = 8" in str(refused.value)
    plan = ConverterTable.parse(text.replace("format", "quantity_decimals = 8\nformat", 1)).compile()
    assert [output.model.name for output in plan.outputs] == ["trade_8"]


@pytest.mark.spec("DAY-9")
def test_sums_that_overflow_are_refused_and_counted() -> None:
    most = "46000000000"  # below 2**62 with eight decimals
    converter, made = converted([trade("1", most), trade("1", most, 2), trade("1", "1", 3)])
    trades = [message for name, message in made if name == "trade_8"]
    assert [each.quantity for each in trades] == [46_000_000_000, 1]
    day = [message for name, message in made if name == "day_statistics_8"][-1]
    assert Decimal(day.scaled("volume")).scaleb(-8) == 46_000_000_001
    assert converter.counters.by_cause("source_messages_malformed") == {"value": 1}
    converter, made = converted([trade("1", "100000000000")])
    assert made == []
    assert sum(converter.counters.by_cause("source_messages_malformed").values()) == 1


@pytest.mark.spec("DAY-9")
def test_a_level_whose_total_would_overflow_accepts_no_more_orders() -> None:
    state = ConversionState()
    number = state.instrument("X")
    limit = 2**62
    assert state.add_order(1, number, 0, 100, limit - 1).answer == STATE_OK
    digest = state.digest
    assert state.add_order(2, number, 0, 100, limit - 1).answer == STATE_INVALID
    assert (state.levels(number, 0, 1)[0].size, state.order_count, state.digest) == (limit - 1, 1, digest)


@pytest.mark.spec("DAY-9")
@pytest.mark.parametrize("name", MODELS)
def test_models_with_fractions_differ_in_id_name_and_decimals_only(name: str) -> None:
    whole, parts = shipped(name), MODELS[name]
    assert (parts.id, parts.name) == (whole.id + 50, f"{name}_8")
    assert parts.record_size == whole.record_size
    for one, other in zip(whole.fields, parts.fields, strict=True):
        assert (one.name, one.offset, one.storage, one.type) == (other.name, other.offset, other.storage, other.type)
        assert other.decimals == (8 if one.type == "quantity" else one.decimals)
    assert any(field.type == "quantity" for field in whole.fields)
    assert MessageModel.parse(parts.text) == parts, "the text can be shared"


@pytest.mark.spec("DAY-9")
def test_columns_and_conditions_are_decimal() -> None:
    model = shipped("trade_8")
    records = np.frombuffer(b"".join(bytes(model.new(quantity=Decimal(each))) for each in ("0.0046", "2")), model.dtype)
    assert "`quantity` DECIMAL(18,8)" in spark_schema(model)
    assert to_spark(model, records).column("quantity").to_pylist() == [Decimal("0.0046"), Decimal(2)]
    assert model.to_arrow(records).column("quantity").to_pylist() == [Decimal("0.0046"), Decimal(2)]
    chosen = Predicate.compile("quantity < 0.0047", model)
    assert [chosen(bytes(each)) for each in records] == [True, False]
    assert model.from_json(model.view(bytes(records[0])).to_json()).scaled("quantity") == 460_000
    with pytest.raises(ModelError):
        model.new(quantity=10**11)


@pytest.mark.spec("DAY-9", "DAY-10")
def test_the_command_and_spark_accept_the_decimals(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_text(trade("61837.63", "0.0046") + "\n")
    ran = run_here("convert", "run", "csv-ticks", path, "--quantity-decimals", "8")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[0], parse_float=Decimal)["message"]["quantity"] == Decimal("0.0046")
    assert "--quantity-decimals" not in ran.stderr
    whole = run_here("convert", "run", "csv-ticks", path)
    assert whole.returncode == 1
    assert "--quantity-decimals 8 converts fractions" in whole.stderr
    refused = run_here("convert", "run", "csv-ticks", path, "--quantity-decimals", "5")
    assert refused.returncode == 1
    assert "quantity_decimals" in refused.stderr
    options = read_options(
        {"table": "csv-ticks", "quantity_decimals": "8", "model": "trade_8", "path": str(path)},
        FeedSourceOptions,
        "test",
    )
    assert options.conversion == Conversion("csv-ticks", quantity_decimals=8)
    assert "`quantity` DECIMAL(18,8)" in schema_of(options)
