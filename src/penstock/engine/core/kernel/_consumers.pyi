from penstock.engine.core.kernel._items import Items
from penstock.engine.core.kernel._pairs import Pairs
from penstock.engine.core.kernel._sinks import SessionBuffer
from penstock.shm import RingWriter

class Consumers:
    items: Items
    pairs: Pairs
    consumers_max: int
    def __init__(self, consumers_max: int, items: Items, pairs: Pairs) -> None: ...
    def attach(
        self, number: int, ring: RingWriter | None, buffer: SessionBuffer | None, notices: RingWriter | None = None
    ) -> None: ...
    def take_ready(self) -> list[int]: ...
    def next_pace_ns(self) -> int | None: ...
