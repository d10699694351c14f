"""Interfaces of time and randomness, so that the simulator can replace both."""

import random
import secrets
import time
from typing import Protocol

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000


class Clock(Protocol):
    def now_ns(self) -> int:
        """Return nanoseconds that never go backwards, from an arbitrary zero point."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970 UTC; jumps when the clock is set."""
        ...


class Randomness(Protocol):
    def below(self, limit: int) -> int:
        """Return an integer in [0, limit)."""
        ...


class SystemClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


class BootClock(SystemClock):
    """A clock that advances while the machine is suspended, for deadlines shared with other machines."""

    def now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SystemRandomness:
    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def below(self, limit: int) -> int:
        return self._source.randrange(limit)


def random_bytes(size: int) -> bytes:
    """Return unpredictable bytes for keys; a simulation takes its bytes from the simulator instead."""
    return secrets.token_bytes(size)
