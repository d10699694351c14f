"""Checks of fencing from outside: one holder at a time, and one holder for each term."""

from collections.abc import Hashable, Sequence

from penstock.sim.checker import Checker


class FencingChecker(Checker):
    """Base of checkers of a right with at most one holder: a lease, an active router, an active adapter."""

    def __init__(self) -> None:
        self._holders_by_term: dict[int, Hashable] = {}

    def require_one(self, holders: Sequence[str]) -> None:
        """The current `holders`."""
        self.require(len(holders) <= 1, f"{' and '.join(holders)} hold the right at the same time")

    def require_own_term(self, term: int, holder: Hashable) -> None:
        """`holder` holds the right in `term`."""
        before = self._holders_by_term.setdefault(term, holder)
        self.require(before == holder, f"{holder} holds the right in term {term}, as {before} did")
