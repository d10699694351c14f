"""What the runner and the derivations agree on.

    step = Step(new={"trade": rows of this commit}, before={"trade": rows of all earlier ones}, carried=…, is_final=…)
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


class Step(msgspec.Struct, frozen=True):
    """What a derivation may look at. Every table it needs is in `new` and in `before`, if need be without rows."""

    new: Mapping[str, "DataFrame"]
    before: Mapping[str, "DataFrame"]  # of earlier steps; lazy, and seldom read
    carried: "DataFrame | None" = None  # what the step before gave; None in the first
    is_final: bool = False
    files: Mapping[str, Sequence[str]] = {}  # the Parquet files of `new`, if that is what it is: workers may read them


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
