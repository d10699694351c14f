"""Derived tables for fractional quantities: `trade_8` gives `bar_time_8`, `book_event_8` gives `depth_8`.

Derivations count in whole units. Fractional() passes quantities to a derivation as integers, each an exact number of
smallest units (10^-8), and restores the eight decimals in the results. No value is rounded.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.model.library import FRACTIONS, shipped, with_fractions
from penstock.spark.pipeline.derive.protocol import CARRIED, Derivation, Output, Step, TableWork, is_across_streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNITS = 10**8
"""Number of smallest units in a quantity of one."""

QUANTITY = "DECIMAL(20,8)"
QUANTITY_TYPE = pa.decimal128(20, 8)
TURNOVER_TYPE = pa.decimal128(38, 16)

COLUMNS = {
    "volume BIGINT": f"volume {QUANTITY}",
    "quantity BIGINT": f"quantity {QUANTITY}",
    "bid_size BIGINT": f"bid_size {QUANTITY}",
    "ask_size BIGINT": f"ask_size {QUANTITY}",
    "size: BIGINT": f"size: {QUANTITY}",
    "turnover DECIMAL(38,8)": "turnover DECIMAL(38,16)",
}
"""Columns of derived tables that are quantities, or products of a quantity and a price, and their fractional types."""

TURNOVERS = frozenset({"turnover", "extended_turnover"})
QUANTITIES = frozenset({"volume", "extended_volume", "quantity", "bid_size", "ask_size", "size"})


class Fractional(msgspec.Struct, frozen=True):
    """A derivation applied to the tables whose names end in `_8`. Inactive while the archive has no such tables."""

    of: Any
    """The wrapped Derivation; its size parameters are in smallest units (UNITS)."""

    @property
    def name(self) -> str:
        return f"{self.of.name}{FRACTIONS}"

    @property
    def is_across_streams(self) -> bool:
        return is_across_streams(self.of)

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(f"{table}{FRACTIONS}" for table in self.of.tables)

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(map(with_fractions, self.of.needs))

    def step(self, step: Step) -> list[Output]:
        inner = Step(
            new=self._in_units(step.new),
            before=self._in_units(step.before),
            carried=step.carried,
            is_final=step.is_final,
            sessions=step.sessions,
        )
        return [self._with_fractions(output) for output in self.of.step(inner)]

    def _in_units(self, tables: "Mapping[str, DataFrame]") -> "dict[str, DataFrame]":
        return {name: in_units(tables[with_fractions(name)], name) for name in self.of.needs}

    def _with_fractions(self, output: Output) -> Output:
        if set(output.tables) == {CARRIED}:
            return output
        work = output.work or partial(_of_table, next(iter(output.tables)))
        tables = {_named(name): ddl if name == CARRIED else _columns(ddl) for name, ddl in output.tables.items()}
        return Output(tables, output.frame, partial(_fractional, work))


def present(derivations: "Iterable[Derivation]", tables: Iterable[str]) -> "list[Derivation]":
    """Return the derivations without fractional ones whose tables do not exist."""
    known = set(tables)
    return [each for each in derivations if not isinstance(each, Fractional) or known & set(each.needs)]


def in_units(rows: "DataFrame", model: str) -> "DataFrame":
    """Return rows of a model with fractional quantities, with quantities as integers of smallest units."""
    from pyspark.sql import functions as f

    quantities = [field.name for field in shipped(model).fields if field.type == "quantity"]
    return rows.withColumns({name: (f.col(name) * f.lit(UNITS)).cast("bigint") for name in quantities})


def _named(table: str) -> str:
    return table if table == CARRIED else f"{table}{FRACTIONS}"


def _columns(ddl: str) -> str:
    for whole, fractional in COLUMNS.items():
        ddl = ddl.replace(whole, fractional)
    return ddl


def _of_table(table: str, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    return ((table, batch) for batch in batches)


def _fractional(work: TableWork, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for table, batch in work(batches):
        yield _named(table), batch if table == CARRIED else _with_decimals(batch)


def _with_decimals(batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [_decimal(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _decimal(name: str, array: pa.Array) -> pa.Array:
    if pa.types.is_list(array.type):
        return pa.ListArray.from_arrays(array.offsets, _decimal("", array.values))
    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        return pa.StructArray.from_arrays([_decimal(each, array.field(each)) for each in names], names)
    if name in TURNOVERS:  # price times units: the same integer with eight more decimals
        return pa.Array.from_buffers(TURNOVER_TYPE, len(array), array.buffers(), offset=array.offset)
    return _of_units(array) if name in QUANTITIES else array


def _of_units(array: pa.Array) -> pa.Array:
    """Convert integers of units to 128-bit decimals, with sign extension."""
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    wide = np.stack([values, values >> 63], axis=1)
    mask = pa.py_buffer(np.packbits(np.asarray(array.is_valid()), bitorder="little"))
    return pa.Array.from_buffers(QUANTITY_TYPE, len(array), [mask, pa.py_buffer(wide)])
