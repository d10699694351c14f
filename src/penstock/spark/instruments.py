"""Values of rows as text, with the decimals of their instruments.

    definitions = spark.read.parquet("archive/instrument")
    with_text(trades, definitions, prices=["price"], quantities=["quantity"])      # adds price_text, quantity_text

Numeric columns keep the unit of their model, so that values can be compared and added. The text columns are for people:
a value has the decimals of the newest definition of its instrument, or more if its exact value needs more. No value is
rounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEYS = ("venue", "symbol")
DECIMALS = ("price_decimals", "quantity_decimals")


def with_text(
    rows: DataFrame, definitions: DataFrame, *, prices: Iterable[str] = (), quantities: Iterable[str] = ()
) -> DataFrame:
    """Return the rows with a column NAME_text for each of these columns. `definitions` are rows of the table
    `instrument`.
    """
    from pyspark.sql import functions as f

    newest = definitions.groupBy(*KEYS).agg(
        f.max_by(f.struct(*DECIMALS), f.struct("event_time", "source_seq")).alias("defined")
    )
    joined = rows.join(f.broadcast(newest), list(KEYS), "left")
    texts = {f"{name}_text": decimal_text(f.col(name), f.col("defined.price_decimals")) for name in prices}
    texts |= {f"{name}_text": decimal_text(f.col(name), f.col("defined.quantity_decimals")) for name in quantities}
    return joined.withColumns(texts).drop("defined")


def decimal_text(value: Column, decimals: Column) -> Column:
    """Format an exact number without trailing zeros, but with at least `decimals` decimals; with all decimals of the
    column if `decimals` is null.
    """
    from pyspark.sql import functions as f

    text = value.cast("string")
    point = f.instr(text, ".")
    needed = f.length(f.rtrim(text, f.lit("0"))) - point
    kept = f.greatest(decimals.cast("int"), needed)
    cut = f.when(kept > 0, f.substring(text, f.lit(1), point + kept)).otherwise(
        f.substring(text, f.lit(1), point - f.lit(1))
    )
    return f.when((point == 0) | decimals.isNull(), text).otherwise(cut)
