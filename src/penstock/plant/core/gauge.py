"""A node's load readings for the signals of the engine (engine/core/signals.py). The time is an argument."""

from collections.abc import Iterable

from penstock.base.clock import NS_PER_SECOND
from penstock.engine import SessionBuffer
from penstock.engine.core.signals import Readings

PERIOD_NS = NS_PER_SECOND


class Gauge:
    """Adds up load and errors, and returns readings once per period."""

    def __init__(self, now_ns: int) -> None:
        self.busy_ns = 0
        """Time spent on distribution."""
        self.errors = 0
        """Number of losses."""
        self._since_ns = now_ns

    def read(self, now_ns: int, consumers: int, buffers: Iterable[SessionBuffer]) -> Readings | None:
        """Return the readings since the last ones, or None before the period has passed."""
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < PERIOD_NS:
            return None
        full = [2 * len(each) > each.capacity for each in buffers]
        readings = Readings(
            load=self.busy_ns / elapsed_ns,
            consumers=consumers,
            congestion=sum(full) / max(consumers, 1),
            errors=self.errors * NS_PER_SECOND / elapsed_ns,
        )
        self.busy_ns = self.errors = 0
        self._since_ns = now_ns
        return readings
