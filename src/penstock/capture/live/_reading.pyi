from collections.abc import Callable
from typing import Any

from penstock.capture.core.message_reader import Readable
from penstock.wire import MessageBatch, PacketMessage

class BatchReader:
    @property
    def others(self) -> int: ...
    def __init__(self, models: Any, seed: int, read_one: Callable[[PacketMessage], Readable | None]) -> None: ...
    def read(self, batch: MessageBatch) -> list[Readable]: ...
