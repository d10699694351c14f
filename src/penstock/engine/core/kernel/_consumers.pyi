from typing import Any, TypedDict

from penstock.engine.core.kernel._items import Items
from penstock.engine.core.kernel._pairs import Pairs
from penstock.engine.core.kernel._sinks import SessionBuffer
from penstock.shm import RingWriter

class ClassTally(TypedDict):
    sent: int
    bytes: int
    conflated: int
    congested: int

class Tally(TypedDict):
    items: int
    overruns: int
    receipts: int
    waiting: int
    pending: int
    is_behind: bool
    critical: ClassTally
    adaptive: ClassTally
    metered: ClassTally

class Consumers:
    items: Items
    consumers_max: int
    number: int
    def __init__(self, *, consumers_max: int, items: Items, pairs: Pairs, **_: Any) -> None: ...
    def attach(
        self, number: int, ring: RingWriter | None, buffer: SessionBuffer | None, notices: RingWriter | None = None
    ) -> None: ...
    def detach(self, number: int) -> None: ...
    def take_ready(self) -> list[int]: ...
    @property
    def pair_count(self) -> int: ...
    def unwant(self, number: int, item: int, is_told: bool = False) -> int: ...
    def items_of(self, number: int) -> list[int]: ...
    def live(self, number: int, subscription: int) -> None: ...
    def tally(self, number: int) -> Tally: ...
