"""A market in a few lines, for the toy converter."""

from penstock.feed.core.conversion import Conversion
from sim.toy_conversion import ToyConversion, hash_of


class ToyMarket:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def day(self, stream_id: int, session: str) -> list[bytes]:
        numbers = (hash_of(self._seed, stream_id, session, n) for n in range(20_000))
        return [f"S{number % 7}:{number % 1_000}".encode() for number in numbers]

    def converter(self, stream_id: int, checkpoint_interval: int) -> Conversion:
        return ToyConversion(stream_id, checkpoint_interval)
