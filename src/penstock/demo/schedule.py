"""When messages are due: an even rhythm that does not wait for whoever is late.

Latency counts from the intended time. Were it to count from when a message was really sent, a publisher that stands
still for a second would hide the second (coordinated omission).
"""

import time

import numpy
from numpy.typing import NDArray

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND

OFFSET_TRIES = 10
JUMP_NS = NS_PER_MS
"""The two clocks are slowed and hastened together: what differs by more than this was set."""


class Schedule:
    """Message n is due n / rate seconds after the start; `count` of them, or without an end."""

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
        """The intended times, by the wall clock, of the messages that are due and not yet taken."""
        now_ns = time.monotonic_ns()
        reached = int((now_ns - self._start_ns) / self._interval_ns) + 1
        if self._count is not None:
            reached = min(reached, self._count)
        first, self._taken = self._taken, min(reached, self._taken + count_max)
        self._follow_wall_clock()
        numbers = numpy.arange(first, self._taken, dtype=numpy.float64)
        return (numbers * self._interval_ns).astype(numpy.int64) + (self._start_ns + self._wall_offset_ns)

    def _follow_wall_clock(self) -> None:
        """Somebody may set it."""
        offset_ns, doubt_ns = _wall_offset_ns()
        if abs(offset_ns - self._wall_offset_ns) > doubt_ns + JUMP_NS:
            self._wall_offset_ns = offset_ns

    def seconds_to_next(self) -> float:
        """How long the next message has still to wait; at most a tenth of a second, to be asked again."""
        due_ns = self._start_ns + self._taken * self._interval_ns
        return min(max(due_ns - time.monotonic_ns(), 0) / NS_PER_SECOND, 0.1)


def _wall_offset_ns() -> tuple[int, int]:
    """The wall clock less the monotonic one, and how wrong that may be."""
    before_ns = time.monotonic_ns()
    wall_ns = time.time_ns()
    after_ns = time.monotonic_ns()
    return wall_ns - (before_ns + after_ns) // 2, after_ns - before_ns
