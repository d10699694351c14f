"""The counters of this process in Prometheus' words."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import CATALOGUE, Counters

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of what render() gives."""


class Row(NamedTuple):
    """What one gauge of several of its name stands at."""

    name: str
    labels: Mapping[str, str]
    level: float


class Metrics(Collector):
    """Collects registered Counters whenever somebody asks; costs the data path nothing in between. A node makes its own
    when it starts: `uptime_seconds` counts from there."""

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
        """Whenever somebody asks, `values` says what these gauges stand at, by name; it is called in any thread."""
        self._gauges = values

    def show_rows(self, rows: Callable[[], Iterable["Row"]]) -> None:
        """The same, of gauges that have labels; all rows of a name have the same ones."""
        self._rows = rows

    def render(self) -> bytes:
        """The exposition text for a scrape."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        registered = list(self._counters)  # others may register while this thread collects
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
        yield GaugeMetricFamily("penstock_uptime_seconds", "how long the node has been up", uptime_s)
        for name, level in (self._gauges() if self._gauges is not None else {}).items():
            yield GaugeMetricFamily(f"penstock_{name}", name.replace("_", " "), level)
        gauges: dict[str, GaugeMetricFamily] = {}
        for name, row_labels, level in self._rows() if self._rows is not None else ():
            if name not in gauges:
                gauges[name] = GaugeMetricFamily(f"penstock_{name}", name.replace("_", " "), labels=[*row_labels])
            gauges[name].add_metric([*row_labels.values()], level)
        yield from gauges.values()
