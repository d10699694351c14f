"""Message routers: acknowledgements from disk, compared with peers; replication and takeovers; recovery and memory."""

from collections.abc import Iterator

from penstock.bench.assured import pair, rate, recovery
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from rate.run()
    yield from pair.run()
    yield from recovery.run()
