"""At a root: sequences publishers' messages without Python, in the normal case."""

from penstock.topics import InterestTable
from penstock.tree.core.kernel._tail import TailMemory

class Intake:
    """`topics` has each stream's topics, with the stream as subscriber; all of this is only changed with the
    fan-out's mutex. `wall_offset_ns` is the wall clock minus the clock of the packets' receive times.
    `acknowledgement` is the frame that acknowledges number 2**64 - 1 to a publisher that asks for it at once; empty if
    the tail alone does not suffice for an acknowledgement."""

    def __init__(
        self,
        tree_id: int,
        term: int,
        topics: InterestTable,
        tail: TailMemory,
        wall_offset_ns: int,
        acknowledgement: bytes,
    ) -> None: ...
