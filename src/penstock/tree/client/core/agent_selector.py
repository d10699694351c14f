"""AgentSelector: the agent that a subscriber or publisher tries next, and the back-off before. It does no I/O."""

from collections.abc import Iterator, Sequence

from penstock.base.backoff import pause_ns
from penstock.base.clock import Randomness
from penstock.tree.config import BackoffConfig, Step


class AgentSelector:
    """The Addresses of a client: the configured agents in their order, and the siblings of the present agent. `steps`
    is where it looks when a link is lost."""

    def __init__(
        self,
        places: Sequence[str],
        steps: Sequence[Step],
        backoff: BackoffConfig,
        randomness: Randomness,
        *,
        answer_ns: int,
    ) -> None:
        self.home = places[0]
        """The agent that the client was configured to use."""
        self._places = tuple(dict.fromkeys(places))
        self._steps = tuple(steps)
        self._answer_ns = answer_ns
        self._backoff = backoff
        self._randomness = randomness
        self._siblings: tuple[str, ...] = ()
        self._remaining: Iterator[str] = iter(())
        self._failures = 0

    def learn(self, siblings: Sequence[str]) -> None:
        self._siblings = tuple(siblings)

    @property
    def answer_ns(self) -> int:
        return self._answer_ns

    def pass_over(self) -> None:
        """A silent agent is treated as one that is lost."""

    def succeed(self, now_ns: int) -> None:
        """Connected: the back-off begins anew with the next loss."""
        self._failures = 0
        self._remaining = iter(())

    def lose(self, now_ns: int) -> None:
        """The length of a link does not matter."""

    def first(self) -> tuple[str, int]:
        return self.home, 0

    def next(self, lost: str, hint: str) -> tuple[str, int]:
        return (hint, 0) if hint else self.look(self._steps, lost)

    def look(self, steps: Sequence[Step], lost: str) -> tuple[str, int]:
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
                    found.append(lost or self.home)
                case "alternate":
                    found += [each for each in self._places if each != lost]
                case "sibling":
                    found += self._siblings
                case "wait":
                    found.append(lost or self.home)
        return list(dict.fromkeys(found)) or [lost or self.home]
