"""A planned switch at the router that is active: first it is wanted, then this router yields; neither for ever."""

from collections.abc import Mapping

from penstock.base.clock import NS_PER_MS

WANTED_NS = 5_000 * NS_PER_MS
"""How long the other router may take until it has everything; an order that comes to nothing is forgotten."""

YIELDING_NS = 2_000 * NS_PER_MS
"""How long nobody is active for it: then this router goes on."""


class PlannedSwitch:
    def __init__(self) -> None:
        self.left_there: dict[str, int] = {}
        """What the router said that stopped for this one: by endpoint, messages that have no copies, and stay there."""
        self._wanted_until_ns: int | None = None
        self._yielding_until_ns: int | None = None

    @property
    def is_wanted(self) -> bool:
        return self._wanted_until_ns is not None

    @property
    def is_yielding(self) -> bool:
        return self._yielding_until_ns is not None

    @property
    def is_under_way(self) -> bool:
        """Whether this router is to stop for the other one, and has not yet."""
        return self.is_wanted or self.is_yielding

    def want(self, now_ns: int) -> None:
        self._wanted_until_ns = now_ns + WANTED_NS

    def begin_yielding(self, now_ns: int) -> None:
        self._wanted_until_ns, self._yielding_until_ns = None, now_ns + YIELDING_NS

    def forget(self) -> bool:
        """It is over; whether this router was yielding."""
        was_yielding = self.is_yielding
        self._wanted_until_ns = self._yielding_until_ns = None
        return was_yielding

    def is_late(self, now_ns: int) -> bool:
        deadline_ns = self.next_deadline_ns()
        return deadline_ns is not None and now_ns >= deadline_ns

    def next_deadline_ns(self) -> int | None:
        return self._wanted_until_ns if self._yielding_until_ns is None else self._yielding_until_ns


def told_left(left: Mapping[str, int]) -> str:
    """Of messages that stay behind at a router."""
    return ", ".join(f"{name}: {count:,}" for name, count in left.items())
