"""What the runner and the derivations agree on.

    step = Step(new={"trade": rows of this commit}, before={"trade": those of earlier steps}, carried=…, sessions=…)
    for output in derivation.step(step):
        for table in output.tables:           # CARRIED among them, or not: then nothing is carried
            table_frame(output, table)        # a DataFrame; or, without the way through the JVM:
        output.frame.mapInArrow(...)          # in the worker: write what output.work(batches) gives, table by table

Every row of a derived table has the columns `stream` and `event_time`, from which its partition follows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

CARRIED = "carried"  # not a table: what the next step is given

# From the batches of a partition to batches of tables; picklable, importable in every worker.
TableWork = Callable[[Iterator["pa.RecordBatch"]], Iterator[tuple[str, "pa.RecordBatch"]]]


class Session(msgspec.Struct, frozen=True):
    """A session of a stream: its messages from the place `first` on, up to but not including the place `last`."""

    stream: int
    first: int
    last: int
    is_ended: bool
    """Nothing more comes of it: what is open of it is closed with this step, and not carried to the next."""


class Step(msgspec.Struct, frozen=True):
    """What a derivation may look at. Every table it needs is in `new` and in `before`, if need be without rows."""

    new: Mapping[str, "DataFrame"]
    before: Mapping[str, "DataFrame"]  # of earlier steps, all of the sessions below and maybe others; seldom read
    carried: "DataFrame | None" = None  # what the step before gave; None in the first
    is_final: bool = False  # every session ends with this step
    sessions: Sequence[Session] | None = None  # that were open before this step; None: those that the tags of rows tell
    files: Mapping[str, Sequence[str]] = {}  # the Parquet files of `new`, if that is what it is: workers may read them

    @property
    def is_ending(self) -> bool:
        """Whether any session ends with this step."""
        return self.is_final if self.sessions is None else any(each.is_ended for each in self.sessions)

    @property
    def over(self) -> "bool | frozenset[int]":
        """The streams of which nothing goes on: their last session has ended; True for all."""
        if self.sessions is None:
            return self.is_final
        last = {each.stream: each.is_ended for each in sorted(self.sessions, key=lambda each: each.first)}
        return frozenset(stream for stream, is_ended in last.items() if is_ended)


class Output(msgspec.Struct, frozen=True):
    """Rows of one table, or of several that one pass over the data makes."""

    tables: Mapping[str, str]  # name: columns, as Spark writes them
    frame: "DataFrame"
    work: TableWork | None = None  # makes the rows of a partition; None: they are the frame's, of the only table


class Derivation(Protocol):
    """Steps must be given in order, and each one once: what is carried makes them one computation."""

    @property
    def name(self) -> str: ...

    @property
    def tables(self) -> tuple[str, ...]:
        """What it makes."""

    @property
    def needs(self) -> tuple[str, ...]:
        """What it reads."""

    def step(self, step: Step) -> list[Output]: ...


def is_across_streams(derivation: Derivation) -> bool:
    """Whether rows of a derivation follow from those of several streams: it is then given whole days.

    Such a derivation has an attribute `is_across_streams`. Its steps have the sessions of all streams of the days whose
    sessions have all ended, in `new` and `before` together; the rows that it gives replace those of the same days.
    """
    return bool(getattr(derivation, "is_across_streams", False))


def derived(derivation: Derivation, **tables: "DataFrame") -> "dict[str, DataFrame]":
    """What a derivation makes of whole tables, without an archive: `derived(TimeBars(), trade=trades)["bar_time"]`."""
    new = {name: tables[name] for name in derivation.needs}
    before = {name: frame.limit(0) for name, frame in new.items()}
    outputs = derivation.step(Step(new=new, before=before, is_final=True))
    return {name: table_frame(output, name) for output in outputs for name in output.tables}


def table_frame(output: Output, table: str) -> "DataFrame":
    """The rows of one table as a DataFrame. Of an output with several, the work is done once for each."""
    if output.work is None:
        return output.frame
    return output.frame.mapInArrow(partial(_only, output.work, table), output.tables[table])


def _only(work: TableWork, table: str, batches: Iterator[Any]) -> Iterator[Any]:
    return (batch for made, batch in work(batches) if made == table)
