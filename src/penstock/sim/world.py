"""Virtual time and the order of events."""

import heapq
from collections.abc import Callable
from typing import TextIO

from penstock.sim.log import EventLog
from penstock.sim.randomness import SeededRandomness


class World:
    """Runs actions at their times. The seed decides the order of simultaneous actions, so that no plant can rely on
    it. The world is also the clock of the plant."""

    def __init__(self, seed: int, trace: TextIO | None = None) -> None:
        self.seed = seed
        self.randomness = SeededRandomness(seed)
        self.log = EventLog(trace)
        self._order = self.randomness.fork("order")
        self._now_ns = 0
        self._queue: list[tuple[int, int, int, Callable[[], None]]] = []
        self._count = 0

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
        return self._now_ns

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Run `action` at `time_ns`, or now if that has passed."""
        self._count += 1
        heapq.heappush(self._queue, (max(time_ns, self._now_ns), self._order.below(2**32), self._count, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.at(self._now_ns + delay_ns, action)

    def run_until(self, time_ns: int) -> None:
        """Run all actions up to `time_ns`, and set the time to `time_ns`."""
        while self._queue and self._queue[0][0] <= time_ns:
            self._now_ns, _, _, action = heapq.heappop(self._queue)
            action()
        self._now_ns = max(self._now_ns, time_ns)
