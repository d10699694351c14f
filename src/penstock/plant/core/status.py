"""How a node is, as its operator sees it."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from penstock.base.metrics import Row
from penstock.engine.core.consumer_records import ConsumerDistributionRecord

NodeKind: TypeAlias = Literal["plant", "mux", "edge"]


class NodeStatus(msgspec.Struct, frozen=True):
    name: str
    kind: NodeKind
    control_port: int
    epoch: int
    is_in_touch: bool
    """Whether the administration server answers; true where there is none."""

    is_fed: bool
    """Whether the node above, or the feeds, are there."""

    items: int
    updates: int
    """Taken so far."""

    consumer_count: int
    consumers: list[ConsumerDistributionRecord]
    """Those that have been here longest, where there are very many; none while the node is too busy to tell."""

    latency_us: dict[str, float] = {}
    """From the arrival of updates in the process to the moment they were written for all consumers that could take
    them at once, by percentile."""


def gauges_of(status: NodeStatus) -> dict[str, float]:
    return {
        "node_consumers": status.consumer_count,
        "node_items": status.items,
        "node_updates": status.updates,
        "node_in_touch": status.is_in_touch,
        "node_fed": status.is_fed,
        **{f"node_latency_{name.replace('.', '_')}_us": value for name, value in status.latency_us.items()},
    }


def rows_of(status: NodeStatus) -> Iterator[Row]:
    """The consumer distribution records, as metrics."""
    for each in status.consumers:
        labels = {"node": status.name, "consumer": each.name, "number": str(each.consumer)}
        yield Row("consumer_items", labels, each.items)
        yield Row("consumer_subscriptions", labels, each.subscriptions)
        yield Row("consumer_overruns", labels, each.overruns)
        yield Row("consumer_receipts", labels, each.receipts)
        yield Row("consumer_waiting", labels, each.waiting)
        yield Row("consumer_pending", labels, each.pending)
        yield Row("consumer_behind", labels, each.is_behind)
        for name, record in each.classes.items():
            of_class = {**labels, "class": name}
            yield Row("consumer_sent", of_class, record.sent)
            yield Row("consumer_bytes", of_class, record.bytes)
            yield Row("consumer_conflated", of_class, record.conflated)
            yield Row("consumer_congested", of_class, record.congested)
