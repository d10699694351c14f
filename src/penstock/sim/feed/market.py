"""Messages of the simulated exchange: the generator's order flow, converted by the shipped ITCH table."""

import functools

from penstock.convert import Converter, ConverterTable, Plan
from penstock.feed.core.conversion import Conversion
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator

MESSAGES = 4_000
SYMBOLS = 6
LOCATE_AT = 1
"""Position of the instrument's locate code in every ITCH message, two bytes; 0 is no instrument."""


@functools.cache
def _plan() -> Plan:
    return ConverterTable.load("itch").compile()


class ItchMarket:
    """A few symbols, so that books are busy; the same for the same seed. Every session assigns locate codes anew."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def day(self, stream_id: int, session: str) -> list[bytes]:
        number = int(session.removeprefix("DAY"))
        seed = self._seed * 1_000 + stream_id * 100 + number
        generator = ItchGenerator(GeneratorConfig(seed=seed, symbols=SYMBOLS, messages=MESSAGES))
        return [_relocated(message, number) for _, message in generator.take(MESSAGES)]

    def converter(self, stream_id: int, checkpoint_interval: int) -> Conversion:
        return Converter(_plan(), stream_id, checkpoint_interval=checkpoint_interval)


def _relocated(message: bytes, by: int) -> bytes:
    """The same message with the locate codes of another day."""
    locate = int.from_bytes(message[LOCATE_AT : LOCATE_AT + 2], "big")
    if locate == 0:
        return message
    moved = (locate - 1 + by) % SYMBOLS + 1
    return message[:LOCATE_AT] + moved.to_bytes(2, "big") + message[LOCATE_AT + 2 :]
