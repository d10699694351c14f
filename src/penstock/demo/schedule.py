"""The schedule of messages: an even rate that does not wait for a slow publisher.

Latency counts from the intended time. If it counted from the actual send time, a publisher that stops for a second
would hide that second (coordinated omission).
"""

import time

import numpy
from numpy.typing import NDArray

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND

OFFSET_TRIES = 10
JUMP_NS = NS_PER_MS
"""Both clocks are slewed together, so a larger difference means that one was set."""


class Schedule:
    """Message n is due n / rate seconds after the start; `count` messages, or unlimited."""

    def __init__(self, rate: float, count: int | None = None) -> None:
        self._interval_ns = NS_PER_SECOND / rate
        self._count = count
        self._start_ns = time.monotonic_ns()
        self._wall_offset_ns, _ = min((_wall_offset_ns() for _ in range(OFFSET_TRIES)), key=lambda each: each[1])
        self._taken = 0

    @property
    def is_over(self) -> bool:
        return self._count is not None and self._taken >= self._count

    def due(self, count_max: int) -> NDArray[numpy.int64]:
        """Return the intended times, by the wall clock, of the due messages that were not taken yet."""
        now_ns = time.monotonic_ns()
        reached = int((now_ns - self._start_ns) / self._interval_ns) + 1
        if self._count is not None:
            reached = min(reached, self._count)
        first, self._taken = self._taken, min(reached, self._taken + count_max)
        self._follow_wall_clock()
        numbers = numpy.arange(first, self._taken, dtype=numpy.float64)
        return (numbers * self._interval_ns).astype(numpy.int64) + (self._start_ns + self._wall_offset_ns)

    def _follow_wall_clock(self) -> None:
        """Adjust to changes of the wall clock."""
        offset_ns, doubt_ns = _wall_offset_ns()
        if abs(offset_ns - self._wall_offset_ns) > doubt_ns + JUMP_NS:
            self._wall_offset_ns = offset_ns

    def seconds_to_next(self) -> float:
        """Return the time until the next message, at most a tenth of a second."""
        due_ns = self._start_ns + self._taken * self._interval_ns
        return min(max(due_ns - time.monotonic_ns(), 0) / NS_PER_SECOND, 0.1)


def _wall_offset_ns() -> tuple[int, int]:
    """Return the wall clock minus the monotonic clock, and the error of the difference."""
    before_ns = time.monotonic_ns()
    wall_ns = time.time_ns()
    after_ns = time.monotonic_ns()
    return wall_ns - (before_ns + after_ns) // 2, after_ns - before_ns
