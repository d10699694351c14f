from typing import Any

from penstock.wire import Origin, PacketMessage

class UnreadMessage:
    topic: str
    seq: int
    source: Origin | None
    model_id: int
    model_version: int
    payload: memoryview | bytes
    model: None
    def __init__(self, message: PacketMessage, seq: int, source: Origin | None) -> None: ...
    def __bytes__(self) -> bytes: ...
    # not at run time: programs that know their messages read fields without a check of the type
    def __getattr__(self, name: str) -> Any: ...
