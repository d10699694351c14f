from collections.abc import Callable

from penstock.wire import MessageBatch

WANTED: int
UNWANTED: int
REFUSED: int
MALFORMED: int
UNUSUAL: int

class TopicGate:
    def __init__(self, seed: int, unusual_flags: int, decide: Callable[[str], int]) -> None: ...
    @property
    def refused(self) -> int: ...
    @property
    def malformed(self) -> int: ...
    def forget(self) -> None: ...
    def choose(self, batch: MessageBatch) -> MessageBatch | None: ...
