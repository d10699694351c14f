"""What is read out of a conversion state. Prices are integers with 8 decimals, None where there is none."""

from typing import NamedTuple


class Level(NamedTuple):
    price: int
    size: int
    orders: int
    """Orders in the level; 0 where the venue does not tell."""


class Statistics(NamedTuple):
    """What the day's trades come to."""

    open: int | None
    high: int | None
    low: int | None
    last: int | None
    previous_close: int | None
    last_size: int
    volume: int
    turnover: int
    """Price × size, with 8 decimals."""
    trade_count: int


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
