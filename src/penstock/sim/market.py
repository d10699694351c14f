"""What the simulated exchange says: the generator's order flow, converted by the shipped ITCH table."""

from datetime import date

from penstock.convert import Converter, ConverterTable
from penstock.feed.conversion import Conversion
from penstock.feed.generator import GeneratorConfig, ItchGenerator

MESSAGES = 4_000
SYMBOLS = 6
DAY = date(2024, 1, 2)

_plans = {}


class ItchMarket:
    """A few symbols, so that books are busy; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def day(self, stream_id: int, session: str) -> list[bytes]:
        ...

    def converter(self, stream_id: int, checkpoint_interval: int) -> Conversion:
        ...
