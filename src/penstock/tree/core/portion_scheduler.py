"""Whose turn it is to get a portion of the past, of all who want one (TREE-5, TREE-10).

A few are given in one turn of the core; and on each link only so many bytes are on their way, or wait to be sent. So
those who are far behind cost neither memory nor the time of those who are live.
"""

from collections import deque
from collections.abc import Callable

from penstock.base.clock import NS_PER_MS
from penstock.tree.core.board import Board, ChildLeg

PORTIONS_PER_TURN = 4
LOOK_NS = 10 * NS_PER_MS
"""How often it is looked whether a link that was busy is free."""


class Portions:
    """`is_busy` says whether a leg has to wait for others, `give` gives it what it waits for, or has it brought."""

    def __init__(self, board: Board, is_busy: Callable[[ChildLeg], bool], give: Callable[[ChildLeg], None]) -> None:
        self._board = board
        self._is_busy = is_busy
        self._give = give
        self._legs: dict[int, dict[int, ChildLeg]] = {}
        """By link, which is either due or busy, and number."""
        self._due: deque[int] = deque()
        self._busy: dict[int, None] = {}
        self._look_ns = 0

    def ask(self, leg: ChildLeg) -> None:
        if leg.link not in self._legs:
            self._legs[leg.link] = {}
            self._due.append(leg.link)
        self._legs[leg.link][leg.number] = leg

    def drop(self, leg: ChildLeg) -> None:
        """It is over."""
        self._legs.get(leg.link, {}).pop(leg.number, None)

    def was_served(self, link: int) -> None:
        """It may be free again, or leave something for whoever waits longest."""
        for each in (link, next(iter(self._busy), link)):
            if each in self._busy:
                del self._busy[each]
                self._due.append(each)

    def take_turn(self) -> None:
        now_ns = self._board.now_ns
        if self._busy and now_ns >= self._look_ns:
            self._due.extend(self._busy)
            self._busy.clear()
        left = PORTIONS_PER_TURN
        while left and self._due:
            link = self._due.popleft()
            legs = self._legs[link]
            leg = next(iter(legs.values()), None)
            if leg is None:
                del self._legs[link]
            elif self._is_busy(leg):
                self._look_ns = self._look_ns if self._busy else now_ns + LOOK_NS
                self._busy[link] = None
            else:
                left -= 1
                del legs[leg.number]
                self._due.append(link)
                self._give(leg)

    def deadline_ns(self) -> int | None:
        if self._due:
            return self._board.now_ns
        return self._look_ns if self._busy else None
