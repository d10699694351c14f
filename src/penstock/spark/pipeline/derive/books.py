"""Books from order-by-order rows: `top_of_book`, a row per change of the best; `depth`, a row per change of N levels.

A first pass packs the rows, by instrument, into blocks of thousands of events; only blocks are shuffled and sorted.
Then compiled code applies the events of many instruments at once, in order. The workers read the rows of Parquet files
themselves, so that only blocks pass the JVM.
"""

from functools import partial

import msgspec

from penstock.spark.pipeline.derive import blocks, bookrows
from penstock.spark.pipeline.derive.protocol import CARRIED, Output, Step

LEVELS = 10
LEVEL_COLUMNS = "ARRAY<STRUCT<price: DECIMAL(18,8), size: BIGINT, orders: INT>>"
KEY_COLUMNS = "stream INT, seq BIGINT, source_seq BIGINT, event_time BIGINT, symbol STRING, venue STRING"
TABLES = {
    "top_of_book": f"{KEY_COLUMNS}, bid_price DECIMAL(18,8), bid_size BIGINT, bid_orders INT, "
    "ask_price DECIMAL(18,8), ask_size BIGINT, ask_orders INT",
    "depth": f"{KEY_COLUMNS}, level INT, bids {LEVEL_COLUMNS}, asks {LEVEL_COLUMNS}",
}


class Books(msgspec.Struct, frozen=True):
    """The derivation. `levels` is the number of levels in `depth`."""

    levels: int = LEVELS
    name: str = "books"
    tables: tuple[str, ...] = tuple(TABLES)
    needs: tuple[str, ...] = ("book_event",)

    def step(self, step: Step) -> list[Output]:
        rows = step.new["book_event"]
        packed = blocks.of_files(rows.sparkSession, step.files["book_event"]) if step.files else blocks.of_rows(rows)
        if step.carried is not None:
            packed = packed.union(blocks.of_rows(step.carried))
        tables = TABLES if step.over is True else {**TABLES, CARRIED: blocks.EVENT_COLUMNS}
        return [Output(tables, blocks.arranged(packed), partial(bookrows.make, self.levels, step.over))]
