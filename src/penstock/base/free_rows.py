"""Free rows of a preallocated table."""


class FreeRows:
    """Rows 0 to `count` - 1. Returned rows are assigned again first, so that the memory of unused rows stays
    untouched."""

    def __init__(self, count: int) -> None:
        self._unused = 0
        self._count = count
        self._given_back: list[int] = []

    def __len__(self) -> int:
        return self._count - self._unused + len(self._given_back)

    def take(self) -> int:
        """Return a free row; one must exist."""
        if self._given_back:
            return self._given_back.pop()
        if self._unused == self._count:
            raise IndexError("no row is free")
        self._unused += 1
        return self._unused - 1

    def give_back(self, row: int) -> None:
        self._given_back.append(row)
