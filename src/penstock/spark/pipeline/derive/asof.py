"""Trades joined with the quote that was valid at the time of the trade.

`TradeQuote` uses quotes of the trade's own stream and session, by number: the last quote of the instrument with a lower
number. Clocks do not matter. `as_of` uses quotes of any stream, by time: the last earlier quote that is still valid.
Among quotes with the same time as the trade, only those with a lower number in the trade's own stream are earlier: the
trade itself may have caused a quote with a higher number, and numbers of other streams are not comparable.
"""

import re
from typing import TYPE_CHECKING

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError
from penstock.spark.pipeline.derive import trades as t
from penstock.spark.pipeline.derive.lifetimes import with_lifetimes
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
LAST_COLUMNS = f"stream INT, symbol STRING, venue STRING, session BIGINT, {QUOTE_VALUES}"
OWN = (*t.INSTRUMENT, "session")
"""Common columns of a trade and the quote of its own stream."""

AGE_MAX_NS = 6 * 3_600 * NS_PER_SECOND
"""Default maximum age of a quote at the time of the trade."""


class TradeQuote(msgspec.Struct, frozen=True):
    """The derivation: one row per row of the table `trade`, with the quote before the trade in the same stream."""

    name: str = "trade_quote"
    tables: tuple[str, ...] = ("trade_quote",)
    needs: tuple[str, ...] = ("trade", "quote")

    def step(self, step: Step) -> list[Output]:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        quotes = _quotes(t.with_session(step.new["quote"], step))
        if step.carried is not None:
            carried = step.carried.select(
                *OWN, f.lit(-1).cast("bigint").alias("place"), f.struct(*QUOTE_NAMES, "stream").alias("quote")
            )
            quotes = quotes.union(carried)
        joined = _last_before(_trades(t.with_session(step.new["trade"], step)), quotes)
        newest = Window.partitionBy(*OWN).orderBy(f.desc("place"))
        last = t.with_ended(quotes, step).where("not ended").withColumn("rank", f.row_number().over(newest))
        last = last.where("rank = 1").select(*OWN, *(f.col(f"quote.{name}").alias(name) for name in QUOTE_NAMES))
        return [Output({self.name: TRADE_QUOTE_COLUMNS}, joined), Output({CARRIED: LAST_COLUMNS}, last)]


def as_of(
    trades: "DataFrame", quotes: "DataFrame", *, age_max_ns: int = AGE_MAX_NS, is_across_sessions: bool = False
) -> "DataFrame":
    """Join rows of the table `trade` with the last earlier quote of their symbol, of any stream and venue.

    A quote with the trade's own time is earlier if it has a lower number in the same stream. A quote is valid while its
    session lasts (lifetimes.py), and for at most `age_max_ns`; `is_across_sessions` disables the first bound. Among
    quotes with the same time, the higher stream counts, then the higher number.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if age_max_ns <= 0:
        raise ConfigurationError(f"invalid maximum age {age_max_ns} ns of a quote", hint="age_max_ns must be positive")
    timed, slots = with_lifetimes(_in_sessions(quotes))
    if is_across_sessions:
        timed, slots = timed.withColumns({"slot": f.lit(0), "until": f.lit(t.NEVER)}), 1
    timed = timed.withColumns({"quote_seq": f.col("seq"), "quote_time": f.col("event_time")})
    order = (f.col(name) for name in ("quote_time", "stream", "place"))  # of the candidates; the greatest is taken
    said = f.struct(*order, "session", "until", *(name for name in QUOTE_NAMES if name != "quote_time"))
    timed = timed.select(
        "symbol", "stream", "session", "place", "slot", f.col("event_time").alias("at"), said.alias("quote")
    )
    sold = _trades(_in_sessions(trades)).withColumn("at", f.col("event_time"))
    both = sold.withColumn("is_quote", f.lit(0)).unionByName(
        timed.withColumn("is_quote", f.lit(1)), allowMissingColumns=True
    )
    by_time = Window.partitionBy("symbol").orderBy("at", "is_quote", "stream", "place")
    before = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    others = [
        f.last(f.when(f.col("slot") == slot, f.col("quote")), ignorenulls=True).over(before) for slot in range(slots)
    ]
    own_keys = ["symbol", "stream"] if is_across_sessions else ["symbol", "stream", "session"]
    own_order = Window.partitionBy(*own_keys).orderBy("at", "place", f.desc("is_quote"))
    own = f.last("quote", ignorenulls=True).over(own_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    found = both.withColumns({"own": own, "others": f.array(*others) if others else f.array(own)}).where("is_quote = 0")
    standing = f.filter("others", lambda quote: quote["until"] > f.col("at"))
    candidates = f.filter(
        f.concat(standing, f.array("own")), lambda quote: quote["quote_time"] >= f.col("at") - age_max_ns
    )
    return _with_quote(found.withColumn("valid", f.array_max(candidates)))


def _in_sessions(rows: "DataFrame") -> "DataFrame":
    """Add the session from the tags of the rows."""
    return t.with_session(rows, Step(new={}, before={}))


def _trades(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return rows.withColumn("conditions", f.col("conditions").cast("int")).select(*TRADE_NAMES, "session", "place")


def _quotes(rows: "DataFrame") -> "DataFrame":
    """Select instrument and session, position, and the quote's values."""
    from pyspark.sql import functions as f

    named = rows.withColumns({"quote_seq": f.col("seq"), "quote_time": f.col("event_time")})
    return named.select(*OWN, "place", f.struct(*QUOTE_NAMES, "stream").alias("quote"))


def _last_before(trades: "DataFrame", quotes: "DataFrame") -> "DataFrame":
    """Join each trade with the last quote of its instrument and session that has a lower position."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    both = trades.withColumn("is_trade", f.lit(1)).unionByName(
        quotes.withColumn("is_trade", f.lit(0)), allowMissingColumns=True
    )
    before = Window.partitionBy(*OWN).orderBy("place").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    last = f.last("quote", ignorenulls=True).over(before)
    return _with_quote(both.withColumn("valid", last).where("is_trade = 1"))


def _with_quote(trades: "DataFrame") -> "DataFrame":
    """Select the columns TRADE_QUOTE_COLUMNS; `valid` is the quote, or null."""
    from pyspark.sql import functions as f

    values = [f.col(f"valid.{name}").alias(name) for name in QUOTE_NAMES]
    return trades.select(*TRADE_NAMES, *values, f.col("valid.stream").alias("quote_stream"))
