"""A filter module in this process, and applications that use the protocol directly."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from penstock.base.clock import SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.filter.core import control
from penstock.filter.live.driver import LiveFilter
from penstock.filter.module_config import FilterAccess, FilterModuleConfig
from penstock.middleware import (
    DatagramReceived,
    Deliver,
    DeliverBatch,
    Expect,
    LossReceipt,
    Receiver,
    ReceiverConfig,
    StreamKey,
    Unicast,
)
from penstock.net.live.control_driver import ControlConnection, connect_control
from penstock.net.live.handover import receive_segment
from penstock.net.secret import Secret
from penstock.net.udp import Channel, group_socket, host_socket
from penstock.shm import RingReader
from waiting import PATIENCE_SECONDS, wait_until

T = TypeVar("T")


class Loop:
    """An asyncio loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_SECONDS)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def filter_config(**values: Any) -> FilterModuleConfig:
    return FilterModuleConfig(**{"name": "beside", "control": FilterAccess(port=0), **values})


class FilterHere:
    """A module in this process; the loop of its control connections is in a thread."""

    def __init__(self, config: FilterModuleConfig) -> None:
        self.loop = Loop()
        self._stop: asyncio.Event
        self.module = self.loop.run(self._start(config))
        self._ended = asyncio.run_coroutine_threadsafe(self.module.node.run(self._stop), self.loop.loop)

    async def _start(self, config: FilterModuleConfig) -> LiveFilter:
        self._stop = asyncio.Event()
        module = LiveFilter(config)
        await module.node.start()
        return module

    @property
    def port(self) -> int:
        return self.module.control_port

    def application_names(self) -> list[str]:
        return sorted(each.name for each in self.module.status().applications)

    def stop(self) -> None:
        self.loop.loop.call_soon_threadsafe(self._stop.set)
        self._ended.result(PATIENCE_SECONDS)

    def close(self) -> None:
        self.stop()
        self.loop.close()


@contextlib.contextmanager
def filter_here(**values: Any) -> Iterator[FilterHere]:
    made = FilterHere(filter_config(**values))
    try:
        yield made
    finally:
        made.close()


class Application:
    """An application that sends control messages itself and receives packets with an ordinary receiver."""

    def __init__(
        self,
        control_port: int,
        name: str = "app",
        *,
        delivery: control.Wish = "unicast",
        node: str = "",
        secret: Secret | None = None,
        is_listening: bool = True,
        offer: control.OfferRing | None = None,
        **values: Any,
    ) -> None:
        self.socket = host_socket("127.0.0.1")
        self.told: list[control.FilterMessage] = []
        self.payloads: list[bytes] = []
        self.receipts: list[LossReceipt] = []
        self.counters = Counters("receiver")
        self._core = Receiver(ReceiverConfig(), SystemRandomness(), self.counters)
        self._number = 0
        self._seen = 0
        self._shared: socket.socket | None = None
        self._ring: RingReader | None = None
        self._segment: Any = None
        self.loop = Loop()
        values.setdefault("port", self.socket.getsockname()[1])
        message = offer or control.Register(name, delivery=delivery, **values)
        try:
            self.connection = self.loop.run(self._open(control_port, node or name, secret))
            self.loop.run(self.connection.send(message))
            wait_until(lambda: self.told or self._hearing.done(), "an answer to the registration")
            self.registered = self.told[0]
            if is_listening and isinstance(self.registered, control.Registered):
                self._listen(self.registered, secret)
        except BaseException:
            self.close()
            raise

    async def _open(self, port: int, node: str, secret: Secret | None) -> ControlConnection[control.ControlMessage]:
        connection = await connect_control(control.PROTOCOL, "127.0.0.1", port, node=node, secret=secret)

        async def hear() -> None:
            async for message in connection:
                self.told.append(message)  # type: ignore[arg-type]

        self._hearing = asyncio.ensure_future(hear())
        return connection

    def _listen(self, registered: control.Registered, secret: Secret | None) -> None:
        if registered.group:
            channel = Channel(group=registered.group, port=registered.group_port)
            self._shared = group_socket(channel)
            self._shared.setblocking(False)
        if registered.segment:
            self._segment = receive_segment(registered.path, registered.segment, secret=secret)
            self._ring = RingReader(self._segment)
        self.socket.setblocking(False)

    # Requests

    def ask(self, make: Callable[[int], control.ApplicationMessage]) -> control.FilterMessage:
        """The answer to a request, or the refusal that ended the connection."""
        self._number += 1
        number = self._number
        self.loop.run(self.connection.send(make(number)))
        found: list[control.FilterMessage] = []

        def is_answered() -> bool:
            found[:] = [each for each in self.told if getattr(each, "number", None) in (number, 0)]
            return bool(found)

        wait_until(is_answered, f"the answer to request {number}")
        return found[0]

    def want(self, *topics: str, **values: Any) -> control.FilterMessage:
        return self.ask(lambda number: control.Want(number, [control.Interests(list(topics), **values)]))

    def unwant(self, *topics: str, **values: Any) -> control.FilterMessage:
        return self.ask(lambda number: control.Want(number, remove=[control.Interests(list(topics), **values)]))

    # Packets

    def receive(self) -> None:
        """Receive everything that has arrived."""
        self._expect()
        for data, source in self._datagrams():
            self._handle(DatagramReceived(data, source))
            self._expect()
        deadline_ns = self._core.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= time.monotonic_ns():
            self._handle(Tick())

    def wait_for(self, count: int) -> list[bytes]:
        """The payloads, once this number of them has arrived."""

        def is_there() -> bool:
            self.receive()
            return len(self.payloads) >= count

        wait_until(is_there, f"{count} messages; there are {len(self.payloads)}")
        return self.payloads

    def _datagrams(self) -> Iterator[tuple[bytes, tuple[str, int]]]:
        for each in (self.socket, self._shared):
            while each is not None:
                try:
                    yield each.recvfrom(65_536)
                except BlockingIOError:
                    break
        while self._ring is not None and (data := self._ring.read(0)) is not None:
            yield data, self._source()

    def _source(self) -> tuple[str, int]:
        assert isinstance(self.registered, control.Registered)
        return self.registered.host, self.registered.port

    def _expect(self) -> None:
        while self._seen < len(self.told):
            each = self.told[self._seen]
            self._seen += 1
            if isinstance(each, control.Position):
                key = StreamKey(each.publisher_id, each.group)
                self._handle(Expect(key, each.epoch, each.next_sequence, self._source()))

    def _handle(self, event: Any) -> None:
        for instruction in self._core.handle(event, time.monotonic_ns()):
            match instruction:
                case Deliver() | DeliverBatch():
                    self.payloads += [bytes(message.payload) for message in instruction.messages]
                case LossReceipt():
                    self.receipts.append(instruction)
                case Unicast(destination, data):
                    self.socket.sendto(data, destination)

    def close(self) -> None:
        if hasattr(self, "connection"):
            self.loop.run(self.connection.close())
        self.loop.close()
        for each in (self._ring, self._segment, self._shared, self.socket):
            if each is not None:
                each.close()

    def __enter__(self) -> "Application":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
