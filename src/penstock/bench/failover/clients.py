"""The publishers and clients of the failover bench, in a process of their own: they note when something arrives."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import msgspec

from penstock.assured.client import open_assured
from penstock.base.backoff import Backoff
from penstock.base.clock import NS_PER_SECOND, SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.bench.transports import check
from penstock.client.config import ClientConfig
from penstock.client.service import Protection
from penstock.client.unicast import UnicastReceiver
from penstock.engine.control import Events, Login, Subscribe, Welcome
from penstock.engine.live.link import NodeLink, Told
from penstock.filter.client.receiver import FilteredReceiver
from penstock.middleware.live import MulticastPublisher
from penstock.middleware.live.merging_receiver import MergingReceiver
from penstock.model import shipped
from penstock.net.live.loop_thread import LoopThread
from penstock.net.live.websocket_driver import connect_websocket
from penstock.net.udp import Channel
from penstock.plant.core.websocket_codec import BINARY
from penstock.security.core.brokering import StreamAddress
from penstock.tree.client.publication import open_publisher
from penstock.tree.client.subscription import open_stream

QUOTE = shipped("quote")
UPDATES_PER_SECOND = 100
TOPIC = "md.us.eq.BENCH.quote"
FEED_TOPICS = "md.us.eq.>"
ROUTED_TOPIC = "orders.bench"
ENDPOINT = "orders"
ADAPTERS = ("adapter-a", "adapter-b")
ROUTERS = ("router-a", "router-b")
START_SECONDS = 60.0
POLL_SECONDS = 0.02
SEND_SECONDS = 60.0
"""Timeout of one publish()."""


class Ports(msgspec.Struct, frozen=True):
    """The port of each listener of the plant."""

    filter: int
    plant: int
    edge: int
    websocket: int
    root: int
    middle: int
    leaf: int
    requests: int
    peers_a: int
    peers_b: int
    service_a: int
    service_b: int
    router_a: int
    router_b: int
    vote_a: int
    vote_b: int
    link: int
    witness: int


class Heard:
    """The receive times of a client since the last query."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._times)

    def note(self) -> None:
        self._times.append(time.monotonic())

    def stall(self, since: float, back_at: float) -> float | None:
        """The longest silence since the fault; None while nothing has arrived after the node was back."""
        times = [since, *(each for each in self._times if each > since)]
        if times[-1] <= back_at:
            return None
        return max(later - earlier for earlier, later in itertools.pairwise(times))

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


def consume(names: Sequence[str], channel: Channel, ports: Ports, orders: Connection) -> None:
    """Run the named clients, and what publishes for them. Answer each order (client, start of the fault, its end) with
    the client's longest silence; None ends it."""
    is_over = threading.Event()
    thread = LoopThread("bench-clients")
    tcp, websocket, filtered, tree, merged, published = (Heard() for _ in range(6))
    known: dict[str, tuple[tuple[Heard, ...], tuple[Callable[[], None], ...]]] = {
        "edge": ((tcp, websocket), (lambda: _link(thread, ports, tcp, websocket, is_over),)),
        "filter": ((filtered,), (lambda: _receive(channel, ports.filter, filtered, is_over),)),
        "tree": (
            (tree,),
            (lambda: _publish_stream(ports.root, is_over), lambda: _subscribe_stream(ports.leaf, tree, is_over)),
        ),
        "tcp": ((merged,), (lambda: _merge(ports, thread, merged, is_over),)),
        "publish": ((published,), (lambda: _publish_assured(ports, published, is_over),)),
    }
    clients = {name: known[name][0] for name in names}
    works = [lambda: _publish(channel, is_over), *(work for name in names for work in known[name][1])]
    threads = [threading.Thread(target=work) for work in works]
    for each in threads:
        each.start()
    _await_first(clients)
    orders.send("listening")
    while (order := orders.recv()) is not None:
        name, since, back_at = order
        while any(each.stall(since, back_at) is None for each in clients[name]):
            time.sleep(POLL_SECONDS)
        orders.send(max(each.stall(since, back_at) or 0.0 for each in clients[name]))
        for heard in itertools.chain.from_iterable(clients.values()):
            heard.forget()
    is_over.set()
    for each in threads:
        each.join()
    thread.close()


def _link(thread: LoopThread, ports: Ports, tcp: Heard, websocket: Heard, is_over: threading.Event) -> None:
    link = NodeLink(("127.0.0.1", ports.edge), Login("bench", "session"), Hearing(tcp))
    thread.start(link.run())
    thread.start(link.subscribe([TOPIC]))
    screen = thread.start(_screen(ports.websocket, websocket))
    is_over.wait()
    screen.cancel()
    thread.start(link.close()).result()


def _await_first(clients: dict[str, tuple[Heard, ...]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while silent := [name for name, heard in clients.items() if not all(map(len, heard))]:
        check(time.monotonic() < deadline, f"these clients receive nothing: {', '.join(silent)}")
        time.sleep(POLL_SECONDS)


def _publish(channel: Channel, is_over: threading.Event) -> None:
    with MulticastPublisher(channel) as publisher:
        for number in itertools.count(1):
            if is_over.wait(1 / UPDATES_PER_SECOND):
                return
            publisher.publish(TOPIC, _quote(number), model_id=QUOTE.id, model_version=QUOTE.version)


def _publish_stream(port: int, is_over: threading.Event) -> None:
    with open_publisher(f"127.0.0.1:{port}") as publisher:
        for number in itertools.count(1):
            if is_over.wait(1 / UPDATES_PER_SECOND):
                return
            publisher.publish(TOPIC, _quote(number))


def _publish_assured(ports: Ports, heard: Heard, is_over: threading.Event) -> None:
    places = [f"127.0.0.1:{port}" for port in (ports.router_a, ports.router_b)]
    with open_assured(*places) as assured, assured.publisher() as publisher:
        for number in itertools.count(1):
            if is_over.wait(1 / UPDATES_PER_SECOND):
                return
            publisher.publish(ROUTED_TOPIC, _quote(number), timeout=SEND_SECONDS)
            heard.note()


def _quote(number: int) -> bytes:
    return bytes(QUOTE.new(symbol="BENCH", bid_price=number, ask_price=number + 1, source_seq=number))


def _receive(channel: Channel, port: int, heard: Heard, is_over: threading.Event) -> None:
    receiver = FilteredReceiver(("127.0.0.1", port), [TOPIC], channels=[str(channel)], timeout=START_SECONDS)
    while not is_over.is_set():
        if receiver.receive(POLL_SECONDS):
            heard.note()
    receiver.close()


def _subscribe_stream(port: int, heard: Heard, is_over: threading.Event) -> None:
    with open_stream(f"127.0.0.1:{port}", TOPIC) as messages:
        while not is_over.is_set():
            if messages.next(POLL_SECONDS) is not None:
                heard.note()


def _merge(ports: Ports, thread: LoopThread, heard: Heard, is_over: threading.Event) -> None:
    counters = Counters("bench")
    receiver = UnicastReceiver(
        thread,
        Protection(),
        ClientConfig(),
        counters,
        node="bench",
        token="",
        topics=[FEED_TOPICS],
        delay_s=0,
        on_refused=lambda error: None,
    )
    receiver.follow(
        [
            StreamAddress(
                adapter=name,
                role="backup",
                publisher_id=0,
                transport="unicast",
                service_host="127.0.0.1",
                service_port=port,
            )
            for name, port in zip(ADAPTERS, (ports.service_a, ports.service_b), strict=True)
        ]
    )
    with MergingReceiver([receiver], counters=counters) as merging:
        while not is_over.is_set():
            if merging.receive(POLL_SECONDS):
                heard.note()


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
