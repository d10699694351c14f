"""Where a subscriber or publisher looks for an agent: the administrator's table, with pauses. It does no I/O."""

from collections.abc import Iterator, Sequence

from penstock.base.backoff import pause_ns
from penstock.base.clock import Randomness
from penstock.tree.config import BackoffConfig, Step


class Places:
    """The places of one party: its agents in their order, and those that its agent said are beside it."""

    def __init__(self, places: Sequence[str], backoff: BackoffConfig, randomness: Randomness) -> None:
        self._places = tuple(dict.fromkeys(places))
        self._backoff = backoff
        self._randomness = randomness
        self._siblings: tuple[str, ...] = ()
        self._todo: Iterator[str] = iter(())
        self._failures = 0

    @property
    def first(self) -> str:
        return self._places[0]

    def learn(self, siblings: Sequence[str]) -> None:
        self._siblings = tuple(siblings)

    def succeed(self) -> None:
        """It is connected: pauses begin anew with the next loss."""
        self._failures = 0
        self._todo = iter(())

    def next(self, steps: Sequence[Step], lost: str) -> tuple[str, int]:
        """The place to try next, and how many nanoseconds to wait before; the first round of a table has no pauses."""
        found = next(self._todo, "")
        if found:
            return found, 0
        wait_ns = pause_ns(self._backoff, self._failures, self._randomness) if self._failures else 0
        self._failures += 1
        self._todo = iter(self._round(steps, lost))
        return next(self._todo), wait_ns

    def _round(self, steps: Sequence[Step], lost: str) -> list[str]:
        found: list[str] = []
        for step in steps:
            match step:
                case "parent":
                    found.append(lost or self.first)
                case "alternate":
                    found += [each for each in self._places if each != lost]
                case "sibling":
                    found += self._siblings
                case "wait":
                    found.append(lost or self.first)
        return list(dict.fromkeys(found)) or [lost or self.first]
