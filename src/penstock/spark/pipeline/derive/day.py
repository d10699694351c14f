"""What the trades of a day come to: a row per instrument when the day ends, corrections and cancellations taken in.

These are the values of the last `day_statistics` message that the converter publishes for the instrument.
"""

import re
from typing import TYPE_CHECKING

import msgspec

from penstock.spark.pipeline.derive import trades as t
from penstock.spark.pipeline.derive.protocol import Output, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAY_COLUMNS = f"""stream INT, symbol STRING, venue STRING, event_time BIGINT, first_seq BIGINT, last_seq BIGINT,
    {t.STATISTICS}"""


class Day(msgspec.Struct, frozen=True):
    """The derivation: it gives its rows in the final step only."""

    name: str = "day"
    tables: tuple[str, ...] = ("day",)
    needs: tuple[str, ...] = ("trade",)

    def step(self, step: Step) -> list[Output]:
        new = t.narrow(step.new["trade"])
        rows = new.union(t.narrow(step.before["trade"])) if step.is_final else new.limit(0)
        return [Output({"day": DAY_COLUMNS}, days(rows))]


def days(rows: "DataFrame") -> "DataFrame":
    """Of all trades of a day, or of several: a session of the source is a day."""
    from pyspark.sql import functions as f

    lived = t.with_life(rows)
    effective = t.altered(lived.where("action = 'trade'"), lived.where("action <> 'trade'"))
    made = effective.groupBy(*t.INSTRUMENT, "session").agg(
        f.max("event_time").alias("event_time"),
        t.seq_of(f.min("place")).alias("first_seq"),
        t.seq_of(f.max("place")).alias("last_seq"),
        *t.statistics(),
    )
    return made.select(*re.findall(r"(\w+) [A-Z]", DAY_COLUMNS))
