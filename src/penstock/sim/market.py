"""What the simulated exchange says: the generator's order flow, converted by the shipped ITCH table."""

import functools
from datetime import date

from penstock.convert import Converter, ConverterTable, Plan
from penstock.feed.conversion import Conversion
from penstock.feed.play.generator import GeneratorConfig, ItchGenerator

MESSAGES = 4_000
SYMBOLS = 6
DAY = date(2024, 1, 2)


@functools.cache
def _plan() -> Plan:
    return ConverterTable.load("itch").compile()


class ItchMarket:
    """A few symbols, so that books are busy; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def day(self, stream_id: int, session: str) -> list[bytes]:
        seed = self._seed * 1_000 + stream_id * 100 + len(session)
        generator = ItchGenerator(GeneratorConfig(seed=seed, symbols=SYMBOLS, messages=MESSAGES))
        return [message for _, message in generator.take(MESSAGES)]

    def converter(self, stream_id: int, checkpoint_interval: int) -> Conversion:
        return Converter(_plan(), stream_id, trading_date=DAY, checkpoint_interval=checkpoint_interval)
