from collections.abc import Sequence

from typing_extensions import Buffer

PACKET_SIZE_MIN: int
RANGES_MAX: int

class Packer:
    def __init__(
        self,
        publisher_id: int,
        group: int,
        epoch: int,
        *,
        packet_size_max: int = ...,
        first_sequence: int = 1,
        keep_alive_packets: int = ...,
        flags: int = ...,
    ) -> None: ...
    @property
    def next_sequence(self) -> int: ...
    @property
    def pending_count(self) -> int: ...
    def add(
        self,
        topic: str | bytes,
        payload: Buffer,
        *,
        model_id: int = 0,
        model_version: int = 0,
        flags: int = 0,
        extensions: bytes = b"",
    ) -> list[bytes]: ...
    def flush(self, flags: int = 0) -> bytes | None: ...
    def skip(self, count: int) -> None: ...
    def empty(self, flags: int) -> bytes: ...

def encode_nack(
    publisher_id: int,
    group: int,
    epoch: int,
    ranges: Sequence[tuple[int, int]],
    *,
    requester: int = 0,
    number: int = 0,
) -> bytes: ...
def encode_gone(publisher_id: int, group: int, epoch: int, ranges: Sequence[tuple[int, int]]) -> bytes: ...
def restamp(packet: Buffer, *, set_flags: int = 0, clear_flags: int = 0, gap: int | None = None) -> bytes: ...
