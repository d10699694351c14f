import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.convert import SourceBatch

TAPE_KIND_AT: int
TAPE_FLAGS_AT: int
TAPE_SIZE_AT: int
TAPE_SEQUENCE_AT: int
TAPE_NUMBER_AT: int
TAPE_HEADER_SIZE: int
TAPE_MESSAGES: int
TAPE_SESSION: int
TAPE_LOST: int
TAPE_RESET: int

def encode_messages(batch: SourceBatch) -> bytes: ...
def gather(
    batch: SourceBatch,
) -> tuple[NDArray[numpy.uint64], NDArray[numpy.int64], NDArray[numpy.int32], NDArray[numpy.uint8]]: ...
def scan_blocks(data: Buffer, start: int, until: int) -> tuple[int, int]: ...

class TapeRows:
    @property
    def end(self) -> int: ...
    def batch(self, data: Buffer, start: int, size_max: int) -> SourceBatch: ...
