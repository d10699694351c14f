"""Messages: reading and writing fields in place, and refusing unsuitable values."""

import gc
import math
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pytest

from penstock.base.errors import ModelError
from penstock.model import Message, MessageModel, shipped

MODEL = MessageModel.parse("""
id = 7
name = "everything"
version = 3
description = "One field of each kind"
field = [
    { name = "small", type = "i8", optional = true },
    { name = "wide", type = "u64", optional = true },
    { name = "plain", type = "u64" },
    { name = "ratio", type = "f32", optional = true },
    { name = "factor", type = "f64" },
    { name = "bid", type = "price", decimals = 4, optional = true },
    { name = "cost", type = "price", decimals = 18 },
    { name = "time", type = "timestamp", optional = true },
    { name = "symbol", type = "text", size = 6 },
    { name = "note", type = "text", size = 5, optional = true },
    { name = "side", type = "enum", values = { buy = 1, sell = 2 }, optional = true },
    { name = "kind", type = "enum", values = { none = 0, some = 1 } },
    { name = "state", type = "flags", bits = { halted = 0, crossed = 9 } },
    { name = "added", type = "i32", since = 2 },
    { name = "later", type = "i64", since = 3, optional = true },
]
""")


def test_a_new_message_has_missing_optional_fields_and_zero_elsewhere() -> None:
    assert MODEL.new().to_dict() == {
        "small": None,
        "wide": None,
        "plain": 0,
        "ratio": None,
        "factor": 0.0,
        "bid": None,
        "cost": 0.0,
        "time": None,
        "symbol": "",
        "note": None,
        "side": None,
        "kind": "none",
        "state": frozenset(),
        "added": 0,
        "later": None,
    }


def test_values_are_read_as_written() -> None:
    values = {
        "small": -127,
        "wide": 2**64 - 2,
        "plain": 2**64 - 1,
        "ratio": 0.5,
        "factor": -math.inf,
        "bid": 12.34,
        "cost": 0.1,
        "time": -1,
        "symbol": "Käse",
        "note": "abc",
        "side": "sell",
        "kind": "some",
        "state": frozenset({"crossed"}),
        "added": -(2**31),
        "later": 2**63 - 1,
    }
    message = MODEL.new(**values)
    assert message.to_dict() == values
    assert MODEL.view(bytes(message)).to_dict() == values
    assert MODEL.from_json(message.to_json()) == message


def test_a_view_reads_and_writes_the_buffer_itself() -> None:
    data = bytearray(MODEL.record_size)
    message = MODEL.view(data)
    message.plain = 77
    assert data[MODEL.fields_by_name["plain"].offset] == 77
    data[MODEL.fields_by_name["plain"].offset] = 78
    assert message.plain == 78
    with pytest.raises(BufferError):
        data.extend(b"x")  # the message holds the buffer


def test_a_message_in_a_cycle_releases_its_buffer_before_the_buffers_owner_is_released() -> None:
    data = bytearray(MODEL.record_size)
    cycle: list[object] = [MODEL.view(data)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    data.extend(b"x")  # no references remain


def test_a_read_only_buffer_is_not_written() -> None:
    with pytest.raises(ModelError, match="read-only"):
        MODEL.view(bytes(MODEL.record_size)).plain = 1
    copy = MODEL.view(bytes(MODEL.record_size)).copy()
    copy.plain = 1
    assert copy.plain == 1


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("small", -128, "from -127 to 127"),
        ("small", 128, "from -127 to 127"),
        ("small", 1.0, "an integer"),
        ("small", "1", "an integer"),
        ("time", datetime(2024, 3, 28, tzinfo=UTC), "nanoseconds since 1970 as an integer"),
        ("time", np.datetime64(1, "ns"), "nanoseconds since 1970 as an integer"),
        ("wide", 2**64 - 1, "to 18446744073709551614"),
        ("wide", -1, "from 0"),
        ("plain", None, "cannot be missing"),
        pytest.param("plain", 10**5000, "a very large integer", id="plain-huge"),
        ("ratio", 1e39, "32 bits"),
        ("ratio", math.nan, "use None for a missing value"),
        ("ratio", "x", "a number"),
        pytest.param("factor", 10**400, "a number", id="factor-huge"),
        ("bid", 12.34567, "a price with 4 decimals"),
        ("bid", "12.34567", "a price with 4 decimals"),
        ("bid", Decimal("1e-5"), "a price with 4 decimals"),
        ("bid", Decimal("1e-999999"), "a price with 4 decimals"),
        ("bid", Decimal("1e999999"), "a price in range"),
        ("bid", "9" * 200, "a price with 4 decimals"),
        ("bid", "nan", "a price with 4 decimals"),
        ("bid", "twelve", "a decimal number"),
        ("bid", math.inf, "a finite number"),
        ("bid", 10**15, "a price from"),
        ("bid", [], "an int, float, Decimal or text"),
        ("cost", 10, "a price from"),
        ("symbol", "sevenxx", "at most 6 bytes"),
        ("symbol", "äääa", "at most 6 bytes"),
        ("symbol", "a\0b", "none of them NUL"),
        ("symbol", "\ud800", "without surrogates"),
        ("symbol", b"IBM", "a text"),
        ("side", "hold", "one of: buy, sell"),
        ("side", 0, "from 1 to 255"),
        ("side", 256, "from 1 to 255"),
        ("side", 1.5, "one of: buy, sell"),
        ("state", {"hated"}, "a set of: halted, crossed"),
        ("state", "halted", "a set of names"),
        ("state", 3, "a set of: halted, crossed"),
    ],
)
def test_unsuitable_values_are_refused_and_leave_the_record_unchanged(name: str, value: object, says: str) -> None:
    message = MODEL.new(small=1, bid=1, symbol="IBM", state={"halted"})
    before = bytes(message)
    with pytest.raises(ModelError) as caught:
        setattr(message, name, value)
    assert says in str(caught.value)
    assert repr(name) in str(caught.value)
    assert bytes(message) == before


@pytest.mark.parametrize("value", [12.34, "12.34", "12.3400", "1234e-2", Decimal("12.34"), np.float64(12.34)])
def test_a_price_is_accepted_in_every_exact_form(value: object) -> None:
    message = MODEL.new(bid=value)
    assert message.scaled("bid") == 123400
    assert message.bid == 12.34


def test_large_prices_stay_exact_and_are_rounded_once_when_read_as_floats() -> None:
    largest = 2**63 - 1
    message = MODEL.new(bid=Decimal(largest).scaleb(-4))
    assert message.scaled("bid") == largest
    assert message.bid == largest / 10**4
    message.bid = -123456789012.3456
    assert message.scaled("bid") == -1234567890123456
    with pytest.raises(ModelError, match="neither a price"):
        message.scaled("plain")
    with pytest.raises(ModelError, match="no field 'nothing'"):
        message.scaled("nothing")


def test_prices_around_the_largest_exact_float_are_rounded_once() -> None:
    for scaled in (sign * (2**53 + step) for sign in (1, -1) for step in range(-3, 4)):
        quote = shipped("quote").new(bid_price=Decimal(scaled).scaleb(-8))
        assert quote.scaled("bid_price") == scaled
        assert quote.bid_price == scaled / 10**8


def test_enums_and_flags_from_a_newer_writer_are_kept() -> None:
    message = MODEL.new(side=9)
    assert message.side == 9
    state = MODEL.fields_by_name["state"].offset
    data = bytearray(message)
    data[state] = 0b1000_0001
    message = MODEL.view(data)
    assert message.state == {"halted"}
    message.state = {"crossed"}
    assert (data[state], data[state + 1]) == (0b1000_0000, 0b10)


def test_bytes_that_are_not_utf8_are_shown_as_replacement_characters() -> None:
    data = bytearray(MODEL.record_size)
    data[MODEL.fields_by_name["symbol"].offset] = 0xFF
    assert MODEL.view(data).symbol == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("version", [1, 2, 3, 4, 65_535, None])
def test_every_truncation_is_refused_or_readable(version: int | None) -> None:
    record = bytes(MODEL.new(added=5, later=6))
    needed = max(item.end for item in MODEL.fields if item.since <= (version or 1))
    for size in range(needed):
        with pytest.raises(ModelError, match=f"the record has {size} bytes"):
            MODEL.view(record[:size], version)
    for size in range(needed, len(record) + 1):
        message = MODEL.view(record[:size], version)
        assert message.plain == 0
        message.to_dict()
        message.to_json()


def test_the_length_identifies_the_version_where_it_can() -> None:
    record = bytes(MODEL.new(added=5, later=6))
    added, later = MODEL.fields_by_name["added"], MODEL.fields_by_name["later"]
    assert MODEL.view(record).later == 6
    older = MODEL.view(record[: later.end - 1])
    assert (older.version, older.added, older.later) == (2, 5, None)
    oldest = MODEL.view(record[: added.end - 1])
    assert (oldest.version, oldest.added, oldest.later) == (1, None, None)


def test_a_field_beyond_the_version_cannot_be_set() -> None:
    message = MODEL.view(bytearray(MODEL.record_size), version=1)
    with pytest.raises(ModelError, match="version 1 does not have it"):
        message.added = 1
    assert "added" not in message.to_json()


@pytest.mark.parametrize("version", [0, -1, 65_536, 2**70])
def test_a_version_outside_the_range_of_the_wire_format_is_refused(version: int) -> None:
    with pytest.raises(ModelError, match="is outside 1 to 65535"):
        MODEL.view(bytes(MODEL.record_size), version)


def test_a_descriptor_serves_only_messages_of_its_own_model() -> None:
    quote, trade = shipped("quote").new(), shipped("trade").new()
    descriptor = type(quote).__dict__["ask_price"]
    with pytest.raises(ModelError, match="not a message of the model"):
        descriptor.__get__(trade, None)
    with pytest.raises(ModelError, match="not a message of the model"):
        descriptor.__set__(object(), 1)
    with pytest.raises(ModelError, match="not a message of the model"):
        type(descriptor)().__get__(quote, None)


def test_a_message_has_a_readable_repr() -> None:
    quote = shipped("quote").new(symbol="IBM", bid_price=100)
    assert repr(quote).startswith("<quote bid_price=100.0 bid_size=0")
    quote.topic, quote.seq = "md.us.eq.IBM.quote", 7
    assert "md.us.eq.IBM.quote #7" in repr(quote)
    assert "more" in repr(shipped("book_snapshot").new())
    assert {"bid_price", "ask_price", "to_dict"} <= set(dir(quote))
    assert type(quote).__name__ == "Quote"
    assert type(quote).bid_price.__doc__ == "Best bid; missing when nobody bids"


def test_equality_compares_model_and_field_bytes() -> None:
    first, second = MODEL.new(plain=1, symbol="IBM"), MODEL.new(plain=1, symbol="IBM")
    assert first == second
    second.plain = 2
    assert first != second
    assert shipped("quote").new() != shipped("trade").new()
    assert first != "IBM"
    assert MODEL.view(first, 1) != first
    with pytest.raises(TypeError):
        hash(first)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ModelError, match="no field 'symbl'"):
        MODEL.new(symbl="IBM")
    with pytest.raises(AttributeError):
        _ = MODEL.new().symbl
    with pytest.raises(AttributeError):
        MODEL.new().symbl = 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not a JSON object"),
        ("[]", "is not a JSON object"),
        pytest.param("[" * 100_000, "is not a JSON object", id="deep"),
        ('{"symbl": "IBM"}', "did you mean 'symbol'"),
        ('{"plain": null}', "cannot be missing"),
        ('{"plain": 1.5}', "an integer"),
        ('{"bid": 1e999999999}', "a price in range"),
        ('{"symbol": 1}', "a text"),
    ],
)
def test_unsuitable_json_is_refused(text: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        MODEL.from_json(text)
    assert says in str(caught.value)


def test_json_keeps_every_digit() -> None:
    message = MODEL.new(cost=Decimal("-0.000000000000000001"), factor=math.inf, state={"halted"}, side=9)
    text = message.to_json()
    assert '"cost":-0.000000000000000001' in text
    assert '"factor":"inf"' in text
    assert '"side":9' in text
    assert MODEL.from_json(text) == message


def test_a_message_base_class_is_shared() -> None:
    assert isinstance(MODEL.new(), Message)
    assert memoryview(MODEL.new()).nbytes == MODEL.record_size


def test_a_record_over_a_view_in_a_garbage_cycle_is_released_in_the_right_order() -> None:
    class Holder:
        pass

    model = shipped("quote")
    for _ in range(10):
        holder = Holder()
        holder.itself = holder  # type: ignore[attr-defined]
        view = memoryview(bytes(model.record_size))
        holder.views = [view, model.view(view[:])]  # type: ignore[attr-defined]
        del holder, view
        gc.collect()
