"""Bars of trades: by time, by volume, by number of trades.

A bar is written once when it is complete (revision 0). If one of its trades is corrected or cancelled later, the final
bar is written when its session ends (revision 1). The rows and their order alone decide when a bar is complete and
which trades it has, never the way the rows are cut into steps.
"""

import re
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
NEWEST_COLUMNS = "stream INT, session BIGINT, newest BIGINT"
OPEN_COLUMNS = f"{t.TRADE_COLUMNS}, total BIGINT"
BAR = (*t.INSTRUMENT, "session", "bar")


class TimeBars(msgspec.Struct, frozen=True):
    """Bars of a fixed width in nanoseconds. A bar is complete when a row of its session is later than the bar's end by
    `lateness`, or when the session ends; a trade that arrives later is late and belongs to no bar.
    """

    width_ns: int = 60 * SECOND_NS
    lateness_ns: int = 10 * SECOND_NS
    name: str = "bar_time"
    needs: tuple[str, ...] = ("trade",)

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.name,)

    def step(self, step: Step) -> list[Output]:
        from pyspark.sql import functions as f

        new, before = t.narrow(step.new["trade"], step), t.narrow(step.before["trade"], step)
        newest = new.groupBy(*t.SESSION).agg(f.max("event_time").alias("newest"))
        rows = new
        if step.carried is not None:
            newest = newest.union(step.carried).groupBy(*t.SESSION).agg(f.max("newest").alias("newest"))
            rows = self._may_be_open(before, step.carried).union(new)
        known = t.with_ended(newest, step)
        made = self._bars(rows, step.carried, known)
        if step.carried is not None and step.is_ending:
            whole = t.with_ended(before.union(new), step).where("ended").drop("ended")
            made = _with_revisions(made, self._bars(whole, None, known))
        return _outputs(self.name, step, made, known.where("not ended").drop("ended"), NEWEST_COLUMNS)

    def _may_be_open(self, before: "DataFrame", newest: "DataFrame") -> "DataFrame":
        """Return earlier rows that may belong to bars that were not complete; older rows cannot make a row late."""
        from pyspark.sql import functions as f

        oldest = f.col("newest") - (self.lateness_ns + self.width_ns)
        rows = before.join(f.broadcast(newest), [*t.SESSION]).where(f.col("event_time") > oldest)
        return rows.select(*t.TRADE_NAMES)

    def _bars(self, rows: "DataFrame", newest_before: "DataFrame | None", newest: "DataFrame") -> "DataFrame":
        """Return the bars of these rows that are complete now but were not complete with the earlier newest rows."""
        from pyspark.sql import functions as f

        dated = t.with_late(rows, self.lateness_ns).withColumn("bar", self._start(f.col("event_time")))
        trades = t.with_alterations(dated, ("is_late", "bar")).where("not is_late")
        trades = trades.join(f.broadcast(newest), [*t.SESSION])
        trades = trades.where(f.col("ended") | (self._done() <= f.col("newest"))).drop("newest", "ended")
        if newest_before is not None:
            was = f.coalesce(f.col("newest"), f.lit(-t.NEVER))
            trades = trades.join(f.broadcast(newest_before), [*t.SESSION], "left").where(self._done() > was)
        completed = f.broadcast(self._completed(rows))
        made = bars_of(trades.join(completed, [*t.SESSION, "bar"], "left"))
        return made.withColumns({"event_time": f.col("bar"), "end_time": f.col("bar") + self.width_ns}).select(
            *BAR_NAMES, "session"
        )

    def _start(self, time: "Column") -> "Column":
        from pyspark.sql import functions as f

        return time - f.pmod(time, f.lit(self.width_ns))

    def _done(self) -> "Column":
        """Return the time of a row that completes a bar."""
        from pyspark.sql import functions as f

        return f.col("bar") + (self.width_ns + self.lateness_ns)

    def _completed(self, rows: "DataFrame") -> "DataFrame":
        """Return each session's bars with the position of the row that completed them."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        # A row completes all bars up to one given by its time; a bar is completed by the first row that reaches it.
        reached = self._start(f.col("event_time") - self.lateness_ns) - self.width_ns
        first = rows.groupBy(*t.SESSION, reached.alias("bar")).agg(f.min("place").alias("first"))
        none = f.lit(None).cast("bigint").alias("first")
        bars = rows.select(*t.SESSION, self._start(f.col("event_time")).alias("bar"), none).distinct()
        later = Window.partitionBy(*t.SESSION).orderBy(f.desc("bar"), f.col("first").desc_nulls_last())
        so_far = later.rowsBetween(Window.unboundedPreceding, 0)
        both = first.union(bars).withColumn("completed", f.min("first").over(so_far))
        return both.where("first is null").select(*t.SESSION, "bar", "completed")


class CountedBars(msgspec.Struct, frozen=True):
    """Bars of a fixed volume, or of a fixed number of trades. The trade that reaches the size completes the bar and
    belongs wholly to it.

    Corrections do not move trades between bars: the original values decide.
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

        unknown = f.lit(None).cast("bigint")
        new, before = t.narrow(step.new["trade"], step), t.narrow(step.before["trade"], step)
        rows = new.withColumn("total", unknown)
        counted = self._counted(rows if step.carried is None else rows.union(step.carried))
        counted = t.with_ended(counted, step)
        made = self._bars(counted)
        if step.carried is not None and step.is_ending:
            whole = t.with_ended(before.union(new).withColumn("total", unknown), step).where("ended").drop("ended")
            made = _with_revisions(made, self._bars(self._counted(whole).withColumn("ended", f.lit(True))))
        return _outputs(self.name, step, made, self._left_open(counted.where("not ended")), OPEN_COLUMNS)

    def _counted(self, rows: "DataFrame") -> "DataFrame":
        """Add the total before a row, its bar, whether that bar was written before, and the position that completed
        it.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        instrument = Window.partitionBy(*t.INSTRUMENT, "session")
        before = instrument.orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
        first = f.coalesce(f.min("total").over(instrument), f.lit(0))
        total = first + f.coalesce(f.sum(self._amount()).over(before), f.lit(0))
        counted = rows.withColumn("is_carried", f.col("total").isNotNull()).withColumn("total", total)
        counted = counted.withColumn("bar", f.floor(f.col("total") / self.size).cast("bigint"))
        fills = (f.col("action") == "trade") & (f.col("total") + self._amount() >= (f.col("bar") + 1) * self.size)
        bar = Window.partitionBy(*BAR)
        return counted.withColumns(
            {
                "completed": f.max(f.when(fills, f.col("place"))).over(bar),
                "is_written": f.coalesce(f.max(fills & f.col("is_carried")).over(bar), f.lit(False)),
            }
        )

    def _amount(self) -> "Column":
        """Return the amount that a row adds to its bar."""
        from pyspark.sql import functions as f

        amount = t.volume() if self.measure == "volume" else t.one()
        return f.when(f.col("action") == "trade", amount).otherwise(0)

    def _bars(self, counted: "DataFrame") -> "DataFrame":
        trades = t.with_alterations(counted, ("bar", "completed", "is_written", "ended")).where("not is_written")
        return bars_of(trades.where("ended or completed is not null")).select(*BAR_NAMES, "session")

    def _left_open(self, counted: "DataFrame") -> "DataFrame":
        """Return the rows of each instrument's last bar, even if complete, because the next total depends on them."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        of_trade = f.when(f.col("action") == "trade", f.col("bar"))
        last = f.max(of_trade).over(Window.partitionBy(*t.INSTRUMENT, "session"))
        return counted.withColumn("last", last).where("bar >= last").select(*t.TRADE_NAMES, "total")


def volume_bars(size: int = 10_000, name: str = "bar_volume") -> CountedBars:
    return CountedBars(size, "volume", name)


def tick_bars(size: int = 100, name: str = "bar_tick") -> CountedBars:
    return CountedBars(size, "trades", name)


def bars_of(trades: "DataFrame") -> "DataFrame":
    """Return the bars of `trades`, which has the columns `alterations`, `bar` and `completed` (position that completed
    the bar, or null).
    """
    from pyspark.sql import functions as f

    completed = f.coalesce("completed", f.lit(t.NEVER))
    ours = f.filter("alterations", lambda said: said["event_time"] >= f.col("event_time"))
    known = trades.withColumn("alterations", ours).withColumns(
        {
            "now_0": t.as_altered(f.filter("alterations", lambda said: said["place"] < completed)),
            "now_1": t.as_altered(f.col("alterations")),
            "is_altered": f.exists("alterations", lambda said: said["place"] >= completed),
        }
    )
    bars = known.groupBy(*BAR).agg(
        f.bool_or("is_altered").alias("is_altered"),
        f.count("now_0").alias("count_0"),
        f.struct(*t.extent("now_0"), *t.statistics("now_0"), f.lit(0).alias("revision")).alias("first"),
        f.struct(*t.extent("now_1"), *t.statistics("now_1"), f.lit(1).alias("revision")).alias("last"),
    )
    revisions = f.array(f.when(f.col("count_0") > 0, f.col("first")), f.when(f.col("is_altered"), f.col("last")))
    each = bars.select(*BAR, f.explode(revisions).alias("one")).where("one is not null")
    return each.select(*BAR, "one.*")


def _with_revisions(made: "DataFrame", whole_day: "DataFrame") -> "DataFrame":
    """Combine the bars completed in this step with those altered in whole sessions."""
    return made.where("revision = 0").union(whole_day.where("revision = 1"))


def _outputs(name: str, step: Step, made: "DataFrame", carried: "DataFrame", columns: str) -> list[Output]:
    """Return the complete bars, final if their session has ended, and the carried rows."""
    bars = t.with_ended(made, step).where("revision = 0 or ended").select(*BAR_NAMES)
    return [Output({name: BAR_COLUMNS}, bars), Output({CARRIED: columns}, carried)]
