"""AgentSelector: the agent that a subscriber or publisher tries next, and the back-off before. It does no I/O."""

from collections.abc import Iterator, Sequence

from penstock.base.backoff import pause_ns
from penstock.base.clock import Randomness
from penstock.tree.config import BackoffConfig, Step


class AgentSelector:
    """Knows the configured agents in their order, and the siblings of the present agent."""

    def __init__(self, places: Sequence[str], backoff: BackoffConfig, randomness: Randomness) -> None:
        self._places = tuple(dict.fromkeys(places))
        self._backoff = backoff
        self._randomness = randomness
        self._siblings: tuple[str, ...] = ()
        self._remaining: Iterator[str] = iter(())
        self._failures = 0

    @property
    def first(self) -> str:
        return self._places[0]

    def learn(self, siblings: Sequence[str]) -> None:
        self._siblings = tuple(siblings)

    def succeed(self) -> None:
        """Connected: the back-off begins anew with the next loss."""
        self._failures = 0
        self._remaining = iter(())

    def next(self, steps: Sequence[Step], lost: str) -> tuple[str, int]:
        """The place to try next, and the nanoseconds to wait before; the first round has no back-off."""
        found = next(self._remaining, "")
        if found:
            return found, 0
        wait_ns = pause_ns(self._backoff, self._failures, self._randomness) if self._failures else 0
        self._failures += 1
        self._remaining = iter(self._round(steps, lost))
        return next(self._remaining), wait_ns

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
