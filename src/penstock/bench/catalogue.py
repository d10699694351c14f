"""The list of benches. A bench's module is imported only when it runs, so that listing is fast."""

import importlib
from collections.abc import Iterator

import msgspec

from penstock.bench.harness import Result


class Bench(msgspec.Struct, frozen=True):
    module: str
    """Name below penstock.bench; its function `run` yields the results."""

    summary: str

    is_part: bool = False
    """True for a part of another bench, which runs the part as well."""

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
            "message routers: acknowledgements from disk, and recovery, compared with redis-server and RabbitMQ",
        ),
        Bench("codec", "packets encoded and decoded in batches, compared with a copy of the same bytes"),
        Bench("engine.bench", "updates to many consumers by class, one of them stopped or slow, compared with pyzmq"),
        Bench(
            "failover.bench",
            "kill -9 and pauses of adapters, edge cache, filter module, tree agents and routers: gaps at clients",
        ),
        Bench("feed", "source messages converted, and a feed adapter from a received datagram to the sent packets"),
        Bench(
            "filter.bench",
            "messages evaluated by a filter module, and the cost of an unwanted message, compared with bare receiving",
        ),
        Bench("first", "from a clone to the first figure of the demo, --help, and a minimal plant's start and memory"),
        Bench(
            "frontdoor.bench",
            "the public API: one publish() and one `for` step per message, compared with pyzmq and nats-server",
        ),
        Bench("frontdoor.assured", "publishing and reading assured messages from asyncio", is_part=True),
        Bench("frontdoor.client", "subscriptions: datagrams through an adapter, full rate", is_part=True),
        Bench("frontdoor.memory", "the resident memory of the plant that `penstock init` makes", is_part=True),
        Bench("frontdoor.multicast", "publishers and receivers, 1 to 1 and 1 to 8, filter module", is_part=True),
        Bench("frontdoor.node", "a ticker plant to a reader on the same host", is_part=True),
        Bench(
            "frontdoor.through_plant",
            "client.publisher() to client.subscribe(), compared with nats-server",
            is_part=True,
        ),
        Bench("frontdoor.tree", "a tree of a root and an agent, compared with nats-server", is_part=True),
        Bench("journal", "records appended and synced, compared with bare writes and fdatasyncs"),
        Bench("match", "topics matched against a million interests, compared with random memory accesses"),
        Bench("model", "a field read from Python, compared with struct.unpack_from"),
        Bench(
            "pipeline.bench",
            "the pipeline on Spark: rows from journals and feeds, tables, books, compared with Spark alone",
        ),
        Bench("predicate", "a filter expression over records, compared with numpy"),
        Bench("region", "a record read while another process overwrites it, compared with a record at rest"),
        Bench("ring", "messages from one process to another, compared with pyzmq and iceoryx2"),
        Bench(
            "tree.bench",
            "streams through a tree of agents: rate, latency, a killed parent, filters, compared with nats-server",
        ),
        Bench("udp", "publisher and receiver on loopback multicast, compared with a bare loop and pyzmq over tcp"),
    )
}
