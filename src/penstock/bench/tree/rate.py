"""Messages per second from a publisher through root, intermediate and leaf to a subscriber, and through three NATS
servers joined as leaf nodes, in turns.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from penstock.bench.brokers import HOST, NATS, NatsClient, free_port
from penstock.bench.harness import Result, result
from penstock.bench.transports import ALL_CORES, PATIENCE_SECONDS, PAYLOAD_SIZE, check, other_process
from penstock.bench.tree.party import BareParty, run_party
from penstock.bench.tree.process import running_chain
from penstock.tree.core.infostream import id_of
from penstock.tree.core.kernel._frame import KIND_PUBLISHED, encode_block, split_packets
from penstock.tree.core.kernel._number import encode_published

ROUNDS = 3
MESSAGES = 300_000
SYMBOLS = 1_000
MESSAGES_PER_BLOCK = 500
PUBLISHER = "publisher"
LAYOUT_SECONDS = 90.0
"""Maximum time for the publisher to encode its messages before the start."""
CONDITIONS = (
    f"publisher, three agents or servers in a chain, and subscriber in separate processes on {len(ALL_CORES)} cores, "
    f"over loopback; {MESSAGES} messages of {PAYLOAD_SIZE} bytes on {SYMBOLS} topics, all wanted; clients encode their "
    "messages in advance and only count received bytes; the tree's root numbers every message and stores it in its "
    f"journal (persist = written), the servers do not; medians of {ROUNDS} alternating rounds"
)


class Run(msgspec.Struct, frozen=True):
    seconds: float
    cpu_seconds: float
    """CPU time of the agents or servers."""

    @property
    def rate(self) -> float:
        return MESSAGES / self.seconds

    @property
    def cpu_ns(self) -> float:
        return 1e9 * self.cpu_seconds / MESSAGES


def run() -> Iterator[Result]:
    runs: dict[str, list[Run]] = {"tree": [], "nats": []}
    without = _why_no_nats()
    if without:
        sys.stderr.write(f"no comparison with nats-server: {without}\n")
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            runs["tree"].append(_through_a_tree(Path(folder)))
            if not without:
                runs["nats"].append(_through_nats(Path(folder)))
    rates = {name: statistics.median(each.rate for each in made) for name, made in runs.items() if made}
    costs = {name: statistics.median(each.cpu_ns for each in made) for name, made in runs.items() if made}
    shown = ", ".join(f"{name} {cost:.0f} ns" for name, cost in costs.items())
    conditions = f"{CONDITIONS}; CPU time of the three per message: {shown}"
    yield result(
        "tree",
        "messages_per_s",
        rates["tree"],
        "1/s",
        against="nats-server with leaf nodes",
        against_value=rates.get("nats", 0.0),
        conditions=conditions,
    )


def _why_no_nats() -> str:
    if not NATS.is_installed:
        return f"it is not installed (apt install {NATS.package})"
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return "under a real-time policy its threads keep each other from running"
    return ""


def topic_of(number: int) -> str:
    return f"md.us.eq.S{number % SYMBOLS:04}.quote"


# Through a tree


def _through_a_tree(folder: Path) -> Run:
    with (
        running_chain(folder, "middle", "leaf") as agents,
        other_process(_subscribe, agents[-1].place) as subscriber,
        other_process(_publish, agents[0].place) as publisher,
    ):
        check(subscriber.recv() == "ready" and publisher.recv() == "ready", "the parties did not start")
        cpu = sum(agent.cpu_seconds() for agent in agents)
        publisher.send("go")
        seconds = subscriber.recv()
        cpu = sum(agent.cpu_seconds() for agent in agents) - cpu
        return Run(seconds, cpu)


def _publish(place: str, orders: Connection) -> None:
    run_party(_publish_blocks(place, orders))


async def _publish_blocks(place: str, orders: Connection) -> None:
    party = BareParty(PUBLISHER, "publisher")
    await party.connect(place)
    blocks = list(_blocks())
    orders.send("ready")
    orders.recv()
    for block in blocks:
        await party.write(block)
    while party.through < MESSAGES:
        await asyncio.sleep(0.01)
    await party.close()


def _blocks() -> Iterator[bytes]:
    payload, publisher_id = bytes(PAYLOAD_SIZE), id_of(PUBLISHER)
    for first in range(1, MESSAGES + 1, MESSAGES_PER_BLOCK):
        numbers = range(first, first + MESSAGES_PER_BLOCK)
        packets = b"".join(encode_published(publisher_id, number, 0, topic_of(number), payload) for number in numbers)
        yield encode_block(packets, kind=KIND_PUBLISHED)


def _subscribe(place: str, orders: Connection) -> None:
    run_party(_count(place, orders))


async def _count(place: str, orders: Connection) -> None:
    count, times = 0, [0.0, 0.0]
    done = asyncio.Event()

    def taken(packets: bytes) -> None:
        nonlocal count
        count += sum(1 for each in split_packets(packets) if each[24:28] != bytes(4))
        if count and not times[0]:
            times[0] = time.perf_counter()
        if count >= MESSAGES:
            times[1] = time.perf_counter()
            done.set()

    party = BareParty("subscriber", "subscriber", taken)
    await party.connect(place)
    await party.subscribe()
    orders.send("ready")
    await asyncio.wait_for(done.wait(), LAYOUT_SECONDS + PATIENCE_SECONDS)
    orders.send(times[1] - times[0])
    await party.close()


# Through NATS


def _through_nats(folder: Path) -> Run:
    with ExitStack() as stack:
        servers, above = [], 0
        for name in ("root", "middle", "leaf"):
            below = free_port()
            join = f'remotes: [{{url: "nats-leaf://{HOST}:{above}"}}]' if above else ""
            more = f'server_name: {name}\nleafnodes {{\n host: "{HOST}"\n port: {below}\n {join}\n}}\n'
            servers.append(stack.enter_context(NATS.running(folder, more)))
            above = below
        client = NatsClient(servers[-1].port)
        client.subscribe(["md.us.eq.*.quote"])
        publisher = stack.enter_context(other_process(_publish_to_nats, servers[0].port))
        check(publisher.recv() == "ready", "the publisher of nats did not start")
        _wait_for_interest(client, servers[0].port)
        left = MESSAGES * client.received_size(topic_of(0), bytes(PAYLOAD_SIZE))
        cpu = sum(server.cpu_seconds() for server in servers)
        publisher.send("go")
        left -= client.receive()
        started = time.perf_counter()
        while left > 0:
            check(time.perf_counter() - started < PATIENCE_SECONDS, "NATS did not deliver all messages in time")
            left -= client.receive()
        seconds = time.perf_counter() - started
        cpu = sum(server.cpu_seconds() for server in servers) - cpu
        publisher.send("enough")
        client.close()
        return Run(seconds, cpu)


def _wait_for_interest(client: NatsClient, port: int) -> None:
    """Wait until messages published at the root arrive here, because interest propagates asynchronously."""
    probe = NatsClient(port)
    deadline = time.monotonic() + PATIENCE_SECONDS
    size = client.received_size(topic_of(0), b"x")
    while client.receive_within(0.05) < size:
        check(time.monotonic() < deadline, "the servers did not join")
        probe.send(probe.encode(topic_of(0), b"x"))
    while client.receive_within(0.3):
        check(time.monotonic() < deadline, "the servers do not come to rest")
    probe.close()


def _publish_to_nats(port: int, orders: Connection) -> None:
    client = NatsClient(port)
    data = b"".join(client.encode(topic_of(number), bytes(PAYLOAD_SIZE)) for number in range(MESSAGES))
    orders.send("ready")
    orders.recv()
    client.send(data)
    orders.recv()
    client.close()
