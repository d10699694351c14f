import numpy
from numpy.typing import NDArray

from penstock.wire._batch import Bytes

class PacketStore:
    def __init__(self, packets_max: int, bytes_max: int, *, first_sequence: int = 1) -> None: ...
    @property
    def next_sequence(self) -> int: ...
    @property
    def bytes_kept(self) -> int: ...
    @property
    def oldest(self) -> int: ...
    def __len__(self) -> int: ...
    def keep(self, packet: bytes) -> None: ...
    def get(self, sequence: int) -> bytes: ...
    def split(self, first: int, last: int) -> tuple[tuple[int, int] | None, range]: ...
    def pack(
        self,
        topics: Bytes,
        payloads: Bytes,
        messages: NDArray[numpy.void],
        *,
        publisher_id: int,
        group: int,
        epoch: int,
        packet_size_max: int = ...,
        keep_alive_packets: int = ...,
        flags: int = ...,
    ) -> int: ...
