from typing import TypeAlias

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.counters import Cause

Bytes: TypeAlias = Buffer | NDArray[numpy.uint8]

PACKET_DTYPE: numpy.dtype[numpy.void]
MESSAGE_DTYPE: numpy.dtype[numpy.void]
MESSAGES_MAX: int

def decode_batch(
    data: Bytes,
    packet_offsets: NDArray[numpy.uint32],
    packet_sizes: NDArray[numpy.uint32],
    packets_out: NDArray[numpy.void],
    messages_out: NDArray[numpy.void],
) -> tuple[int, int, dict[Cause, int]]: ...
def encode_batch(
    topics: Bytes,
    payloads: Bytes,
    messages: NDArray[numpy.void],
    out: Bytes,
    packets_out: NDArray[numpy.void],
    *,
    publisher_id: int,
    group: int,
    epoch: int,
    first_sequence: int = 1,
    packet_size_max: int = ...,
    messages_max: int = ...,
) -> tuple[int, int]: ...
