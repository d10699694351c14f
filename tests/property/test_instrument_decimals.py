"""Values of every precision through converter, books, bars and statistics: the output values equal the input values."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.convert import Converter, ConverterTable, SourceBatch, TableChoice
from penstock.model import InstrumentDecimals, KnownInstruments, shipped

TIME = 1_700_000_000_000_000_000
PLAN = ConverterTable.find(TableChoice(name="csv-ticks", venue="TEST", quantity_decimals=8)).compile()
MODELS = {output.model.id: output.model for output in PLAN.outputs}


@st.composite
def values(draw: st.DrawFn, decimals: int, above: int) -> str:
    """A positive number with exactly this number of decimals, as a feed writes it."""
    scaled = draw(st.integers(1, above * 10**decimals))
    return f"{Decimal(scaled).scaleb(-decimals):f}"


@st.composite
def days(draw: st.DrawFn) -> tuple[dict[str, tuple[int, int]], list[tuple[str, str, str]]]:
    """Instruments with their decimals, and their trades: symbol, price, quantity."""
    decimals = draw(
        st.fixed_dictionaries({name: st.tuples(st.integers(0, 8), st.integers(0, 8)) for name in ("A", "B", "C")})
    )
    trades = []
    for symbol in draw(st.lists(st.sampled_from("ABC"), min_size=1, max_size=12)):
        price, quantity = decimals[symbol]
        trades.append((symbol, draw(values(price, 100_000)), draw(values(quantity, 1_000_000))))
    return decimals, trades


def convert(converter: Converter, lines: list[str]) -> list[Any]:
    batch = SourceBatch.from_messages([line.encode() for line in lines], 1)
    return [MODELS[number].view(bytes(record)) for _, _, number, record in converter.convert(batch)]


def exact(message: Any, name: str) -> Decimal:
    field = message.model.fields_by_name[name]
    return Decimal(message.scaled(name)).scaleb(-field.decimals)


@pytest.mark.spec("DAY-9")
@given(day=days())
def test_values_of_every_precision_come_out_as_they_went_in(
    day: tuple[dict[str, tuple[int, int]], list[tuple[str, str, str]]],
) -> None:
    decimals, trades = day
    lines = [f"define,{TIME},{symbol},,{price},{quantity}" for symbol, (price, quantity) in decimals.items()]
    for number, (symbol, price, quantity) in enumerate(trades):
        lines.append(f"quote,{TIME + number},{symbol},{price},{quantity},{price},{quantity}")
        lines.append(f"trade,{TIME + number},{symbol},{price},{quantity},{number}")
    converter = Converter(PLAN, 1, trading_date=date(2023, 11, 14))
    made = convert(converter, lines)
    assert converter.counters.by_cause("source_messages_malformed") == {}
    assert converter.counters.by_cause("source_messages_unmatched") == {}, "no value exceeds its instrument's decimals"
    known = KnownInstruments()
    found = [(known.of(each), each) for each in made]

    # messages, as numbers and as text
    out = [(shown, each) for shown, each in found if each.model.name == "trade_8"]
    assert [(each.symbol, exact(each, "price"), exact(each, "quantity")) for _, each in out] == [
        (symbol, Decimal(price), Decimal(quantity)) for symbol, price, quantity in trades
    ]
    for (shown, each), (symbol, price, quantity) in zip(out, trades, strict=True):
        assert shown == InstrumentDecimals(*decimals[symbol])
        assert f'"price":{price},"quantity":{quantity},' in each.to_json(shown)
        assert each.model.from_json(each.to_json(shown)) == each

    # books, statistics and bars
    for symbol in {symbol for symbol, _, _ in trades}:
        own = [(Decimal(price), Decimal(quantity)) for name, price, quantity in trades if name == symbol]
        quote = [each for _, each in found if each.model.name == "quote_8" and each.symbol == symbol][-1]
        assert (exact(quote, "bid_price"), exact(quote, "bid_size")) == own[-1]
        book = converter.state.book(symbol)
        assert [(level.price, level.size) for level in (*book.bids, *book.asks)] == [
            (quote.scaled("bid_price"), quote.scaled("bid_size"))
        ] * 2
        stats = [each for _, each in found if each.model.name == "day_statistics_8" and each.symbol == symbol][-1]
        volume = exact(stats, "volume") + exact(stats, "extended_volume")
        assert volume == sum(quantity for _, quantity in own)
        number = converter.state.number_of(symbol)
        bar = converter.state.statistics_between(number, TIME, TIME + len(trades))
        assert Decimal(bar.high).scaleb(-8) == max(price for price, _ in own)
        assert Decimal(bar.low).scaleb(-8) == min(price for price, _ in own)
        assert Decimal(bar.volume).scaleb(-8) == sum(quantity for _, quantity in own)
        assert Decimal(bar.turnover).scaleb(-16) == sum(price * quantity for price, quantity in own)


@given(price=st.integers(-(10**17), 10**17), shown=st.one_of(st.none(), st.integers(0, 18)))
def test_text_is_the_same_number_whatever_decimals_are_shown(price: int, shown: int | None) -> None:
    message = shipped("trade_8").new(price=Decimal(price).scaleb(-8), quantity=Decimal(abs(price)).scaleb(-8))
    text = message.to_json(InstrumentDecimals(shown, shown))
    assert shipped("trade_8").from_json(text) == message
