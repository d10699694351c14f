"""What a node sees of itself, for the signals that relieve it (engine/core/signals.py). It reads no clock."""

from collections.abc import Iterable

from penstock.base.clock import NS_PER_SECOND
from penstock.engine import SessionBuffer
from penstock.engine.core.signals import Readings

PERIOD_NS = NS_PER_SECOND


class Gauge:
    """Adds up what happens, and gives readings once per period."""

    def __init__(self, now_ns: int) -> None:
        self.busy_ns = 0
        """Time spent at distributing."""
        self.errors = 0
        """Times that something was lost."""
        self._since_ns = now_ns

    def read(self, now_ns: int, consumers: int, buffers: Iterable[SessionBuffer]) -> Readings | None:
        """Since they were last given; None while the period lasts."""
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
