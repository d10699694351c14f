"""Decimals of instruments: stored, forwarded, applied and displayed without rounding."""

import json
import struct
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock.convert
from command_here import run_here
from penstock.base.crc32c import crc32c
from penstock.base.errors import ConfigurationError, LocalProtocolError, StateImageError, TableError
from penstock.convert import ConversionState, Converter, ConverterTable, SourceBatch, TableChoice, converter_function
from penstock.model import InstrumentDecimals, KnownInstruments, shipped
from penstock.model.jsontext import decimal_text, texts

TABLES = Path(penstock.convert.__file__).parent / "tables"
TIME = 1_700_000_000_000_000_000
CRYPTO = TableChoice(name="csv-ticks", prefix="md.crypto", quantity_decimals=8)
DEFINITIONS = [f"define,{TIME},BTC-USD,,2,8", f"define,{TIME},SHIB-USD,1,8,0", f"define,{TIME},AAPL,100,2,0"]


def run(converter: Converter, lines: list[str], first: int = 1) -> list[Any]:
    models = {output.model.id: output.model for output in converter.plan.outputs}
    batch = SourceBatch.from_messages([line.encode() for line in lines], first)
    return [models[number].view(bytes(record)) for _, _, number, record in converter.convert(batch)]


def crypto() -> Converter:
    return Converter(ConverterTable.find(CRYPTO).compile(), stream_id=1)


def unmatched(converter: Converter) -> dict[str, int]:
    return {str(cause): count for cause, count in converter.counters.by_cause("source_messages_unmatched").items()}


def test_a_definition_is_stored_and_forwarded() -> None:
    converter = crypto()
    made = run(converter, DEFINITIONS)
    assert [(each.model.name, each.symbol, each.price_decimals, each.quantity_decimals) for each in made] == [
        ("instrument", "BTC-USD", 2, 8),
        ("instrument", "SHIB-USD", 8, 0),
        ("instrument", "AAPL", 2, 0),
    ]
    assert [each.round_lot for each in made] == [0, 1, 100]
    known = [(each.price_decimals, each.quantity_decimals) for each in converter.state.instruments()]
    assert known == [(2, 8), (8, 0), (2, 0)]
    run(converter, [f"trade,{TIME},BTC-USD,1,1,1", f"define,{TIME},BTC-USD,,,"], 4)
    assert converter.state.reference(0).price_decimals == 2, "an empty column keeps the known value"


def test_late_subscribers_get_definitions() -> None:
    converter = crypto()
    run(converter, [*DEFINITIONS[:1], f"trade,{TIME},XRP-USD,1,1,1"])
    assert [topic for topic, *_ in converter.image() if topic.endswith("instrument")] == [
        "md.crypto.BTC-USD.instrument"
    ]


def test_a_new_session_forgets_definitions() -> None:
    converter = crypto()
    run(converter, DEFINITIONS)
    converter.new_session("next", None)
    assert {(each.price_decimals, each.quantity_decimals) for each in converter.state.instruments()} == {(None, None)}


def test_a_reference_file_supplies_decimals_that_the_feed_lacks(tmp_path: Path) -> None:
    text = (TABLES / "csv-ticks.toml").read_text()
    (tmp_path / "own.toml").write_text(
        text.replace("[symbols.topic]", '[symbols]\nfile = "known.csv"\n\n[symbols.topic]')
    )
    (tmp_path / "known.csv").write_text("symbol,price_decimals,quantity_decimals\nBTC-USD,2,8\n")
    table = ConverterTable.read(tmp_path / "own.toml")
    converter = Converter(table.with_parameters(quantity_decimals=8).compile(), 1)
    lines = [f"quote,{TIME},BTC-USD,1,1,2,1", f"trade,{TIME},BTC-USD,1.5,0.5,1", f"trade,{TIME},X,1.555,0.5,1"]
    made = run(converter, lines)
    assert [each.model.name for each in made if each.symbol == "BTC-USD"] == [
        "instrument", "quote_8", "trade_8", "day_statistics_8",
    ]  # fmt: skip
    assert made[0].price_decimals == 2
    (tmp_path / "known.csv").write_text("symbol,price_decimals\nBTC-USD,19\n")
    with pytest.raises(ConfigurationError, match="price_decimals"):
        ConverterTable.read(tmp_path / "own.toml").compile()


def test_a_value_finer_than_its_instrument_is_kept_and_counted() -> None:
    converter = crypto()
    lines = [
        f"trade,{TIME},BTC-USD,61837.63,0.00000001,1",
        f"trade,{TIME},BTC-USD,61837.635,1,2",
        f"trade,{TIME},AAPL,190.25,0.5,3",
        f"trade,{TIME},OTHER,0.00000001,0.00000001,4",
        f"quote,{TIME},AAPL,190.255,100,190.26,100.5",
    ]
    made = run(converter, [*DEFINITIONS, *lines])
    assert [each.scaled("price") for each in made if each.model.name == "trade_8"] == [
        61837_63000000, 61837_63500000, 190_25000000, 1,
    ]  # fmt: skip
    assert unmatched(converter) == {"decimals": 4}
    assert converter.counters.by_cause("source_messages_malformed") == {}


@pytest.mark.parametrize("decimals", [-1, 19])
def test_a_state_has_instruments_of_0_to_18_decimals(decimals: int) -> None:
    state = ConversionState()
    state.instrument("X")
    with pytest.raises(LocalProtocolError, match="0 to 18"):
        state.refer(0, price_decimals=decimals)


def test_an_image_carries_decimals_and_impossible_ones_are_refused() -> None:
    state, other = ConversionState(), ConversionState()
    state.instrument("X")
    state.refer(0, price_decimals=0, quantity_decimals=18)
    chunks = list(iter(partial(state.begin_image().chunk, 1_000_000), b""))
    other.install(chunks)
    assert other.digest == state.digest
    assert (other.reference(0).price_decimals, other.reference(0).quantity_decimals) == (0, 18)
    (chunk,) = chunks
    wrong = chunk.replace(bytes([1, 19]), bytes([1, 20]))
    assert wrong != chunk
    sealed = wrong[:12] + struct.pack("<I", crc32c(wrong[16:], crc32c(wrong[:12]))) + wrong[16:]
    with pytest.raises(StateImageError, match="more than 18 decimals"):
        other.install([sealed])


# Integers with the decimals of their instrument

SCALED_FORMAT = """
name = "scaled"
layout = "binary"
byte_order = "big"
type = { at = 0, size = 1 }
[common]
key = { at = 1, size = 2 }
[message.define]
type = "D"
size = 13
[message.define.fields]
name = { at = 3, size = 8, kind = "text" }
price_decimals = { at = 11, size = 1 }
quantity_decimals = { at = 12, size = 1 }
[message.trade]
type = "T"
size = 19
[message.trade.fields]
price = { at = 3, size = 8, kind = "signed" }
quantity = { at = 11, size = 8 }
"""
SCALED_TABLE = """
name = "scaled"
format = "scaled.toml"
quantity_decimals = 8
[instrument]
key = "key"
symbol = "name"
[output.trade]
model = "trade"
topic = "x.{symbol}"
[output.trade.fields]
symbol = "instrument.symbol"
price = "trade.price"
quantity = "trade.quantity"
[[message.define]]
do = "define"
price_decimals = "price_decimals"
quantity_decimals = "quantity_decimals"
[[message.trade]]
do = "trade"
trade = "source_sequence"
price = "price | instrument_decimals(price)"
quantity = "quantity | instrument_decimals(quantity)"
[[message.trade]]
emit = "trade"
"""


def scaled_definition(key: int, price: int, quantity: int) -> bytes:
    return b"D" + key.to_bytes(2, "big") + f"I{key}".encode().ljust(8) + bytes([price, quantity])


def scaled_trade(key: int, price: int, quantity: int) -> bytes:
    return b"T" + key.to_bytes(2, "big") + price.to_bytes(8, "big", signed=True) + quantity.to_bytes(8, "big")


def test_integers_are_scaled_by_their_instrument(tmp_path: Path) -> None:
    (tmp_path / "scaled.toml").write_text(SCALED_FORMAT)
    (tmp_path / "table.toml").write_text(SCALED_TABLE)
    converter = Converter(ConverterTable.read(tmp_path / "table.toml").compile(), 1)
    messages = [
        scaled_definition(1, 2, 8),
        scaled_definition(2, 10, 0),
        scaled_trade(1, 6183763, 460_000),
        scaled_trade(2, 1_234_500, 7),
        scaled_trade(2, 1_234_501, 7),  # more decimals than a price can have
        scaled_trade(3, 1, 1),  # an instrument without a definition
        scaled_trade(2, 100, 10**11),  # does not fit with eight decimals
        scaled_definition(4, 19, 0),
    ]
    models = {output.model.id: output.model for output in converter.plan.outputs}
    made = [
        models[number].view(bytes(record))
        for _, _, number, record in converter.convert(SourceBatch.from_messages(messages, 1))
    ]
    assert [(each.symbol, each.scaled("price"), each.scaled("quantity")) for each in made] == [
        ("I1", 61837_63000000, 460_000),
        ("I2", 12345, 7_00000000),
    ]
    assert {str(k): v for k, v in converter.counters.by_cause("source_messages_malformed").items()} == {"range": 3}
    assert unmatched(converter) == {"unknown_instrument": 1}
    with pytest.raises(TableError, match="price or quantity"):
        ConverterTable.parse(SCALED_TABLE.replace("(price)", "(volume)"), directory=tmp_path).compile()


# No rounding


@converter_function("third", gives="number")
def third(value: int) -> Any:
    return value / 3


@converter_function("decimal_third", gives="number")
def decimal_third(value: int) -> Any:
    return Decimal(value) / 3


PROBE = """
name = "probe"
format = "csv_ticks"
quantity_decimals = 8
[output.out]
model = "trade"
topic = "probe"
[[message.trade]]
emit = "out"
{field} = "{value}"
"""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("price", "price | decimal(8)"),
        ("price", "price | decimal(9)"),
        ("price", "price | decimal(18)"),
        ("price", "price | number | decimals(0)"),
        ("price", "price | decimal(9) | rescale(8)"),
        ("price", "price | decimal(9) | rescale(4) | rescale(8)"),
        ("price", "price | decimal(9) | increment(0)"),
        ("price", "price | decimal(9) | multiply(3)"),
        ("price", "price | decimal(9) | third | decimals(9)"),
        ("price", "price | decimal(9) | decimal_third | decimals(9)"),
        ("quantity", "price | quantity"),
        ("quantity", "price | decimal(9) | rescale(8)"),
        ("quantity", "price | decimal(9) | rescale(0)"),
        ("trade_id", "price | number"),
        ("trade_id", "price | decimal(9) | rescale(0)"),
    ],
)
def test_no_function_but_round_loses_digits(field: str, value: str) -> None:
    converter = Converter(ConverterTable.parse(PROBE.format(field=field, value=value)).compile(), 1)
    assert run(converter, [f"trade,{TIME},X,0.000000001,1,1"]) == []
    assert sum(converter.counters.by_cause("source_messages_malformed").values()) == 1


@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        ("price | decimal(9) | rescale(8)", "1.250000000", 1_25000000),
        ("price | decimal(9)", "-1.25", -1_25000000),
        ("price | decimal(9) | round(8)", "0.000000015", 2),
        ("price | decimal(9) | round(8)", "-0.000000015", -2),
        ("price | decimal(9) | round(0)", "0.5", 1_00000000),
        ("price | decimal(2) | round(8)", "0.55", 55000000),
    ],
)
def test_rescaling_is_exact_and_rounding_explicit(value: str, text: str, expected: int) -> None:
    converter = Converter(ConverterTable.parse(PROBE.format(field="price", value=value)).compile(), 1)
    (made,) = run(converter, [f"trade,{TIME},X,{text},1,1"])
    assert made.scaled("price") == expected


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("quantity", "price | decimal(9)", "fractions would be lost"),
        ("trade_id", "price | decimal(9)", "but the target has none"),
        ("price", "constant(0.000000001)", "8 decimals"),
        ("price", "constant(0.000000001) | increment(0)", "more than 8 decimals"),
        ("quantity", "constant(0.000000001) | increment(0)", "more than 8 decimals"),
        ("price", "constant(nan)", "not a single number"),
    ],
)
def test_a_table_that_would_lose_digits_is_refused(field: str, value: str, what: str) -> None:
    with pytest.raises(TableError, match=what):
        ConverterTable.parse(PROBE.format(field=field, value=value)).compile()


def test_a_condition_with_more_decimals_than_its_value_is_refused() -> None:
    text = PROBE.format(field="price", value="price | decimal(8)") + 'when = "price | decimal(4) > {}"\n'
    with pytest.raises(TableError, match="more than 4 decimals"):
        ConverterTable.parse(text.replace("{}", "1.00005")).compile()
    converter = Converter(ConverterTable.parse(text.replace("{}", "1.0005")).compile(), 1)
    assert len(run(converter, [f"trade,{TIME},X,1.0006,1,1", f"trade,{TIME},X,1.0005,1,1"])) == 1


# Display


@pytest.mark.parametrize(
    ("scaled", "decimals", "shown", "expected"),
    [
        (123400, 4, None, "12.3400"),
        (123400, 4, 2, "12.34"),
        (123400, 4, 3, "12.340"),
        (123400, 4, 0, "12.34"),
        (120000, 4, 0, "12"),
        (-120000, 4, 1, "-12.0"),
        (-1, 8, 2, "-0.00000001"),
        (0, 8, 2, "0.00"),
        (0, 8, 0, "0"),
        (5, 0, 3, "5"),
    ],
)
def test_displayed_text_has_the_decimals_of_the_instrument_and_all_digits(
    scaled: int, decimals: int, shown: int | None, expected: str
) -> None:
    assert decimal_text(scaled, decimals, shown) == expected
    assert Decimal(expected) == Decimal(scaled).scaleb(-decimals)


def test_definitions_are_learned_by_venue_and_symbol() -> None:
    known = KnownInstruments()
    trade = shipped("trade_8").new(symbol="BTC-USD", venue="V", price="61837.63", quantity="12345678901.00000001")
    assert known.of(trade) == InstrumentDecimals()
    assert texts(trade, known.of(trade))["quantity"] == "12345678901.00000001", "a float would have lost digits"
    known.of(shipped("instrument").new(symbol="BTC-USD", venue="V", price_decimals=2, quantity_decimals=8))
    known.of(shipped("instrument").new(symbol="BTC-USD", venue="W", price_decimals=0))
    assert known.of(trade) == InstrumentDecimals(2, 8)
    assert '"price":61837.63,' in trade.to_json(known.of(trade))
    assert '"price":61837.63000000,' in trade.to_json()
    assert known.of(shipped("filter_intake").new()) == InstrumentDecimals()


def test_the_command_shows_the_decimals_of_instruments(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    lines = [*DEFINITIONS, f"trade,{TIME},SHIB-USD,0.00001234,5000000,1", f"trade,{TIME},BTC-USD,61837.5,0.0046,2"]
    path.write_text("\n".join(lines) + "\n")
    ran = run_here("convert", "run", "csv-ticks", path, "--quantity-decimals", "8")
    assert ran.returncode == 0, ran.stderr
    trades = [line for line in ran.stdout.splitlines() if ".trade" in line]
    assert '"price":0.00001234,"quantity":5000000,' in trades[0]
    assert '"price":61837.50,"quantity":0.00460000,' in trades[1]
    assert json.loads(trades[1], parse_float=Decimal)["message"]["quantity"] == Decimal("0.0046")
