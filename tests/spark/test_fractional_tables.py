"""Derived tables of venues with fractional trades: the same as those of whole quantities, and exact below one."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import with_text
from penstock.spark.feedslices import Conversion
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.derive import DERIVATIONS, Fractional, TimeBars, volume_bars
from penstock.spark.pipeline.derive.fractional import UNITS
from penstock.spark.pipeline.runner import run
from penstock.spark.pipeline.sources.capture import FeedSource
from spark.pipeline_kit import DAY, Silent, write_feed

TIME = 1_700_000_000_000_000_000
SOME = ("bar_volume", "trade_quote", "bbo", "day")
"""A derivation with a parameter in units, one that joins two tables, one per venue and one per session."""
ALL = tuple(each.name for each in DERIVATIONS if not isinstance(each, Fractional))
ENVELOPE = {"model", "captured", "payload"}


def rows_of(spark: Any, archive: Archive, table: str) -> list[dict[str, Any]]:
    files = [str(archive.path / file.path) for file in archive.files(table)]
    rows = [row.asDict(recursive=True) for row in spark.read.parquet(*files).collect()]
    rows = [{name: value for name, value in row.items() if name not in ENVELOPE} for row in rows]
    return sorted(rows, key=lambda row: (row["event_time"], row.get("seq") or row.get("first_seq")))


@pytest.mark.spec("DAY-9", "PIPE-5")
@pytest.mark.parametrize("names", [pytest.param(SOME, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.soak)])
def test_every_derived_table_has_the_same_values_as_that_of_whole_quantities(
    spark: Any, tmp_path: Path, names: tuple[str, ...]
) -> None:
    chosen = [each for each in DERIVATIONS if each.name.removesuffix("_8") in names]
    tables = ["trade", "quote", *(table for each in chosen if each.name in names for table in each.tables)]
    path = tmp_path / "day.itch"
    write_feed(path, 2_000)
    whole, fractions = Archive.writing(tmp_path / "whole"), Archive.writing(tmp_path / "fractions")
    same = tuple(Fractional(volume_bars(10_000 * UNITS)) if each.name == "bar_volume_8" else each for each in chosen)
    with whole as archive:
        conversion = Conversion("itch", trading_date=DAY.isoformat())
        run(spark, archive, [FeedSource(path, conversion)], chosen, Silent(), cores=2)
        assert not any(table.endswith("_8") for table in archive.catalogue.schemas), "no table is derived without input"
        expected = {table: rows_of(spark, archive, table) for table in tables}
    with fractions as archive:
        conversion = Conversion("itch", trading_date=DAY.isoformat(), quantity_decimals=8)
        run(spark, archive, [FeedSource(path, conversion)], same, Silent(), cores=2)
        for table in tables:
            got = rows_of(spark, archive, f"{table}_8")
            assert len(got) > 5, table
            assert _valued(got) == _valued(expected[table]), table
        assert "`quantity` DECIMAL(18,8)" in archive.catalogue.schemas["trade_8"]
        assert "volume DECIMAL(20,8)" in archive.catalogue.schemas["bar_volume_8"]


def _valued(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An order that depends on values only: a decimal equals an integer, but its text differs."""
    return sorted(rows, key=lambda row: tuple((name, _key(value)) for name, value in sorted(row.items())))


def _key(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}={_key(each)}" for name, each in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_key, value)) + "]"
    return f"{Decimal(value):.16f}" if isinstance(value, int | Decimal) else str(value)


@pytest.mark.spec("DAY-9")
def test_fractions_add_up_exactly_in_bars_and_days(spark: Any, tmp_path: Path) -> None:
    sizes = ["0.0046", "0.00000001", "1.25869", "0.1", "0.2"]
    lines = [f"trade,{TIME + number},BTCUSDT,61837.6{number},{size},{number}" for number, size in enumerate(sizes)]
    lines.append(f"quote,{TIME + 9},BTCUSDT,61685.99,1.25869,61686.00,2.44807")
    path = tmp_path / "ticks.csv"
    path.write_text("\n".join(lines) + "\n")
    with Archive.writing(tmp_path / "archive") as archive:
        conversion = Conversion("csv-ticks", quantity_decimals=8)
        derivations = [each for each in DERIVATIONS if each.name in ("bar_time_8", "bbo_8", "day_8")]
        report = run(spark, archive, [FeedSource(path, conversion)], derivations, Silent(), cores=1)
        assert report.account.is_balanced
        assert report.account.quarantined == {}
        total = sum(map(Decimal, sizes))
        turnover = sum(Decimal(f"61837.6{number}") * Decimal(size) for number, size in enumerate(sizes))
        (bar,) = rows_of(spark, archive, "bar_time_8")
        (day,) = rows_of(spark, archive, "day_8")
        for row in (bar, day):
            assert (row["volume"], row["turnover"], row["trade_count"]) == (total, turnover, 5)
            assert row["vwap"] == (turnover / total).quantize(Decimal("0.00000001"))
        (bbo,) = rows_of(spark, archive, "bbo_8")
        assert (bbo["bid_size"], bbo["ask_size"]) == (Decimal("1.25869"), Decimal("2.44807"))
        trades = rows_of(spark, archive, "trade_8")
        assert [row["quantity"] for row in trades] == [Decimal(size) for size in sizes]


@pytest.mark.spec("DAY-9")
def test_text_has_the_decimals_of_the_instrument_and_numbers_those_of_the_model(spark: Any, tmp_path: Path) -> None:
    lines = [
        f"define,{TIME},BTC,,3,8",
        f"define,{TIME + 1},SHIB,,8,0",
        f"trade,{TIME + 2},BTC,61837.50,0.0046,1",
        f"trade,{TIME + 3},SHIB,0.00001234,5000000,2",
        f"trade,{TIME + 4},SHIB,0.5,0.25,3",
        f"trade,{TIME + 5},AAPL,190.25,100,4",
        f"define,{TIME + 6},BTC,,2,8",
    ]
    path = tmp_path / "ticks.csv"
    path.write_text("\n".join(lines) + "\n")
    with Archive.writing(tmp_path / "archive") as archive:
        conversion = Conversion("csv-ticks", quantity_decimals=8)
        report = run(spark, archive, [FeedSource(path, conversion)], [], Silent(), cores=1)
        assert report.account.is_balanced
        frames = {
            table: spark.read.parquet(*(str(archive.path / file.path) for file in archive.files(table)))
            for table in ("trade_8", "instrument")
        }
        shown = with_text(frames["trade_8"], frames["instrument"], prices=["price"], quantities=["quantity"])
        rows = shown.orderBy("event_time").collect()
    assert [(row["price_text"], row["quantity_text"]) for row in rows] == [
        ("61837.50", "0.00460000"),
        ("0.00001234", "5000000"),
        ("0.50000000", "0.25"),
        ("190.25000000", "100.00000000"),
    ]
    assert [row["quantity"] for row in rows] == [Decimal(each) for each in ("0.0046", "5000000", "0.25", "100")]
    assert [Decimal(row["quantity_text"]) for row in rows] == [row["quantity"] for row in rows]


def test_a_fractional_derivation_is_named_after_the_one_that_it_runs() -> None:
    made = Fractional(TimeBars())
    assert (made.name, made.tables, made.needs) == ("bar_time_8", ("bar_time_8",), ("trade_8",))
