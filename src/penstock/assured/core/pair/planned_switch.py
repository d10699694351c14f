"""A planned switch at the active router: first it is requested, then this router yields; both steps have a time
limit."""

from collections.abc import Mapping

from penstock.base.clock import NS_PER_MS

WANTED_NS = 5_000 * NS_PER_MS
"""Time for the other router to catch up; then the order is dropped."""

YIELDING_NS = 2_000 * NS_PER_MS
"""Time without an active router after yielding; then this router continues."""


class PlannedSwitch:
    def __init__(self) -> None:
        self.left_there: dict[str, int] = {}
        """Messages left at the router that stopped for this one: messages without copies, by endpoint."""
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
        """True if this router is about to stop for the other one."""
        return self.is_wanted or self.is_yielding

    def want(self, now_ns: int) -> None:
        self._wanted_until_ns = now_ns + WANTED_NS

    def begin_yielding(self, now_ns: int) -> None:
        self._wanted_until_ns, self._yielding_until_ns = None, now_ns + YIELDING_NS

    def forget(self) -> bool:
        """End the switch. True if this router was yielding."""
        was_yielding = self.is_yielding
        self._wanted_until_ns = self._yielding_until_ns = None
        return was_yielding

    def is_late(self, now_ns: int) -> bool:
        deadline_ns = self.next_deadline_ns()
        return deadline_ns is not None and now_ns >= deadline_ns

    def next_deadline_ns(self) -> int | None:
        return self._wanted_until_ns if self._yielding_until_ns is None else self._yielding_until_ns


def told_left(left: Mapping[str, int]) -> str:
    """Describe the messages that are left behind at a router."""
    return ", ".join(f"{name}: {count:,}" for name, count in left.items())
