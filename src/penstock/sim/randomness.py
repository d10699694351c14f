"""Randomness that is the same on every run of a seed."""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class SeededRandomness:
    """A stream of random decisions. `fork` gives each part of a plant its own, so that one part drawing more often
    does not change what another part sees."""

    def __init__(self, seed: int, path: str = "") -> None:
        self._seed = seed
        self._path = path
        digest = hashlib.sha256(f"{seed}/{path}".encode()).digest()
        self._source = random.Random(int.from_bytes(digest[:16], "little"))

    def fork(self, name: str) -> "SeededRandomness":
        return SeededRandomness(self._seed, f"{self._path}/{name}")

    def below(self, limit: int) -> int:
        return int(self._source.random() * limit) if limit < 2**50 else self._source.randrange(limit)

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._source.random() < probability

    def choose(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def bytes(self, size: int) -> bytes:
        return self._source.randbytes(size)
