"""Control connections and WebSockets whose bytes go out through a session sender behave like all others."""

import asyncio
import contextlib
import os
import socket
from typing import Any

import pytest
from websockets.asyncio.client import connect as library_connect

from penstock.base.errors import ConnectionLostError
from penstock.net import ControlServer, WebSocketServer, connect_control
from penstock.net.config import ControlConfig, WebSocketConfig
from penstock.plant.live.session_transport import SessionTransports
from session_sender_kit import SessionSenderThread
from unit.net_kit import ECHO, Say, echo, run, until

CONTROL = ControlConfig(handshake_ms=2_000, linger_ms=500, connections_max=8)
WEB = WebSocketConfig(handshake_ms=2_000, linger_ms=500, message_size_max=10_000, connections_max=8)


def control_server(transports: SessionTransports, serve: Any = echo) -> ControlServer:
    return ControlServer(ECHO, serve, node="carried", config=CONTROL, through=transports.through)


def web_server(transports: SessionTransports) -> WebSocketServer:
    return WebSocketServer(echo, origins=[None], config=WEB, through=transports.through)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.spec("EDGE-1")
def test_messages_come_and_go() -> None:
    async def main() -> None:
        transports = thread.transports()
        async with control_server(transports) as server, web_server(transports) as web:
            async with await connect_control(ECHO, "127.0.0.1", server.port, node="test") as connection:
                for text in ("a", "b" * 100_000):
                    await connection.send(Say(text))
                    assert await connection.receive() == Say(text)
            async with library_connect(f"ws://127.0.0.1:{web.port}", proxy=None) as client:
                await client.send("hello")
                assert await client.recv() == "hello"
                await (await client.ping())
            await until(lambda: not transports.transports)
            assert server.counters.by_cause("connections_closed") == {"goodbye": 1}
            await until(lambda: web.counters.by_cause("connections_closed") == {"goodbye": 1})

    with SessionSenderThread() as thread:
        run(main())


def test_a_hundred_connections_one_after_another_leave_nothing_behind() -> None:
    async def main() -> None:
        transports = thread.transports()
        async with control_server(transports) as server:
            before = 0
            for number in range(101):
                if number == 1:  # the first exchange may open descriptors that stay open
                    await until(lambda: not transports.transports)
                    before = descriptors()
                async with await connect_control(ECHO, "127.0.0.1", server.port, node="test") as connection:
                    await connection.send(Say(str(number)))
                    assert await connection.receive() == Say(str(number))
            await until(lambda: not transports.transports and descriptors() <= before)

    with SessionSenderThread(8) as thread:
        run(main())


def test_one_that_is_reset_frees_its_place() -> None:
    async def main() -> None:
        transports = thread.transports()
        async with control_server(transports) as server:
            for _ in range(20):
                sock = socket.create_connection(("127.0.0.1", server.port))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                sock.send(b"\5\0")
                sock.close()  # with a reset
            await until(lambda: server.counters["connections_refused"] == 20 and not transports.transports)

    with SessionSenderThread(8) as thread:
        run(main())


def test_garbage_and_silence_end_with_last_words() -> None:
    async def main() -> None:
        transports = thread.transports()
        async with control_server(transports) as server, web_server(transports) as web:
            for port, sent, answer in (
                (server.port, b"\xff\xff\xff\x7f", b"error"),
                (web.port, b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 4"),
                (server.port, b"", b""),  # the handshake times out
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                assert answer in await reader.read()
                writer.close()
                await writer.wait_closed()
            await until(lambda: not transports.transports)

    with SessionSenderThread() as thread:
        run(main())


def test_words_for_one_that_takes_nothing_are_bounded_and_others_do_not_wait() -> None:
    async def flood(connection: Any) -> None:
        async for message in connection:
            if message.text == "flood":
                with contextlib.suppress(ConnectionLostError):
                    while True:
                        await connection.send(Say("x" * 60_000))
                        await asyncio.sleep(0)
            await connection.send(message)

    async def main() -> None:
        transports = thread.transports()
        async with control_server(transports, flood) as server:
            slow = await connect_control(ECHO, "127.0.0.1", server.port, node="slow", config=CONTROL)
            slow.transport.pause_reading()  # type: ignore[attr-defined]
            await slow.send(Say("flood"))
            async with await connect_control(ECHO, "127.0.0.1", server.port, node="quick") as quick:
                for number in range(50):
                    await quick.send(Say(str(number)))
                    assert await quick.receive() == Say(str(number))
                await until(lambda: server.counters["connections_closed"] == 1)
            slow.transport.abort()
            await slow.close()

    with SessionSenderThread(8) as thread:
        run(main())


def test_the_loop_ends_in_order_when_the_data_thread_is_gone() -> None:
    async def main() -> None:
        thread = SessionSenderThread(8)
        with thread:
            transports = thread.transports()
            server = control_server(transports)
            await server.start()
            connection = await connect_control(ECHO, "127.0.0.1", server.port, node="test")
        await server.close()
        await connection.close()
        assert not transports.transports

    run(main())
