"""Repeated kill -9 of an edge cache and of a filter module under their supervisor: how long their clients receive
nothing. The nodes are processes of a plant; the publisher and the clients run in a separate process."""

import asyncio
import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from penstock.base.backoff import Backoff
from penstock.base.clock import NS_PER_SECOND, SystemRandomness
from penstock.base.errors import PenstockError
from penstock.bench.harness import Result, result
from penstock.bench.transports import check, other_process
from penstock.engine.control import Events, Login, Subscribe, Welcome
from penstock.engine.link import NodeLink, Told
from penstock.filter.application.receiver import FilteredReceiver
from penstock.middleware.driver import MulticastPublisher
from penstock.model import shipped
from penstock.net.loop_thread import LoopThread
from penstock.net.udp import Channel, free_channel, free_ports
from penstock.net.websocket_driver import connect_websocket
from penstock.node.plant import Plant
from penstock.node.running import NodeProcess, RunningPlant
from penstock.plant.flavours import BINARY

KILLS = 20
UPDATES_PER_SECOND = 100
TOPIC = "md.us.eq.BENCH.quote"
BACK_SECONDS = 60.0
"""Timeout for the recovery of a node or a client."""

SETTLED_SECONDS = 5.0
"""A node has been ready for this long when it is killed."""

POLL_SECONDS = 0.02
GOAL_SECONDS = 3.0
EDGE, FILTER = "edge", "filter"

CONDITIONS = (
    f"{KILLS} times kill -9 of an edge cache (behind a ticker plant) and of a filter module, processes under the "
    f"supervisor of `penstock up`, each when it had run for {SETTLED_SECONDS:g} s; {UPDATES_PER_SECOND} updates/s"
)

DOCUMENT = """\
name = "bench"

[[filter]]
name = "filter"
control.port = {filter}

[[plant]]
name = "ticker-plant"
control.port = {plant}
channels = ["{channel}"]

[[edge]]
name = "edge"
control.port = {edge}
websocket.port = {websocket}
upstream = {{ port = {plant} }}
access = "open"
"""


class Ports(msgspec.Struct, frozen=True):
    filter: int
    plant: int
    edge: int
    websocket: int


class Stalls(msgspec.Struct):
    """Per kill of one node: the longest time without a message among its clients, in seconds."""

    seconds: list[float] = []
    restart_seconds: list[float] = []
    """Time from the kill until the node is ready again."""


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as directory:
        edge, filtered = _measure(Path(directory))
    for metric, stalls, clients in (
        ("edge_stall_s_max", edge, "the longer of a TCP and a WebSocket client"),
        ("filter_stall_s_max", filtered, "an application's socket"),
    ):
        restart = f"restarts took {max(stalls.restart_seconds):.2f} s at most"
        yield result(
            "failover",
            metric,
            max(stalls.seconds),
            "s",
            against="the goal",
            against_value=GOAL_SECONDS,
            conditions=f"{CONDITIONS}; {clients}; {restart}",
        )


def _measure(directory: Path) -> tuple[Stalls, Stalls]:
    channel = free_channel()
    ports = Ports(*free_ports(4))
    document = directory / "plant.toml"
    document.write_text(DOCUMENT.format(channel=channel, **msgspec.to_builtins(ports)))
    found = {EDGE: Stalls(), FILTER: Stalls()}
    with ExitStack() as stack:
        running = stack.enter_context(RunningPlant(Plant.load(document), log_level="ERROR"))
        check(running.start(), f"the plant did not start: {running.faults}")
        clients = stack.enter_context(other_process(_consume, channel, ports))
        check(clients.recv() == "listening", "the clients did not start")
        ready_at = dict.fromkeys(found, time.monotonic())
        for _ in range(KILLS):
            for name, stalls in found.items():
                _poll(running, ready_at[name] + SETTLED_SECONDS)
                killed_at = _kill(running, running.nodes[name])
                ready_at[name] = _until_ready(running, running.nodes[name])
                stalls.restart_seconds.append(ready_at[name] - killed_at)
                stalls.seconds.append(_stall(running, clients, name, killed_at))
        clients.send(None)
        running.stop()
    return found[EDGE], found[FILTER]


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


def _stall(running: RunningPlant, clients: Connection, name: str, killed_at: float) -> float:
    """How long the node's clients received nothing after the kill; returns when all clients receive again."""
    clients.send((name, killed_at))
    deadline = time.monotonic() + BACK_SECONDS
    while not clients.poll():
        check(time.monotonic() < deadline, f"the clients of {name} heard nothing any more")
        running.poll(POLL_SECONDS)
    seconds: float = clients.recv()
    return seconds


# The publisher and the clients, in a process of their own


class Heard:
    """The receive times of a client since the last query."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._times)

    def note(self) -> None:
        self._times.append(time.monotonic())

    def stall(self, killed_at: float) -> float | None:
        """The longest silence since the kill; None while it lasts. A silence of less than ten updates is not a stall,
        because messages sent before the kill may still arrive."""
        times = [killed_at, *(each for each in self._times if each > killed_at)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        longest = max(gaps, default=0.0)
        return longest if longest > 10 / UPDATES_PER_SECOND else None

    def forget(self) -> None:
        self._times.clear()


class Hearing:
    """A listener of a link that notes when events come."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    async def welcomed(self, welcome: Welcome) -> None:
        """Nothing to prepare."""

    async def told(self, message: Told) -> None:
        if isinstance(message, Events):
            self._heard.note()

    def lost(self, error: PenstockError) -> None:
        """The silence is measured."""

    def position(self) -> int:
        return 0


def _consume(channel: Channel, ports: Ports, orders: Connection) -> None:
    tcp, websocket, filtered = Heard(), Heard(), Heard()
    clients = {EDGE: (tcp, websocket), FILTER: (filtered,)}
    is_over = threading.Event()
    publishing = threading.Thread(target=_publish, args=(channel, is_over))
    publishing.start()
    thread = LoopThread("bench-clients")
    link = NodeLink(("127.0.0.1", ports.edge), Login("bench", "session"), Hearing(tcp))
    thread.start(link.run())
    thread.start(link.subscribe([TOPIC]))
    thread.start(_screen(ports.websocket, websocket))
    receiving = threading.Thread(target=_receive, args=(channel, ports.filter, filtered, is_over))
    receiving.start()
    _await_first((tcp, websocket, filtered))
    orders.send("listening")
    while (order := orders.recv()) is not None:
        name, killed_at = order
        while any(each.stall(killed_at) is None for each in clients[name]):
            time.sleep(POLL_SECONDS)
        orders.send(max(each.stall(killed_at) or 0.0 for each in clients[name]))
        for each in clients[name]:
            each.forget()
    is_over.set()
    publishing.join()
    receiving.join()
    thread.start(link.close()).result()
    thread.close()


def _await_first(clients: tuple[Heard, ...]) -> None:
    deadline = time.monotonic() + BACK_SECONDS
    while not all(map(len, clients)):
        check(time.monotonic() < deadline, "a client hears nothing")
        time.sleep(POLL_SECONDS)


def _publish(channel: Channel, is_over: threading.Event) -> None:
    quote = shipped("quote")
    with MulticastPublisher(channel) as publisher:
        number = 0
        while not is_over.wait(1 / UPDATES_PER_SECOND):
            number += 1
            record = bytes(quote.new(symbol="BENCH", bid_price=number, ask_price=number + 1, source_seq=number))
            publisher.publish(TOPIC, record, model_id=quote.id, model_version=quote.version)


def _receive(channel: Channel, port: int, heard: Heard, is_over: threading.Event) -> None:
    receiver = FilteredReceiver(("127.0.0.1", port), [TOPIC], channels=[str(channel)], timeout=BACK_SECONDS)
    while not is_over.is_set():
        if receiver.receive(POLL_SECONDS):
            heard.note()
    receiver.close()


async def _screen(port: int, heard: Heard) -> None:
    """A WebSocket client that reconnects like a page, with the back-off of all links."""
    backoff = Backoff(SystemRandomness())
    encode = msgspec.json.Encoder().encode
    while True:
        lost: PenstockError | None = None
        try:
            async with await connect_websocket(f"ws://127.0.0.1:{port}", subprotocols=[BINARY]) as connection:
                await connection.send(encode(Login("screen")).decode())
                await connection.send(encode(Subscribe(1, [TOPIC])).decode())
                async for message in connection:
                    if isinstance(message, bytes):
                        backoff.succeeded()
                        heard.note()
        except PenstockError as error:
            lost = error
        await asyncio.sleep(backoff.next_ns(is_absent=lost is not None) / NS_PER_SECOND)
