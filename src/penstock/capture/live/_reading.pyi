from collections.abc import Callable
from typing import Any

from penstock.capture.core.message_reader import Readable
from penstock.wire import MessageBatch, PacketMessage
from penstock.wire._packet_run import PacketRun

class BatchReader:
    def __init__(self, models: Any, seed: int, read_one: Callable[[PacketMessage], Readable | None]) -> None: ...
    def read(self, batch: MessageBatch) -> list[Readable]: ...
    def read_run(self, run: PacketRun, apart: str) -> list[Readable | PacketMessage]: ...
