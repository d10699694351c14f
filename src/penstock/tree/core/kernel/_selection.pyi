from collections.abc import Iterable, Sequence

from penstock.filter.core.kernel._condition import Condition

class Selection:
    def __init__(self, wants: Iterable[tuple[Sequence[str], Condition | None]]) -> None: ...
