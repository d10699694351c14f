"""Filter expressions: the accepted language, the selected records, and refusals."""

from decimal import Decimal

import numpy as np
import pytest

from penstock.base.errors import FilterExpressionError, LocalProtocolError, ModelError
from penstock.model import MessageModel, shipped
from penstock.model.library import DIRECTORY
from penstock.topics import Predicate, lowering
from penstock.topics._predicate import ACCEPT, KIND_RANGE, KIND_TEXT, REJECT, Program
from penstock.topics.expression import DEPTH_MAX, EXPRESSION_SIZE_MAX
from penstock.topics.lowering import NODES_MAX, Node

MODEL = MessageModel.parse("""
id = 8
name = "sample"
version = 1
field = [
    { name = "symbol", type = "text", size = 8 },
    { name = "note", type = "text", size = 5, optional = true },
    { name = "price", type = "price", decimals = 2, optional = true },
    { name = "cost", type = "price", decimals = 4 },
    { name = "quantity", type = "u64" },
    { name = "small", type = "i8", optional = true },
    { name = "ratio", type = "f64" },
    { name = "share", type = "f32", optional = true },
    { name = "time", type = "timestamp" },
    { name = "side", type = "enum", values = { buy = 1, sell = 2 }, optional = true },
    { name = "taker", type = "enum", values = { buy = 1, sell = 2 } },
    { name = "order", type = "u8" },
    { name = "state", type = "flags", bits = { halted = 0, crossed = 12 } },
]
""")


def passes(text: str, **values: object) -> bool:
    return Predicate.compile(text, MODEL)(bytes(MODEL.new(**values)))


def refusal(text: str) -> str:
    with pytest.raises(FilterExpressionError) as caught:
        Predicate.compile(text, MODEL)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("symbol = 'IBM' and price > 100", {"symbol": "IBM", "price": 100.01}, True),
        ("symbol = 'IBM' and price > 100", {"symbol": "IBM", "price": 100}, False),
        ("symbol = 'IBM' and price > 100", {"symbol": "IBM"}, False),
        ("SYMBOL = 'IBM' AND (Price > 100)", {"symbol": "IBM", "price": 101}, True),
        ("`order` = 3", {"order": 3}, True),
        ('symbol = "O\'Neil"', {"symbol": "O'Neil"}, True),
        ("symbol == 'IBM'", {"symbol": "IBM"}, True),
        ("100 < price", {"price": 101}, True),
        ("price between 1 and 2.5", {"price": 2.5}, True),
        ("price not between 1 and 2.5", {"price": 2.51}, True),
        ("not price between 1 and 2.5", {}, False),
        ("price in (1, 2, -3.5)", {"price": -3.5}, True),
        ("price not in (1, 2)", {"price": 3}, True),
        ("price not in (1, 2)", {}, False),
        ("symbol = 'ABCDEFGHI'", {"symbol": "ABCDEFGH"}, False),
        ("symbol < 'ABCDEFGHI'", {"symbol": "ABCDEFGH"}, True),
        ("symbol = ''", {}, True),
        ("note = ''", {}, False),
        ("note is null", {}, True),
        ("symbol is null", {}, False),
        ("symbol is not null", {}, True),
        ("note <> 'x'", {"note": "y"}, True),
        ("note <> 'x'", {}, False),
        ("note < 'x'", {}, False),
        ("note like '%'", {}, False),
        ("symbol like 'A%'", {"symbol": "AAPL"}, True),
        ("symbol like '_%_L'", {"symbol": "AAPL"}, True),
        ("symbol like 'A_'", {"symbol": "Aé"}, True),
        ("symbol like '%b%bc'", {"symbol": "abbbc"}, True),
        ("symbol not like '%'", {"symbol": ""}, False),
        ("note not like 'x'", {}, False),
        ("side = 'buy'", {"side": "buy"}, True),
        ("side <> 'buy'", {"side": "sell"}, True),
        ("side <> 'buy'", {"side": 7}, True),
        ("side <> 'buy'", {}, False),
        ("side in ('buy', 'sell')", {"side": 7}, False),
        ("side = taker", {"side": "sell", "taker": "sell"}, True),
        ("side = taker", {"taker": 9, "side": 9}, True),
        ("has(state, 'crossed')", {"state": {"crossed"}}, True),
        ("not has(state, 'crossed')", {"state": {"crossed"}}, False),
        ("price = cost", {"price": "1.5", "cost": "1.5"}, True),
        ("price < cost", {"price": "1.50", "cost": "1.5001"}, True),
        ("price <> cost", {"cost": 1}, False),
        ("quantity > small", {"quantity": 2**64 - 1, "small": 1}, True),
        ("quantity > small", {"quantity": 0, "small": -1}, True),
        ("ratio > quantity", {"ratio": 1e30, "quantity": 2**64 - 1}, True),
        ("symbol > note", {"symbol": "abcd", "note": "abc"}, True),
        ("true", {}, True),
        ("not true or false", {}, False),
        ("time >= timestamp '1970-01-01 00:00:01.000000002'", {"time": 1_000_000_002}, True),
        ("time > timestamp '1970-01-01 00:00:01.000000002'", {"time": 1_000_000_002}, False),
        ("time = timestamp '1970-01-01T01:00:00+01:00'", {"time": 0}, True),
        ("time < timestamp '1970-01-01'", {"time": -1}, True),
        ("time = 5", {"time": 5}, True),
    ],
)
def test_expressions_select_their_records(text: str, values: dict[str, object], expected: bool) -> None:
    assert passes(text, **values) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price > 1.234", [False, True]),
        ("price >= 1.234", [False, True]),
        ("price < 1.234", [True, False]),
        ("price <= 1.234", [True, False]),
        ("price = 1.234", [False, False]),
        ("price <> 1.234", [True, True]),
    ],
)
def test_a_literal_with_more_decimals_lies_between_prices(text: str, expected: list[bool]) -> None:
    assert [passes(text, price=Decimal(price)) for price in ("1.23", "1.24")] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("small < 1000", True),
        ("small > -1000", True),
        ("small <> 1000", True),
        ("small > 1000", False),
        ("small = 1000", False),
        ("price < 99999999999999999999", True),
        ("quantity >= -1", True),
        ("quantity < 0", False),
    ],
)
def test_a_literal_out_of_range_is_decided_for_every_value_except_a_missing_one(text: str, expected: bool) -> None:
    assert passes(text, small=5, price=1, quantity=1) is expected
    if "quantity" not in text:
        assert passes(text) is False


def test_nan_is_above_every_number_and_equal_to_itself() -> None:
    nan = float("nan")
    assert passes("ratio > 1e308", ratio=nan)
    assert passes("ratio = ratio", ratio=nan)
    assert not passes("ratio < 0", ratio=nan)
    assert passes("ratio = -0.0", ratio=0.0)
    assert not passes("share = 0.1", share=0.1)  # the nearest 32-bit float is not the nearest 64-bit one


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("symbl = 'x'", "did you mean 'symbol'?"),
        ("xyzzy = 1", "fields: symbol, note, price"),
        ("price > 1e3", "has an exponent"),
        ("price = 'x'", "compare it with a number"),
        ("symbol = 3", "compare it with a text such as 'IBM'"),
        ("side = 'by'", "did you mean 'buy'?"),
        ("side > 'buy'", "which has no order"),
        ("side between 'buy' and 'sell'", "which has no order"),
        ("side = 1", "compare it with one of: buy, sell"),
        ("side like 'b%'", "LIKE needs a text"),
        ("state = 1", "has(state, 'name')"),
        ("state = state", "has(state, 'name')"),
        ("has(state, 'halt')", "did you mean 'halted'?"),
        ("has(symbol, 'halted')", "has() needs flags"),
        ("has(state)", "'HAS(state)' is not supported"),
        ("price = null", "write IS NULL"),
        ("price in (1, null)", "write IS NULL"),
        ("price = symbol", "'price' is price(2), 'symbol' is text(8)"),
        ("price > ratio", "price is exact and float is not"),
        ("price + 1 > 2", "'price + 1' is not supported"),
        ("upper(symbol) = 'x'", "'UPPER(symbol)' is not supported"),
        ("price in (select 1)", "is not supported"),
        ("select 1", "line 1, character 1: the expression is not a condition near 'select'"),
        ("drop table x", "near 'drop'"),
        ("t.price > 1", "'t.price' is not supported"),
        ("1 = 1", "'1' is not supported"),
        ("price <=> 1", "is not supported"),
        ("price > 5L", "is not supported"),
        ("symbol = 'it''s'", 'write the text in double quotes: "O\'Neil"'),
        ("symbol like 'it''s%'", "write the text in double quotes"),
        ("symbol in ('it''s')", "write the text in double quotes"),
        ("symbol like 'a!%' escape '!'", "is not supported"),
        ("price between symmetric 2 and 1", "is not supported"),
        ("price", "'price' is not supported"),
        ("symbol = 'a\\tb'", "a backslash at character 12"),
        ("price > 1; price < 2", "must be a single condition"),
        ("", "must be a single condition"),
        ("-- nothing", "must be a single condition"),
        ("price >", "line 1, character 7"),
        ("(price > 1", "line 1, character"),
        ("price > 1 symbol", "character 11: the expression is not a condition near 'symbol'"),
        ("symbol = 'x", "is not a condition"),
        ("time > timestamp '2024-13-01'", "is not a timestamp"),
        ("time > timestamp 'noon'", "is not a timestamp"),
        ("price > timestamp '2024-01-01'", "is a timestamp"),
        ("time > date '2024-01-01'", "is not supported"),
        ("price = 1.0000000000000000001", "has too many digits"),
        ("price = 123456789012345678901", "has too many digits"),
    ],
)
def test_invalid_expressions_are_refused_with_the_position_and_a_remedy(text: str, says: str) -> None:
    assert says in refusal(text)


def test_size_nesting_and_number_of_tests_are_bounded() -> None:
    assert "above the limit of 16384" in refusal("x" * (EXPRESSION_SIZE_MAX + 1))
    assert "nested more than" in refusal("(" * (DEPTH_MAX + 1) + "true" + ")" * (DEPTH_MAX + 1))
    assert "nested" in refusal("not " * 3_000 + "true")
    assert passes("(" * DEPTH_MAX + "true" + ")" * DEPTH_MAX)
    assert passes(" and ".join(["true"] * 1_500))
    assert f"more than {NODES_MAX} tests" in refusal(f"price not in ({', '.join(['1'] * 3_000)})")


def test_a_long_list_of_symbols_is_a_filter() -> None:
    symbols = [f"S{number}" for number in range(1_000)]
    text = f"symbol in ({', '.join(map(repr, symbols))})"
    assert passes(text, symbol="S999")
    assert not passes(text, symbol="S1000")


def test_many_records_are_selected_at_once() -> None:
    model = shipped("trade")
    predicate = Predicate.compile("symbol = 'IBM' and price > 100", model)
    messages = [model.new(symbol=symbol, price=price) for symbol in ("IBM", "AAPL") for price in (99, 101)]
    data = b"".join(map(bytes, messages))
    expected = [False, True, False, False]
    assert predicate.select(data).tolist() == expected
    assert predicate.select(np.frombuffer(data, model.dtype)).tolist() == expected
    assert predicate.select(b"").tolist() == []
    starts = np.array([model.record_size, 0, 0], np.uint32)
    sizes = np.array([model.record_size, model.record_size, 8], np.uint32)
    assert predicate.select_at(data, starts, sizes).tolist() == [True, False, False]
    none = np.array([], np.uint32)
    assert predicate.select_at(b"", none, none).tolist() == []
    empty = np.array([0], np.uint32)
    assert predicate.select_at(b"", empty, empty).tolist() == [False]


def test_a_message_of_another_model_is_refused() -> None:
    trade, quote = shipped("trade"), shipped("quote")
    predicate = Predicate.compile("price > 100", trade)
    with pytest.raises(ModelError, match=r"has model <MessageModel quote .* is for <MessageModel trade "):
        predicate(quote.new(symbol="IBM"))
    same = MessageModel.load(DIRECTORY / "trade.toml")
    assert predicate(same.new(price=101))
    lookalike = MessageModel.parse((DIRECTORY / "trade.toml").read_text().replace("decimals = 8", "decimals = 4"))
    with pytest.raises(ModelError, match="trade"):
        predicate(lookalike.new(price=101))


VERSIONED = """
id = 9
name = "sample"
version = 2
field = [{ name = "a", type = "i32" }, { name = "b", type = "i32", since = 2 }]
"""
OLDER = 'id = 9\nname = "sample"\nversion = 1\nfield = [{ name = "a", type = "i32" }]'


def test_a_message_is_read_in_its_own_version() -> None:
    newer, older = MessageModel.parse(VERSIONED), MessageModel.parse(OLDER)
    predicate = Predicate.compile("b is null", newer)
    assert not predicate(newer.new(a=1, b=2))
    assert predicate(newer.view(bytes(8), version=1))  # b lies in the padding of version 1
    assert predicate(older.new(a=1))
    assert not predicate(newer.view(bytes(8), version=3))
    assert not Predicate.compile("b is null", newer, version=1)(newer.new(a=1, b=2))


def test_an_array_of_other_records_is_refused() -> None:
    trade, quote = shipped("trade"), shipped("quote")
    predicate = Predicate.compile("price > 100", trade)
    with pytest.raises(ModelError, match="bytes, unlike trade version 1 of 72 bytes"):
        predicate.select(np.zeros(2, quote.dtype))
    with pytest.raises(ModelError, match="dtype int64"):
        predicate.select(np.zeros(9, np.int64))
    longer = np.dtype({**_parts_of(trade.dtype), "itemsize": 80})
    moved = np.dtype({**_parts_of(trade.dtype), "names": [f"x_{name}" for name in trade.dtype.names or ()]})
    for dtype in (longer, moved):
        with pytest.raises(ModelError, match="unlike trade"):
            predicate.select(np.zeros(2, dtype))
    data = np.frombuffer(bytes(trade.new(price=101)) * 2, np.uint8)
    assert predicate.select(data).tolist() == [True, True]


def _parts_of(dtype: np.dtype[np.void]) -> dict[str, object]:
    assert dtype.names is not None
    assert dtype.fields is not None
    places = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [place[0] for place in places],
        "offsets": [place[1] for place in places],
        "itemsize": dtype.itemsize,
    }


def test_an_array_of_the_older_version_of_a_predicate_is_accepted() -> None:
    newer, older = MessageModel.parse(VERSIONED), MessageModel.parse(OLDER)
    records = np.zeros(3, older.dtype)
    assert Predicate.compile("b is null", newer, version=1).select(records).tolist() == [True] * 3
    with pytest.raises(ModelError, match="sample version 2"):
        Predicate.compile("b is null", newer).select(records)


def test_records_outside_the_data_are_refused() -> None:
    predicate = Predicate.compile("true", MODEL)
    one = np.array([1], np.uint32)
    with pytest.raises(LocalProtocolError, match="outside the data"):
        predicate.select_at(b"x", one, one)
    with pytest.raises(LocalProtocolError, match="outside the data"):
        predicate.select_at(b"x", np.array([2**32 - 1], np.uint32), np.array([2**32 - 1], np.uint32))
    with pytest.raises(LocalProtocolError, match="differ in length"):
        predicate.select_at(b"xx", one, np.array([1, 1], np.uint32))
    with pytest.raises(LocalProtocolError, match="not a multiple"):
        predicate.select(b"x")
    with pytest.raises(LocalProtocolError, match="contiguous"):
        predicate.select(np.zeros(4, MODEL.dtype)[::2])
    with pytest.raises(LocalProtocolError, match="do not hold"):
        predicate.program.select(np.zeros(9, np.uint8), 5, np.zeros(2, np.uint8))


@pytest.mark.parametrize(
    "node",
    [
        Node(lowering.Test(KIND_RANGE, MODEL.fields_by_name["price"]), 0, REJECT, REJECT, 0, 0),
        Node(lowering.Test(KIND_RANGE, MODEL.fields_by_name["price"]), 5, REJECT, REJECT, 0, 0),
        Node(lowering.Test(KIND_RANGE, MODEL.fields_by_name["symbol"]), ACCEPT, REJECT, REJECT, 0, 0),
        Node(lowering.Test(KIND_TEXT, MODEL.fields_by_name["price"]), ACCEPT, REJECT, REJECT, 0, 0),
        Node(lowering.Test(KIND_TEXT, MODEL.fields_by_name["symbol"]), ACCEPT, REJECT, REJECT, 2, 3),
        Node(lowering.Test(99, MODEL.fields_by_name["price"]), ACCEPT, REJECT, REJECT, 0, 0),
    ],
)
def test_a_program_with_a_jump_back_or_an_access_out_of_bounds_is_refused(node: Node) -> None:
    with pytest.raises(LocalProtocolError):
        Program([node], 0, b"abcd")


def test_a_predicate_has_a_readable_repr() -> None:
    assert repr(Predicate.compile("price > 1", MODEL)) == "<Predicate 'price > 1' over sample, 1 tests>"
