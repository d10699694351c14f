"""How long a quote stands: until its venue quotes again, or its session ends.

A stream's session ends for its quotes

* when a later session of the same stream or venue begins, or
* when the session has not quoted any symbol for SILENCE_NS.

Both follow from the rows alone. Sessions that stand at the same time share a *day*; a quote of one day is never used in
another.
"""

from typing import TYPE_CHECKING, NamedTuple

from penstock.base.clock import NS_PER_SECOND
from penstock.spark.pipeline.derive import trades as t

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SILENCE_NS = 3_600 * NS_PER_SECOND
"""A session that has not quoted for so long has ended, even if no later one is known."""

LIFETIME_COLUMNS = "stream INT, venue STRING, session BIGINT, until BIGINT, slot INT, day INT"


class Span(NamedTuple):
    """The quotes of one venue in one session of a stream."""

    stream: int
    venue: str | None
    session: int
    first_ns: int
    last_ns: int
    first_place: int


class Lifetime(NamedTuple):
    """A row of LIFETIME_COLUMNS."""

    stream: int
    venue: str | None
    session: int
    until_ns: int
    """The quotes stand before this time."""
    slot: int
    """Sessions with the same slot never stand at the same time."""
    day: int
    """Numbers the days from 0. Sessions of different days never stand at the same time, nor in turn without a gap."""


def lifetimes(spans: list[Span]) -> list[Lifetime]:
    """The lifetime of each span."""
    ordered = sorted(spans, key=lambda span: (span.first_ns, span.last_ns, span.stream, span.session, span.venue or ""))
    made: list[Lifetime] = []
    slots: list[int] = []  # by slot: when the last session there ends
    day, day_end_ns = -1, -1
    for span in ordered:
        later = [max(other.first_ns, span.last_ns + 1) for other in ordered if _follows(other, span)]
        until_ns = min([span.last_ns + SILENCE_NS, *later])
        if day < 0 or span.first_ns >= day_end_ns:
            day += 1
        day_end_ns = max(day_end_ns, until_ns)
        slot = next((number for number, end_ns in enumerate(slots) if end_ns <= span.first_ns), len(slots))
        slots[slot : slot + 1] = [until_ns]
        made.append(Lifetime(span.stream, span.venue, span.session, until_ns, slot, day))
    return made


def _follows(other: Span, span: Span) -> bool:
    """Whether the other span is of a later session of the same stream or venue."""
    if other.stream == span.stream:
        return other.session != span.session and other.first_place > span.first_place
    return other.venue == span.venue and other.first_ns > span.last_ns


def spans_of(quotes: "DataFrame") -> list[Span]:
    """What there is in rows of the table `quote` that have the columns `session` and `place`."""
    from pyspark.sql import functions as f

    bounds = [f.min("event_time"), f.max("event_time"), f.min("place")]
    return [Span(*row) for row in quotes.groupBy("stream", "venue", "session").agg(*bounds).collect()]


def with_lifetimes(quotes: "DataFrame") -> "tuple[DataFrame, int]":
    """Rows of the table `quote` with `session`, `place`, `until`, `slot` and `day`; and how many slots there are."""
    from pyspark.sql import functions as f

    known = quotes.withColumns({"session": t.session(quotes).cast("bigint"), "place": t.place(quotes)})
    found = lifetimes(spans_of(known))
    table = quotes.sparkSession.createDataFrame([tuple(each) for each in found], LIFETIME_COLUMNS)
    lasting = f.broadcast(table.alias("lasting"))
    is_same = [f.col(f"rows.{name}") == f.col(f"lasting.{name}") for name in ("stream", "session")]
    joined = known.alias("rows").join(lasting, [*is_same, f.col("rows.venue").eqNullSafe(f.col("lasting.venue"))])
    rows = joined.select("rows.*", "lasting.until", "lasting.slot", "lasting.day")
    return rows, max((each.slot + 1 for each in found), default=0)
