"""What a filter module does: messages judged and passed on, their way to an application and what they cost it, beside
brokers and with losses."""

from collections.abc import Iterator

from penstock.bench import filter_cpu, filter_latency, filter_loss, filter_peers, filter_rate
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from filter_rate.run()
    yield from filter_latency.run()
    yield from filter_peers.run()
    yield from filter_cpu.run()
    yield from filter_loss.run()
