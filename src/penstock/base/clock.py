"""Time and randomness as things that are passed in, so that the simulator can pass in its own."""

import random
import secrets
import time
from typing import Protocol

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000


class Clock(Protocol):
    def now_ns(self) -> int:
        """Nanoseconds that never go backwards; the zero point means nothing."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC; may jump when somebody sets the clock."""
        ...


class Randomness(Protocol):
    def below(self, limit: int) -> int:
        """An integer in [0, limit)."""
        ...


class SystemClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


class BootClock(SystemClock):
    """Goes on while the machine sleeps: for promises to other machines."""

    def now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SystemRandomness:
    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def below(self, limit: int) -> int:
        return self._source.randrange(limit)


def random_bytes(size: int) -> bytes:
    """Bytes that nobody can guess, for keys; what a simulation must repeat takes its bytes from the simulator."""
    return secrets.token_bytes(size)
