"""The interface between the runner and derivations.

    step = Step(new={"trade": rows of this commit}, before={"trade": rows of earlier steps}, carried=…, sessions=…)
    for output in derivation.step(step):
        for table in output.tables:           # may include CARRIED
            table_frame(output, table)        # a DataFrame; or, without passing rows through the JVM:
        output.frame.mapInArrow(...)          # in the worker: write the batches of output.work(batches), table by table

Every row of a derived table has the columns `stream` and `event_time`, which determine its partition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

CARRIED = "carried"  # not a table: the state for the next step

# Maps the batches of a partition to batches of tables; picklable, importable in every worker.
TableWork = Callable[[Iterator["pa.RecordBatch"]], Iterator[tuple[str, "pa.RecordBatch"]]]


class Session(msgspec.Struct, frozen=True):
    """A session of a stream: its messages from position `first` up to but not including position `last`."""

    stream: int
    first: int
    last: int
    is_ended: bool
    """True if the session has ended: its open rows are closed in this step and not carried to the next."""


class Step(msgspec.Struct, frozen=True):
    """Input of a derivation. Every needed table is in `new` and in `before`, possibly without rows."""

    new: Mapping[str, "DataFrame"]
    before: Mapping[str, "DataFrame"]  # of earlier steps: at least the rows of the sessions below; rarely read
    carried: "DataFrame | None" = None  # the state from the previous step; None in the first
    is_final: bool = False  # every session ends with this step
    sessions: Sequence[Session] | None = (
        None  # sessions that were open before this step; None: those given by the tags of the rows
    )
    files: Mapping[
        str, Sequence[str]
    ] = {}  # the Parquet files of `new`, if its rows are in files; workers may read them

    @property
    def is_ending(self) -> bool:
        """True if any session ends with this step."""
        return self.is_final if self.sessions is None else any(each.is_ended for each in self.sessions)

    @property
    def over(self) -> "bool | frozenset[int]":
        """Return the streams whose last session has ended; True for all streams."""
        if self.sessions is None:
            return self.is_final
        last = {each.stream: each.is_ended for each in sorted(self.sessions, key=lambda each: each.first)}
        return frozenset(stream for stream, is_ended in last.items() if is_ended)


class Output(msgspec.Struct, frozen=True):
    """Rows of one table, or of several tables computed in one pass over the data."""

    tables: Mapping[str, str]  # name: columns, as Spark DDL
    frame: "DataFrame"
    work: TableWork | None = None  # computes the rows of a partition; None: the frame has the rows of the only table


class Derivation(Protocol):
    """Steps must be run in order, each once; the carried state makes them one computation."""

    @property
    def name(self) -> str: ...

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that the derivation writes."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the tables that the derivation reads."""

    def step(self, step: Step) -> list[Output]: ...


def is_across_streams(derivation: Derivation) -> bool:
    """True if rows of a derivation depend on several streams; such a derivation runs on whole days.

    The derivation declares this with an attribute `is_across_streams`. Its steps contain the sessions of all streams of
    the days whose sessions have all ended, in `new` and `before` together; its rows replace those of the same days.
    """
    return bool(getattr(derivation, "is_across_streams", False))


def derived(derivation: Derivation, **tables: "DataFrame") -> "dict[str, DataFrame]":
    """Run a derivation on whole tables, without an archive: `derived(TimeBars(), trade=trades)["bar_time"]`."""
    new = {name: tables[name] for name in derivation.needs}
    before = {name: frame.limit(0) for name, frame in new.items()}
    outputs = derivation.step(Step(new=new, before=before, is_final=True))
    return {name: table_frame(output, name) for output in outputs for name in output.tables}


def table_frame(output: Output, table: str) -> "DataFrame":
    """Return the rows of one table as a DataFrame. For an output with several tables, each call repeats the work."""
    if output.work is None:
        return output.frame
    return output.frame.mapInArrow(partial(_only, output.work, table), output.tables[table])


def _only(work: TableWork, table: str, batches: Iterator[Any]) -> Iterator[Any]:
    return (batch for made, batch in work(batches) if made == table)
