"""Token buckets that limit retransmissions, per address and in total."""

from collections import OrderedDict

from penstock.base.clock import NS_PER_SECOND
from penstock.middleware.core.events import Address

SOURCES_MAX = 4_096
"""Maximum number of addresses with a bucket; the least recently used is dropped first."""

BURSTS_PER_SECOND = 10
"""A bucket holds the tokens of a tenth of a second."""


class TokenBucket:
    """Initially full; refilled at `per_s` up to `burst`."""

    __slots__ = ("_burst", "_per_s", "_refilled_ns", "_tokens")

    def __init__(self, per_s: int, burst: int, now_ns: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._refilled_ns = now_ns

    def available(self, now_ns: int) -> int:
        if now_ns > self._refilled_ns:
            refill = (now_ns - self._refilled_ns) * self._per_s / NS_PER_SECOND
            self._tokens = min(self._burst, self._tokens + refill)
            self._refilled_ns = now_ns
        return int(self._tokens)

    def spend(self, count: int) -> None:
        self._tokens -= count


class RepairLimits:
    """Retransmission limits per address and in total. A burst is at least `burst_min`, so that one request can be
    answered completely."""

    def __init__(self, source_per_s: int, total_per_s: int, burst_min: int) -> None:
        self._source_per_s = source_per_s
        self._source_burst = max(burst_min, source_per_s // BURSTS_PER_SECOND)
        self._total_per_s = total_per_s
        self._total_burst = max(burst_min, total_per_s // BURSTS_PER_SECOND)
        self._total: TokenBucket | None = None
        self._sources: OrderedDict[Address, TokenBucket] = OrderedDict()

    def available(self, source: Address, now_ns: int) -> int:
        """Number of packets that may be sent to the address now."""
        if self._total is None:
            self._total = TokenBucket(self._total_per_s, self._total_burst, now_ns)
        bucket = self._sources.get(source)
        if bucket is None:
            bucket = self._sources[source] = TokenBucket(self._source_per_s, self._source_burst, now_ns)
            if len(self._sources) > SOURCES_MAX:
                self._sources.popitem(last=False)
        self._sources.move_to_end(source)
        return min(bucket.available(now_ns), self._total.available(now_ns))

    def spend(self, source: Address, count: int) -> None:
        if self._total is not None:
            self._total.spend(count)
        if source in self._sources:
            self._sources[source].spend(count)
