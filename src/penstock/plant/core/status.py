"""The status of a node for its operator."""

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
    """True if the administration server answers, or if there is none."""

    is_fed: bool
    """True if the upstream node or the feeds are connected."""

    items: int
    updates: int
    """Number of updates received."""

    consumer_count: int
    consumers: list[ConsumerDistributionRecord]
    """The consumers that have been connected longest, up to a limit; empty while the node is too busy to report."""

    latency_us: dict[str, float] = {}
    """Percentiles of the time from the arrival of updates in the process until they were written for all consumers
    with free space."""


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
