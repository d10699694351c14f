"""Filter modules: rate of evaluated and forwarded messages, latency and cost for an application, compared with brokers,
and behaviour with losses.
"""

from collections.abc import Iterator

from penstock.bench.filter import cpu, latency, loss, peers, rate
from penstock.bench.harness import Result


def run() -> Iterator[Result]:
    yield from rate.run()
    yield from latency.run()
    yield from peers.run()
    yield from cpu.run()
    yield from loss.run()
