"""Generated quotes: symbols whose prices move randomly, in bursts, reproducible by seed."""

from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.base.errors import LocalProtocolError
from penstock.middleware import OutgoingBatch, TopicList
from penstock.model import shipped

QUOTE = shipped("quote")

BLOCK_SIZE = 4_096
"""Number of quotes generated at a time, independent of the number taken at once."""

TICK = 1_000_000
"""One cent in the scaled integers of a quote's prices."""

BURST_LENGTH = 4
"""Average number of consecutive quotes of one symbol."""

PRICE_TICKS_MIN = 100
PRICE_TICKS_MAX = 100_000


class TickGenerator:
    """Quotes of `symbols` symbols; bids are below offers, sizes above zero, each price close to the previous one."""

    def __init__(self, seed: int, symbols: int) -> None:
        self._random = numpy.random.Generator(numpy.random.PCG64(abs(seed)))
        names = [f"S{number:04}" for number in range(symbols)]
        self.topics = TopicList([f"md.demo.eq.{name}.quote" for name in names])
        self._names = numpy.array(names, "S16")
        self._bids = self._random.integers(1_000, 50_000, symbols)  # in ticks
        self._blank = numpy.frombuffer(bytes(QUOTE.new(venue="XDEM", update_count=1)), numpy.uint8)
        self._made = 0
        self._taken = 0
        self._which = numpy.empty(0, numpy.int64)
        self._records = numpy.empty(0, QUOTE.dtype)

    def take(self, event_times_ns: NDArray[numpy.int64]) -> OutgoingBatch:
        """Return the next quotes, one for each of these times, ready for publishing; at most BLOCK_SIZE."""
        count = len(event_times_ns)
        if count > BLOCK_SIZE:
            raise LocalProtocolError(f"{count} quotes at once exceed the limit of {BLOCK_SIZE}")
        if self._taken + count > len(self._records):
            rest = slice(self._taken, None)
            which, records = self._block()
            self._which = numpy.concatenate([self._which[rest], which])
            self._records = _joined(self._records[rest], records)
            self._taken = 0
        chosen = slice(self._taken, self._taken + count)
        self._taken += count
        records = self._records[chosen]
        for name in ("event_time", "bid_time", "ask_time"):
            records[name] = event_times_ns
        return OutgoingBatch(self.topics, self._which[chosen], records, QUOTE)

    def _block(self) -> tuple[NDArray[numpy.int64], NDArray[Any]]:
        random = self._random
        which = self._symbols()
        bids = self._wander(which)
        records = numpy.tile(self._blank, BLOCK_SIZE).view(QUOTE.dtype)
        records["symbol"] = self._names[which]
        records["bid_price"] = bids * TICK
        records["ask_price"] = (bids + random.integers(1, 6, BLOCK_SIZE)) * TICK
        records["bid_size"] = random.integers(1, 100, BLOCK_SIZE) * 100
        records["ask_size"] = random.integers(1, 100, BLOCK_SIZE) * 100
        records["source_seq"] = numpy.arange(self._made + 1, self._made + BLOCK_SIZE + 1)
        self._made += BLOCK_SIZE
        return which, records

    def _symbols(self) -> NDArray[numpy.int64]:
        """Return the symbol of each quote of a block: bursts of random length."""
        lengths = self._random.geometric(1 / BURST_LENGTH, BLOCK_SIZE)
        symbols = self._random.integers(0, len(self._names), BLOCK_SIZE)
        return numpy.repeat(symbols, lengths)[:BLOCK_SIZE]

    def _wander(self, which: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """Return the bid of each quote in ticks: the symbol's previous bid plus a small step."""
        steps = self._random.integers(-2, 3, len(which))
        order = numpy.argsort(which, kind="stable")
        symbols = which[order]
        sums = numpy.cumsum(steps[order])
        starts = numpy.flatnonzero(numpy.diff(symbols, prepend=-1))
        before = numpy.repeat(sums[starts] - steps[order][starts], numpy.diff(starts, append=len(symbols)))
        bids = numpy.clip(self._bids[symbols] + sums - before, PRICE_TICKS_MIN, PRICE_TICKS_MAX)
        self._bids[symbols] = bids  # of several quotes of one symbol, the last one counts
        scattered: NDArray[numpy.int64] = numpy.empty_like(bids)
        scattered[order] = bids
        return scattered


def _joined(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Concatenate arrays as bytes, because numpy leaves padding between fields undefined."""
    return numpy.concatenate([first.view(numpy.uint8), second.view(numpy.uint8)]).view(QUOTE.dtype)
