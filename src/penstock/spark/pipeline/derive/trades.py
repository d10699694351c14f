"""What trades count for: their order, marks, corrections, cancellations and lateness. Bars and the day begin here.

A trade is a row of the table `trade` with the action `trade`. A correction or cancellation is for the newest trade of
its `trade_id` before it, in its stream, symbol and venue. What is not found, or was cancelled before, is left out.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.convert.books._units import TRADE_EXTENDED_HOURS, TRADE_NOT_HIGH_LOW, TRADE_NOT_LAST, TRADE_NOT_VOLUME
from penstock.spark.pipeline.archive.sessiontags import SEQ_BITS
from penstock.wire.term import LINEAGE_SHIFT, SESSION_TAG_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.spark.pipeline.derive.protocol import Step

SESSION = ("stream", "session")
INSTRUMENT = ("stream", "symbol", "venue")
TRADE_COLUMNS = """stream INT, symbol STRING, venue STRING, session BIGINT, place BIGINT, event_time BIGINT,
    trade_id BIGINT, action STRING, price DECIMAL(18,8), quantity BIGINT, conditions INT"""
TRADE_NAMES = re.findall(r"(\w+) [A-Z]", TRADE_COLUMNS)

NEVER = 2**62
"""A time or place that no row has."""

BLOCK_BITS = 16
"""Places that are looked at together, to find the newest time before each: blocks first, then within blocks."""

STATISTICS = """open DECIMAL(18,8), high DECIMAL(18,8), low DECIMAL(18,8), close DECIMAL(18,8), volume BIGINT,
    turnover DECIMAL(38,8), vwap DECIMAL(18,8), trade_count BIGINT"""
EXTENDED = """extended_high DECIMAL(18,8), extended_low DECIMAL(18,8), extended_close DECIMAL(18,8),
    extended_volume BIGINT, extended_turnover DECIMAL(38,8), extended_trade_count BIGINT"""


def place(rows: "DataFrame") -> "Column":
    """By which the messages of a stream are sorted."""
    from pyspark.sql import functions as f

    if "term" not in rows.columns:
        return f.col("seq")
    return f.shiftleft(f.shiftright(f.col("term"), LINEAGE_SHIFT), SEQ_BITS) + f.col("seq")


def session(rows: "DataFrame") -> "Column":
    """The tag of the source's session, from the ORIGIN flags; 0 for rows without them."""
    from pyspark.sql import functions as f

    if "origin" not in rows.columns:
        return f.lit(0)
    return f.shiftright(f.coalesce(f.col("origin"), f.lit(0)).bitwiseAND(0xFFFF), SESSION_TAG_SHIFT).cast("int")


def seq_of(column: "Column") -> "Column":
    return column.bitwiseAND(2**SEQ_BITS - 1)


def with_session(rows: "DataFrame", step: "Step") -> "DataFrame":
    """Rows with their `place` and the number of their `session`; rows of sessions other than the step's go."""
    from pyspark.sql import functions as f

    placed = rows.withColumn("place", place(rows))
    if step.sessions is None:
        return placed.withColumn("session", session(rows).cast("bigint"))
    found = [(each.stream, each.first, each.last) for each in step.sessions]
    sessions = rows.sparkSession.createDataFrame(found, "stream INT, first BIGINT, last BIGINT").alias("s")
    is_of = (f.col("r.stream") == f.col("s.stream")) & f.col("place").between(f.col("s.first"), f.col("s.last") - 1)
    return placed.alias("r").join(f.broadcast(sessions), is_of).select("r.*", f.col("s.first").alias("session"))


def with_ended(rows: "DataFrame", step: "Step") -> "DataFrame":
    """Rows that have `stream` and `session`, with `ended`: whether the session ends with this step."""
    from pyspark.sql import functions as f

    if step.sessions is None or not step.is_ending:
        return rows.withColumn("ended", f.lit(step.is_ending))
    found = [(each.stream, each.first, True) for each in step.sessions if each.is_ended]
    ended = rows.sparkSession.createDataFrame(found, "stream INT, session BIGINT, ended BOOLEAN")
    marked = rows.join(f.broadcast(ended), list(SESSION), "left")
    return marked.withColumn("ended", f.coalesce("ended", f.lit(False))).select(*rows.columns, "ended")


def narrow(rows: "DataFrame", step: "Step") -> "DataFrame":
    """Rows of the table `trade` with just the columns that are needed."""
    from pyspark.sql import functions as f

    known = with_session(rows, step)
    return known.select(
        *(name for name in TRADE_NAMES if name not in ("price", "conditions")),
        f.col("price").cast("decimal(18,8)").alias("price"),
        f.col("conditions").cast("int").alias("conditions"),
    ).select(*TRADE_NAMES)


# Late rows


def with_late(rows: "DataFrame", lateness_ns: int) -> "DataFrame":
    """`is_late`: the row is older than the newest row before it in its session by more than the lateness."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    blocks = rows.withColumn("block", f.shiftright("place", BLOCK_BITS))
    before = Window.partitionBy(*SESSION).orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    newest_before = (
        blocks.groupBy(*SESSION, "block")
        .agg(f.max("event_time").alias("newest"))
        .withColumn("newest_before", f.max("newest").over(before))
        .drop("newest")
    )
    within = Window.partitionBy(*SESSION, "block").orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    latest = f.greatest(f.max("event_time").over(within), f.col("newest_before"))
    return (
        blocks.join(f.broadcast(newest_before), [*SESSION, "block"])
        .withColumn("is_late", f.coalesce(f.col("event_time") < latest - lateness_ns, f.lit(False)))
        .drop("block", "newest_before")
    )


# Corrections and cancellations


VALUES = ("price", "quantity", "conditions")
ALTERATION = "place BIGINT, event_time BIGINT, action STRING, price DECIMAL(18,8), quantity BIGINT, conditions INT"


def with_alterations(rows: "DataFrame", kept: "tuple[str, ...]") -> "DataFrame":
    """A row per trade: its columns, those that are `kept`, and an array of what was said of it later."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = [*TRADE_NAMES, *kept]
    if rows.where("action <> 'trade'").isEmpty():
        nothing = f.array().cast(f"ARRAY<STRUCT<{ALTERATION.replace(' ', ': ').replace(',: ', ', ')}>>")
        return rows.select(*columns).withColumn("alterations", nothing)
    of_id = (*INSTRUMENT, "session", "trade_id")
    is_trade = f.col("action") == "trade"
    # An id may be used again: a life of it begins with each trade.
    lives = rows.withColumn("life", f.count_if(is_trade).over(Window.partitionBy(*of_id).orderBy("place")))
    said = f.struct("place", "event_time", "action", *VALUES)
    found = lives.groupBy(*of_id, "life").agg(
        f.max_by(f.struct(*columns), f.when(is_trade, f.col("place"))).alias("trade"),
        f.collect_list(f.when(~is_trade, said)).alias("alterations"),
    )
    return found.where("life > 0").select("trade.*", "alterations")


def as_altered(alterations: "Column") -> "Column":
    """What these alterations make of the trade: its values, or null when it was cancelled."""
    from pyspark.sql import functions as f

    correction = f.array_max(f.filter(alterations, lambda said: said["action"] == "correct"))
    values = [_corrected(correction, name).alias(name) for name in VALUES]
    return f.when(~f.exists(alterations, lambda said: said["action"] == "cancel"), f.struct(*values))


def _corrected(correction: "Column", name: str) -> "Column":
    """The value after a correction, or the trade's own without one. A trade keeps its hours."""
    from pyspark.sql import functions as f

    said, own = correction[name], f.col(name)
    if name == "conditions":
        said = said.bitwiseAND(~TRADE_EXTENDED_HOURS).bitwiseOR(own.bitwiseAND(TRADE_EXTENDED_HOURS))
    return f.coalesce(said, own)


# Values


def counts_for(mark: int, conditions: str = "conditions") -> "Column":
    from pyspark.sql import functions as f

    return f.col(conditions).bitwiseAND(mark) == 0


def volume() -> "Column":
    """What a trade adds to the volume."""
    from pyspark.sql import functions as f

    return f.when(counts_for(TRADE_NOT_VOLUME), f.col("quantity")).otherwise(0)


def one() -> "Column":
    """What a trade adds to the number of trades."""
    return counts_for(TRADE_NOT_VOLUME).cast("bigint")


def statistics(now: str, *, regular_only: bool = False) -> "list[Column]":
    """The columns of STATISTICS: what the trades of a group come to. The marks say what a trade leaves alone.

    `now` names the column of as_altered()'s values. Trades of extended hours are left out of `regular_only`.
    """
    from pyspark.sql import functions as f

    outside = TRADE_EXTENDED_HOURS if regular_only else 0

    def of(column: str, mark: int) -> "Column":
        return f.when(counts_for(mark | outside, f"{now}.conditions"), f.col(column))

    price, at = of(f"{now}.price", TRADE_NOT_LAST), of("place", TRADE_NOT_LAST)
    quantity = of(f"{now}.quantity", TRADE_NOT_VOLUME)
    turnover = _turnover(now, quantity)
    shares = f.sum(quantity)
    return [
        f.min_by(price, at).alias("open"),
        f.max(of(f"{now}.price", TRADE_NOT_HIGH_LOW)).alias("high"),
        f.min(of(f"{now}.price", TRADE_NOT_HIGH_LOW)).alias("low"),
        f.max_by(price, at).alias("close"),
        f.coalesce(shares, f.lit(0)).alias("volume"),
        f.coalesce(turnover, f.lit(0)).cast("decimal(38,8)").alias("turnover"),
        f.when(shares > 0, turnover / shares.cast("decimal(19,0)")).cast("decimal(18,8)").alias("vwap"),
        f.count(quantity).alias("trade_count"),
    ]


def extended_statistics(now: str) -> "list[Column]":
    """The columns of EXTENDED: what the trades of extended hours come to."""
    from pyspark.sql import functions as f

    def of(column: str, mark: int) -> "Column":
        is_extended = ~counts_for(TRADE_EXTENDED_HOURS, f"{now}.conditions")
        return f.when(is_extended & counts_for(mark, f"{now}.conditions"), f.col(column))

    price, at = of(f"{now}.price", TRADE_NOT_LAST), of("place", TRADE_NOT_LAST)
    quantity = of(f"{now}.quantity", TRADE_NOT_VOLUME)
    return [
        f.max(of(f"{now}.price", TRADE_NOT_HIGH_LOW)).alias("extended_high"),
        f.min(of(f"{now}.price", TRADE_NOT_HIGH_LOW)).alias("extended_low"),
        f.max_by(price, at).alias("extended_close"),
        f.coalesce(f.sum(quantity), f.lit(0)).alias("extended_volume"),
        f.coalesce(_turnover(now, quantity), f.lit(0)).cast("decimal(38,8)").alias("extended_turnover"),
        f.count(quantity).alias("extended_trade_count"),
    ]


def _turnover(now: str, quantity: "Column") -> "Column":
    from pyspark.sql import functions as f

    return f.sum((f.col(f"{now}.price") * quantity.cast("decimal(19,0)")).cast("decimal(28,8)"))


def extent(now: str) -> "list[Column]":
    """Numbers and times of the trades that are left of a group; of all, when none is left."""
    from pyspark.sql import functions as f

    def of(function: "Callable[[Column], Column]", column: str) -> "Column":
        left = f.when(f.col(now).isNotNull(), f.col(column))
        return f.coalesce(function(left), function(f.col(column)))

    return [
        of(f.min, "event_time").alias("event_time"),
        of(f.max, "event_time").alias("end_time"),
        seq_of(of(f.min, "place")).alias("first_seq"),
        seq_of(of(f.max, "place")).alias("last_seq"),
    ]
