"""A day of generated ITCH 5.0 order flow: valid, with all message types, in bursts, reproducible by seed.

generator = ItchGenerator(GeneratorConfig(seed=7, symbols=1_000, messages=1_000_000))
while len(batch := generator.take()):
    converter.convert(batch)

Every execution, cancellation, deletion and replacement refers to an order in the book with enough shares; books are
never crossed; times never go back. The day begins with the directory, has crosses at the open and the close, halts
and resumptions, corrections, and ends with empty books. Prices and sizes are invented.
"""

import itertools
from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy
import numpy.typing

from penstock.base.config import Config
from penstock.convert import SourceBatch
from penstock.feed.core.play._generator import OrderFlow
from penstock.feed.formats._framing import Blocks

ROOM = 1024 * 1024
POPULARITY = 65_536
PRICE_UNIT = 10_000
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FOUR_LETTERS = 26**4
SCRAMBLE = 181_081  # shares no factor with 26, so every combination of four letters comes once

WELL_KNOWN = {
    "AAPL": 228, "MSFT": 427, "NVDA": 136, "AMZN": 201, "TSLA": 342, "META": 561, "GOOGL": 172, "AMD": 138, "INTC": 24,
    "CSCO": 57, "NFLX": 883, "ADBE": 518, "PEP": 161, "COST": 943, "AVGO": 167, "QCOM": 159, "TXN": 201, "AMGN": 291,
    "SBUX": 98, "MDLZ": 65, "GILD": 89, "ADP": 303, "BKNG": 5_014, "VRTX": 468, "REGN": 751, "MU": 101, "LRCX": 72,
    "PANW": 391,
}  # fmt: skip
"""The most popular symbols, which readers recognise, and plausible prices in dollars."""


class GeneratorConfig(Config, frozen=True):
    """Parameters of the day: equal values produce equal bytes."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 1
    symbols: Annotated[int, msgspec.Meta(ge=1, le=20_000)] = 1_000
    messages: Annotated[int, msgspec.Meta(ge=0, le=2**48)] = 1_000_000
    """Approximate number of order flow messages; the directory, crosses and the end of the day are added."""


class ItchGenerator:
    """The messages of one day, in batches, numbered from 1."""

    def __init__(self, config: GeneratorConfig | None = None) -> None:
        self.config = config or GeneratorConfig()
        self._flow = OrderFlow(
            self.config.seed, _market(self.config.symbols), _popularity(self.config.symbols), self.config.messages
        )
        self._room = numpy.empty(ROOM, numpy.uint8)
        self._blocks = Blocks()

    @property
    def symbols(self) -> list[str]:
        """Symbols by popularity; the n-th has the locate code n + 1."""
        return self._flow.symbols

    @property
    def next_sequence(self) -> int:
        return self._flow.messages + 1

    @property
    def is_done(self) -> bool:
        """True at the end of the day."""
        return self._flow.is_done

    def take(self, messages: int = 4_096) -> SourceBatch:
        """Return about this number of messages, at most a megabyte; none after the end of the day.

        The batch is valid until the next call.
        """
        first = self.next_sequence
        return self._blocks.batch(self.blocks(messages), first)

    def blocks(self, messages: int = 4_096) -> memoryview:
        """Return messages as bytes: each with its length (two bytes, big-endian) before it, as in a file."""
        size = self._flow.fill(self._room, messages)
        return self._room.data[:size]

    def __iter__(self) -> Iterator[bytes]:
        """Yield single messages, for callers without speed requirements."""
        while len(batch := self.take()):
            for _, message in batch:
                yield message


def _market(symbols: int) -> list[tuple[str, int]]:
    """Names and prices of the symbols."""
    prices = dict(itertools.islice(WELL_KNOWN.items(), symbols))
    number = 0
    while len(prices) < symbols:
        number += 1
        prices.setdefault(_letters(number * SCRAMBLE % FOUR_LETTERS), 5 + len(prices) * 7919 % 395)
    return [(name, price * PRICE_UNIT) for name, price in prices.items()]


def _letters(number: int) -> str:
    name = ""
    for _ in range(4):
        number, letter = divmod(number, 26)
        name = LETTERS[letter] + name
    return name


def _popularity(symbols: int) -> numpy.typing.NDArray[numpy.uint16]:
    """A symbol's weight falls with its rank (Zipf's law), and each has at least one entry."""
    weights = [1 / (rank + 4) for rank in range(symbols)]
    share = (POPULARITY - symbols) / sum(weights)
    counts = [1 + int(weight * share) for weight in weights]
    counts[0] += POPULARITY - sum(counts)
    return numpy.repeat(numpy.arange(symbols, dtype=numpy.uint16), counts)
