"""Bars of trades: by time, by volume, by number of trades.

A bar is written when it is complete, as it is then (revision 0). If one of its trades is corrected or cancelled
afterwards, it is written once more when the day ends, as it is in the end (revision 1). When a bar is complete, and
which trades are in it, is decided by the rows and their order alone, never by how they are cut into steps.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.spark.pipeline.derive import trades as t
from penstock.spark.pipeline.derive.protocol import CARRIED, Output, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SECOND_NS = 1_000_000_000
BAR_COLUMNS = f"""stream INT, symbol STRING, venue STRING, event_time BIGINT, end_time BIGINT, first_seq BIGINT,
    last_seq BIGINT, {t.STATISTICS}, revision INT"""
BAR_NAMES = re.findall(r"(\w+) [A-Z]", BAR_COLUMNS)
NEWEST_COLUMNS = "stream INT, newest BIGINT"
OPEN_COLUMNS = f"{t.TRADE_COLUMNS}, total BIGINT"
BAR = (*t.INSTRUMENT, "session", "bar")
NEVER = 2**62


class TimeBars(msgspec.Struct, frozen=True):
    """Bars of so many nanoseconds. They are complete when a row of their stream is later than their end by `lateness`;
    a trade that comes later than that is late, and in no bar."""

    width_ns: int = 60 * SECOND_NS
    lateness_ns: int = 10 * SECOND_NS
    name: str = "bar_time"
    needs: tuple[str, ...] = ("trade",)

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.name,)

    def step(self, step: Step) -> list[Output]:
        from pyspark.sql import functions as f

        new, before = t.narrow(step.new["trade"]), t.narrow(step.before["trade"])
        newest = new.groupBy("stream").agg(f.max("event_time").alias("newest"))
        if step.carried is not None:
            newest = newest.union(step.carried).groupBy("stream").agg(f.max("newest").alias("newest"))
            rows = self._may_be_open(before, step.carried).union(new)
        else:
            rows = new
        made = self._bars(rows, step.carried, newest, step.is_final)
        if step.carried is not None and step.is_final:
            made = made.where("revision = 0").union(
                self._bars(before.union(new), None, newest, True).where("revision = 1")
            )
        return _outputs(self.name, made, NEWEST_COLUMNS, newest, step.is_final)

    def _may_be_open(self, before: "DataFrame", newest: "DataFrame") -> "DataFrame":
        """Earlier rows that may be in bars which were not complete; the archive's files are pruned by their times."""
        from pyspark.sql import functions as f

        oldest = f.col("newest") - (self.lateness_ns + self.width_ns)
        rows = before.join(f.broadcast(newest), "stream").where(f.col("event_time") > oldest)
        return rows.select(*t.TRADE_NAMES)

    def _bars(
        self, rows: "DataFrame", newest_before: "DataFrame | None", newest: "DataFrame", is_final: bool
    ) -> "DataFrame":
        """Bars of these rows that are complete now and were not when the newest rows were those before."""
        from pyspark.sql import functions as f

        start = f.col("event_time") - f.pmod(f.col("event_time"), f.lit(self.width_ns))
        lived = t.with_late(t.with_life(rows), self.lateness_ns).withColumn("bar", start)
        members = lived.where("action = 'trade' and not is_late").drop("is_late")
        members = members.join(f.broadcast(newest), "stream")
        members = members.where(f.lit(is_final) | (self._done() <= f.col("newest"))).drop("newest")
        if newest_before is not None:
            was = f.coalesce(f.col("newest"), f.lit(-NEVER))
            members = (
                members.join(f.broadcast(newest_before), "stream", "left").where(self._done() > was).drop("newest")
            )
        made = bars_of(members, lived, lambda bars: self._completed(bars, rows))
        return made.withColumns({"event_time": f.col("bar"), "end_time": f.col("bar") + self.width_ns}).select(
            *BAR_NAMES
        )

    def _done(self) -> "Column":
        """The time of a row that completes a bar."""
        from pyspark.sql import functions as f

        return f.col("bar") + (self.width_ns + self.lateness_ns)

    def _completed(self, bars: "DataFrame", rows: "DataFrame") -> "DataFrame":
        """Bars with the place of the row that completed them."""
        from pyspark.sql import functions as f

        later = rows.select(f.col("stream").alias("of"), f.col("event_time").alias("at"), "place")
        joined = bars.join(later, (f.col("of") == f.col("stream")) & (f.col("at") >= self._done()), "left")
        return joined.groupBy(*BAR).agg(f.coalesce(f.min("place"), f.lit(NEVER)).alias("completed"))


class CountedBars(msgspec.Struct, frozen=True):
    """Bars of so much volume, or of so many trades. The trade that reaches it completes the bar, and is in it whole.

    Corrections do not move trades from bar to bar: what counts here is what was said of them first.
    """

    size: int
    measure: str  # "volume" or "trades"
    name: str
    needs: tuple[str, ...] = ("trade",)

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.name,)

    def step(self, step: Step) -> list[Output]:
        from pyspark.sql import functions as f

        new, before = t.narrow(step.new["trade"]), t.narrow(step.before["trade"])
        started = new.withColumn("total", f.lit(None).cast("bigint"))
        if step.carried is not None:
            started = started.union(step.carried)
        counted = self._counted(started)
        made = self._bars(counted, step.carried, step.is_final)
        if step.carried is not None and step.is_final:
            whole = self._counted(before.union(new).withColumn("total", f.lit(None).cast("bigint")))
            made = made.where("revision = 0").union(self._bars(whole, None, True).where("revision = 1"))
        return _outputs(self.name, made, OPEN_COLUMNS, self._left_open(counted), step.is_final)

    def _counted(self, rows: "DataFrame") -> "DataFrame":
        """`total`, what there was before a row in its instrument and session, and its `bar`."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        whole = Window.partitionBy(*t.INSTRUMENT, "session")
        before = whole.orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
        first = f.coalesce(f.min("total").over(whole), f.lit(0))
        total = first + f.coalesce(f.sum(self._amount()).over(before), f.lit(0))
        counted = rows.withColumn("total_now", total).drop("total").withColumnRenamed("total_now", "total")
        return counted.withColumn("bar", f.floor(f.col("total") / self.size).cast("bigint"))

    def _amount(self) -> "Column":
        """What a row counts."""
        from pyspark.sql import functions as f

        amount = t.volume() if self.measure == "volume" else t.one()
        return f.when(f.col("action") == "trade", amount).otherwise(0)

    def _fills(self) -> "Column":
        from pyspark.sql import functions as f

        return f.col("total") + self._amount() >= (f.col("bar") + 1) * self.size

    def _bars(self, counted: "DataFrame", carried: "DataFrame | None", is_final: bool) -> "DataFrame":
        from pyspark.sql import functions as f

        lived = t.with_life(counted)
        members = lived.where("action = 'trade'")
        full = members.where(self._fills()).groupBy(*BAR).agg(f.max("place").alias("completed"))
        if not is_final:
            members = members.join(full.select(*BAR), list(BAR), "left_semi")
        if carried is not None:
            bar = f.floor(f.col("total") / self.size).cast("bigint")
            done = carried.withColumn("bar", bar).where((f.col("action") == "trade") & self._fills())
            members = members.join(done.select(*BAR), list(BAR), "left_anti")
        made = bars_of(members, lived, lambda bars: _or_never(bars.join(full, list(BAR), "left")))
        return made.select(*BAR_NAMES)

    def _left_open(self, counted: "DataFrame") -> "DataFrame":
        """The rows of each instrument's last bar, be it complete: the next total follows from them."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        last = f.max(f.when(f.col("action") == "trade", f.col("bar"))).over(
            Window.partitionBy(*t.INSTRUMENT, "session")
        )
        return counted.withColumn("last", last).where("bar >= last").select(*t.TRADE_NAMES, "total")


def volume_bars(size: int = 10_000, name: str = "bar_volume") -> CountedBars:
    return CountedBars(size, "volume", name)


def tick_bars(size: int = 100, name: str = "bar_tick") -> CountedBars:
    return CountedBars(size, "trades", name)


def _or_never(bars: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return bars.withColumn("completed", f.coalesce("completed", f.lit(NEVER)))


def _outputs(name: str, made: "DataFrame", columns: str, carried: "DataFrame", is_final: bool) -> list[Output]:
    outputs = [Output({name: BAR_COLUMNS}, made)]
    return outputs if is_final else [*outputs, Output({CARRIED: columns}, carried)]


def bars_of(members: "DataFrame", lived: "DataFrame", completed: "Callable[[DataFrame], DataFrame]") -> "DataFrame":
    """Bars (with `bar`) of their members, in revision 0 and, where something was altered later, in revision 1.

    `lived` has all rows with their lives; `completed` gives bars the place of the row that completed them.
    """
    from pyspark.sql import functions as f

    values = ("place", "event_time", "action", "price", "quantity", "conditions")
    alterations = lived.where("action <> 'trade'").select(*t.LIFE, *values)
    if alterations.isEmpty():
        return _summed(members, 0)
    owners = members.select(*t.LIFE, "bar", f.col("event_time").alias("traded"))
    ours = alterations.join(owners, list(t.LIFE)).where("event_time >= traded")
    known = ours.join(completed(ours.select(*BAR).distinct()), list(BAR))
    in_time = known.where("place < completed")
    late = known.where("place >= completed").select(*BAR).distinct()
    first = _summed(t.altered(members, in_time), 0)
    again = _summed(t.altered(members.join(late, list(BAR), "left_semi"), known), 1)
    gone = late.join(again, list(BAR), "left_anti")
    return first.union(again).unionByName(_without_trades(gone, members), allowMissingColumns=True)


def _without_trades(bars: "DataFrame", members: "DataFrame") -> "DataFrame":
    """Revisions of bars whose trades were all cancelled."""
    from pyspark.sql import functions as f

    return (
        members.join(bars, list(BAR), "left_semi")
        .groupBy(*BAR)
        .agg(*_extent())
        .withColumns(
            {
                "volume": f.lit(0).cast("bigint"),
                "turnover": f.lit(0).cast("decimal(38,8)"),
                "trade_count": f.lit(0).cast("bigint"),
                "revision": f.lit(1),
            }
        )
    )


def _summed(members: "DataFrame", revision: int) -> "DataFrame":
    from pyspark.sql import functions as f

    made = members.groupBy(*BAR).agg(*_extent(), *t.statistics())
    return made.withColumn("revision", f.lit(revision))


def _extent() -> "list[Column]":
    from pyspark.sql import functions as f

    return [
        f.min("event_time").alias("event_time"),
        f.max("event_time").alias("end_time"),
        t.seq_of(f.min("place")).alias("first_seq"),
        t.seq_of(f.max("place")).alias("last_seq"),
    ]
