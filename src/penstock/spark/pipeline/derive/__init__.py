"""Derived tables: computed from the normalised tables, incrementally or all at once, with the same result.

A derivation receives the rows of one step and returns the rows that follow from them. Batch is a few large steps,
streaming many small ones. A step lists the sessions that end with it; only their rows are closed. State from step to
step is returned as rows of the table CARRIED, archived with the step's commit, and passed to the next step.

docs/reference/derived-tables.md describes every table and column, and the exact rules.
"""

from penstock.spark.pipeline.derive.asof import TradeQuote, as_of
from penstock.spark.pipeline.derive.bars import TimeBars, tick_bars, volume_bars
from penstock.spark.pipeline.derive.bbo import BestBidOffer
from penstock.spark.pipeline.derive.books import Books
from penstock.spark.pipeline.derive.day import Day
from penstock.spark.pipeline.derive.fractional import UNITS, Fractional
from penstock.spark.pipeline.derive.protocol import CARRIED, Derivation, Output, Step, TableWork, derived, table_frame

_WHOLE: tuple[Derivation, ...] = (
    Books(), TimeBars(), volume_bars(), tick_bars(), TradeQuote(), BestBidOffer(), Day(),
)  # fmt: skip
_FRACTIONS: tuple[Derivation, ...] = tuple(
    Fractional(volume_bars(100 * UNITS) if each.name == "bar_volume" else each) for each in _WHOLE
)
DERIVATIONS: tuple[Derivation, ...] = (*_WHOLE, *_FRACTIONS)
"""The default derivations of the pipeline."""

__all__ = [
    "CARRIED", "DERIVATIONS", "BestBidOffer", "Books", "Day", "Derivation", "Fractional", "Output", "Step",
    "TableWork", "TimeBars", "TradeQuote", "as_of", "derived", "table_frame", "tick_bars", "volume_bars",
]  # fmt: skip
