"""Effect of a subscriber that does not read on the other subscribers of a leaf."""

import resource
import statistics
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy

from penstock.bench.harness import Result, result
from penstock.bench.transports import ALL_CORES, check, other_process
from penstock.bench.tree.crowd import Crowd, stalled_subscriber
from penstock.bench.tree.latency import is_of_a_stream, publish_steadily, sent_ns
from penstock.bench.tree.party import TOPICS, run_party
from penstock.bench.tree.process import running_chain
from penstock.bench.tree.rate import SYMBOLS, topic_of

SUBSCRIBERS = 2_000
RATE = 1_000
INTERVAL_NS = 1_000_000_000 // RATE
ROUNDS = 5
ROUND_SECONDS = 3.0
MESSAGES_MAX = 1_000 * RATE
WANTED = 10
"""Number of topics per subscriber."""
CONDITIONS = (
    f"root, leaf, publisher of {RATE} messages/s on {SYMBOLS} topics, and {SUBSCRIBERS} subscribers in one process "
    f"that want {WANTED} topics each, one wants all: {SUBSCRIBERS * WANTED * RATE // SYMBOLS} deliveries/s; "
    f"{len(ALL_CORES)} cores, loopback; in every other round one more subscriber wants everything, has a small socket "
    "buffer and does not read; all deliveries of the others count; "
    f"medians of {ROUNDS} alternating rounds of {ROUND_SECONDS:.0f} s each"
)


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        quiet, stalled = _measure(Path(folder))
    for metric, percentile in (("stalled_p50_ratio", 50), ("stalled_p99_ratio", 99)):
        without = statistics.median(float(numpy.percentile(each, percentile)) for each in quiet) / 1_000
        beside = statistics.median(float(numpy.percentile(each, percentile)) for each in stalled) / 1_000
        yield result(
            "tree",
            metric,
            beside / without,
            "ratio",
            against=f"without the subscriber that does not read: {without:.0f} us, with it {beside:.0f} us",
            against_value=1,
            conditions=CONDITIONS,
        )


def _measure(folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    with (
        running_chain(folder, "leaf") as agents,
        other_process(_subscribe, agents[-1].place) as crowd,
        other_process(publish_steadily, agents[0].place, MESSAGES_MAX, INTERVAL_NS) as publisher,
    ):
        check(crowd.recv() == "ready" and publisher.recv() == "ready", "the parties did not start")
        publisher.send("go")
        quiet: list[list[int]] = []
        stalled: list[list[int]] = []
        for _ in range(ROUNDS):
            for order, found in (("quiet", quiet), ("stalled", stalled)):
                crowd.send(order)
                found.append(crowd.recv())
                check(len(found[-1]) > 0, "nothing came")
        publisher.send("enough")
        crowd.send("enough")
        return quiet, stalled


def _subscribe(place: str, orders: Connection) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    run_party(_listen(place, orders))


async def _listen(place: str, orders: Connection) -> None:
    crowd = Crowd()
    await crowd.add(place, "all", TOPICS)
    for number in range(1, SUBSCRIBERS):
        topics = [topic_of(number + step * SYMBOLS // WANTED) for step in range(WANTED)]
        await crowd.add(place, f"subscriber{number}", topics)
    orders.send("ready")
    while (order := orders.recv()) != "enough":
        idle = await stalled_subscriber(place) if order == "stalled" else None
        came = crowd.read(ROUND_SECONDS, settle_seconds=ROUND_SECONDS / 3)
        orders.send([at_ns - sent_ns(packet) for at_ns, packet in came if is_of_a_stream(packet)])
        if idle is not None:
            await idle.close()
    await crowd.close()
