"""The best bid and offer across venues: one row per change, computed when the day ends.

Quotes of all streams are ordered by time, then by stream and number. A quote is valid until its venue quotes again or
its session ends (lifetimes.py). Among venues with the same price, the one with the larger size is named, then the first
by name.
"""

from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from penstock.spark.pipeline.derive import trades as t
from penstock.spark.pipeline.derive.lifetimes import with_lifetimes
from penstock.spark.pipeline.derive.protocol import Output, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

BBO_COLUMNS = """stream INT, seq BIGINT, event_time BIGINT, symbol STRING, bid_price DECIMAL(18,8), bid_size BIGINT,
    bid_venue STRING, bid_venues INT, ask_price DECIMAL(18,8), ask_size BIGINT, ask_venue STRING, ask_venues INT"""
SIDES = ("bid", "ask")


class BestBidOffer(msgspec.Struct, frozen=True):
    """The derivation. It returns the rows of a day when all sessions of the day have ended, because streams progress
    independently.
    """

    name: str = "bbo"
    is_across_streams: bool = True
    tables: tuple[str, ...] = ("bbo",)
    needs: tuple[str, ...] = ("quote",)

    def step(self, step: Step) -> list[Output]:
        rows = step.new["quote"]
        if step.is_ending:
            rows = rows.unionByName(step.before["quote"], allowMissingColumns=True)
            rows = t.with_ended(t.with_session(rows, step), step).where("ended").drop("ended")
        else:
            rows = t.with_session(rows.limit(0), step)
        return [Output({"bbo": BBO_COLUMNS}, best(rows))]


def best(quotes: "DataFrame") -> "DataFrame":
    """Compute the best bid and offer from quotes with `session` and `place`.

    `stream` and `seq` belong to the quote that changed the best; sizes are totals of all venues at the best price.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    in_order = Window.partitionBy("symbol", "day").orderBy("event_time", "stream", "place")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    rows, slots = with_lifetimes(quotes)
    columns = {}
    for side in SIDES:
        said = f.struct(f"{side}_price", f"{side}_size", "venue", "until")
        last = [f.last(f.when(f.col("slot") == slot, said), ignorenulls=True).over(so_far) for slot in range(slots)]
        columns[f"{side}_all"] = f.array(*last) if last else f.array(f.lit(None).cast(_SAID.format(side=side)))
    found = rows.withColumns(columns).withColumns({side: _best(side) for side in SIDES})
    values = [f.col(f"{side}.{what}").alias(f"{side}_{what}") for side in SIDES for what in _WHAT]
    changed = reduce(lambda a, b: a | b, (_has_changed(side, in_order) for side in SIDES))
    is_first = f.row_number().over(in_order) == 1
    kept = found.withColumn("is_new", changed | is_first).where("is_new")
    return kept.select("stream", "seq", "event_time", "symbol", *values)


_SAID = "struct<{side}_price: decimal(18,8), {side}_size: bigint, venue: string, until: bigint>"
_WHAT = ("price", "size", "venue", "venues")


def _has_changed(side: str, in_order: "WindowSpec") -> "Column":
    from pyspark.sql import functions as f

    return ~f.col(side).eqNullSafe(f.lag(side).over(in_order))


def _best(side: str) -> "Column":
    """Return the best price, the total size at that price, the named venue, and the number of venues."""
    from pyspark.sql import functions as f

    price, size = f"{side}_price", f"{side}_size"
    there = f.filter(f"{side}_all", lambda said: (said["until"] > f.col("event_time")) & said[price].isNotNull())
    pick = f.array_max if side == "bid" else f.array_min
    top = pick(f.transform(there, lambda said: said[price]))
    at_top = f.filter(there, lambda said: said[price] == top)
    largest = f.array_max(f.transform(at_top, lambda said: said[size]))
    named = f.array_min(f.transform(f.filter(at_top, lambda said: said[size] == largest), lambda said: said["venue"]))
    total = f.aggregate(at_top, f.lit(0).cast("bigint"), lambda sum_, said: sum_ + said[size])
    return f.struct(
        top.alias("price"), total.alias("size"), named.alias("venue"), f.size(at_top).cast("int").alias("venues")
    )
