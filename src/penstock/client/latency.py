"""How old messages are when they come, from the times they carry; across hosts, with how sure that is."""

import time
from collections.abc import Callable

from penstock.base.clock import NS_PER_US
from penstock.base.errors import ConfigurationError
from penstock.base.histogram import LatencyHistogram
from penstock.middleware import Deliver, DeliverBatch, records_of
from penstock.model import MessageModel
from penstock.net.core.clock import ClockEstimate

FIELD = "event_time"
SAME_CLOCK = ClockEstimate(offset_ns=0, error_ns=0, round_trip_ns=0, samples=0, age_ns=0)


class LatencyMeter:
    """From a message's event_time to now, by the clock that made that time.

    `estimate` compares that clock with this host's, now; without it, both are this host's clock.
    """

    def __init__(self, model: MessageModel, estimate: Callable[[], ClockEstimate] | None) -> None:
        if FIELD not in model.fields_by_name:
            raise ConfigurationError(f"messages of {model.name} do not carry {FIELD}", hint="choose another --model")
        self._model = model
        self._estimate = estimate
        self._before = SAME_CLOCK if estimate is None else estimate()
        self._latency = LatencyHistogram()

    def take(self, delivered: Deliver | DeliverBatch) -> None:
        records = records_of(delivered, self._model)
        if len(records):
            self._latency.record(time.time_ns() + self._before.offset_ns - records[FIELD])

    def summary(self) -> str:
        """The percentiles, and by how much the clocks may make all of them wrong."""
        figures = "  ".join(f"p{q:g} {self._latency.percentile(q) / NS_PER_US:,.1f}" for q in (50, 99, 99.9))
        early = f"; {self._latency.negative_count:,} came before their time" if self._latency.negative_count else ""
        return f"latency from {FIELD} in µs, {self._latency.count:,} messages: {figures}{self._uncertainty()}{early}"

    def _uncertainty(self) -> str:
        if self._estimate is None:
            return ""
        after = self._estimate()
        drifted_ns = abs(after.offset_ns - self._before.offset_ns)
        error_ns = max(self._before.error_ns, after.error_ns) + drifted_ns
        return f", ± {error_ns / NS_PER_US:,.1f} by the clocks"
