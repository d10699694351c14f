"""The distribution engine, figure by figure."""

from collections.abc import Iterator

from penstock.bench.engine import adaptive, critical, edge, metering, shares
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from critical.run()
    yield from shares.run()
    yield from adaptive.run()
    yield from metering.run()
    yield from edge.run()
