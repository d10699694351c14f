"""WebSocket connections over real sockets; the peer is Penstock's own or that of the websockets library."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import connect as library_connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from penstock.base.errors import ConfigurationError, RefusedError, UnreachableError
from penstock.net import WebSocketServer, connect_websocket
from penstock.net.config import WebSocketConfig
from unit.net_kit import echo, run, until

SITE = "https://console.example"
QUICK = WebSocketConfig(
    handshake_ms=2_000, message_size_max=10_000, write_ms=200, write_size_max=4_096, linger_ms=200, fragments_max=8
)


@contextlib.asynccontextmanager
async def serving(serve: Any = echo, **options: Any) -> AsyncIterator[WebSocketServer]:
    async with WebSocketServer(serve, **{"origins": [None, SITE], "config": QUICK, **options}) as server:
        yield server


def uri(server: WebSocketServer) -> str:
    return f"ws://127.0.0.1:{server.port}/ticks"


async def answer_to(server: WebSocketServer, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_text_and_bytes_come_back() -> None:
    async def main() -> None:
        async with serving() as server:
            async with await connect_websocket(uri(server), origin=SITE) as connection:
                for message in ("grüße", b"\0\xff", "", "x" * 10_000):
                    await connection.send(message)
                    assert await connection.receive() == message
            await until(lambda: server.counters.by_cause("connections_closed") == {"goodbye": 1})

    run(main())


def test_the_librarys_own_client_is_at_home_here() -> None:
    async def main() -> None:
        async with serving(subprotocols=["ticks"]) as server:
            async with library_connect(uri(server), subprotocols=["ticks"], proxy=None) as client:  # type: ignore[list-item]
                await client.send(["in ", "three ", "fragments"])
                assert await client.recv() == "in three fragments"
                await (await client.ping())
            with pytest.raises(InvalidStatus, match="403"):
                async with library_connect(uri(server), origin="https://evil.example", proxy=None):  # type: ignore[arg-type]
                    pass
            async with library_connect(uri(server), subprotocols=["ticks"], proxy=None) as client:  # type: ignore[list-item]
                await client.send("x" * 10_001)
                with pytest.raises(ConnectionClosedError, match="1009"):
                    await client.recv()
            assert server.counters.by_cause("connections_refused") == {"handshake": 1}
            await until(lambda: server.counters.by_cause("connections_closed") == {"goodbye": 1, "length": 1})

    run(main())


def test_pages_of_other_sites_are_refused() -> None:
    async def main() -> None:
        async with serving(origins=[SITE]) as server:
            for origin in ("https://evil.example", None):
                with pytest.raises(RefusedError, match="403"):
                    await connect_websocket(uri(server), origin=origin)

    run(main())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"HTTP/1.1 431"),
        (b"rubbish\r\n\r\n", b""),
        (b"\xff" * 100_000, b"HTTP/1.1 431"),
    ],
)
def test_garbage_is_counted_and_the_server_lives(data: bytes, said: bytes) -> None:
    async def main() -> None:
        async with serving() as server:
            assert (await answer_to(server, data)).startswith(said)
            assert server.counters.by_cause("connections_refused") == {"handshake": 1}
            async with await connect_websocket(uri(server)) as connection:
                await connection.send("still there?")
                assert await connection.receive() == "still there?"

    run(main())


def test_half_a_handshake_has_its_time() -> None:
    async def main() -> None:
        async with serving(config=WebSocketConfig(handshake_ms=50)) as server:
            assert await answer_to(server, b"GET / HTTP/1.1\r\nHost:") == b""
            assert server.counters.by_cause("connections_refused") == {"silent": 1}

    run(main())


def test_a_peer_that_does_not_read_is_cut_off() -> None:
    async def flood(connection: Any) -> None:
        while True:
            await connection.send(b"x" * 10_000)

    async def main() -> None:
        async with serving(flood) as server:
            config = WebSocketConfig(inbox_messages_max=1, linger_ms=100)
            connection = await connect_websocket(uri(server), config=config)
            await until(lambda: server.counters.by_cause("connections_closed") == {"slow": 1})
            await connection.close()

    run(main())


@pytest.mark.spec("OPS-8")
def test_a_server_that_stops_says_goodbye() -> None:
    async def main() -> None:
        async with serving() as server:
            connection = await connect_websocket(uri(server))
            counters = server.counters
        assert await connection.receive() is None
        await connection.close()
        assert counters.by_cause("connections_closed") == {"closed": 1}

    run(main())


@pytest.mark.spec("OPS-2")
def test_beyond_this_host_tls_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="TLS"):
        WebSocketServer(echo, origins=[None], host="0.0.0.0")


@pytest.mark.parametrize("bad", ["http://127.0.0.1/", "ws://", "nonsense"])
def test_bad_addresses(bad: str) -> None:
    with pytest.raises(ConfigurationError):
        run(connect_websocket(bad))


def test_nobody_there() -> None:
    with pytest.raises(UnreachableError):
        run(connect_websocket("ws://127.0.0.1:1/"))
