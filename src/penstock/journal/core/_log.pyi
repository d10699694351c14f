import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

JOURNAL_VERSION: int
SEGMENT_MAGIC_AT: int
SEGMENT_VERSION_AT: int
SEGMENT_NONCE_AT: int
SEGMENT_JOURNAL_ID_AT: int
SEGMENT_FIRST_AT: int
SEGMENT_PREVIOUS_AT: int
SEGMENT_CREATED_AT: int
SEGMENT_RESERVED_AT: int
SEGMENT_CHECKSUM_AT: int
SEGMENT_HEADER_SIZE: int
RECORD_SIZE_AT: int
RECORD_CHECKSUM_AT: int
RECORD_SEQUENCE_AT: int
RECORD_TIMESTAMP_AT: int
RECORD_DURABLE_AT: int
RECORD_HEADER_SIZE: int
RECORD_ALIGNMENT: int
MARK_MAGIC_AT: int
MARK_VERSION_AT: int
MARK_RESERVED_AT: int
MARK_JOURNAL_ID_AT: int
MARK_BOOT_ID_AT: int
MARK_DURABLE_AT: int
MARK_RESERVED_TOO_AT: int
MARK_CHECKSUM_AT: int
MARK_SIZE: int
STOP_ROWS: int
STOP_SHORT: int
STOP_INVALID: int

RECORD_DTYPE: numpy.dtype[numpy.void]

def scan(
    data: Buffer, nonce: int, next_sequence: int, rows: NDArray[numpy.void], start: int = 0
) -> tuple[int, int, int]: ...
def find_record(data: Buffer, nonce: int, sequence_min: int, start: int = 0) -> tuple[int, int, int] | None: ...

class RecordBuffer(Buffer):
    @property
    def size(self) -> int: ...
    @property
    def first_sequence(self) -> int: ...
    @property
    def next_sequence(self) -> int: ...
    @property
    def last_timestamp_ns(self) -> int: ...
    def __init__(self, first_sequence: int) -> None: ...
    def __len__(self) -> int: ...
    def clear(self, first_sequence: int) -> None: ...
    def append(self, payload: Buffer, timestamp_ns: int) -> int: ...
    def append_rows(
        self,
        data: Buffer,
        offsets: NDArray[numpy.uint32],
        sizes: NDArray[numpy.uint32],
        timestamps_ns: NDArray[numpy.int64],
    ) -> None: ...
    def seal(self, nonce: int, durable: int) -> None: ...
