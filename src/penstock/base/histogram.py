"""Latency histograms: buckets whose width grows with the value, so that percentiles stay precise for millions of
values.

Below 128 ns, a bucket is one nanosecond wide; above, every power of two has 64 buckets, so a percentile is at most 1.6
% above the recorded value. Merging two histograms gives the same result as recording all values in one.
"""

import math
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

SUB_BITS = 6
"""Every power of two has 2 ** SUB_BITS buckets."""

VALUE_BITS = 42
"""Values from 2 ** VALUE_BITS ns (73 minutes) fall into the last bucket; `maximum` remains exact."""

_VALUE_END = 1 << VALUE_BITS
BUCKET_COUNT = (VALUE_BITS - SUB_BITS + 1) << SUB_BITS


class HistogramState(msgspec.Struct, frozen=True):
    """The content of a histogram for another process: only the buckets that are not empty."""

    buckets: list[int]
    counts: list[int]
    maximum: int = 0
    negative_count: int = 0


class LatencyHistogram:
    """Records nanoseconds and computes percentiles. Negative values (after a clock was set back) are counted
    separately.
    """

    def __init__(self, state: HistogramState | None = None) -> None:
        self._counts = numpy.zeros(BUCKET_COUNT, numpy.int64)
        self.count = 0
        """Number of values that are not negative."""
        self.maximum = 0
        self.negative_count = 0
        if state is not None:
            self.merge(state)

    def record(self, values_ns: NDArray[Any]) -> None:
        """Record these values."""
        if not len(values_ns):
            return
        if values_ns.min() < 0:
            is_good = values_ns >= 0
            self.negative_count += int(len(values_ns) - numpy.count_nonzero(is_good))
            values_ns = values_ns[is_good]
            if not len(values_ns):
                return
        self.count += len(values_ns)
        self.maximum = max(self.maximum, int(values_ns.max()))
        self._counts += numpy.bincount(_buckets(values_ns), minlength=BUCKET_COUNT)

    def record_one(self, value_ns: int, times: int = 1) -> None:
        """Record this value, which must not be negative, `times` times; much cheaper than an array with one element."""
        value = value_ns if value_ns < _VALUE_END else _VALUE_END - 1
        shift = value.bit_length() - (SUB_BITS + 1)
        if shift < 0:
            shift = 0
        self._counts[(shift << SUB_BITS) + (value >> shift)] += times
        self.count += times
        if value_ns > self.maximum:
            self.maximum = value_ns

    def percentile(self, q: float) -> int:
        """Return the smallest value that `q` percent of all values do not exceed, at most 1.6 % too high; 0 without
        values.
        """
        if not self.count:
            return 0
        rank = min(max(math.ceil(self.count * q / 100), 1), self.count)
        bucket = int(numpy.searchsorted(numpy.cumsum(self._counts), rank))
        return min(highest_of(bucket), self.maximum)

    def merge(self, other: "LatencyHistogram | HistogramState") -> None:
        """Add the counts of the other histogram."""
        state = other.state() if isinstance(other, LatencyHistogram) else other
        counts = numpy.array(state.counts, numpy.int64)
        numpy.add.at(self._counts, numpy.array(state.buckets, numpy.intp), counts)
        self.count += int(counts.sum())
        self.maximum = max(self.maximum, state.maximum)
        self.negative_count += state.negative_count

    def state(self) -> HistogramState:
        used = numpy.flatnonzero(self._counts)
        return HistogramState(used.tolist(), self._counts[used].tolist(), self.maximum, self.negative_count)


def _buckets(values_ns: NDArray[Any]) -> NDArray[numpy.int64]:
    values = numpy.minimum(values_ns, (1 << VALUE_BITS) - 1).astype(numpy.int64)
    _, bits = numpy.frexp(values.astype(numpy.float64))  # exact: the values have fewer bits than a float
    shifts = numpy.maximum(bits.astype(numpy.int64) - (SUB_BITS + 1), 0)
    buckets: NDArray[numpy.int64] = (shifts << SUB_BITS) + (values >> shifts)
    return buckets


def highest_of(bucket: int) -> int:
    """Return the highest value of the bucket."""
    shift = max((bucket >> SUB_BITS) - 1, 0)
    top = ((bucket - (shift << SUB_BITS) + 1) << shift) - 1
    return top if bucket < BUCKET_COUNT - 1 else 2**63 - 1
