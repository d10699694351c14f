"""Which partitions the rows of a slice may make: their dates and stream numbers come from outside.

    bound = PartitionBound()
    is_admitted = bound.admit(times_ns, streams)       # of every row; what is not admitted is quarantined

The first PARTITIONS_MAX pairs of a date and a stream are admitted, whatever comes later: nobody fills an archive with
directories by inventing numbers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTITIONS_MAX = 1_024
"""Dates and streams that one slice may bring rows of; each model has a table with such partitions."""

NS_PER_DAY = 86_400 * 10**9

STREAM_BITS = 32
STREAM_MASK = (1 << STREAM_BITS) - 1


class PartitionBound:
    """Of one slice."""

    def __init__(self) -> None:
        self._left = PARTITIONS_MAX
        self._admitted: set[int] = set()

    def admit(self, times_ns: NDArray[Any], streams: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each row may be in its partition; one that was admitted stays so."""
        different, which = partition_keys(times_ns, streams)
        return np.array([self._admit(key) for key in different.tolist()], np.bool_)[which]

    def _admit(self, key: int) -> bool:
        if key not in self._admitted and self._left > 0:
            self._admitted.add(key)
            self._left -= 1
        return key in self._admitted


def partition_keys(times_ns: NDArray[Any], streams: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """The different partitions, each as one number, and which of them each row belongs to."""
    keys = (times_ns // NS_PER_DAY << STREAM_BITS) | (streams & STREAM_MASK)
    if len(keys) and (keys == keys[0]).all():
        return keys[:1], np.zeros(len(keys), np.intp)
    different, which = np.unique(keys, return_inverse=True)
    return different, which.reshape(-1)


def partition_of(key: int) -> tuple[int, int]:
    """The day since 1970 and the stream of a partition's number."""
    return key >> STREAM_BITS, signed_stream(key & STREAM_MASK)


def signed_stream(stream: int) -> int:
    """A stream's number as the INT of the same bits, which its column is."""
    return stream - (1 << STREAM_BITS) if stream >> (STREAM_BITS - 1) else stream
