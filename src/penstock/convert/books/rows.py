"""What is read out of a conversion state. Prices are integers with 8 decimals, None where there is none; sizes have the
decimals of the table's quantities."""

from typing import NamedTuple

import numpy

PRICE_NONE = -(2**63)
LOCATE_NONE = 2**64 - 1

ORDER_DTYPE = numpy.dtype(
    [("reference", "<u8"), ("price", "<i8"), ("shares", "<u8"), ("place", "<u4"), ("participant", "<u4")]
)
LEVEL_DTYPE = numpy.dtype([("price", "<i8"), ("size", "<u8"), ("count", "<u4"), ("reserved", "<u4")])
TRADE_DTYPE = numpy.dtype(
    [
        ("trade_id", "<u8"), ("price", "<i8"), ("size", "<u8"), ("event_ns", "<i8"), ("conditions", "<u4"),
        ("reserved", "<u4"),
    ]
)  # fmt: skip
SESSION_DTYPE = numpy.dtype(
    [("name", "S16"), ("day_ns", "<i8"), ("phase", "<u8"), ("open_ns", "<i8"), ("close_ns", "<i8"), ("hours", "<u8")]
)
INSTRUMENT_DTYPE = numpy.dtype(
    [
        ("symbol", "S16"), ("venue", "S4"), ("round_lot", "<u4"), ("locate", "<u8"), ("flags", "<u4"),
        ("status", "u1"), ("restrictions", "u1"), ("price_decimals", "u1"), ("quantity_decimals", "u1"),
        ("reason", "S8"), ("upper_limit", "<i8"), ("lower_limit", "<i8"),
        ("open", "<i8"), ("high", "<i8"), ("low", "<i8"), ("last", "<i8"), ("previous_close", "<i8"),
        ("last_size", "<u8"), ("volume", "<u8"), ("turnover_low", "<u8"), ("turnover_high", "<i8"),
        ("trade_count", "<u8"),
        ("extended_high", "<i8"), ("extended_low", "<i8"), ("extended_last", "<i8"), ("extended_volume", "<u8"),
        ("extended_turnover_low", "<u8"), ("extended_turnover_high", "<i8"), ("extended_trade_count", "<u8"),
        ("event_ns", "<i8"), ("source_sequence", "<u8"),
        ("bid_count", "<u4"), ("ask_count", "<u4"),
    ]
)  # fmt: skip
"""The rows of a unit; docs/reference/protocol/state-image.md draws them."""


class Level(NamedTuple):
    price: int
    size: int
    orders: int
    """Orders in the level; 0 where the venue does not tell."""


class Statistics(NamedTuple):
    """Statistics of the day's trades: of the regular session, and separately of extended hours."""

    open: int | None
    high: int | None
    low: int | None
    last: int | None
    previous_close: int | None
    last_size: int
    volume: int
    turnover: int
    """Price × size, with 8 decimals and those of sizes."""
    trade_count: int
    extended_high: int | None = None
    extended_low: int | None = None
    extended_last: int | None = None
    extended_volume: int = 0
    extended_turnover: int = 0
    extended_trade_count: int = 0


class OrderChanged(NamedTuple):
    """What became of an order; `answer` is an `Answer`, the rest is nothing when the order is unknown."""

    answer: int
    instrument: int = -1
    side: int = 0
    price: int = 0
    shares: int = 0
    remaining: int = 0
    participant: int = 0
    depth: int | None = None
    """How many better levels the changed one has; None when no level changed."""


class InstrumentReference(NamedTuple):
    """What is known of an instrument besides its book and its trades."""

    number: int
    symbol: str
    venue: str
    round_lot: int
    locate: int | None
    flags: int
    status: int
    restrictions: int
    reason: str
    upper_limit: int | None
    lower_limit: int | None
    event_ns: int
    source_sequence: int
    price_decimals: int | None = None
    """Decimals of the instrument's own prices, whatever unit they are stored in; None if they are not known."""
    quantity_decimals: int | None = None


class Book(NamedTuple):
    """The best levels of both sides, best first."""

    bids: list[Level]
    asks: list[Level]


def price_or_none(price: int) -> int | None:
    return None if price == PRICE_NONE else price
