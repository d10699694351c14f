"""An edge cache with thousands of WebSocket clients: the number it can serve, and the cost per client.

Publisher, ticker plant, edge cache and clients are one process each, connected as in a plant: multicast, a TCP session,
WebSockets. Every client has several items at a metered rate below the rate of the updates, so that the edge conflates.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import uvloop

from penstock.base.errors import PenstockError
from penstock.bench.engine.crowd import CrowdReport, CrowdTask, hold, raise_files
from penstock.bench.harness import Result, cpu_seconds, result
from penstock.bench.transports import check, other_process
from penstock.middleware import OutgoingMessage
from penstock.middleware.live import MulticastPublisher
from penstock.model import shipped
from penstock.net.udp import Channel, free_channel
from penstock.plant.config import AnyNodeConfig, PlantAccess, PlantConfig, UpstreamConfig
from penstock.plant.edge_config import EdgeAccess, EdgeConfig, WebSocketAccess
from penstock.plant.live.driver import LiveNode

CLIENTS = 5_000
ITEMS = 1_000
ITEMS_EACH = 20
PER_SECOND = 4.0
UPDATES_PER_SECOND = 5.0
"""Updates per second of each item."""

WARM_SECONDS = 10.0
SECONDS = 15.0
BURSTS_PER_SECOND = 50
SERVED_SHARE = 0.9
"""Minimum share of the due updates that each client must receive for a valid figure; the rate is reported as well."""

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class Node(msgspec.Struct, frozen=True):
    """A node in its own process."""

    process: int
    control_port: int
    websocket_port: int

    def memory_bytes(self) -> int:
        return int(Path(f"/proc/{self.process}/statm").read_text().split()[1]) * PAGE_SIZE


@contextmanager
def running_node(config: AnyNodeConfig) -> Iterator[Node]:
    with other_process(_serve, config) as orders:
        told = orders.recv()
        if isinstance(told, str):
            raise PenstockError(f"{config.name} did not start: {told}")
        try:
            yield Node(*told)
        finally:
            orders.send(None)


def _serve(config: AnyNodeConfig, orders: Connection) -> None:
    try:
        uvloop.run(_run(config, orders))
    except PenstockError as error:
        orders.send(str(error))


async def _run(config: AnyNodeConfig, orders: Connection) -> None:
    node = LiveNode(config)
    stop = asyncio.Event()
    await node.node.start()
    asyncio.get_running_loop().add_reader(orders.fileno(), stop.set)
    orders.send((os.getpid(), node.control_port, node.websocket_port or 0))
    await node.node.run(stop)


def run() -> Iterator[Result]:
    raise_files(CLIENTS)  # fails at once if the system does not allow it
    channel = free_channel()
    topics = [f"md.us.eq.S{number:04}.quote" for number in range(ITEMS)]
    with ExitStack() as stack:
        plant = stack.enter_context(
            running_node(PlantConfig(name="plant", control=PlantAccess(port=0), channels=(str(channel),)))
        )
        edge = stack.enter_context(
            running_node(
                EdgeConfig(
                    name="edge",
                    control=EdgeAccess(port=0),
                    websocket=WebSocketAccess(port=0),
                    upstream=UpstreamConfig(port=plant.control_port),
                    access="open",
                )
            )
        )
        publishing = stack.enter_context(other_process(_publish, channel, topics))
        empty_bytes = edge.memory_bytes()
        chosen = [[topics[(first + each * 50) % ITEMS] for each in range(ITEMS_EACH)] for first in range(ITEMS)]
        task = CrowdTask(("127.0.0.1", edge.websocket_port), CLIENTS, chosen, PER_SECOND)
        crowd = stack.enter_context(other_process(hold, task))
        publishing.send("begin")
        check(crowd.recv() == CLIENTS, "not all clients could connect")
        time.sleep(WARM_SECONDS)
        _asked(crowd)
        cpu_before, started = cpu_seconds(edge.process), time.monotonic()
        time.sleep(SECONDS)
        report, took = _asked(crowd), time.monotonic() - started
        cpu_s = (cpu_seconds(edge.process) - cpu_before) / took
        memory_bytes = edge.memory_bytes() - empty_bytes
        crowd.send(None)
        publishing.send(None)
    yield from _results(report, took, cpu_s, memory_bytes)


def _results(report: CrowdReport, took: float, cpu_s: float, memory_bytes: int) -> Iterator[Result]:
    due = PER_SECOND * ITEMS_EACH * took
    frames = report.frames / took / CLIENTS
    per_item = report.updates / CLIENTS / ITEMS_EACH / took
    conditions = (
        f"{CLIENTS} WebSocket clients with {ITEMS_EACH} of {ITEMS} items at {PER_SECOND:g}/s each, items updated "
        f"{UPDATES_PER_SECOND:g}/s; in {took:.1f} s {report.updates / took:,.0f} updates/s in {frames:.1f} frames/s "
        f"per client, {per_item:.2f} updates/s per item; every client got at least {report.fewest / due:.1%} of "
        f"its due updates, {report.closed} were disconnected; publisher, plant, edge and clients are processes on "
        f"{os.cpu_count()} cores"
    )
    check(report.closed == 0, f"{report.closed} clients were disconnected")
    check(report.fewest >= SERVED_SHARE * due, f"a client got {report.fewest} of {due:.0f} updates")
    yield result(
        "engine", "edge_clients", CLIENTS, "clients", against="the goal", against_value=5_000, conditions=conditions
    )
    for metric, value, unit in (
        ("edge_cpu_us_per_client", cpu_s * 1e6 / CLIENTS, "µs/s"),
        ("edge_memory_per_client", memory_bytes / CLIENTS, "bytes"),
        ("edge_age_ms_p50", report.age_ms_p50, "ms"),
        ("edge_age_ms_p99", report.age_ms_p99, "ms"),
    ):
        yield result("engine", metric, value, unit, against="", against_value=0, conditions=conditions)


def _asked(crowd: Connection) -> CrowdReport:
    crowd.send("report")
    report: CrowdReport = crowd.recv()
    return report


def _publish(channel: Channel, topics: list[str], orders: Connection) -> None:
    """Publish updates of all items in turns, in small bursts, until stopped."""
    orders.recv()
    quote = shipped("quote")
    with MulticastPublisher(channel) as publisher:
        at, burst = 0, round(len(topics) * UPDATES_PER_SECOND / BURSTS_PER_SECOND)
        due = time.monotonic()
        while not orders.poll(max(0.0, due - time.monotonic())):
            messages = []
            for number in range(at, at + burst):
                topic = topics[number % len(topics)]
                record = bytes(quote.new(symbol=topic.split(".")[3], bid_size=number))
                messages.append(OutgoingMessage(topic, record, quote.id, quote.version))
            publisher.publish_messages(messages)
            at += burst
            due += 1 / BURSTS_PER_SECOND
