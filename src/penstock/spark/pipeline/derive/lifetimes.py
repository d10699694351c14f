"""The lifetime of a quote: until the next quote of its venue, or the end of its session.

A stream's session ends for its quotes

* when a later session of the same stream or venue begins, or
* when the session has not quoted any symbol for SILENCE_NS.

Both follow from the rows alone. Overlapping sessions share a *day*; a quote of one day is never used in another.
"""

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.clock import NS_PER_SECOND

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SILENCE_NS = 3_600 * NS_PER_SECOND
"""A session without a quote for this long has ended, even if no later session is known."""

NEVER_NS = 2**62
LIFETIME_COLUMNS = "stream INT, venue STRING, session BIGINT, until BIGINT, slot INT, day INT"


class Span(NamedTuple):
    """The quotes of one venue in one session of a stream."""

    stream: int
    venue: str | None
    session: int
    first_ns: int
    last_ns: int
    first_place: int
    last_place: int


class Lifetime(NamedTuple):
    """A row of LIFETIME_COLUMNS."""

    stream: int
    venue: str | None
    session: int
    until_ns: int
    """The quotes are valid before this time."""
    slot: int
    """Sessions with the same slot never overlap."""
    day: int
    """Number of the day, from 0. There is a gap between the sessions of different days."""


def lifetimes(spans: list[Span]) -> list[Lifetime]:
    """Compute the lifetime of each span."""
    ordered = sorted(spans, key=lambda span: (span.first_ns, span.last_ns, span.stream, span.session, span.venue or ""))
    made: list[Lifetime] = []
    slots: list[int] = []  # by slot: the end of its last session
    day, day_end_ns = -1, -1
    followers = _Followers(spans)
    for span in ordered:
        until_ns = min(span.last_ns + SILENCE_NS, followers.first_ns(span))
        if day < 0 or span.first_ns >= day_end_ns:
            day += 1
        day_end_ns = max(day_end_ns, until_ns)
        slot = next((number for number, end_ns in enumerate(slots) if end_ns <= span.first_ns), len(slots))
        slots[slot : slot + 1] = [until_ns]
        made.append(Lifetime(span.stream, span.venue, span.session, until_ns, slot, day))
    return made


class _Followers:
    """Finds the next later session of the same stream or venue."""

    def __init__(self, spans: list[Span]) -> None:
        self._of_stream: dict[int, list[tuple[int, int]]] = {}
        self._of_venue: dict[str | None, list[int]] = {}
        for span in spans:
            self._of_stream.setdefault(span.stream, []).append((span.first_place, span.first_ns))
            self._of_venue.setdefault(span.venue, []).append(span.first_ns)
        for places in self._of_stream.values():
            places.sort()
        for times in self._of_venue.values():
            times.sort()

    def first_ns(self, span: Span) -> int:
        """Return the begin of that session, but never before the last quote of the span itself."""
        places = self._of_stream[span.stream]
        later = [time_ns for _, time_ns in places[bisect_right(places, (span.last_place, NEVER_NS)) :][:1]]
        times = self._of_venue[span.venue]
        later += times[bisect_right(times, span.last_ns) :][:1]
        return max(min(later, default=NEVER_NS), span.last_ns + 1)


def spans_of(quotes: "DataFrame") -> list[Span]:
    """Return the spans in rows of the table `quote` that have the columns `session` and `place`."""
    from pyspark.sql import functions as f

    bounds = [f.min("event_time"), f.max("event_time"), f.min("place"), f.max("place")]
    return [Span(*row) for row in quotes.groupBy("stream", "venue", "session").agg(*bounds).collect()]


def with_lifetimes(quotes: "DataFrame") -> "tuple[DataFrame, int]":
    """Add `until`, `slot` and `day` to quotes with `session` and `place`; also return the number of slots."""
    from pyspark.sql import functions as f

    found = lifetimes(spans_of(quotes))
    table = quotes.sparkSession.createDataFrame([tuple(each) for each in found], LIFETIME_COLUMNS)
    lasting = f.broadcast(table.alias("lasting"))
    is_same = [f.col(f"rows.{name}") == f.col(f"lasting.{name}") for name in ("stream", "session")]
    joined = quotes.alias("rows").join(lasting, [*is_same, f.col("rows.venue").eqNullSafe(f.col("lasting.venue"))])
    rows = joined.select("rows.*", "lasting.until", "lasting.slot", "lasting.day")
    return rows, max((each.slot + 1 for each in found), default=0)
