from collections.abc import Iterator

from penstock.wire._packet import PacketMessage

class PacketRun:
    end: int
    last: int
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[PacketMessage]: ...

def take_run(data: bytes, at: int, end: int, group: int, epoch: int, last: int) -> PacketRun | None: ...
