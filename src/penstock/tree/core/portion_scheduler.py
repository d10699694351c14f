"""PortionScheduler: decides which leg gets the next portion of the past (TREE-5, TREE-10).

A few portions are sent per turn of the core, round-robin over links. On each link only a limited number of bytes is
requested or waits to be sent, so that children far behind cost neither memory nor the time of live children.
"""

from collections import deque
from collections.abc import Callable

from penstock.base.clock import NS_PER_MS
from penstock.tree.core.children import ChildLeg
from penstock.tree.core.environment import Environment

PORTIONS_PER_TURN = 4
RECHECK_NS = 10 * NS_PER_MS
"""How often a busy link is checked again."""


class PortionScheduler:
    """`is_busy(leg)` is True if the leg has to wait for other portions."""

    def __init__(self, environment: Environment, is_busy: Callable[[ChildLeg], bool]) -> None:
        self._environment = environment
        self._is_busy = is_busy
        self._legs: dict[int, dict[int, ChildLeg]] = {}
        """Waiting legs, by link and number. Each link is either in `_due` or in `_busy`."""
        self._due: deque[int] = deque()
        self._busy: dict[int, None] = {}
        self._recheck_ns = 0

    def add(self, leg: ChildLeg) -> None:
        if leg.link not in self._legs:
            self._legs[leg.link] = {}
            self._due.append(leg.link)
        self._legs[leg.link][leg.number] = leg

    def remove(self, leg: ChildLeg) -> None:
        self._legs.get(leg.link, {}).pop(leg.number, None)

    def portion_ended(self, link: int) -> None:
        """A portion of the link was sent, or is no longer wanted: the link may be free, and so may the one that has
        been busy longest."""
        for each in (link, next(iter(self._busy), link)):
            if each in self._busy:
                del self._busy[each]
                self._due.append(each)

    def begin_turn(self) -> None:
        if self._busy and self._environment.now_ns >= self._recheck_ns:
            self._due.extend(self._busy)
            self._busy.clear()

    def next(self) -> ChildLeg | None:
        """The leg whose turn it is; None if none is due. The caller sends, or requests, its portion."""
        while self._due:
            link = self._due.popleft()
            legs = self._legs[link]
            leg = next(iter(legs.values()), None)
            if leg is None:
                del self._legs[link]
            elif self._is_busy(leg):
                self._recheck_ns = self._recheck_ns if self._busy else self._environment.now_ns + RECHECK_NS
                self._busy[link] = None
            else:
                del legs[leg.number]
                self._due.append(link)
                return leg
        return None

    def deadline_ns(self) -> int | None:
        if self._due:
            return self._environment.now_ns
        return self._recheck_ns if self._busy else None
