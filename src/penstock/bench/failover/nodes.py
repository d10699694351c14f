"""Repeated kill -9 and SIGSTOP of the nodes that clients depend on, under their supervisor: the time in which the
clients receive nothing. The nodes are processes of one plant; publishers and clients run in their own process
(clients.py).
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from penstock.bench.failover.clients import (
    ADAPTERS,
    ENDPOINT,
    ROUTED_TOPIC,
    ROUTERS,
    TOPIC,
    UPDATES_PER_SECOND,
    Ports,
    consume,
)
from penstock.bench.harness import Result, result
from penstock.bench.transports import check, other_process
from penstock.net.udp import free_channel, free_ports
from penstock.node.plant import Plant
from penstock.node.running import NodeProcess, RunningPlant

KILLS = 20
PAUSES = 5
PAUSE_SECONDS = 2.0
SETTLE_SECONDS = 2.0
"""Time that clients are observed after the fault, because a client may receive buffered data before it reconnects."""

SETTLED_SECONDS = 5.0
"""Minimum time that a node has been ready when it fails."""

BACK_SECONDS = 60.0
"""Timeout for the recovery of a node or a client."""

POLL_SECONDS = 0.02
KILL_GOAL_SECONDS = 3.0
PAUSE_GOAL_SECONDS = 0.5

CONDITIONS = (
    f"a plant of an edge cache behind a ticker plant, a filter module, a tree of root, middle and leaf agents, two "
    f"adapters, and two routers with a witness, all processes under the supervisor of `penstock up`; "
    f"{UPDATES_PER_SECOND} updates per second (adapters: 1,000 source messages per second); kill -9 of a node after it "
    f"had run for {SETTLED_SECONDS:g} s, SIGSTOP for {PAUSE_SECONDS:g} s"
)

EDGE_DOCUMENT = """
[[plant]]
name = "ticker-plant"
control.port = {ports.plant}
channels = ["{channel}"]

[[edge]]
name = "edge"
control.port = {ports.edge}
websocket.port = {ports.websocket}
upstream = {{ port = {ports.plant} }}
access = "open"
"""

FILTER_DOCUMENT = """
[[filter]]
name = "filter"
control.port = {ports.filter}
"""

TREE_DOCUMENT = """
[[agent]]
name = "root"
role = "root"
control.port = {ports.root}
streams = [{{ name = "bench", topics = ["{topic}"] }}]

[[agent]]
name = "middle"
control.port = {ports.middle}
parent = "127.0.0.1:{ports.root}"

[[agent]]
name = "leaf"
control.port = {ports.leaf}
parent = "127.0.0.1:{ports.middle}"
alternates = ["127.0.0.1:{ports.root}"]
"""

FEED_DOCUMENT = """
[[feed]]
name = "feed"
table = "itch"
spin = false

[[feed.streams]]
id = 1
name = "itch"
lines = [{lines}]
request = {{ host = "127.0.0.1", port = {ports.requests} }}
{adapters}
[[player]]
name = "exchange"
lines = [{lines}]
rate = 1000
port = {ports.requests}
generate = {{ symbols = 10, messages = {messages} }}
"""

ADAPTER = """
[[feed.adapter]]
name = "{name}"
publish.channel = {channel}
peers.port = {peers}
service = {{ port = {service}, open = true }}
"""

ROUTER = """
[[router]]
name = "{name}"
control.port = {control}
endpoints = [{{ name = "{endpoint}", wants = [{{ topics = ["{topic}"] }}], replication = "synchronous" }}]

[router.pair]
routers = {router_names}
link.port = {ports.link}
clients = "127.0.0.1:{other}"
voting = {{ witness = "witness", listen.port = {vote}, voters = {{ {other_name} = "127.0.0.1:{other_vote}", \
witness = "127.0.0.1:{ports.witness}" }} }}
"""

WITNESS = """
[[witness]]
name = "witness"
routers = {router_names}
control.port = {ports.witness}
"""


class Target(msgspec.Struct, frozen=True):
    """A kind of client, and the nodes that it depends on."""

    name: str
    nodes: tuple[str, ...]
    """The nodes that are killed and paused in turns; for the routers, the active one."""

    clients: str


TARGETS = (
    Target("edge", ("edge",), "the longer of a TCP and a WebSocket client of the edge cache"),
    Target("filter", ("filter",), "an application's socket behind the filter module"),
    Target("tree", ("leaf", "middle", "root"), "a subscriber of the leaf while leaf, middle and root fail in turn"),
    Target("tcp", ADAPTERS, "a subscriber that merges the TCP streams of both adapters, which fail in turn"),
    Target("publish", ROUTERS, "the longest publish() to the router pair, whose active router fails"),
)


class Stalls(msgspec.Struct):
    """Results for one kind of client, in seconds: per kill, the longest time without a message; per pause, that time
    minus the pause.
    """

    kills: list[float] = []
    restarts: list[float] = []
    """Time from the kill until the node is ready again."""

    pauses: list[float] = []


def run(targets: Sequence[Target] = TARGETS, kills: int = KILLS, pauses: int = PAUSES) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as directory:
        measured = measure(Path(directory), targets, kills, pauses)
    for target in targets:
        stalls = measured[target.name]
        figures = (
            ("stall_s_max", stalls.kills, KILL_GOAL_SECONDS, _longest(stalls.restarts)),
            ("pause_stall_s_max", stalls.pauses, PAUSE_GOAL_SECONDS, "beyond the length of the pause"),
        )
        for suffix, seconds, goal, more in figures:
            yield result(
                "failover",
                f"{target.name}_{suffix}",
                max(seconds, default=0.0),
                "s",
                against="the goal",
                against_value=goal,
                conditions=f"{CONDITIONS}; {len(seconds)} times; {target.clients}; {more}",
            )


def _longest(restarts: list[float]) -> str:
    return f"restarts took {max(restarts, default=0.0):.2f} s at most"


def measure(directory: Path, targets: Sequence[Target], kills: int, pauses: int) -> dict[str, Stalls]:
    ports = Ports(*free_ports(len(Ports.__struct_fields__)))
    channel = free_channel()
    document = directory / "plant.toml"
    document.write_text(plant_document(targets, ports, str(channel)))
    found = {target.name: Stalls() for target in targets}
    with ExitStack() as stack:
        running = stack.enter_context(RunningPlant(Plant.load(document), log_level="ERROR"))
        check(running.start(), f"the plant did not start: {running.faults}")
        clients = stack.enter_context(other_process(consume, [target.name for target in targets], channel, ports))
        while not clients.poll():
            running.poll(POLL_SECONDS)
        check(clients.recv() == "listening", "the clients did not start")
        ready_at = dict.fromkeys(running.nodes, time.monotonic())
        for number in range(kills):
            for target in targets:
                node = _node(running, target, number)
                _poll(running, ready_at[node.name] + SETTLED_SECONDS)
                killed_at = _kill(running, node)
                back_at = ready_at[node.name] = _until_ready(running, node)
                found[target.name].restarts.append(back_at - killed_at)
                found[target.name].kills.append(_stall(running, clients, target, killed_at, back_at))
        for number in range(pauses):
            for target in targets:
                node = _node(running, target, number)
                _poll(running, ready_at[node.name] + SETTLED_SECONDS)
                paused_at, resumed_at = _pause(running, node)
                stall = _stall(running, clients, target, paused_at, resumed_at)
                found[target.name].pauses.append(max(0.0, stall - (resumed_at - paused_at)))
        clients.send(None)
        running.stop()
    return found


def plant_document(targets: Sequence[Target], ports: Ports, channel: str) -> str:
    """The plant's document with the nodes of these targets."""
    parts = {
        "edge": EDGE_DOCUMENT.format(ports=ports, channel=channel),
        "filter": FILTER_DOCUMENT.format(ports=ports),
        "tree": TREE_DOCUMENT.format(ports=ports, topic=TOPIC),
        "tcp": _feed(ports),
        "publish": _routers(ports),
    }
    return "".join(['name = "bench"\n', *(parts[target.name] for target in targets)])


def _feed(ports: Ports) -> str:
    lines = ", ".join(_inline() for _ in range(2))
    of_adapter = ((ports.peers_a, ports.service_a), (ports.peers_b, ports.service_b))
    adapters = [
        ADAPTER.format(name=name, channel=_inline(), peers=peers, service=service)
        for name, (peers, service) in zip(ADAPTERS, of_adapter, strict=True)
    ]
    return FEED_DOCUMENT.format(ports=ports, lines=lines, adapters="".join(adapters), messages=2**40)


def _routers(ports: Ports) -> str:
    of_router = ((ports.router_a, ports.vote_a), (ports.router_b, ports.vote_b))
    routers = [
        ROUTER.format(
            name=name,
            control=of_router[number][0],
            vote=of_router[number][1],
            other=of_router[1 - number][0],
            other_vote=of_router[1 - number][1],
            other_name=ROUTERS[1 - number],
            endpoint=ENDPOINT,
            topic=ROUTED_TOPIC,
            router_names=list(ROUTERS),
            ports=ports,
        )
        for number, name in enumerate(ROUTERS)
    ]
    return "".join([*routers, WITNESS.format(router_names=list(ROUTERS), ports=ports)])


def _inline() -> str:
    channel = free_channel()
    return f'{{ group = "{channel.group}", port = {channel.port} }}'


def _node(running: RunningPlant, target: Target, number: int) -> NodeProcess:
    nodes = [running.nodes[name] for name in target.nodes]
    active = [each for each in nodes if each.router is not None and each.router.role == "active"]
    return active[0] if active else nodes[number % len(nodes)]


def _poll(running: RunningPlant, until: float) -> None:
    while time.monotonic() < until:
        running.poll(POLL_SECONDS)


def _kill(running: RunningPlant, node: NodeProcess) -> float:
    node.is_ready = False
    running.kill(node.name)
    return time.monotonic()


def _until_ready(running: RunningPlant, node: NodeProcess) -> float:
    deadline = time.monotonic() + BACK_SECONDS
    while not node.is_ready:
        check(time.monotonic() < deadline, f"{node.name} was not started again")
        running.poll(POLL_SECONDS)
    return time.monotonic()


def _pause(running: RunningPlant, node: NodeProcess) -> tuple[float, float]:
    assert node.member is not None
    os.kill(node.member.pid, signal.SIGSTOP)
    paused_at = time.monotonic()
    _poll(running, paused_at + PAUSE_SECONDS)
    os.kill(node.member.pid, signal.SIGCONT)
    return paused_at, time.monotonic()


def _stall(running: RunningPlant, clients: Connection, target: Target, since: float, back_at: float) -> float:
    """Return how long the clients received nothing since the fault; returns when all clients receive again."""
    _poll(running, back_at + SETTLE_SECONDS)
    clients.send((target.name, since, back_at))
    deadline = time.monotonic() + BACK_SECONDS
    while not clients.poll():
        check(time.monotonic() < deadline, f"the clients of {target.name} receive nothing since the fault")
        running.poll(POLL_SECONDS)
    seconds: float = clients.recv()
    return seconds
