"""Lists of messages between the two routers of a pair: what one of them has, and what the other misses of it.

    0       1       2       3       4       5       6       7
  ┌───────┬───────┬───────────────┬───────────────────────────────┐
0 │ kind  │ flags │ 0             │ number                        │ of the endpoint (LIVE), of the stream (MISSING);
  ├───────┴───────┴───────────────┴───────────────────────────────┤ flag 1: this is the last frame
8 │ id                                                            │ and so on; ids rise
  └───────────────────────────────────────────────────────────────┘
"""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from penstock.base.errors import RemoteProtocolError
from penstock.net.core.framing import encode_frame

IDS_PER_FRAME = 65_536


def distinct(parts: Sequence[NDArray[numpy.uint64]]) -> NDArray[numpy.uint64]:
    """The distinct ids of all parts, ascending. They are mostly sorted already: sorting is faster than hashing."""
    ids = numpy.sort(numpy.concatenate(parts))
    return ids[numpy.concatenate([[True], ids[1:] != ids[:-1]])] if len(ids) else ids


def ids_frame(kind: int, number: int, ids: NDArray[numpy.uint64], *, is_last: bool = False) -> bytes:
    head = bytes([kind, is_last, 0, 0]) + number.to_bytes(4, "little")
    return encode_frame(head + ids.astype("<u8").tobytes())


def read_ids(data: bytes) -> tuple[int, bool, NDArray[numpy.uint64]]:
    """Return (number, True for the last frame, ids). Raises RemoteProtocolError unless the ids rise."""
    if len(data) < 8 or len(data) % 8:
        raise RemoteProtocolError("a list of ids is incomplete")
    ids = numpy.frombuffer(data, "<u8", offset=8).astype(numpy.uint64)
    if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
        raise RemoteProtocolError("the ids of a list do not ascend")
    return int.from_bytes(data[4:8], "little"), bool(data[1] & 1), ids
