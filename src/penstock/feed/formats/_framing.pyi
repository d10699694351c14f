from typing_extensions import Buffer

from penstock.convert import SourceBatch

MOLD_SESSION_SIZE: int
MOLD_SEQUENCE_AT: int
MOLD_COUNT_AT: int
MOLD_HEADER_SIZE: int
MOLD_COUNT_HEARTBEAT: int
MOLD_COUNT_END: int
IEXTP_VERSION: int
IEXTP_VERSION_AT: int
IEXTP_PROTOCOL_AT: int
IEXTP_CHANNEL_AT: int
IEXTP_SESSION_AT: int
IEXTP_PAYLOAD_SIZE_AT: int
IEXTP_COUNT_AT: int
IEXTP_OFFSET_AT: int
IEXTP_SEQUENCE_AT: int
IEXTP_TIME_AT: int
IEXTP_HEADER_SIZE: int
SOUP_TYPE_AT: int
SOUP_HEADER_SIZE: int
SIZE_SIZE: int
MOLD: int
IEXTP: int

def decode_datagram(kind: int, data: Buffer) -> tuple[bytes, int, list[bytes], bool]: ...
def cut(blocks: Buffer, size_max: int) -> list[tuple[int, int, int]]: ...
def count_types(batch: SourceBatch) -> dict[int, int]: ...
def count_sizes(batch: SourceBatch, sizes: Buffer) -> tuple[int, int, int]: ...
def soup_data(blocks: Buffer) -> bytes: ...
def skip(blocks: Buffer, count: int) -> int: ...

class Blocks:
    consumed: int
    def __init__(self) -> None: ...
    def batch(self, data: Buffer, first_sequence: int, receive_ns: int = 0, count_max: int = ...) -> SourceBatch: ...

class SoupData:
    end: int
    def __init__(self) -> None: ...
    def batch(self, data: Buffer, start: int, first_sequence: int, receive_ns: int = 0) -> SourceBatch: ...
