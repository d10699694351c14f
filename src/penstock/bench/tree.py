"""What a distribution tree does: messages through three agents, their way, a killed parent, filters, and a subscriber
that does not read."""

from collections.abc import Iterator

from penstock.bench import tree_filter, tree_latency, tree_rate, tree_recovery, tree_stalled
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from tree_rate.run()
    yield from tree_latency.run()
    yield from tree_recovery.run()
    yield from tree_filter.run()
    yield from tree_stalled.run()
