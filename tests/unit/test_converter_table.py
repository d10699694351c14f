"""Converter tables: the features of the language, and the error messages for a table."""

import io
import struct
from datetime import date
from pathlib import Path

import pytest

from command_here import invoke_here
from penstock.base import log
from penstock.base.errors import ConfigurationError, LocalProtocolError, TableError
from penstock.convert import Converter, ConverterTable, SourceBatch, converter_function, shipped_tables
from penstock.convert.core.explain import explain
from penstock.convert.core.format import SourceFormat, shipped_formats
from penstock.model import shipped

FORMAT = """
name = "probe"
layout = "binary"
byte_order = "big"
type = { at = 0, size = 1 }

[message.probe]
type = "P"
size = 24

[message.probe.fields]
small = { at = 1, size = 2 }
signed = { at = 3, size = 2, kind = "signed" }
price = { at = 5, size = 4, decimals = 4 }
ascii = { at = 9, size = 6, kind = "text" }
letter = { at = 15, size = 1, kind = "text" }
name = { at = 16, size = 8, kind = "text" }
"""

TABLE = """
name = "probe"
format = "probe.toml"
venue = "XTST"
{top}

[instrument]
key = "name"
symbol = "name"

[map.letter]
A = "trade"
B = "cancel"

[output.out]
model = "{model}"
topic = "probe.{{symbol}}"

[[message.probe]]
emit = "out"
{fields}
"""


@converter_function("doubled", gives="number")
def doubled(value: int, times: str = "1") -> int:
    return value * 2 ** int(times)


@converter_function("shouted", gives="text")
def shouted(value: str) -> str:
    return value.upper()


@converter_function("failing", gives="number")
def failing(value: int) -> int:
    raise ZeroDivisionError("on purpose")


def message(
    small: int = 7,
    signed: int = -2,
    price: int = 12_500,
    ascii_: bytes = b"  42  ",
    letter: bytes = b"A",
    name: bytes = b"ibm",
) -> bytes:
    return b"P" + struct.pack(">HhI6s1s8s", small, signed, price, ascii_, letter, name.ljust(8))


def table(directory: Path, fields: str, model: str = "trade", top: str = "") -> ConverterTable:
    (directory / "probe.toml").write_text(FORMAT)
    path = directory / "table.toml"
    path.write_text(TABLE.format(fields=fields, model=model, top=top))
    return ConverterTable.read(path)


def convert_one(made: ConverterTable, data: bytes, model: str = "trade") -> object:
    converter = Converter(made.compile(), 1, trading_date=date(2024, 1, 2))
    ((_, _, _, record),) = converter.convert(SourceBatch.from_messages([data], 1))
    return shipped(model).view(record)


@pytest.mark.spec("FEED-3")
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("quantity", "small", 7),
        ("quantity", "signed", -2),
        ("quantity", "signed | widen(32)", -2),
        ("quantity", "ascii | number", 42),
        ("price", "ascii | decimal(2)", 42_00000000),
        ("price", "price", 1_25000000),
        ("price", "price | rescale(2)", 1_25000000),
        ("price", "small | decimals(1)", 70000000),
        ("price", "constant(3.5)", 3_50000000),
        ("quantity", "small | increment(5)", 12),
        ("quantity", "small | increment", 8),
        ("quantity", "small | multiply(100)", 700),
        ("quantity", "small | bit(1)", 1),
        ("quantity", "5", None),
        ("quantity", "small | doubled(3)", 56),
        ("action", "letter | map(letter)", "trade"),
        ("action", "constant(correct)", "correct"),
        ("venue", "venue", "XTST"),
        ("symbol", "name | shouted", "IBM"),
        ("symbol", "name | trim", "ibm"),
        ("symbol", "instrument.symbol", "ibm"),
        ("symbol", "name | symbol", "ibm"),
        ("event_time", "small | since_midnight(s)", 1_704_153_600_000_000_000 + 7_000_000_000),
        ("event_time", "small | epoch(ms)", 7_000_000),
        ("conditions", "constant(cross, opening)", {"cross", "opening"}),
    ],
)
def test_functions_give_their_documented_values(tmp_path: Path, field: str, value: str, expected: object) -> None:
    if expected is None:
        with pytest.raises(TableError, match="is not a value or a function"):
            table(tmp_path, f'{field} = "{value}"').compile()
        return
    made = convert_one(table(tmp_path, f'{field} = "{value}"'), message())
    found = made.scaled(field) if field == "price" else getattr(made, field)  # type: ignore[attr-defined]
    assert found == expected


def test_an_ascii_number_becomes_a_float(tmp_path: Path) -> None:
    model = tmp_path / "measure.toml"
    model.write_text(
        'id = 900\nname = "measure"\nversion = 1\n[[field]]\nname = "reading"\ntype = "f64"\noptional = true\n'
        '[[field]]\nname = "cost"\ntype = "f64"\n'
    )
    made = table(tmp_path, 'reading = "ascii | float"\ncost = "price"', model="measure.toml")
    converter = Converter(made.compile(), 1)
    messages = [message(ascii_=b"-1.5e3"), message(ascii_=b"      "), message(ascii_=b"x")]
    records = [record for *_, record in converter.convert(SourceBatch.from_messages(messages, 1))]
    assert struct.unpack("<dd", records[0]) == (-1500.0, 1.25)
    assert str(struct.unpack("<dd", records[1])[0]) == "nan"
    assert len(records) == 2
    assert converter.counters.by_cause("source_messages_malformed") == {"number": 1}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('quantty = "small"', "did you mean 'quantity'"),
        ('quantity = "smal"', "did you mean 'small'"),
        ('quantity = "small | incremen(1)"', "did you mean 'increment'"),
        ('quantity = "small | increment(x)"', "needs one integer"),
        ('quantity = "price"', "the quantity has 4 decimals, but the target has 0: fractions would be lost"),
        ('trade_id = "price"', "decimals, but the target has none"),
        ('price = "small"', "the value has no decimals"),
        ('quantity = "name"', "needs an integer, not a text"),
        ('action = "letter | map(leter)"', "did you mean 'letter'"),
        ('aggressor = "letter | map(letter)"', "'trade' is not one of the target's values"),
        ('quantity = "order.price"', "order.price is not known here"),
        ('price = "day.last"', "may be missing, but the target is required"),
        ('venue = "small"', "needs a text, not a number"),
        ('when = "letter < A"', "with = and != only"),
        ('when = "small = many"', "'many' is not a number"),
        ('do = "trade"', "exactly one of do, emit and forward"),
        ("quantity = true", "expected a value"),
    ],
)
def test_an_error_in_a_step_names_its_place(tmp_path: Path, fields: str, said: str) -> None:
    with pytest.raises(TableError, match=r"table\.toml: message\.probe\[0\]") as caught:
        table(tmp_path, fields).compile()
    assert said in str(caught.value)


def test_errors_outside_of_steps_name_their_place(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="unknown time zone 'Mars'"):
        table(tmp_path, "", top='timezone = "Mars"').compile()
    with pytest.raises(TableError, match="did you mean 'quote'"):
        table(tmp_path, "", model="qoute").compile()
    with pytest.raises(ConfigurationError, match="unknown key 'formt'"):
        ConverterTable.parse('name = "x"\nformt = "itch50"\n[message]')
    with pytest.raises(TableError, match="did you mean 'itch50'"):
        ConverterTable.parse('name = "x"\nformat = "itch5"\n[message]').compile()
    with pytest.raises(TableError, match=r"has no message 'ad_order'.*did you mean 'add_order'"):
        ConverterTable.parse('name = "x"\nformat = "itch50"\n[[message.ad_order]]\ndo = "define"').compile()
    with pytest.raises(TableError, match=r"unknown verb 'order_ad'.*did you mean 'order_add'"):
        ConverterTable.parse('name = "x"\nformat = "itch50"\n[[message.add_order]]\ndo = "order_ad"').compile()
    with pytest.raises(TableError, match="unknown table 'itc'"):
        ConverterTable.load("itc")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("size = 24", "size = 20"), "ends beyond the message's 20 bytes"),
        (("at = 1, size = 2", "at = 1, size = 9"), "a number needs a size of 1 to 8"),
        (('type = "P"', 'type = "PP"'), "must have 1 bytes"),
        (("at = 1, size = 2", "column = 1"), "needs either at"),
        (("size = 24", ""), "needs either size or size_min"),
    ],
)
def test_errors_in_a_format_name_their_place(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "format.toml"
    path.write_text(FORMAT.replace(*change, 1))
    with pytest.raises(TableError, match=said):
        SourceFormat.read(path)


def test_all_shipped_tables_compile_and_are_explained() -> None:
    assert shipped_formats() == ["csv_ticks", "iex_deep10", "iex_tops16", "itch50", "penstock"]
    for name in shipped_tables():
        lines = list(explain(ConverterTable.load(name)))
        assert lines[0].startswith(name)
    text = "\n".join(explain(ConverterTable.load("itch")))
    assert "add_order A: 36 bytes" in text
    assert "side        = side [19:1 text] -> map(side)" in text or "-> map(side)" in text
    assert "emit quote on md.us.eq.{symbol}.quote, when book.changed" in text


@pytest.mark.spec("FEED-8")
def test_malformed_messages_are_logged_with_offset_and_excerpt(lines: io.StringIO) -> None:
    log.configure(stream=lines)
    converter = Converter(ConverterTable.load("itch").compile(), 3)
    converter.convert(SourceBatch.from_messages([b"?abc"] * 5, 1))
    logged = lines.getvalue().splitlines()
    assert len(logged) == 3  # the first, the second and the fourth
    assert "malformed stream=3 cause=kind count=4 source_sequence=4 offset=12 size=4 excerpt=3f616263" in logged[2]
    assert converter.counters["source_messages_malformed"] == 5


def test_a_failing_function_is_counted_and_reported(tmp_path: Path, lines: io.StringIO) -> None:
    log.configure(stream=lines)
    converter = Converter(table(tmp_path, 'quantity = "small | failing"').compile(), 1)
    assert len(converter.convert(SourceBatch.from_messages([message()], 1))) == 0
    assert converter.counters.by_cause("source_messages_malformed") == {"function": 1}
    assert "on purpose" in lines.getvalue()


def test_contributions_are_forwarded() -> None:
    converter = Converter(ConverterTable.load("contribution").compile(), 4)

    def contribution(topic: bytes, record: bytes, size: int | None = None) -> bytes:
        return struct.pack("<HHHH", 2, 1, len(topic) if size is None else size, 0) + topic + record

    given = [contribution(b"own.prices", b"12345678"), contribution(b"", b"x"), contribution(b"a", b"x", 99)]
    ((topic, origin, model_id, record),) = converter.convert(SourceBatch.from_messages(given, 1))
    assert (topic, model_id, record, origin.source_sequence) == ("own.prices", 2, b"12345678", 1)
    assert converter.counters.by_cause("source_messages_malformed") == {"text": 1, "length": 1}


@pytest.mark.spec("FEED-10")
def test_symbols_of_a_venue_become_common_symbols(tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("symbol,same_as,round_lot,key\nOLD,NEW,10,\nKEYED,,5,77\n")
    top = (
        '[symbols]\nfile = "names.csv"\nsuffixes = { "+" = ".WS" }\nsame_as = { X = "Y" }\n[symbols.topic]\n"." = "-"\n'
    )
    made = table(tmp_path, 'symbol = "instrument.symbol"', top=top)
    converter = Converter(made.compile(), 1)
    names = [b"OLD", b"AB+", b"X", b"PLAIN"]
    batch = SourceBatch.from_messages([message(name=name) for name in names], 1)
    topics = [topic for topic, *_ in converter.convert(batch)]
    assert topics == ["probe.NEW", "probe.AB-WS", "probe.Y", "probe.PLAIN"]
    assert converter.state.reference(converter.state.find("NEW")).round_lot == 10
    assert converter.state.find_locate(77) == converter.state.find("KEYED")


def test_an_image_begun_before_a_book_was_cleared_has_the_books_orders(tmp_path: Path) -> None:
    book = '[[message.probe]]\ndo = "book_clear"\nwhen = "small = 0"'
    converter = Converter(table(tmp_path, book).compile(), 1)
    converter.convert(SourceBatch.from_messages([message()], 1))
    state = converter.state
    for reference in range(200):
        state.add_order(reference, 0, reference % 2, 100 + reference % 7, 10)
    before, image = state.digest, state.begin_image()
    converter.convert(SourceBatch.from_messages([message(small=0)], 2))
    assert state.order_count == 0
    follower = Converter(table(tmp_path, book).compile(), 1).state
    follower.install(list(iter(lambda: image.chunk(1_000), b"")))
    assert (follower.digest, follower.order_count) == (before, 200)


def test_sequence_numbers_can_repeat_or_jump() -> None:
    converter = Converter(ConverterTable.load("csv-ticks").compile(), 1)
    line = b"trade,1,A,1,1,1"
    converter.convert(SourceBatch.from_messages([line, line], 5))
    assert converter.next_source_sequence == 7
    assert len(converter.convert(SourceBatch.from_messages([line], 6))) == 0
    assert converter.counters["source_messages_repeated"] == 1
    with pytest.raises(LocalProtocolError, match="received source message 9 instead of 7"):
        converter.convert(SourceBatch.from_messages([line], 9))
    converter.skip_to(9)
    assert len(converter.convert(SourceBatch.from_messages([line], 9))) == 2


def test_the_convert_command_works(tmp_path: Path) -> None:
    shown = invoke_here("convert", "check", "iex-deep")
    assert shown.exit_code == 0
    assert "level_buy 8: 30 bytes" in shown.output
    path = tmp_path / "ticks.csv"
    path.write_bytes(b"trade,1700000000000000000,AAPL,190.25,100,1\nnonsense\n")
    ran = invoke_here("convert", "run", "csv-ticks", str(path))
    assert ran.exit_code == 0
    assert '"topic": "md.ticks.AAPL.trade"' in ran.output
    assert isinstance(invoke_here("convert", "check", "nothing.toml").exception, ConfigurationError)
