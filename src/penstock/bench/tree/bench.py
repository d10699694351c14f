"""Distribution trees: rate and latency through three agents, a killed parent, filters, and a subscriber that does not
read.
"""

from collections.abc import Iterator

from penstock.bench.harness import Result
from penstock.bench.tree import filtering, latency, rate, recovery, stalled


def run() -> Iterator[Result]:
    yield from rate.run()
    yield from latency.run()
    yield from recovery.run()
    yield from filtering.run()
    yield from stalled.run()
