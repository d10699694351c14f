"""The distribution engine, figure by figure."""

from collections.abc import Iterator

from penstock.bench import engine_adaptive, engine_critical, engine_edge, engine_metering, engine_shares
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from engine_critical.run()
    yield from engine_shares.run()
    yield from engine_adaptive.run()
    yield from engine_metering.run()
    yield from engine_edge.run()
