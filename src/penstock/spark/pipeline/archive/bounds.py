"""The bound on partitions that the rows of a slice may create, because their dates and stream numbers are untrusted.

    bound = PartitionBound()
    is_admitted = bound.admit(times_ns, streams)       # per row; other rows are quarantined

The first PARTITIONS_MAX pairs of date and stream are admitted, so that invented numbers cannot fill an archive with
directories.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTITIONS_MAX = 1_024
"""Maximum number of (date, stream) pairs per slice; each model's table has one partition per pair."""

NS_PER_DAY = 86_400 * 10**9

STREAM_BITS = 32
STREAM_MASK = (1 << STREAM_BITS) - 1


class PartitionBound:
    """The admitted partitions of one slice."""

    def __init__(self) -> None:
        self._left = PARTITIONS_MAX
        self._admitted: set[int] = set()

    def admit(self, times_ns: NDArray[Any], streams: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each row whether its partition is admitted; an admitted partition remains admitted."""
        different, which = partition_keys(times_ns, streams)
        return np.array([self._admit(key) for key in different.tolist()], np.bool_)[which]

    def _admit(self, key: int) -> bool:
        if key not in self._admitted and self._left > 0:
            self._admitted.add(key)
            self._left -= 1
        return key in self._admitted


def partition_keys(times_ns: NDArray[Any], streams: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the distinct partitions as numbers, and for each row the index of its partition."""
    keys = (times_ns // NS_PER_DAY << STREAM_BITS) | (streams & STREAM_MASK)
    if len(keys) and (keys == keys[0]).all():
        return keys[:1], np.zeros(len(keys), np.intp)
    different, which = np.unique(keys, return_inverse=True)
    return different, which.reshape(-1)


def partition_of(key: int) -> tuple[int, int]:
    """Return the day since 1970 and the stream of a partition number."""
    return key >> STREAM_BITS, signed_stream(key & STREAM_MASK)


def signed_stream(stream: int) -> int:
    """Return a stream number as the INT with the same bits, the type of its column."""
    return stream - (1 << STREAM_BITS) if stream >> (STREAM_BITS - 1) else stream
