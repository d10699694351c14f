"""Derived tables: what follows from the normalised ones, step by step or all at once, with the same rows either way.

A derivation is given the rows of one step and gives the rows that follow from them. Batch is few large steps, streaming
many small ones. A step says which sessions of the streams end with it: only what belongs to these is closed. What a
derivation must remember from step to step it gives as rows of the table CARRIED: they are archived with the step's
commit, and the next step is given them.

docs/reference/derived-tables.md has every table and column, and the exact rules.
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
"""What the pipeline derives unless it is told otherwise."""

__all__ = [
    "CARRIED", "DERIVATIONS", "BestBidOffer", "Books", "Day", "Derivation", "Fractional", "Output", "Step",
    "TableWork", "TimeBars", "TradeQuote", "as_of", "derived", "table_frame", "tick_bars", "volume_bars",
]  # fmt: skip
