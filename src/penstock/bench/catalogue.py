"""The list of benches. A bench's module is imported only when it runs, so that listing is fast."""

import importlib
from collections.abc import Iterator

import msgspec

from penstock.bench.harness import Result


class Bench(msgspec.Struct, frozen=True):
    module: str
    """Name below penstock.bench; its function `run` yields the results."""

    summary: str

    @property
    def name(self) -> str:
        return self.module.removesuffix(".bench")

    def run(self) -> Iterator[Result]:
        results: Iterator[Result] = importlib.import_module(f"penstock.bench.{self.module}").run()
        return results


BENCHES = {
    bench.name: bench
    for bench in (
        Bench(
            "assured.bench",
            "message routers: acknowledgements from the disk, recovery, beside redis-server and RabbitMQ",
        ),
        Bench("codec", "packets encoded and decoded in batches, beside a bare copy of the same bytes"),
        Bench("engine.bench", "updates to many consumers by class, one of them stopped or slow, beside pyzmq"),
        Bench(
            "failover.bench",
            "kill -9 and pauses of adapters, edge cache, filter module, tree agents and routers: what clients miss",
        ),
        Bench("feed", "source messages converted, and a feed adapter from a datagram in to the packets out"),
        Bench(
            "filter.bench",
            "messages evaluated by a filter module, and the cost of an unwanted message, beside bare receiving",
        ),
        Bench("first", "from a clone to the first figure of the demo, --help, and a minimal plant's start and memory"),
        Bench(
            "frontdoor.bench",
            "the public API: one publish() and one `for` step per message, beside pyzmq and nats-server",
        ),
        Bench("journal", "records appended and on the disk, beside bare writes and fdatasyncs"),
        Bench("match", "topics matched against a million interests, beside bare random memory accesses"),
        Bench("model", "a field read from Python, beside struct.unpack_from"),
        Bench(
            "pipeline.bench", "the pipeline on Spark: rows from journals and feeds, tables, books, beside Spark alone"
        ),
        Bench("predicate", "a filter expression over records, beside numpy"),
        Bench("region", "a record read while another process overwrites it, beside the same at rest"),
        Bench("ring", "messages from one process to another, beside pyzmq and iceoryx2"),
        Bench(
            "tree.bench",
            "streams through a tree of agents: rate, latency, a killed parent, filters, beside nats-server",
        ),
        Bench("udp", "publisher and receiver on loopback multicast, beside a bare loop and pyzmq over tcp"),
    )
}
