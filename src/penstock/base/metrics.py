"""Export the counters of this process to Prometheus."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import CATALOGUE, Counters

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of the result of render()."""


class Row(NamedTuple):
    """One labelled value of a gauge."""

    name: str
    labels: Mapping[str, str]
    level: float


class Metrics(Collector):
    """Collects registered Counters on each scrape, without cost to the data path in between. A node creates its Metrics
    at start, from where `uptime_seconds` counts.
    """

    def __init__(self) -> None:
        self._started_ns = time.monotonic_ns()
        self._counters: list[Counters] = []
        self._gauges: Callable[[], Mapping[str, float]] | None = None
        self._rows: Callable[[], Iterable[Row]] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def register(self, counters: Counters) -> None:
        self._counters.append(counters)

    def unregister(self, counters: Counters) -> None:
        self._counters.remove(counters)

    def show_gauges(self, values: Callable[[], Mapping[str, float]]) -> None:
        """Export gauges; `values` returns their values by name and is called on each scrape, in any thread."""
        self._gauges = values

    def show_rows(self, rows: Callable[[], Iterable["Row"]]) -> None:
        """Export gauges with labels; all rows of a name must have the same labels."""
        self._rows = rows

    def render(self) -> bytes:
        """Return the exposition text for a scrape."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        registered = list(self._counters)  # other threads may register counters meanwhile
        names = sorted({label for counters in registered for label in counters.labels})
        families: dict[str, CounterMetricFamily] = {}
        for counters in registered:
            labels = [counters.labels.get(name, "") for name in names]
            for name, cause, value in counters:
                if name not in families:
                    families[name] = CounterMetricFamily(
                        f"penstock_{name}", CATALOGUE[name], labels=["component", "cause", *names]
                    )
                families[name].add_metric([counters.component, cause, *labels], value)
        yield from families.values()
        uptime_s = (time.monotonic_ns() - self._started_ns) / NS_PER_SECOND
        yield GaugeMetricFamily("penstock_uptime_seconds", "time since the node's start", uptime_s)
        for name, level in (self._gauges() if self._gauges is not None else {}).items():
            yield GaugeMetricFamily(f"penstock_{name}", name.replace("_", " "), level)
        gauges: dict[str, GaugeMetricFamily] = {}
        for name, row_labels, level in self._rows() if self._rows is not None else ():
            if name not in gauges:
                gauges[name] = GaugeMetricFamily(f"penstock_{name}", name.replace("_", " "), labels=[*row_labels])
            gauges[name].add_metric([*row_labels.values()], level)
        yield from gauges.values()
