"""The stream service on real connections, fed from a store of packets: a new subscriber misses nothing and receives
nothing twice."""

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy
import pytest

from penstock.base.counters import Counters
from penstock.feed.config import ServiceConfig
from penstock.feed.core.service.events import Image
from penstock.feed.core.service.service import ServiceIdentity, StreamService
from penstock.feed.live import subscriber_server
from penstock.feed.live._tap import Tap
from penstock.feed.live.administration import open_to_all
from penstock.feed.live.service_pump import ServicePump
from penstock.feed.live.subscriber_server import SubscriberServer
from penstock.middleware.unicast import (
    CONNECTION,
    PROTOCOL,
    Contribution,
    ImageEnd,
    OpenStream,
    Packets,
    Position,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.live.control_driver import ControlConnection, connect_control
from penstock.security import Token
from penstock.wire import MESSAGE_DTYPE, Extension, PacketStore, decode, decode_origin
from unit.service_kit import PublishedStream

PATIENCE_SECONDS = 120
KEPT = 8
"""Number of packets in the store: a subscriber that is farther behind loses packets."""

T = TypeVar("T")


class Plant:
    """An adapter's service without the adapter; publish() replaces its data thread."""

    journal_path: Path | None = None

    def __init__(self, config: ServiceConfig | None = None) -> None:
        self._stream = PublishedStream()
        self._store = PacketStore(KEPT, 65_536)
        self.tap = Tap(self._store)
        self.when_opened: Callable[[], None] = lambda: None
        self.before_image: Callable[[], None] = lambda: None
        self.after_image: Callable[[], None] = lambda: None
        identity = ServiceIdentity("a-1", 7, (1,))
        self.service = StreamService(identity, self._verify, config or ServiceConfig(), Counters("service"))
        self.server = SubscriberServer(self.service, self)
        self._pump = ServicePump(self.tap, self.server, Counters("pump"))

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._store.keep(self._stream.packet("a.b"))
        self.tap.announce(self._store.next_sequence)

    async def take_image(self) -> Image:
        self.before_image()
        nothing, included = numpy.empty(0, numpy.uint8), self._stream.next_number - 1
        next_packet = self._store.next_sequence
        self.after_image()
        rows = numpy.empty(0, MESSAGE_DTYPE)
        return Image(nothing, nothing, rows, [Position(1, 256, included)], next_packet)

    def take_contribution(self, stream: str, first_sequence: int, messages: list[Contribution]) -> Any:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Plant"]:
        await self.server.start()
        self._pump.start()
        try:
            yield self
        finally:
            self._pump.stop()
            await self.server.close()
            self.tap.close()

    @contextlib.asynccontextmanager
    async def subscriber(self, *, image: bool = False) -> AsyncIterator["Reader"]:
        port = self.server.port
        async with await connect_control(PROTOCOL, "127.0.0.1", port, node="test", config=CONNECTION) as connection:
            await connection.send(OpenStream("", [">"], image=image))
            yield Reader(connection)

    def _verify(self, text: str, now_ns: int) -> Token:
        self.when_opened()
        return open_to_all(text, now_ns)


class Reader:
    """The messages that one subscriber receives."""

    def __init__(self, connection: ControlConnection[UnicastMessage]) -> None:
        self._connection = connection

    async def receive(self) -> UnicastMessage | None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._connection.receive()

    async def until(self, kind: type[T]) -> T:
        while not isinstance(message := await self.receive(), kind):
            assert message is not None
            assert not isinstance(message, StreamRefused), message
        return message

    async def numbers(self, last: int) -> list[int]:
        """Read messages up to the one with this number."""
        found: list[int] = []
        while not found or found[-1] < last:
            for packet in (await self.until(Packets)).packets:
                found += [decode_origin(each.extensions[Extension.ORIGIN]).message_sequence for each in decode(packet)]
        return found


@pytest.mark.spec("SUB-5")
def test_what_the_image_includes_does_not_come_again_when_the_service_hears_of_it_later() -> None:
    async def join() -> tuple[ImageEnd, list[int]]:
        async with Plant().running() as plant:
            plant.publish(2)
            plant.before_image = lambda: plant.publish(3)  # the service is notified when the image is complete
            plant.after_image = lambda: plant.publish(2)
            async with plant.subscriber(image=True) as reader:
                return await reader.until(ImageEnd), await reader.numbers(7)

    end, numbers = asyncio.run(join())
    assert (end.positions[0].message_sequence, numbers) == (5, [6, 7])


@pytest.mark.spec("SUB-5")
def test_the_second_one_to_come_gets_exactly_what_its_image_does_not_include() -> None:
    async def join() -> tuple[list[int], list[int]]:
        async with Plant().running() as plant, plant.subscriber() as first:
            await first.until(StreamOpened)
            plant.when_opened = plant.before_image = plant.after_image = lambda: plant.publish(2)
            async with plant.subscriber(image=True) as second:
                await second.until(ImageEnd)
                return await first.numbers(6), await second.numbers(6)

    assert asyncio.run(join()) == ([1, 2, 3, 4, 5, 6], [5, 6])


def test_the_first_one_to_come_is_not_behind_because_nobody_listened_before() -> None:
    async def join() -> list[int]:
        async with Plant().running() as plant:
            plant.when_opened = lambda: plant.publish(10 * KEPT)
            async with plant.subscriber() as reader:
                await reader.until(StreamOpened)
                plant.publish(2)
                return await reader.numbers(10 * KEPT + 2)

    assert asyncio.run(join()) == [10 * KEPT + 1, 10 * KEPT + 2]


def test_while_nobody_listens_the_pump_is_not_woken() -> None:
    async def listen() -> list[object]:
        async with Plant().running() as plant:
            woken: list[object] = []

            def look() -> None:
                plant.publish(1)
                woken.extend(select.select([plant.tap], [], [], 0)[0])

            plant.when_opened = look
            async with plant.subscriber() as reader:
                await reader.until(StreamOpened)
            return woken

    assert asyncio.run(listen()) == []


def test_one_leaves_and_another_comes() -> None:
    async def come_and_go() -> list[list[int]]:
        got: list[list[int]] = []
        async with Plant().running() as plant:
            for turn in range(3):
                async with plant.subscriber() as reader:
                    await reader.until(StreamOpened)
                    plant.publish(2)
                    got.append(await reader.numbers(turn * (2 + 2 * KEPT) + 2))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while len(plant.service):
                        await asyncio.sleep(0)
                plant.publish(2 * KEPT)
        return got

    assert asyncio.run(come_and_go()) == [[1, 2], [19, 20], [37, 38]]


def test_whoever_is_cut_off_while_its_stream_is_opened_is_told_why() -> None:
    async def join() -> list[UnicastMessage | None]:
        async with Plant(ServiceConfig(queue_bytes_max=1)).running() as plant:
            begin = plant.server.on_first_live
            assert begin is not None

            def begin_with_a_packet() -> None:
                begin()
                plant.publish(1)

            plant.server.on_first_live = begin_with_a_packet
            async with plant.subscriber() as reader:
                await reader.until(StreamOpened)
                return [await reader.receive(), await reader.receive()]

    refusal, end = asyncio.run(join())
    assert isinstance(refusal, StreamRefused)
    assert (refusal.code, end) == ("slow", None)


def test_a_subscriber_that_opens_no_stream_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber_server, "LOGIN_SECONDS", 0.1)

    async def connect() -> tuple[UnicastMessage | None, dict[str, int]]:
        async with (
            Plant().running() as plant,
            await connect_control(PROTOCOL, "127.0.0.1", plant.server.port, node="test", config=CONNECTION) as silent,
        ):
            return await Reader(silent).receive(), plant.server.counters.by_cause("subscriptions_refused")

    refused, counted = asyncio.run(connect())
    assert refused == StreamRefused("protocol", "no login within 0.1 s")
    assert counted == {"protocol": 1}
