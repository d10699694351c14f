"""Age of messages on arrival, from their event times; across hosts, with the uncertainty of the clocks."""

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
    """Measures the time from a message's event_time until now, on the clock of the event_time.

    `estimate` returns the current offset between that clock and this host's; None if they are the same clock.
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
        """Return the percentiles, and the uncertainty that the clocks add to all of them."""
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
