"""A receiver of an adapter's stream service on real connections: its order, its limits, and what ends it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.base.counters import Counters
from penstock.base.errors import RefusedError
from penstock.client import ClientConfig
from penstock.client.service import Protection
from penstock.client.unicast import UnicastReceiver
from penstock.middleware import Deliver, DeliverBatch, StreamEnded, StreamStarted
from penstock.middleware.unicast import (
    CONNECTION,
    PROTOCOL,
    OpenStream,
    Packets,
    RenewToken,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.live.control_driver import ControlConnection, ControlServer
from penstock.net.live.loop_thread import LoopThread
from penstock.security.core.brokering import StreamAddress
from penstock.wire import Packer
from waiting import wait_until

PATIENCE_SECONDS = 120.0

Serve = Callable[[ControlConnection[UnicastMessage]], Awaitable[None]]


def frames(count: int, per_frame: int = 1) -> list[Packets]:
    """Packets with one message each, whose payload is its number."""
    packer, packets = Packer(7, 0, 1), []
    for number in range(count):
        packer.add("md.us.eq.AAPL.quote", str(number).encode())
        packet = packer.flush()
        assert packet is not None
        packets.append(packet)
    return [Packets(packets[at : at + per_frame]) for at in range(0, count, per_frame)]


@contextmanager
def receiving(serve: Serve, config: ClientConfig, refusals: list[RefusedError]) -> Iterator[UnicastReceiver]:
    """A receiver that is connected to a server of its own, which opens every stream."""

    async def open_and_serve(connection: ControlConnection[UnicastMessage]) -> None:
        assert isinstance(await connection.receive(), OpenStream)
        await connection.send(StreamOpened("adapter", 7, 1, [1]))
        await serve(connection)

    async def start() -> ControlServer:
        server = ControlServer(PROTOCOL, open_and_serve, node="adapter", config=CONNECTION)
        await server.start()
        return server

    serving, thread = LoopThread("test-adapter"), LoopThread("test-client")
    server = serving.start(start()).result(PATIENCE_SECONDS)
    receiver = UnicastReceiver(
        thread,
        Protection(),
        config,
        Counters("test"),
        node="client",
        token="token",
        topics=["md.>"],
        delay_s=0,
        on_refused=refusals.append,
    )
    try:
        address = StreamAddress(
            adapter="adapter",
            role="active",
            publisher_id=7,
            transport="unicast",
            service_host="127.0.0.1",
            service_port=server.port,
        )
        receiver.follow([address])
        yield receiver
    finally:
        receiver.close()
        thread.close()
        serving.start(server.close()).result(PATIENCE_SECONDS)
        serving.close()


def read(receiver: UnicastReceiver, count: int) -> list[int]:
    """The numbers of the next messages; the stream's begin and end are left out."""
    numbers: list[int] = []

    def has_all() -> bool:
        for each in receiver.receive(0.05):
            assert isinstance(each, Deliver | DeliverBatch | StreamStarted | StreamEnded), each
            if isinstance(each, Deliver | DeliverBatch):
                numbers.extend(int(bytes(message.payload)) for message in each.messages)
        return len(numbers) >= count

    wait_until(has_all, f"{count} messages")
    return numbers


async def until_closed(connection: ControlConnection[UnicastMessage]) -> list[UnicastMessage]:
    return [message async for message in connection]


@pytest.mark.parametrize("per_frame", [1, 7, 300])
def test_a_slow_reader_holds_the_adapter_up_and_misses_nothing(per_frame: int) -> None:
    said = frames(4_000, per_frame)

    async def serve(connection: ControlConnection[UnicastMessage]) -> None:
        for each in said:
            await connection.send(each)
        await until_closed(connection)

    with receiving(serve, ClientConfig(inbox_messages_max=4), []) as receiver:
        assert read(receiver, 4_000) == list(range(4_000))


def test_a_refusal_follows_the_packets_before_it() -> None:
    refusals: list[RefusedError] = []

    async def serve(connection: ControlConnection[UnicastMessage]) -> None:
        for each in frames(100):
            await connection.send(each)
        await connection.send(StreamRefused("revoked", "no longer a customer"))
        await until_closed(connection)

    with receiving(serve, ClientConfig(), refusals) as receiver:
        assert read(receiver, 100) == list(range(100))
        wait_until(lambda: len(refusals) == 1, "the refusal")
        assert refusals[0].peer_code == "revoked"
        ended: list[object] = []
        wait_until(lambda: ended.extend(receiver.receive(0.05)) or bool(ended), "the end of the stream")
        assert isinstance(ended[-1], StreamEnded)


def test_requests_of_the_reader_reach_the_adapter_between_packets() -> None:
    heard: list[UnicastMessage] = []

    async def serve(connection: ControlConnection[UnicastMessage]) -> None:
        first, *rest = frames(50)
        await connection.send(first)
        heard.append(await connection.receive() or StreamRefused("", ""))
        for each in rest:
            await connection.send(each)
        await until_closed(connection)

    with receiving(serve, ClientConfig(), []) as receiver:
        assert read(receiver, 1) == [0]
        receiver.renew("newer")
        assert read(receiver, 49) == list(range(1, 50))
        assert heard == [RenewToken("newer")]


def test_a_stream_begins_anew_on_the_next_connection() -> None:
    connections: list[int] = []

    async def serve(connection: ControlConnection[UnicastMessage]) -> None:
        connections.append(1)
        for each in frames(20):
            await connection.send(each)
        if len(connections) == 1:
            await asyncio.sleep(0)
            return
        await until_closed(connection)

    with receiving(serve, ClientConfig(), []) as receiver:
        assert read(receiver, 40) == [*range(20), *range(20)]
