"""The conversion state: instruments, their books, the day's trades, and the orders in the books.

The state is a converter's memory between messages, and must be identical in a backup and in the active adapter. The
state has a digest that follows every change, and images that make another state equal while this one continues to
change. Prices are integers with 8 decimals. Not thread-safe.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated

import msgspec
import numpy

from penstock.base.config import Config
from penstock.base.errors import LocalProtocolError
from penstock.convert.books import _units as units
from penstock.convert.books._state import CHUNK_SIZE_MIN, StateImage, StateKernel
from penstock.convert.books.differences import Difference, differences
from penstock.convert.books.rows import (
    INSTRUMENT_DTYPE,
    LOCATE_NONE,
    ORDER_DTYPE,
    SESSION_DTYPE,
    TRADE_DTYPE,
    Book,
    InstrumentReference,
    Level,
    OrderChanged,
    Statistics,
    price_or_none,
)

__all__ = [
    "CHUNK_SIZE_MIN", "Answer", "Book", "ConversionState", "Difference", "InstrumentReference", "Level", "OrderChanged",
    "Side", "StateImage", "StateLimits", "Statistics",
]  # fmt: skip

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Answer(IntEnum):
    """The result of a change."""

    OK = units.STATE_OK
    UNKNOWN = units.STATE_UNKNOWN
    DUPLICATE = units.STATE_DUPLICATE
    SHORT = units.STATE_SHORT
    REFUSED = units.STATE_REFUSED
    INVALID = units.STATE_INVALID


class Side(IntEnum):
    BID = units.SIDE_BID
    ASK = units.SIDE_ASK


class StateLimits(Config, frozen=True):
    """Maximum content of a state; anything beyond is refused and counted."""

    instruments: Count = 65_536
    orders: Count = 50_000_000
    levels: Count = 10_000_000
    trades: Count = 50_000_000


class ConversionState(StateKernel):
    """Instruments, books, trades and orders of one source stream.

    `seed` determines only the placement of orders in memory; it should be unknown to anyone who chooses order
    references.
    """

    def __new__(cls, limits: StateLimits | None = None, seed: int = 0) -> "ConversionState":
        bounds = limits or StateLimits()
        return super().__new__(cls, bounds.instruments, bounds.orders, bounds.levels, bounds.trades, seed)

    def instruments(self) -> list[InstrumentReference]:
        """All instruments, in the order of their numbers."""
        return [self.reference(number) for number in range(self.instrument_count)]

    def reference(self, number: int) -> InstrumentReference:
        row = self.instrument_rows(number)[0]
        locate = int(row["locate"])
        return InstrumentReference(
            number,
            row["symbol"].decode("utf-8", "replace"),
            row["venue"].decode("utf-8", "replace"),
            int(row["round_lot"]),
            None if locate == LOCATE_NONE else locate,
            int(row["flags"]),
            int(row["status"]),
            int(row["restrictions"]),
            row["reason"].decode("utf-8", "replace"),
            price_or_none(int(row["upper_limit"])),
            price_or_none(int(row["lower_limit"])),
            int(row["event_ns"]),
            int(row["source_sequence"]),
            int(row["price_decimals"]) - 1 if row["price_decimals"] else None,
            int(row["quantity_decimals"]) - 1 if row["quantity_decimals"] else None,
        )

    def number_of(self, symbol: str) -> int:
        number = self.find(symbol)
        if number < 0:
            raise LocalProtocolError(f"unknown instrument {symbol!r}", hint="instruments() lists them")
        return number

    def book(self, symbol: str, depth: int = 10) -> Book:
        number = self.number_of(symbol)
        return Book(self.levels(number, Side.BID, depth), self.levels(number, Side.ASK, depth))

    def statistics(self, symbol: str) -> Statistics:
        return self.day_statistics(self.number_of(symbol))

    def session(self) -> tuple[str, int, int]:
        """Name, midnight in nanoseconds, and the feed's code of the phase of the day."""
        row = numpy.frombuffer(self.unit_bytes(units.UNIT_SESSION), SESSION_DTYPE)[0]
        return row["name"].decode("utf-8", "replace"), int(row["day_ns"]), int(row["phase"])

    def differences(self, other: "ConversionState", count_max: int = 100) -> list[Difference]:
        """Return the differences to another state, value by value; at most `count_max`."""
        return differences(self, other, count_max)

    # Rows in the format of the state image

    def instrument_rows(self, number: int) -> numpy.ndarray:
        data = self.unit_bytes(units.UNIT_INSTRUMENTS + 2 * number)
        return numpy.frombuffer(data[: INSTRUMENT_DTYPE.itemsize], INSTRUMENT_DTYPE)

    def trade_rows(self, number: int) -> numpy.ndarray:
        """Return the day's trades of an instrument, in the order of arrival."""
        return numpy.frombuffer(self.unit_bytes(units.UNIT_INSTRUMENTS + 2 * number + 1), TRADE_DTYPE)

    def order_rows(self) -> Iterator[numpy.ndarray]:
        """Yield all orders, shard by shard, unordered."""
        for shard in range(units.SHARDS):
            yield numpy.frombuffer(self.unit_bytes(units.UNIT_SHARDS + shard), ORDER_DTYPE)
