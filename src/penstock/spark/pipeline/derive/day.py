"""Daily statistics of trades: one row per instrument when the session ends, with corrections and cancellations applied.

The values equal those of the last `day_statistics` message that the converter publishes for the instrument.
"""

import re
from typing import TYPE_CHECKING

import msgspec

from penstock.spark.pipeline.derive import trades as t
from penstock.spark.pipeline.derive.protocol import Output, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAY_COLUMNS = f"""stream INT, symbol STRING, venue STRING, event_time BIGINT, end_time BIGINT, first_seq BIGINT,
    last_seq BIGINT, {t.STATISTICS}, {t.EXTENDED}"""


class Day(msgspec.Struct, frozen=True):
    """The derivation. It returns the rows of a session in the step in which the session ends."""

    name: str = "day"
    tables: tuple[str, ...] = ("day",)
    needs: tuple[str, ...] = ("trade",)

    def step(self, step: Step) -> list[Output]:
        rows = t.narrow(step.new["trade"], step)
        if step.is_ending:
            rows = t.with_ended(rows.union(t.narrow(step.before["trade"], step)), step).where("ended").drop("ended")
        return [Output({"day": DAY_COLUMNS}, days(rows if step.is_ending else rows.limit(0)))]


def days(rows: "DataFrame") -> "DataFrame":
    """Compute the statistics of all trades of one or more days; a session of the source is a day.

    `event_time` is that of the stream's first trade of the day, `end_time` that of the instrument's last.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    trades = t.with_alterations(rows, ()).withColumn("now", t.as_altered(f.col("alterations"))).where("now is not null")
    values = (*t.statistics("now", regular_only=True), *t.extended_statistics("now"))
    made = trades.groupBy(*t.INSTRUMENT, "session").agg(*t.extent("now"), *values)
    # All rows of a day have the same date, even if some instruments trade after midnight UTC.
    begun = f.min("event_time").over(Window.partitionBy("stream", "session"))
    return made.withColumn("event_time", begun).select(*re.findall(r"(\w+) [A-Z]", DAY_COLUMNS))
