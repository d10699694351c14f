"""Bars, best bid and offer, trades with quotes, and the day, in Spark: compared with plain Python, for any division."""

import random
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.errors import ConfigurationError
from penstock.spark.pipeline.derive import BestBidOffer, Day, TimeBars, TradeQuote, as_of, tick_bars, volume_bars
from spark.derive_kit import cut, generated, of_file, run

NOT_LAST, NOT_HIGH_LOW, NOT_VOLUME = 256, 512, 1024
LATENESS, WIDTH = 30, 100
SCHEMA = pa.schema(
    [
        ("stream", pa.int32()), ("seq", pa.int64()), ("term", pa.int64()), ("origin", pa.int32()),
        ("symbol", pa.string()), ("venue", pa.string()), ("event_time", pa.int64()), ("trade_id", pa.int64()),
        ("action", pa.string()), ("aggressor", pa.string()), ("price", pa.decimal128(18, 8)), ("quantity", pa.int64()),
        ("conditions", pa.int32()),
    ]
)  # fmt: skip


def some_trades(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Two streams, three symbols, sale conditions, late rows, and corrections and cancellations soon or long after."""
    rows: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        row = {
            "stream": chance.choice([1, 1, 2]),
            "seq": number,
            "term": 0,
            "origin": 0,
            "venue": "X",
            "aggressor": None,
        }
        row["event_time"] = 10_000 + 4 * number - (chance.choice([10, 60, 200]) if chance.random() < 0.1 else 0)
        row["price"] = Decimal(chance.randrange(100, 120)) / 4
        row["quantity"] = chance.randrange(1, 50)
        row["conditions"] = chance.choice([0] * 12 + [NOT_LAST, NOT_HIGH_LOW, NOT_VOLUME, 1792])
        if told and chance.random() < 0.08:
            about = chance.choice(told[-4:] if chance.random() < 0.5 else told)
            row |= {name: about[name] for name in ("stream", "symbol", "trade_id")}
            row["action"] = chance.choice(["correct", "cancel"])
        else:
            row |= {"symbol": chance.choice("ABC"), "trade_id": number, "action": "trade"}
            told.append(row)
        rows.append(row)
    return rows


# The reference in plain Python


def late(rows: list[dict[str, Any]]) -> set[int]:
    newest: dict[int, int] = defaultdict(int)
    found = set()
    for row in rows:
        if row["event_time"] < newest[row["stream"]] - LATENESS:
            found.add(row["seq"])
        newest[row["stream"]] = max(newest[row["stream"]], row["event_time"])
    return found


def as_altered(trade: dict[str, Any], rows: list[dict[str, Any]], until: float) -> dict[str, Any] | None:
    """A trade as of the rows below this number."""
    now = dict(trade)
    for row in rows:
        is_ours = all(row[name] == trade[name] for name in ("stream", "symbol", "trade_id"))
        if is_ours and row["action"] != "trade" and row["seq"] < until and row["event_time"] >= trade["event_time"]:
            if row["action"] == "cancel":
                return None
            now |= {name: row[name] for name in ("price", "quantity", "conditions")}
    return now


def summed(trades: list[dict[str, Any]]) -> dict[str, Any]:
    last = [trade["price"] for trade in trades if not trade["conditions"] & NOT_LAST]
    span = [trade["price"] for trade in trades if not trade["conditions"] & NOT_HIGH_LOW]
    counted = [trade for trade in trades if not trade["conditions"] & NOT_VOLUME]
    volume = sum(trade["quantity"] for trade in counted)
    turnover = sum((trade["price"] * trade["quantity"] for trade in counted), Decimal(0))
    return {
        "open": last[0] if last else None, "high": max(span, default=None), "low": min(span, default=None),
        "close": last[-1] if last else None, "volume": volume, "turnover": turnover,
        "vwap": (turnover / volume).quantize(Decimal("1e-8"), ROUND_HALF_UP) if volume else None,
        "trade_count": len(counted),
    }  # fmt: skip


def revisions(
    members: list[dict[str, Any]], rows: list[dict[str, Any]], completed: float, **values: Any
) -> Iterator[dict[str, Any]]:
    first = [found for trade in members if (found := as_altered(trade, rows, completed))]
    last = [found for trade in members if (found := as_altered(trade, rows, float("inf")))]
    is_altered = any(
        row["seq"] >= completed and row["action"] != "trade" and row["event_time"] >= trade["event_time"]
        and all(row[name] == trade[name] for name in ("stream", "symbol", "trade_id"))
        for row in rows for trade in members
    )  # fmt: skip
    for revision, now in enumerate([first, last] if is_altered else [first]):
        if now or revision:
            extent = now or members
            seqs = {"first_seq": extent[0]["seq"], "last_seq": extent[-1]["seq"]}
            times = {
                "event_time": min(t["event_time"] for t in extent),
                "end_time": max(t["event_time"] for t in extent),
            }
            yield {
                **{k: members[0][k] for k in ("stream", "symbol", "venue")},
                **times,
                **values,
                **seqs,
                **summed(now),
            } | {"revision": revision}


def time_bars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    left_out = late(rows)
    bars = defaultdict(list)
    for row in rows:
        if row["action"] == "trade" and row["seq"] not in left_out:
            bars[row["stream"], row["symbol"], row["event_time"] // WIDTH * WIDTH].append(row)
    made = []
    for (stream, _, start), members in bars.items():
        end = start + WIDTH + LATENESS
        later = [row["seq"] for row in rows if row["stream"] == stream and row["event_time"] >= end]
        made += revisions(members, rows, min(later, default=float("inf")), event_time=start, end_time=start + WIDTH)
    return sorted(made, key=repr)


def counted_bars(rows: list[dict[str, Any]], measure: str, size: int) -> list[dict[str, Any]]:
    made = []
    trades = [row for row in rows if row["action"] == "trade"]
    key = lambda row: (row["stream"], row["symbol"])  # noqa: E731
    for _, group in groupby(sorted(trades, key=lambda row: (key(row), row["seq"])), key):
        bars = defaultdict(list)
        completed: dict[int, int] = {}
        total = 0
        for row in group:
            bars[total // size].append(row)
            bar = total // size
            if not row["conditions"] & NOT_VOLUME:
                total += row["quantity"] if measure == "volume" else 1
            if total >= (bar + 1) * size:
                completed[bar] = row["seq"]
        for bar, members in bars.items():
            made += revisions(members, rows, completed.get(bar, float("inf")))
    return sorted(made, key=repr)


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Decimals without trailing zeros, in the oracle's order of columns."""
    names = ["stream", "symbol", "venue", "event_time", "end_time", "first_seq", "last_seq"]
    rest = ["open", "high", "low", "close", "volume", "turnover", "vwap", "trade_count", "revision"]
    return sorted(({name: plain_value(row[name]) for name in (*names, *rest)} for row in rows), key=repr)


def plain_value(value: Any) -> Any:
    return value.normalize() + 0 if isinstance(value, Decimal) else value


@pytest.mark.spec("PIPE-5")
@pytest.mark.parametrize(
    "kind", ["time", *(pytest.param(each, marks=pytest.mark.soak) for each in ("volume", "trades"))]
)
def test_bars_are_the_same_in_python_in_batch_and_in_steps(spark: Any, kind: str) -> None:
    chance = random.Random({"time": 5, "volume": 6, "trades": 7}[kind])
    rows = some_trades(chance, 200)
    table = {"trade": pa.Table.from_pylist(rows, SCHEMA)}
    derivation, expected = {
        "time": (TimeBars(width_ns=WIDTH, lateness_ns=LATENESS), time_bars(rows)),
        "volume": (volume_bars(200), counted_bars(rows, "volume", 200)),
        "trades": (tick_bars(7), counted_bars(rows, "trades", 7)),
    }[kind]
    assert {row["revision"] for row in expected} == {0, 1}
    assert plain(run(spark, derivation, [table])[derivation.name]) == plain(expected)
    steps = cut(table, [chance.randrange(20, 180)])
    assert plain(run(spark, derivation, steps)[derivation.name]) == plain(expected)


# The day


def day_of_converter(tables: dict[str, pa.Table]) -> dict[str, list[Any]]:
    """The converter's last statistics of each symbol."""
    last = {row["symbol"]: row for row in tables["day_statistics"].to_pylist()}
    names = ("open", "high", "low", "last", "volume", "turnover", "trade_count")
    names += tuple(f"extended_{name}" for name in names[1:])
    return {
        symbol: [row[name] for name in names]
        for symbol, row in last.items()
        if row["trade_count"] or row["extended_trade_count"]
    }


def day_of_spark(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = ("open", "high", "low", "close", "volume", "turnover", "trade_count")
    names += tuple(f"extended_{name}" for name in names[1:])
    cut_off = Decimal("1e-4")
    made = {
        row["symbol"]: {
            **row,
            "turnover": row["turnover"].quantize(cut_off, ROUND_DOWN),
            "extended_turnover": row["extended_turnover"].quantize(cut_off, ROUND_DOWN),
        }
        for row in rows
    }
    assert len(made) == len(rows)
    return {symbol: [row[name] for name in names] for symbol, row in made.items()}


@pytest.mark.spec("PIPE-5")
def test_the_day_equals_the_converters_statistics_at_its_end(spark: Any, samples: Path, tmp_path: Path) -> None:
    day = of_file(generated(tmp_path / "day.itch", seed=5, symbols=30, messages=20_000))
    assert "cancel" in day["trade"]["action"].to_pylist(), "a day without broken trades proves little"
    path = samples / "pcap_iex" / "iex_tops16_20170710_testfeed.pcapng.gz"
    capture = of_file(path, table="iex-tops", day=None, stream=2, models=("trade", "day_statistics"))
    sold = capture["trade"].filter(pa.compute.equal(capture["trade"]["action"], "trade"))
    assert (len(sold), pa.compute.sum(sold["quantity"]).as_py()) == (6390, 1_427_907), "as in the table of facts"
    both = {"trade": pa.concat_tables([day["trade"], capture["trade"]])}
    made = run(spark, Day(), cut(both, [day["trade"]["seq"][1_000].as_py()]))["day"]
    for stream, tables in ((1, day), (2, capture)):
        assert day_of_spark([row for row in made if row["stream"] == stream]) == day_of_converter(tables)


@pytest.mark.spec("PIPE-5")
def test_minutes_of_real_ticks_have_the_volume_of_the_vendors_minutes(spark: Any, samples: Path) -> None:
    """Except for the first and the last regular minute, where the vendor excludes some sale conditions."""
    midnight = 1_381_118_400_000  # of 2013-10-07 in New York
    ticks = lean(samples, "ibm_20131007_trade_tick.zip")
    rows = [
        {
            "stream": 1, "seq": number, "term": 0, "origin": 0, "symbol": "IBM", "venue": "", "aggressor": None,
            "event_time": (midnight + int(time)) * 10**6, "trade_id": number, "action": "trade",
            "price": Decimal(price) / 10_000, "quantity": int(size), "conditions": 0,
        }
        for number, (time, price, size, *_) in enumerate(ticks, 1)
    ]  # fmt: skip
    bars = run(spark, TimeBars(), [{"trade": pa.Table.from_pylist(rows, SCHEMA)}])["bar_time"]
    assert sum(bar["volume"] for bar in bars) == 3_960_352
    volumes = {bar["event_time"] // 10**6 - midnight: bar["volume"] for bar in bars}
    minutes = {int(row[0]): int(row[5]) for row in lean(samples, "ibm_20131007_trade_minute.zip")}
    regular = range(34_200_000, 57_600_000, 60_000)
    assert [at for at in regular if volumes.get(at) != minutes.get(at)] == [34_200_000, 57_540_000]


def lean(samples: Path, name: str) -> list[list[str]]:
    with zipfile.ZipFile(samples / "equity_ticks_lean" / name) as archive:
        text = archive.read(archive.namelist()[0]).decode()
    return [line.split(",") for line in text.split()]


# Quotes

QUOTES = pa.schema(
    [
        ("stream", pa.int32()), ("seq", pa.int64()), ("term", pa.int64()), ("symbol", pa.string()),
        ("venue", pa.string()), ("event_time", pa.int64()), ("bid_price", pa.decimal128(18, 8)),
        ("bid_size", pa.int64()), ("ask_price", pa.decimal128(18, 8)), ("ask_size", pa.int64()),
    ]
)  # fmt: skip


def some_quotes(chance: random.Random, count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(1, count + 1):
        row: dict[str, Any] = {"stream": chance.choice([1, 2]), "seq": number, "term": 0, "symbol": chance.choice("AB")}
        row |= {"venue": chance.choice("XY") if row["stream"] == 1 else "Z", "event_time": 10_000 + 4 * (number // 3)}
        for side, low in (("bid", 40), ("ask", 42)):
            price = None if chance.random() < 0.1 else Decimal(chance.randrange(low, low + 4)) / 4
            row |= {f"{side}_price": price, f"{side}_size": 0 if price is None else chance.randrange(1, 5)}
        rows.append(row)
    return rows


def best_of(rows: list[dict[str, Any]], side: str) -> list[Any]:
    there = [row for row in rows if row[f"{side}_price"] is not None]
    if not there:
        return [None, 0, None, 0]
    price = (max if side == "bid" else min)(row[f"{side}_price"] for row in there)
    best = [row for row in there if row[f"{side}_price"] == price]
    named = min(best, key=lambda row: (-row[f"{side}_size"], row["venue"]))
    return [price, sum(row[f"{side}_size"] for row in best), named["venue"], len(best)]


def best_offers(quotes: list[dict[str, Any]]) -> list[list[Any]]:
    made, now, last = [], {}, {}
    for row in sorted(quotes, key=lambda row: (row["event_time"], row["stream"], row["seq"])):
        now[row["symbol"], row["stream"], row["venue"]] = row
        said = [quote for (symbol, *_), quote in now.items() if symbol == row["symbol"]]
        values = [*best_of(said, "bid"), *best_of(said, "ask")]
        if last.get(row["symbol"]) != values:
            last[row["symbol"]] = values
            made.append([row["stream"], row["seq"], row["event_time"], row["symbol"], *values])
    return made


@pytest.mark.spec("PIPE-5")
def test_quotes_across_venues_and_at_trades(spark: Any) -> None:
    chance = random.Random(9)
    quotes, trades = some_quotes(chance, 150), some_trades(chance, 150)
    for number, row in enumerate([*quotes, *trades]):  # a stream's messages have different numbers
        row["seq"] = 2 * row["seq"] + number // len(quotes)
    tables = {"quote": pa.Table.from_pylist(quotes, QUOTES), "trade": pa.Table.from_pylist(trades, SCHEMA)}
    steps = cut(tables, [120, 200])
    for cuts in ([tables], steps):
        made = [list(row.values()) for row in run(spark, BestBidOffer(), cuts)["bbo"]]
        assert sorted(made, key=lambda row: row[:2]) == sorted(best_offers(quotes), key=lambda row: row[:2])
        found = {row["seq"]: row["quote_seq"] for row in run(spark, TradeQuote(), cuts)["trade_quote"]}
        assert found == {
            trade["seq"]: max(
                (quote["seq"] for quote in quotes if is_of(quote, trade) and quote["seq"] < trade["seq"]), default=None
            )
            for trade in trades
        }
    timed = as_of(spark.createDataFrame(tables["trade"]), spark.createDataFrame(tables["quote"])).collect()
    assert {row.seq: (row.quote_stream, row.quote_seq) for row in timed} == {
        trade["seq"]: newest_quote(quotes, trade) for trade in trades
    }


def is_of(quote: dict[str, Any], trade: dict[str, Any]) -> bool:
    return all(quote[name] == trade[name] for name in ("stream", "symbol", "venue"))


def is_earlier(quote: dict[str, Any], trade: dict[str, Any]) -> bool:
    is_own = quote["stream"] == trade["stream"] and quote["seq"] < trade["seq"]
    return quote["event_time"] < trade["event_time"] or (quote["event_time"] == trade["event_time"] and is_own)


def newest_quote(quotes: list[dict[str, Any]], trade: dict[str, Any]) -> tuple[int | None, int | None]:
    before = [quote for quote in quotes if quote["symbol"] == trade["symbol"] and is_earlier(quote, trade)]
    if not before:
        return None, None
    last = max(before, key=lambda quote: (quote["event_time"], quote["stream"], quote["seq"]))
    return last["stream"], last["seq"]


# Sessions

HOUR_NS = 3_600 * 10**9
MONDAY_NS = 1_704_100_000_000_000_000
TUESDAY_NS = MONDAY_NS + 24 * HOUR_NS


def quote(seq: int, time_ns: int, bid: Any, ask: Any, **values: Any) -> dict[str, Any]:
    row = {"stream": 1, "seq": seq, "term": 0, "origin": 8, "symbol": "A", "venue": "X", "event_time": time_ns}
    sides = {"bid_price": bid, "bid_size": int(bid is not None), "ask_price": ask, "ask_size": int(ask is not None)}
    return row | {name: Decimal(v) if "price" in name and v is not None else v for name, v in sides.items()} | values


def trade(seq: int, time_ns: int, **values: Any) -> dict[str, Any]:
    row = {"stream": 1, "seq": seq, "term": 0, "origin": 8, "symbol": "A", "venue": "X", "event_time": time_ns}
    row |= {"trade_id": seq, "action": "trade", "price": Decimal(1), "quantity": 1, "conditions": 0}
    return row | values


def quotes_table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), QUOTES.append(pa.field("origin", pa.int32())))


def joined_at(spark: Any, trades: pa.Table, quotes: pa.Table, **how: Any) -> dict[int, int | None]:
    """The quote's number by the number of each trade."""
    rows = as_of(spark.createDataFrame(trades), spark.createDataFrame(quotes), **how).collect()
    return {row.seq: row.quote_seq for row in rows}


@pytest.mark.spec("DAY-5")
def test_a_quote_that_the_trade_caused_is_not_used_as_the_one_before_it(spark: Any) -> None:
    quotes = quotes_table(
        quote(1, MONDAY_NS - 5, 10, 12),
        quote(2, MONDAY_NS, 10, 11),
        quote(4, MONDAY_NS, 10, 13),  # the rest after the trade at the offer of 11
        quote(9, MONDAY_NS, 9, 14, stream=2, venue="Y"),  # its order relative to the trade is unknown
    )
    trades = pa.Table.from_pylist([trade(3, MONDAY_NS), trade(10, MONDAY_NS + 1)], SCHEMA)
    assert joined_at(spark, trades, quotes) == {3: 2, 10: 9}


@pytest.mark.spec("DAY-5")
def test_quotes_of_another_session_are_not_used_unless_requested(spark: Any) -> None:
    quotes = quotes_table(
        quote(1, MONDAY_NS, 191, None),
        quote(5, TUESDAY_NS, None, Decimal("180.10"), origin=16),
        quote(6, TUESDAY_NS + 10, 180, Decimal("180.10"), origin=16),
    )
    sold = [trade(2, MONDAY_NS + 2), trade(4, TUESDAY_NS - 3, origin=16), trade(7, TUESDAY_NS + 20, origin=16)]
    tables = {"quote": quotes, "trade": pa.Table.from_pylist(sold, SCHEMA)}
    for cuts in ([tables], cut(tables, [4]), cut(tables, [3, 6])):
        best = [(row["seq"], row["bid_price"], row["ask_price"]) for row in run(spark, BestBidOffer(), cuts)["bbo"]]
        assert sorted(best) == [(1, 191, None), (5, None, Decimal("180.10")), (6, 180, Decimal("180.10"))]
        found = {row["seq"]: row["quote_seq"] for row in run(spark, TradeQuote(), cuts)["trade_quote"]}
        assert found == {2: 1, 4: None, 7: 6}
    assert joined_at(spark, tables["trade"], quotes) == {2: 1, 4: None, 7: 6}
    two_days = {"age_max_ns": 48 * HOUR_NS}
    assert joined_at(spark, tables["trade"], quotes, **two_days) == {2: 1, 4: None, 7: 6}
    assert joined_at(spark, tables["trade"], quotes, **two_days, is_across_sessions=True) == {2: 1, 4: 1, 7: 6}
    assert joined_at(spark, tables["trade"], quotes, age_max_ns=1) == {2: None, 4: None, 7: None}
    with pytest.raises(ConfigurationError, match="0 ns"):
        joined_at(spark, tables["trade"], quotes, age_max_ns=0)


@pytest.mark.spec("DAY-5", "DAY-6")
def test_quotes_of_a_file_end_with_its_day(spark: Any) -> None:
    """Each day of two venues is a file and a separate stream: no later session of the same stream follows."""
    quotes = quotes_table(
        quote(1, MONDAY_NS, 191, 192, stream=1),
        quote(1, MONDAY_NS + 1, 190, 193, stream=2, venue="Y"),
        quote(1, TUESDAY_NS, 179, 181, stream=3),
        quote(2, TUESDAY_NS + 5, 178, 182, stream=3),
        quote(1, TUESDAY_NS + 7, 178, 182, stream=4, venue="Y"),
    )
    best = {
        (row["stream"], row["seq"]): (row["bid_price"], row["bid_venues"], row["ask_price"])
        for row in run(spark, BestBidOffer(), [{"quote": quotes}])["bbo"]
    }
    assert best == {(1, 1): (191, 1, 192), (3, 1): (179, 1, 181), (3, 2): (178, 1, 182), (4, 1): (178, 2, 182)}
    sold = [trade(2, MONDAY_NS + 3, stream=2, venue="Y"), trade(2, TUESDAY_NS - 1, stream=4, venue="Y")]
    trades = pa.Table.from_pylist([*sold, trade(3, TUESDAY_NS + 6, stream=4, venue="Y")], SCHEMA)
    found = {
        (row.stream, row.seq): (row.quote_stream, row.quote_seq)
        for row in as_of(spark.createDataFrame(trades), spark.createDataFrame(quotes)).collect()
    }
    assert found == {(2, 2): (2, 1), (4, 2): (None, None), (4, 3): (3, 2)}


@pytest.mark.spec("DAY-8")
def test_a_corrected_trade_keeps_its_trading_hours_in_the_day(spark: Any) -> None:
    """The correction is printed outside of those hours, with a mark."""
    extended = 2
    trades = pa.Table.from_pylist(
        [
            trade(1, MONDAY_NS, price=Decimal(10), quantity=5, conditions=extended),
            trade(2, MONDAY_NS + 1, price=Decimal(20), quantity=7),
            trade(3, MONDAY_NS + 2, trade_id=1, action="correct", price=Decimal(11), quantity=6),
            trade(4, MONDAY_NS + 3, trade_id=2, action="correct", price=Decimal(21), quantity=8, conditions=extended),
        ],
        SCHEMA,
    )
    [row] = run(spark, Day(), [{"trade": trades}])["day"]
    assert (row["open"], row["close"], row["volume"], row["trade_count"]) == (21, 21, 8, 1)
    assert (row["extended_close"], row["extended_volume"], row["extended_trade_count"]) == (11, 6, 1)
