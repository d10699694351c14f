"""What trades count for: their order, marks, corrections, cancellations and lateness. Bars and the day begin here.

A trade is a row of the table `trade` with the action `trade`. A correction or cancellation is for the newest trade of
its `trade_id` before it, in its stream, symbol and venue. What is not found, or was cancelled before, is left out.
"""

import re
from typing import TYPE_CHECKING

from penstock.convert._units import TRADE_NOT_HIGH_LOW, TRADE_NOT_LAST, TRADE_NOT_VOLUME
from penstock.wire.term import LINEAGE_SHIFT, SESSION_TAG_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

INSTRUMENT = ("stream", "symbol", "venue")
TRADE_COLUMNS = """stream INT, symbol STRING, venue STRING, session INT, place BIGINT, event_time BIGINT,
    trade_id BIGINT, action STRING, price DECIMAL(18,8), quantity BIGINT, conditions INT"""
TRADE_NAMES = re.findall(r"(\w+) [A-Z]", TRADE_COLUMNS)

SEQ_BITS = 40
"""A message's place in its stream is one number: its lineage, and below that its sequence number."""

BLOCK_BITS = 16
"""Places that are looked at together, to find the newest time before each: blocks first, then within blocks."""

STATISTICS = """open DECIMAL(18,8), high DECIMAL(18,8), low DECIMAL(18,8), close DECIMAL(18,8), volume BIGINT,
    turnover DECIMAL(38,8), vwap DECIMAL(18,8), trade_count BIGINT"""


def place(rows: "DataFrame") -> "Column":
    """By which the messages of a stream are sorted."""
    from pyspark.sql import functions as f

    if "term" not in rows.columns:
        return f.col("seq")
    return f.shiftleft(f.shiftright(f.col("term"), LINEAGE_SHIFT), SEQ_BITS) + f.col("seq")


def seq_of(column: "Column") -> "Column":
    return column.bitwiseAND(2**SEQ_BITS - 1)


def narrow(rows: "DataFrame") -> "DataFrame":
    """Rows of the table `trade` with just the columns that are needed."""
    from pyspark.sql import functions as f

    session = (
        f.shiftright(f.col("origin").bitwiseAND(0xFFFF), SESSION_TAG_SHIFT) if "origin" in rows.columns else f.lit(0)
    )
    known = rows.withColumns({"session": session.cast("int"), "place": place(rows)})
    return known.select(
        *(name for name in TRADE_NAMES if name not in ("price", "conditions")),
        f.col("price").cast("decimal(18,8)").alias("price"),
        f.col("conditions").cast("int").alias("conditions"),
    ).select(*TRADE_NAMES)


# Late rows


def with_late(rows: "DataFrame", lateness_ns: int) -> "DataFrame":
    """`is_late`: the row is older than the newest row before it in its stream by more than the lateness."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    blocks = rows.withColumn("block", f.shiftright("place", BLOCK_BITS))
    before = Window.partitionBy("stream").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    newest_before = (
        blocks.groupBy("stream", "block")
        .agg(f.max("event_time").alias("newest"))
        .withColumn("newest_before", f.max("newest").over(before))
        .drop("newest")
    )
    within = Window.partitionBy("stream", "block").orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    latest = f.greatest(f.max("event_time").over(within), f.col("newest_before"))
    return (
        blocks.join(f.broadcast(newest_before), ["stream", "block"])
        .withColumn("is_late", f.coalesce(f.col("event_time") < latest - lateness_ns, f.lit(False)))
        .drop("block", "newest_before")
    )


# Corrections and cancellations


def with_life(rows: "DataFrame") -> "DataFrame":
    """`life`: which trade of its id a row is, or is about; an id may be used again."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    same_id = Window.partitionBy(*INSTRUMENT, "session", "trade_id").orderBy("place")
    return rows.withColumn("life", f.count_if(f.col("action") == "trade").over(same_id))


LIFE = (*INSTRUMENT, "session", "trade_id", "life")


def altered(trades: "DataFrame", alterations: "DataFrame") -> "DataFrame":
    """Trades (with `life`) as these corrections and cancellations make them; cancelled ones are left out."""
    from pyspark.sql import functions as f

    values = ("price", "quantity", "conditions")
    is_correction = f.col("action") == "correct"
    ends = alterations.groupBy(*LIFE).agg(
        f.max_by(f.when(is_correction, f.struct(*values)), f.when(is_correction, f.col("place"))).alias("corrected"),
        f.bool_or(f.col("action") == "cancel").alias("is_cancelled"),
    )
    joined = trades.join(ends, list(LIFE), "left").where("not coalesce(is_cancelled, false)")
    return joined.withColumns({name: f.coalesce(f.col(f"corrected.{name}"), f.col(name)) for name in values}).drop(
        "corrected", "is_cancelled"
    )


# Values


def counts_for(mark: int) -> "Column":
    from pyspark.sql import functions as f

    return f.col("conditions").bitwiseAND(mark) == 0


def volume() -> "Column":
    """What a trade adds to the volume."""
    from pyspark.sql import functions as f

    return f.when(counts_for(TRADE_NOT_VOLUME), f.col("quantity")).otherwise(0)


def one() -> "Column":
    """What a trade adds to the number of trades."""
    return counts_for(TRADE_NOT_VOLUME).cast("bigint")


def statistics() -> "list[Column]":
    """The columns of STATISTICS: what the trades of a group come to. The marks say what a trade leaves alone."""
    from pyspark.sql import functions as f

    def marked(column: str, mark: int) -> "Column":
        return f.when(counts_for(mark), f.col(column))

    price, at = marked("price", TRADE_NOT_LAST), marked("place", TRADE_NOT_LAST)
    amount = f.col("price").cast("decimal(18,8)") * f.col("quantity").cast("decimal(19,0)")
    turnover = f.sum(f.when(counts_for(TRADE_NOT_VOLUME), amount.cast("decimal(28,8)"))).cast("decimal(38,8)")
    shares = f.sum(volume())
    return [
        f.min_by(price, at).alias("open"),
        f.max(marked("price", TRADE_NOT_HIGH_LOW)).alias("high"),
        f.min(marked("price", TRADE_NOT_HIGH_LOW)).alias("low"),
        f.max_by(price, at).alias("close"),
        f.coalesce(shares, f.lit(0)).alias("volume"),
        f.coalesce(turnover, f.lit(0).cast("decimal(38,8)")).alias("turnover"),
        f.when(shares > 0, (turnover / shares.cast("decimal(19,0)")).cast("decimal(18,8)")).alias("vwap"),
        f.count_if(counts_for(TRADE_NOT_VOLUME)).alias("trade_count"),
    ]
