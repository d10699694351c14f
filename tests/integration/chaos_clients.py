"""The publishers and clients of the chaos run, in a process of their own. A path is one way from a publisher to a
client; its arrivals are recorded, with each violation of the delivery guarantee of the path."""

import bisect
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import msgspec

from penstock.assured.client import open_assured
from penstock.base.counters import Counters
from penstock.bench.failover.clients import ADAPTERS, ENDPOINT, FEED_TOPICS, QUOTE, ROUTED_TOPIC, ROUTERS, TOPIC, Ports
from penstock.client.config import ClientConfig
from penstock.client.service import Protection
from penstock.client.unicast import UnicastReceiver
from penstock.engine.client.consumer import ConsumerRequest
from penstock.engine.client.event_reader import EventReader
from penstock.engine.client.messages import NodeMessages
from penstock.engine.control import Transport
from penstock.engine.core.kernel._event import EventKind
from penstock.filter.client.receiver import FilteredReceiver
from penstock.middleware.core.events import (
    Deliver,
    DeliverBatch,
    Discontinuity,
    LossReceipt,
    Merged,
    MergedBatch,
    MergeGap,
    StreamStarted,
)
from penstock.middleware.live import MulticastPublisher
from penstock.middleware.live.merging_receiver import MergingReceiver
from penstock.net.live.loop_thread import LoopThread
from penstock.net.udp import Channel
from penstock.security.core.brokering import StreamAddress
from penstock.tree.client.publication import open_publisher
from penstock.tree.client.subscription import open_stream
from penstock.wire import Extension, decode_origin
from waiting import PATIENCE_SECONDS

PERIOD_SECONDS = 0.01
"""Between two messages of a publisher."""

POLL_SECONDS = 0.02
PUBLISHERS = 3
VIOLATIONS_MAX = 20
"""Violations that are kept per path; all are counted."""

NODES = {
    "machine": (),
    "plant": ("ticker-plant",),
    "edge": ("ticker-plant", "edge"),
    "filter": ("filter",),
    "multicast": ADAPTERS,
    "tcp": ADAPTERS,
    "tree": ("root", "middle", "leaf"),
    "publish": (*ROUTERS, "witness"),
    "queue": (*ROUTERS, "witness"),
}
"""The nodes that each path depends on. "machine" is a thread of this process that only wakes up periodically: its
silences are times in which the machine did not run this process."""


class Account(msgspec.Struct):
    """Totals of a path."""

    messages: int = 0
    lost: int = 0
    """Messages that did not arrive."""
    repeated: int = 0
    """Messages that arrived again and were marked as repeated."""
    violations: int = 0
    examples: list[str] = []
    """The first violations."""


class Arrivals:
    """The messages of one path. One thread records them, another thread queries them."""

    def __init__(self) -> None:
        self.account = Account()
        self.last = 0
        """The number of the newest message; 0 before the first one."""
        self._times: list[float] = []
        self._has_receipt = False

    def note_time(self) -> None:
        self._times.append(time.monotonic())
        self.account.messages += 1

    def note(self, number: int, *, is_repeatable: bool = False) -> None:
        """Record the message with this number. Numbers are consecutive unless a loss receipt came before the message.
        A message with the current state (`is_repeatable`) may have the number of the newest message."""
        self.note_time()
        if number <= self.last:
            if is_repeatable and number == self.last:
                self.account.repeated += 1
            else:
                self.violation(f"message {number} after {self.last}")
            return
        if self.last and number > self.last + 1:
            self.account.lost += number - self.last - 1
            if not self._has_receipt:
                self.violation(f"no receipt for {self.last + 1} to {number - 1}")
        self.last = number
        self._has_receipt = False

    def receipt(self) -> None:
        self._has_receipt = True

    def renumber(self, last: int) -> None:
        """Numbers continue after this one, which may be lower than before: an adapter that was not synchronised when
        the active one failed announces numbers of its own."""
        self.last = last
        self._has_receipt = False

    def violation(self, what: str) -> None:
        self.account.violations += 1
        if len(self.account.examples) < VIOLATIONS_MAX:
            self.account.examples.append(what)

    def has_arrived_since(self, when: float) -> bool:
        return bool(self._times) and self._times[-1] > when

    def silence(self, since: float, until: float) -> float:
        """The longest time without a message between these two times."""
        first, last = bisect.bisect_right(self._times, since), bisect.bisect_left(self._times, until)
        times = [since, *self._times[first:last], until]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class SessionRequest(ConsumerRequest, frozen=True, kw_only=True):
    """A consumer of this host that is served over TCP like one of another host."""

    @property
    def transport(self) -> Transport:
        return "session"


class Clients:
    """All paths, each with a thread that reads, and the publishers."""

    def __init__(self, ports: Ports, channel: Channel, adapters: Sequence[Channel]) -> None:
        self._ports, self._channel, self._adapters = ports, channel, adapters
        self.paths = {name: Arrivals() for name in NODES}
        self._is_over = threading.Event()
        self._is_finishing = threading.Event()
        """Publishers stop after their current message."""
        self._finished = threading.Semaphore(0)
        """Released by each publisher after its last message."""
        self._failures: list[str] = []
        self._published = self._streamed = 0
        self._acknowledged: list[int] = []
        self._delivered: set[int] = set()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (
                self._tick,
                self._publish,
                self._read_plant,
                self._read_edge,
                self._receive_filtered,
                self._receive_multicast,
                self._receive_tcp,
                self._publish_stream,
                self._subscribe_stream,
                self._publish_assured,
                self._consume_assured,
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self.await_all(time.monotonic())

    def await_all(self, when: float) -> None:
        """Return when a message has arrived on every path after that time."""
        self._await(lambda: [name for name, each in self.paths.items() if not each.has_arrived_since(when)])

    def finish(self) -> dict[str, Account]:
        """Stop publishing, and wait until all published messages have arrived."""
        self._is_finishing.set()
        for _ in range(PUBLISHERS):
            assert self._finished.acquire(timeout=PATIENCE_SECONDS), "a publisher did not end"
        self._await(self._missing)
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        assert not self._failures, "\n".join(self._failures)
        return {name: arrivals.account for name, arrivals in self.paths.items()}

    def _await(self, missing: Callable[[], list[str]]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while late := missing():
            assert not self._failures, "\n".join(self._failures)
            assert time.monotonic() < deadline, f"nothing arrived: {late}"
            time.sleep(POLL_SECONDS)

    def _missing(self) -> list[str]:
        """Paths on which published messages have not arrived yet."""
        lasts = dict.fromkeys(("plant", "edge", "filter"), self._published) | {"tree": self._streamed}
        late = [f"{name}: {each} of {last}" for name, last in lasts.items() if (each := self.paths[name].last) < last]
        undelivered = set(self._acknowledged) - self._delivered
        return [*late, f"queue: {sorted(undelivered)[:5]}"] if undelivered else late

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self._failures.append(traceback.format_exc())

    # Publishers

    def _numbers(self) -> Iterator[int]:
        for number in itertools.count(1):
            if self._is_finishing.wait(PERIOD_SECONDS):
                return
            yield number

    def _tick(self) -> None:
        while not self._is_over.wait(PERIOD_SECONDS):
            self.paths["machine"].note_time()

    def _publish(self) -> None:
        with MulticastPublisher(self._channel) as publisher:
            for number in self._numbers():
                publisher.publish(TOPIC, _quote(number), model_id=QUOTE.id, model_version=QUOTE.version)
                self._published = number
            self._finished.release()
            self._is_over.wait()  # receivers may request retransmissions

    def _publish_stream(self) -> None:
        with open_publisher(f"127.0.0.1:{self._ports.root}") as publisher:
            for number in self._numbers():
                publisher.publish(TOPIC, _quote(number))
                self._streamed = number
            publisher.flush(PATIENCE_SECONDS)
        self._finished.release()

    def _publish_assured(self) -> None:
        with open_assured(*self._routers()) as assured, assured.publisher() as publisher:
            for number in self._numbers():
                publisher.publish(ROUTED_TOPIC, _quote(number), timeout=PATIENCE_SECONDS)
                self._acknowledged.append(number)
                self.paths["publish"].note(number)
        self._finished.release()

    def _routers(self) -> tuple[str, str]:
        return f"127.0.0.1:{self._ports.router_a}", f"127.0.0.1:{self._ports.router_b}"

    # Clients

    def _read_plant(self) -> None:
        """Shared memory."""
        request = ConsumerRequest(host="127.0.0.1", port=self._ports.plant, topics=(TOPIC,), cls="critical")
        self._read_node(request, self.paths["plant"])

    def _read_edge(self) -> None:
        request = SessionRequest(host="127.0.0.1", port=self._ports.edge, topics=(TOPIC,), cls="critical")
        self._read_node(request, self.paths["edge"])

    def _read_node(self, request: ConsumerRequest, arrivals: Arrivals) -> None:
        losses = 0
        with NodeMessages(EventReader(request), request.topics) as messages:
            while not self._is_over.is_set():
                message = messages.next(POLL_SECONDS)
                if messages.loss_count != losses:
                    losses = messages.loss_count
                    arrivals.receipt()
                if message is not None:
                    is_state = message.source.kind == EventKind.REFRESH
                    if is_state:  # a node sends the current state to consumers that it cannot resume
                        arrivals.receipt()
                    arrivals.note(_number(bytes(message)), is_repeatable=is_state)

    def _receive_filtered(self) -> None:
        arrivals = self.paths["filter"]
        place = "127.0.0.1", self._ports.filter
        with _closing(FilteredReceiver(place, [TOPIC], channels=[str(self._channel)])) as receiver:
            while not self._is_over.is_set():
                for each in receiver.receive(POLL_SECONDS):
                    if isinstance(each, Deliver | DeliverBatch):
                        for message in each.messages:
                            arrivals.note(_number(bytes(message.payload)))
                    elif isinstance(each, LossReceipt | StreamStarted):
                        arrivals.receipt()

    def _receive_multicast(self) -> None:
        self._merge(MergingReceiver.on(self._adapters), self.paths["multicast"])

    def _receive_tcp(self) -> None:
        thread, counters = LoopThread("chaos-tcp"), Counters("chaos")
        options = {"node": "chaos", "token": "", "topics": [FEED_TOPICS], "delay_s": 0}
        receiver = UnicastReceiver(
            thread,
            Protection(),
            ClientConfig(),
            counters,
            on_refused=lambda error: None,
            **options,  # type: ignore[arg-type]
        )
        places = zip(ADAPTERS, (self._ports.service_a, self._ports.service_b), strict=True)
        receiver.follow([_address(name, port) for name, port in places])
        self._merge(MergingReceiver([receiver], counters=counters), self.paths["tcp"])
        thread.close()

    def _merge(self, merging: MergingReceiver, arrivals: Arrivals) -> None:
        with merging:
            while not self._is_over.is_set():
                for each in merging.receive(POLL_SECONDS):
                    if isinstance(each, Merged | MergedBatch):
                        for message in each.messages:
                            origin = decode_origin(message.extensions[Extension.ORIGIN])
                            arrivals.note(origin.message_sequence)
                    elif isinstance(each, MergeGap):
                        arrivals.receipt()
                    elif isinstance(each, Discontinuity):
                        arrivals.renumber(each.message_sequence)

    def _subscribe_stream(self) -> None:
        arrivals = self.paths["tree"]
        losses = 0
        with open_stream(f"127.0.0.1:{self._ports.leaf}", TOPIC) as messages:
            while not self._is_over.is_set():
                message = messages.next(POLL_SECONDS)
                if messages.loss_count != losses:
                    losses = messages.loss_count
                    arrivals.receipt()
                if message is not None:
                    arrivals.note(_number(bytes(message)))

    def _consume_assured(self) -> None:
        """Unsettled messages may be redelivered; the router marks them."""
        arrivals = self.paths["queue"]
        with open_assured(*self._routers()) as assured, assured.endpoint(ENDPOINT) as endpoint:
            while not self._is_over.is_set():
                if (message := endpoint.next(POLL_SECONDS)) is None:
                    continue
                number = _number(message.payload)
                arrivals.note_time()
                if number in self._delivered:
                    arrivals.account.repeated += 1
                    if not message.is_redelivered:
                        arrivals.violation(f"message {number} again, not marked as redelivered")
                self._delivered.add(number)
                message.ack()


def run(ports: Ports, channel: Channel, adapters: Sequence[Channel], orders: Connection) -> None:
    """Answer each order (start of an episode, end of its faults) with the longest silence per path, and None, the last
    order, with the accounts."""
    clients = Clients(ports, channel, adapters)
    clients.start()
    orders.send("listening")
    while (order := orders.recv()) is not None:
        since, back_at = order
        clients.await_all(back_at)
        until = time.monotonic()
        orders.send({name: arrivals.silence(since, until) for name, arrivals in clients.paths.items()})
    orders.send(clients.finish())


@contextmanager
def _closing(receiver: FilteredReceiver) -> Iterator[FilteredReceiver]:
    try:
        yield receiver
    finally:
        receiver.close()


def _address(name: str, port: int) -> StreamAddress:
    return StreamAddress(
        adapter=name, role="backup", publisher_id=0, transport="unicast", service_host="127.0.0.1", service_port=port
    )


def _quote(number: int) -> bytes:
    return bytes(QUOTE.new(symbol="BENCH", bid_price=number, ask_price=number + 1, source_seq=number))


def _number(record: bytes) -> int:
    return int(QUOTE.view(record).source_seq)
