"""Trades with the quote that was valid when they happened.

`TradeQuote` takes the quotes of the trade's own stream, by their numbers: the last quote of the instrument with a lower
number. Clocks do not matter. `as_of` takes quotes of any streams, by time: the last one that is not later.
"""

import re
from typing import TYPE_CHECKING

import msgspec

from penstock.spark.pipeline.derive import trades as t
from penstock.spark.pipeline.derive.protocol import CARRIED, Output, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUOTE_VALUES = """quote_seq BIGINT, quote_time BIGINT, bid_price DECIMAL(18,8), bid_size BIGINT,
    ask_price DECIMAL(18,8), ask_size BIGINT"""
TRADE_VALUES = """stream INT, seq BIGINT, event_time BIGINT, symbol STRING, venue STRING, trade_id BIGINT,
    action STRING, price DECIMAL(18,8), quantity BIGINT, aggressor STRING, conditions INT"""
QUOTE_NAMES = re.findall(r"(\w+) [A-Z]", QUOTE_VALUES)
TRADE_NAMES = re.findall(r"(\w+) [A-Z]", TRADE_VALUES)
TRADE_QUOTE_COLUMNS = f"{TRADE_VALUES}, {QUOTE_VALUES}, quote_stream INT"
LAST_COLUMNS = f"stream INT, symbol STRING, venue STRING, {QUOTE_VALUES}"


class TradeQuote(msgspec.Struct, frozen=True):
    """The derivation: a row per row of the table `trade`, with what was quoted before it in its stream."""

    name: str = "trade_quote"
    tables: tuple[str, ...] = ("trade_quote",)
    needs: tuple[str, ...] = ("trade", "quote")

    def step(self, step: Step) -> list[Output]:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        quotes = _quotes(step.new["quote"])
        if step.carried is not None:
            carried = step.carried.select(
                *t.INSTRUMENT, f.lit(-1).cast("bigint").alias("place"), f.struct(*QUOTE_NAMES, "stream").alias("quote")
            )
            quotes = quotes.union(carried)
        joined = _valid(_trades(step.new["trade"]), quotes, [*t.INSTRUMENT], ["place"])
        outputs = [Output({self.name: TRADE_QUOTE_COLUMNS}, joined)]
        if step.is_final:
            return outputs
        newest = Window.partitionBy(*t.INSTRUMENT).orderBy(f.desc("place"))
        last = quotes.withColumn("rank", f.row_number().over(newest)).where("rank = 1")
        last = last.select(*t.INSTRUMENT, *(f.col(f"quote.{name}").alias(name) for name in QUOTE_NAMES))
        return [*outputs, Output({CARRIED: LAST_COLUMNS}, last)]


def as_of(trades: "DataFrame", quotes: "DataFrame") -> "DataFrame":
    """Rows of the table `trade` with the last quote of their symbol, of any stream, whose time is not later.

    Of quotes of the same time, the one of the higher stream counts, then the one of the higher number.
    """
    from pyspark.sql import functions as f

    timed = _quotes(quotes).withColumn("at", f.col("quote.quote_time")).drop("venue")
    return _valid(_trades(trades).withColumn("at", f.col("event_time")), timed, ["symbol"], ["at", "stream", "place"])


def _trades(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return rows.withColumns({"place": t.place(rows), "conditions": f.col("conditions").cast("int")}).select(
        *TRADE_NAMES, "place"
    )


def _quotes(rows: "DataFrame") -> "DataFrame":
    """Instrument, place, and what the quote says."""
    from pyspark.sql import functions as f

    named = rows.withColumns({"quote_seq": f.col("seq"), "quote_time": f.col("event_time"), "place": t.place(rows)})
    return named.select(*t.INSTRUMENT, "place", f.struct(*QUOTE_NAMES, "stream").alias("quote"))


def _valid(trades: "DataFrame", quotes: "DataFrame", keys: list[str], order: list[str]) -> "DataFrame":
    """Each trade with the last quote that is not behind it; at the same place in the order, quotes are first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    both = trades.withColumn("is_trade", f.lit(1)).unionByName(
        quotes.withColumn("is_trade", f.lit(0)), allowMissingColumns=True
    )
    first, *others = order
    before = Window.partitionBy(*keys).orderBy(first, "is_trade", *others)
    last = f.last("quote", ignorenulls=True).over(before.rowsBetween(Window.unboundedPreceding, 0))
    valid = both.withColumn("valid", last).where("is_trade = 1")
    values = [f.col(f"valid.{name}").alias(name) for name in QUOTE_NAMES]
    return valid.select(*TRADE_NAMES, *values, f.col("valid.stream").alias("quote_stream"))
