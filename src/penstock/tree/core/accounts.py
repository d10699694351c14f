"""Accounts: counts per neighbour and stream, for the agent's accounting records (live/account_rows.py).

The fan-out counts live packets. Only the core knows the rest: messages fetched from the past, losses that were
reported, and where a root began to number. The final account of a closed link waits here until it is collected.
"""

from collections import deque
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from penstock.tree.core.control import Class
from penstock.tree.core.infostream import Diverged, Gone, Info, Lagging, ParentFound, ParentLost, Revoked
from penstock.tree.core.kernel.notices import LinkState

NeighbourRole: TypeAlias = Literal["parent", "agent", "standby", "peer", "subscriber", "publisher", "operator"]
"""The relation of a neighbour to this agent."""


class LinkActivity(msgspec.Struct):
    """Counts of one link."""

    link: int
    name: str
    role: NeighbourRole
    cls: Class = "lossless"
    published: int = 0
    """Messages of a publisher that were sequenced."""
    fetched: int = 0
    """Messages of the past that were sent."""
    portions: int = 0
    lagging: int = 0
    """Times that a leg left live."""
    gone: int = 0
    """Upper limit of the messages reported as no longer kept."""
    diverged: int = 0
    """Upper limit of the messages reported as not part of their stream."""
    revoked: int = 0
    """Revocations reported."""


class LinkAccount(msgspec.Struct, frozen=True):
    activity: LinkActivity
    state: LinkState
    is_closed: bool = False


class Accounts:
    def __init__(self) -> None:
        self.parents_found = 0
        self.parents_lost = 0
        self.open: dict[int, LinkActivity] = {}
        """By link."""
        self.begun: dict[int, tuple[int, int]] = {}
        """By stream: its last sequence, and the count that the fan-out had accepted, when this agent began to receive
        or to number the stream."""
        self._ended: deque[LinkAccount] = deque(maxlen=0)

    def keep(self, ended_max: int) -> None:
        """Keep the final accounts of closed links until they are collected, at most `ended_max`."""
        self._ended = deque(self._ended, maxlen=ended_max)

    def begin(self, link: int, name: str, role: NeighbourRole, cls: Class = "lossless") -> None:
        self.open[link] = LinkActivity(link, name, role, cls)

    def end(self, link: int, state: LinkState) -> None:
        activity = self.open.pop(link, None)
        if activity is not None:
            self._ended.append(LinkAccount(activity, state, is_closed=True))

    def ended(self) -> list[LinkAccount]:
        """The final accounts since the last call."""
        found = list(self._ended)
        self._ended.clear()
        return found

    def fetched(self, link: int, messages: int) -> None:
        activity = self.open.get(link)
        if activity is not None:
            activity.fetched += messages
            activity.portions += 1

    def published(self, link: int, messages: int) -> None:
        activity = self.open.get(link)
        if activity is not None:
            activity.published += messages

    def informed(self, info: Info, links: Iterable[int]) -> None:
        """Count a message sent on the infostream."""
        match info:
            case ParentFound():
                self.parents_found += 1
            case ParentLost():
                self.parents_lost += 1
            case Lagging() | Gone() | Diverged() | Revoked():
                for activity in filter(None, map(self.open.get, links)):
                    self._count(activity, info)

    @staticmethod
    def _count(activity: LinkActivity, info: Lagging | Gone | Diverged | Revoked) -> None:
        match info:
            case Lagging():
                activity.lagging += 1
            case Gone():
                activity.gone += max(info.last - info.first + 1, 0)
            case Diverged():
                activity.diverged += max(info.last - info.first + 1, 0)
            case Revoked():
                activity.revoked += 1
