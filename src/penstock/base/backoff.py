"""Exponential back-off between connection attempts: with a maximum, with jitter, reset after a success.

Two kinds of failure have different maxima. If nothing listens at the address, an attempt is cheap and the peer is
probably starting: the next attempt follows soon. A peer that answers and refuses, or fails early, may be overloaded:
the back-off is longer.
"""

from typing import Protocol, Self

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND, Randomness
from penstock.base.errors import UnreachableError

CHANCE = 2**32
DOUBLINGS_MAX = 64
"""Bounds the exponent; pauses reach their maximum long before."""


class Growth(Protocol):
    """Growth of the pauses."""

    @property
    def base_ms(self) -> int: ...
    @property
    def factor(self) -> float: ...
    @property
    def jitter(self) -> float:
        """Random share of each pause (jitter), so that many clients do not reconnect at once."""
        ...

    @property
    def max_ms(self) -> int: ...


class BackoffPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The default of every link to a node whose address is known."""

    base_ms: int = 50
    factor: float = 2.0
    jitter: float = 0.5
    max_ms: int = 2_000
    absent_max_ms: int = 500
    """The maximum if nothing listens at the address."""

    @classmethod
    def constant(cls, pause_ms: int) -> Self:
        """The same pause after each failure."""
        return cls(base_ms=pause_ms, factor=1.0, jitter=0.0, max_ms=pause_ms, absent_max_ms=pause_ms)


def pause_ns(growth: Growth, failures: int, randomness: Randomness, *, max_ms: int | None = None) -> int:
    """The pause after this number of consecutive failures (1 or more)."""
    longest_ms = growth.max_ms if max_ms is None else min(max_ms, growth.max_ms)
    grown_ms = min(growth.base_ms * growth.factor ** min(failures - 1, DOUBLINGS_MAX), float(longest_ms))
    chance = randomness.below(CHANCE) / CHANCE
    return round(grown_ms * (1.0 - growth.jitter * chance) * NS_PER_MS)


class Backoff:
    """The pauses of one link."""

    def __init__(self, randomness: Randomness, policy: BackoffPolicy | None = None) -> None:
        self._policy = policy or BackoffPolicy()
        self._randomness = randomness
        self._failures = 0
        self._was_absent = False

    def succeeded(self) -> None:
        """The link was in use: reset the back-off."""
        self._failures = 0

    def next_ns(self, *, is_absent: bool) -> int:
        """The pause before the next attempt; `is_absent` means that nothing listens at the address."""
        if is_absent != self._was_absent:
            self._failures = 0
        self._was_absent = is_absent
        self._failures += 1
        max_ms = self._policy.absent_max_ms if is_absent else None
        return pause_ns(self._policy, self._failures, self._randomness, max_ms=max_ms)

    def next_seconds(self, error: Exception | None = None) -> float:
        """The same pause in seconds, chosen by the error of the attempt."""
        return self.next_ns(is_absent=isinstance(error, UnreachableError)) / NS_PER_SECOND
