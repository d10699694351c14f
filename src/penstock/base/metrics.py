"""The counters of this process in Prometheus' words."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.base.counters import CATALOGUE, Counters


class Metrics(Collector):
    """Collects registered Counters whenever somebody asks; costs the data path nothing in between."""

    def __init__(self) -> None:
        self._counters: list[Counters] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def register(self, counters: Counters) -> None:
        self._counters.append(counters)

    def unregister(self, counters: Counters) -> None:
        self._counters.remove(counters)

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
