"""At a root: publishers' messages into streams without Python, in the ordinary case."""

from penstock.topics import InterestTable
from penstock.tree.core.kernel._tail import TailMemory

class Intake:
    """`topics` has each stream's topics, with the stream as subscriber; it is changed with the fan-out's mutex only, as
    is all of this. `wall_offset_ns` is what the wall clock is ahead of the one whose time packets come with."""

    def __init__(
        self, tree_id: int, term: int, topics: InterestTable, tail: TailMemory, wall_offset_ns: int
    ) -> None: ...
