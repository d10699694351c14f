"""What message routers do: acknowledgements from the disk, beside others; copies and switches; recovery, and memory."""

from collections.abc import Iterator

from penstock.bench import assured_pair, assured_rate, assured_recovery
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from assured_rate.run()
    yield from assured_pair.run()
    yield from assured_recovery.run()
