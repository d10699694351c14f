"""A pool of small numbers."""

import heapq

from penstock.base.errors import LimitError


class NumberPool:
    """Numbers from 0 on, the lowest free one first, so that they stay dense; at most `count` are in use."""

    def __init__(self, count: int, what: str, hint: str) -> None:
        self._count = count
        self._what = what
        self._hint = hint
        self._next = 0
        self._returned: list[int] = []

    @property
    def free(self) -> int:
        """The count of free numbers."""
        return self._count - self._next + len(self._returned)

    def take(self) -> int:
        if self._returned:
            return heapq.heappop(self._returned)
        if self._next == self._count:
            raise LimitError(f"all {self._count} {self._what} are in use", hint=self._hint)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heapq.heappush(self._returned, number)
