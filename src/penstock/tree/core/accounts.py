"""What an agent did for each neighbour and each stream, for the accounts that it gives (recorder.py).

The fan-out counts what goes and comes live; here is what only the core knows: what was fetched, what was told as
missing, and where a root began to number. Of links that have ended, the last account waits here until it is asked for.
"""

from collections import deque
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from penstock.tree.core.control import Class
from penstock.tree.core.infostream import Diverged, Gone, Info, Lagging, ParentFound, ParentLost, Revoked
from penstock.tree.core.kernel.notices import LinkState

Way: TypeAlias = Literal["parent", "agent", "standby", "peer", "subscriber", "publisher", "operator"]
"""What a neighbour is to this agent."""


class Dealings(msgspec.Struct):
    """With one neighbour, on one link."""

    link: int
    name: str
    way: Way
    cls: Class = "lossless"
    published: int = 0
    """Messages of a publisher that got their numbers."""
    fetched: int = 0
    """Messages of the past that it was given."""
    portions: int = 0
    lagging: int = 0
    """Times that a subscription of it left live."""
    gone: int = 0
    """Messages at most that it was told are kept nowhere any more."""
    diverged: int = 0
    """Messages at most that it was told are no part of their stream."""
    revoked: int = 0
    """Times that it was told that it has lost a right."""


class LinkAccount(msgspec.Struct, frozen=True):
    dealings: Dealings
    state: LinkState
    is_closed: bool = False


class Ledger:
    def __init__(self) -> None:
        self.parents_found = 0
        self.parents_lost = 0
        self.open: dict[int, Dealings] = {}
        self.begun: dict[int, tuple[int, int]] = {}
        """By stream: its last sequence, and what the fan-out had accepted of it, when this agent began to have it, or
        to number it."""
        self._ended: deque[LinkAccount] = deque(maxlen=0)

    def keep(self, ended_max: int) -> None:
        """From now on the last accounts of links wait to be asked for, at most so many."""
        self._ended = deque(self._ended, maxlen=ended_max)

    def begin(self, link: int, name: str, way: Way, cls: Class = "lossless") -> None:
        self.open[link] = Dealings(link, name, way, cls)

    def end(self, link: int, state: LinkState) -> None:
        dealings = self.open.pop(link, None)
        if dealings is not None:
            self._ended.append(LinkAccount(dealings, state, is_closed=True))

    def ended(self) -> list[LinkAccount]:
        """Since it was last asked for."""
        found = list(self._ended)
        self._ended.clear()
        return found

    def gave(self, link: int, messages: int) -> None:
        dealings = self.open.get(link)
        if dealings is not None:
            dealings.fetched += messages
            dealings.portions += 1

    def took(self, link: int, messages: int) -> None:
        dealings = self.open.get(link)
        if dealings is not None:
            dealings.published += messages

    def said(self, info: Info, links: Iterable[int]) -> None:
        """On the infostream."""
        match info:
            case ParentFound():
                self.parents_found += 1
            case ParentLost():
                self.parents_lost += 1
            case Lagging() | Gone() | Diverged() | Revoked():
                for dealings in filter(None, map(self.open.get, links)):
                    self._note(dealings, info)

    @staticmethod
    def _note(dealings: Dealings, info: Lagging | Gone | Diverged | Revoked) -> None:
        match info:
            case Lagging():
                dealings.lagging += 1
            case Gone():
                dealings.gone += max(info.last - info.first + 1, 0)
            case Diverged():
                dealings.diverged += max(info.last - info.first + 1, 0)
            case Revoked():
                dealings.revoked += 1
