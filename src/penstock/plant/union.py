"""What a node's consumers want of the node above, taken together (MUX-1). It does no I/O.

For each pattern the strongest wish counts: whoever must have every update decides; among those who want updates at a
rate, the highest rate. The first wish for a pattern is asked for upstream, the last one that goes releases it.
"""

from collections import Counter
from typing import NamedTuple

from penstock.engine.control import ClassWish


class Wish(NamedTuple):
    """How a pattern is wanted; a higher one serves those who want a lower one."""

    cls: ClassWish
    per_second: float = 0.0

    @property
    def strength(self) -> tuple[int, float]:
        rank = {"metered": 0, "adaptive": 1, "auto": 2, "critical": 3}[self.cls]
        return (rank, self.per_second) if self.per_second or self.cls != "metered" else (2, 0.0)


class Union:
    """Counts wishes; what it returns is to be asked for, or released, upstream."""

    def __init__(self) -> None:
        self._wishes: dict[str, Counter[Wish]] = {}

    def __len__(self) -> int:
        return len(self._wishes)

    def __contains__(self, pattern: str) -> bool:
        return pattern in self._wishes

    def strongest(self, pattern: str) -> Wish | None:
        """None: nobody wants it."""
        wishes = self._wishes.get(pattern)
        return max(wishes, key=lambda each: each.strength) if wishes else None

    def add(self, pattern: str, wish: Wish) -> Wish | None:
        """What is to be asked for, in place of what was before; None: it is there already."""
        before = self.strongest(pattern)
        self._wishes.setdefault(pattern, Counter())[wish] += 1
        after = self.strongest(pattern)
        return after if after != before else None

    def remove(self, pattern: str, wish: Wish) -> tuple[bool, Wish | None]:
        """Whether something changes, and what is to be asked for then; None: the pattern is released."""
        before = self.strongest(pattern)
        wishes = self._wishes[pattern]
        wishes[wish] -= 1
        if wishes[wish] <= 0:
            del wishes[wish]
        if not wishes:
            del self._wishes[pattern]
        after = self.strongest(pattern)
        return after != before, after
