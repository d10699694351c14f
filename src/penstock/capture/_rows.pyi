import numpy
from numpy.typing import NDArray

from penstock.wire._batch import Bytes

ORIGIN_DTYPE: numpy.dtype[numpy.void]
PLACE_DTYPE: numpy.dtype[numpy.void]
STREAM_DTYPE: numpy.dtype[numpy.void]
STREAMS_MAX: int

class RecordParser:
    @property
    def packets(self) -> NDArray[numpy.void]: ...
    @property
    def messages(self) -> NDArray[numpy.void]: ...
    @property
    def refused(self) -> list[int]: ...
    @property
    def has_fragments(self) -> bool: ...
    @property
    def has_gone(self) -> bool: ...
    @property
    def stream_count(self) -> int: ...
    @property
    def streams(self) -> NDArray[numpy.void]: ...
    def parse(self, data: Bytes, records: NDArray[numpy.void]) -> None: ...

def read_origins(payloads: Bytes, rows: NDArray[numpy.void]) -> NDArray[numpy.void]: ...
def read_places(
    rows: NDArray[numpy.void], packets: NDArray[numpy.void], records: NDArray[numpy.void]
) -> NDArray[numpy.void]: ...
def gather_bytes(
    data: Bytes, rows: NDArray[numpy.void], is_topic: bool
) -> tuple[NDArray[numpy.int32], NDArray[numpy.uint8]]: ...
def find_sound(
    rows: NDArray[numpy.void], model_id: int, sizes_needed: NDArray[numpy.uint32]
) -> NDArray[numpy.bool_]: ...
def gather_records(
    payloads: Bytes,
    rows: NDArray[numpy.void],
    blank: Bytes,
    newer: NDArray[numpy.uint32],
    out: NDArray[numpy.uint8],
) -> None: ...
