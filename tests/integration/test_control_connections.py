"""Control connections over real sockets: good peers, and every kind of bad one."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.base.counters import Counters
from penstock.base.errors import (
    ConfigurationError,
    ConnectionLostError,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
    UnreachableError,
    VersionError,
)
from penstock.net import ControlConnection, ControlProtocol, ControlServer, Secret, Version, connect_control
from penstock.net.config import ControlConfig
from penstock.net.core.framing import encode_frame
from penstock.net.live.loop_thread import LoopThread
from unit.net_kit import ECHO, NEWER, SECRET, Later, Number, Say, echo, run, until

QUICK = ControlConfig(handshake_ms=2_000, write_ms=200, write_size_max=4_096, message_size_max=100_000, linger_ms=200)


@contextlib.asynccontextmanager
async def serving(serve: Any = echo, **options: Any) -> AsyncIterator[ControlServer]:
    async with ControlServer(ECHO, serve, **{"node": "server", "config": QUICK, **options}) as server:
        yield server


def connect(server: ControlServer, **options: Any) -> Coroutine[Any, Any, ControlConnection[Any]]:
    return connect_control(ECHO, "127.0.0.1", server.port, **{"node": "client", "config": QUICK, **options})


async def answer_to(server: ControlServer, data: bytes, *, eof: bool = False) -> bytes:
    """The server's answer to bytes that no client of ours would send, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        if eof:
            writer.write_eof()
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def is_serving(server: ControlServer, **options: Any) -> None:
    async with await connect(server, **options) as connection:
        await connection.send(Say("still there?"))
        assert await connection.receive() == Say("still there?")


def _is_number(message: object) -> bool:
    return isinstance(message, Number)


def test_what_has_come_already_is_taken_without_waiting() -> None:
    async def say_all(connection: ControlConnection[Any]) -> None:
        for message in (Number(1), Number(2), Number(3), Say("between"), Number(4)):
            await connection.send(message)

    async def main() -> None:
        async with serving(say_all) as server, await connect(server) as connection:
            assert await connection.receive() == Number(1)
            for wanted in (Number(2), Number(3)):
                assert (connection.received(_is_number) or await connection.receive()) == wanted
            assert connection.received(_is_number) is None
            assert await connection.receive() == Say("between")
            assert await connection.receive() == Number(4)

    run(main())


@pytest.mark.spec("OPS-2")
@pytest.mark.parametrize("secret", [None, SECRET])
def test_messages_come_back_and_goodbyes_are_clean(secret: Secret | None) -> None:
    async def main() -> None:
        async with serving(secret=secret) as server:
            async with await connect(server, secret=secret) as connection:
                assert connection.peer.node == "server"
                assert connection.peer.is_authenticated == (secret is not None)
                for number in range(1_000):
                    await connection.send(Number(number))
                    assert await connection.receive() == Number(number)
            assert connection.is_over
            assert await connection.receive() is None
            with pytest.raises(ConnectionLostError):
                await connection.send(Say("too late"))
            await until(lambda: server.counters["connections_closed"])
            assert server.counters.by_cause("connections_closed") == {"goodbye": 1}

    run(main())


@pytest.mark.spec("OPS-3")
def test_the_heartbeat_estimates_the_clock() -> None:
    async def main() -> None:
        async with serving() as server, await connect(server) as connection:
            await until(lambda: connection.clock_estimate() is not None)
            estimate = connection.clock_estimate()
            assert estimate is not None
            assert abs(estimate.offset_ns) <= estimate.error_ns

    run(main())


@pytest.mark.spec("OPS-2")
def test_a_wrong_secret_is_refused_and_counted() -> None:
    async def main() -> None:
        async with serving(secret=SECRET) as server:
            with pytest.raises(RefusedError, match="do not have the same secret"):
                await connect(server, secret=Secret(b"another one, also long"))
            with pytest.raises(RemoteProtocolError, match="only the server has a secret"):
                await connect(server)
            await until(lambda: server.counters.by_cause("connections_refused") == {"authentication": 2})
            await is_serving(server, secret=SECRET)

    run(main())


def test_versions_meet_or_are_named() -> None:
    async def main() -> None:
        async with serving() as server:
            newer = await connect_control(NEWER, "127.0.0.1", server.port, node="newer")
            async with newer:
                assert newer.peer.version == Version(1, 2)
                await newer.send(Later("nobody knows"))
                await newer.send(Say("known"))
                assert await newer.receive() == Say("known")
            assert server.counters.by_cause("messages_skipped") == {"kind": 1}
            other = ControlProtocol("echo", Version(2, 0), Say)
            with pytest.raises(VersionError, match=r"echo 2\.0.*echo 1\.2"):
                await connect_control(other, "127.0.0.1", server.port, node="other")

    run(main())


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "length"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500, "length"),
        (encode_frame(b"rubbish"), "message"),
        (encode_frame(b""), "message"),
        (b"\xff" * 100_000, "length"),
    ],
)
def test_garbage_is_counted_and_the_server_lives(data: bytes, cause: str) -> None:
    async def main() -> None:
        async with serving() as server:
            said = await answer_to(server, data)
            assert b"error" in said
            assert server.counters.by_cause("connections_refused") == {cause: 1}
            await is_serving(server)

    run(main())


def test_last_words_reach_a_peer_that_is_still_sending() -> None:
    def send_and_read(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as stream:
            stream.sendall(b"\xff" * 8_000_000)  # a server that closed at once would reset this connection
            stream.shutdown(socket.SHUT_WR)
            return stream.recv(10_000)

    async def main() -> None:
        async with serving(config=ControlConfig(linger_ms=20_000)) as server:
            assert b"the frame has 4294967295 bytes" in await asyncio.to_thread(send_and_read, server.port)

    run(main())


def test_a_peer_that_goes_away_in_the_middle() -> None:
    async def main() -> None:
        async with serving() as server:
            await answer_to(server, b"\x20\0", eof=True)  # half a handshake
            await until(lambda: server.counters.by_cause("connections_refused") == {"cut": 1})
            connection = await connect(server)
            connection._writer.write(encode_frame(ECHO.encode(Say("x" * 100), 1_000))[:50])
            await connection._writer.drain()
            connection._writer.transport.abort()
            with pytest.raises(ConnectionLostError):
                await connection.receive()
            await until(lambda: server.counters.by_cause("connections_closed") == {"cut": 1})
            await connection.close()
            await is_serving(server)

    run(main())


def test_an_oversized_frame_ends_the_connection_with_an_explanation() -> None:
    async def main() -> None:
        async with serving(config=ControlConfig(message_size_max=1_000)) as server:
            connection = await connect(server)
            with pytest.raises(LocalProtocolError):
                await connection.send(Say("x" * 200_000))  # the client refuses to send the message, and continues
            await connection.send(Say("x" * 5_000))  # allowed at the client, too long for the server
            with pytest.raises(RefusedError, match="the limit is 1000"):
                await connection.receive()
            await connection.close()
            await until(lambda: server.counters.by_cause("connections_closed") == {"length": 1})

    run(main())


def test_a_silent_stranger_is_cut_off() -> None:
    async def main() -> None:
        async with serving(config=ControlConfig(handshake_ms=50)) as server:
            assert b"handshake" in await answer_to(server, b"")
            assert server.counters.by_cause("connections_refused") == {"silent": 1}

    run(main())


def test_a_peer_that_stops_answering_is_given_up() -> None:
    async def main() -> None:
        async with serving(config=ControlConfig(ping_ms=20, silence_ms=100)) as server:
            connection = await connect(server)
            connection._runner.stop()  # it keeps reading, but its session is dead
            await until(lambda: server.counters.by_cause("connections_closed") == {"silent": 1})
            connection._fail()
            await connection.close()

    run(main())


def test_a_peer_that_does_not_read_is_cut_off() -> None:
    async def flood(connection: Any) -> None:
        while True:
            await connection.send(Say("x" * 50_000))

    async def main() -> None:
        async with serving(flood) as server:
            config = ControlConfig(inbox_messages_max=1, linger_ms=100)
            connection = await connect(server, config=config)  # accepts no data, so it soon reads none
            await until(lambda: server.counters.by_cause("connections_closed") == {"slow": 1})
            await connection.close()

    run(main())


def test_a_slow_application_is_waited_for() -> None:
    """Back-pressure: the sender waits, nothing is lost, and neither side considers the other one dead."""

    async def flood(connection: Any) -> None:
        for number in range(2_000):
            await connection.send(Number(number, "x" * 1_000))

    async def main() -> None:
        patient = ControlConfig(inbox_messages_max=4, write_size_max=4_096, ping_ms=20, silence_ms=200)
        async with serving(flood, config=patient) as server:
            connection = await connect(server, config=patient)
            await asyncio.sleep(0.5)  # longer than the permitted silence
            got = [message.value async for message in connection]
            assert got == list(range(2_000))

    run(main())


async def never_reads(connection: Any) -> None:
    await connection._over.wait()


def test_the_end_of_a_peer_is_noticed_although_nothing_is_read() -> None:
    async def main() -> None:
        config = ControlConfig(inbox_messages_max=1, ping_ms=20, linger_ms=100)
        async with serving(never_reads, config=config) as server:
            connection = await connect(server)
            for number in range(20):
                await connection.send(Number(number, "x" * 50_000))
            connection._writer.transport.abort()
            await until(lambda: server.counters.by_cause("connections_closed") == {"cut": 1})
            await connection.close()

    run(main())


def test_a_dead_peer_is_noticed_after_the_inbox_was_full() -> None:
    async def main() -> None:
        config = ControlConfig(inbox_messages_max=1, ping_ms=20, silence_ms=100)
        async with serving(config=config) as server:
            connection = await connect(server)
            data = b"".join(encode_frame(ECHO.encode(Number(number), 1_000)) for number in range(10))
            connection._writer.write(data)  # in one piece: more than the inbox takes
            assert [await connection.receive() for _ in range(10)] == [Number(number) for number in range(10)]
            connection._runner.stop()  # it keeps reading, but its session is dead
            await until(lambda: server.counters.by_cause("connections_closed") == {"silent": 1})
            connection._fail()
            await connection.close()

    run(main())


def test_a_peer_that_takes_bytes_slowly_is_waited_for() -> None:
    """The transfer as a whole takes several times write_ms, but it always makes some progress."""
    size = 1_500_000

    async def send_much(connection: Any) -> None:
        connection._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        await connection.receive()
        await connection.send(Say("x" * size))

    async def main() -> None:
        config = ControlConfig(write_ms=400, write_size_max=4_096, message_size_max=2 * size)
        async with serving(send_much, config=config) as server:

            async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port, limit=8_192)
                await asyncio.gather(carry(reader, far_writer, 0), carry(far_reader, writer, 0.01))

            async with await asyncio.start_server(link, "127.0.0.1", 0) as slow:
                port = slow.sockets[0].getsockname()[1]
                connection = await connect_control(ECHO, "127.0.0.1", port, node="client", config=config)
                async with connection:
                    await connection.send(Say("go on"))
                    assert await connection.receive() == Say("x" * size)

    run(main())


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause_seconds: float) -> None:
    while data := await reader.read(8_192):
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(pause_seconds)
    writer.close()


def test_connections_beyond_the_limit_are_refused() -> None:
    async def main() -> None:
        async with serving(config=ControlConfig(connections_max=3)) as server:
            friends = [await connect(server) for _ in range(3)]
            for _ in range(5):
                with pytest.raises((ConnectionLostError, UnreachableError)):
                    await connect(server)
            assert server.counters.by_cause("connections_refused") == {"connection_limit": 5}
            await friends.pop().close()
            await until(lambda: server.counters["connections_closed"] == 1)
            await until(lambda: len(server._tasks) == 2)
            friends.append(await connect(server))
            for friend in friends:
                await friend.send(Say("mine"))
                assert await friend.receive() == Say("mine")
            await asyncio.gather(*(friend.close() for friend in friends))

    run(main())


@pytest.mark.spec("OPS-8")
def test_a_server_that_stops_says_goodbye() -> None:
    async def main() -> None:
        counters = Counters("control")
        async with serving(counters=counters) as server:
            connections = [await connect(server) for _ in range(5)]
        for connection in connections:
            assert await connection.receive() is None
            await connection.close()
        assert counters.by_cause("connections_closed") == {"closed": 5}
        with pytest.raises(UnreachableError):
            await connect_control(ECHO, "127.0.0.1", 1, node="late")

    run(main())


def test_a_handler_that_fails_ends_its_connection_only() -> None:
    async def fail(connection: Any) -> None:
        message = await connection.receive()
        if message == Say("fail"):
            raise ZeroDivisionError
        await connection.send(message)

    async def main() -> None:
        async with serving(fail) as server:
            async with await connect(server) as connection:
                await connection.send(Say("fail"))
                assert await connection.receive() is None
            await is_serving(server)

    run(main())


@pytest.mark.spec("OPS-2")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_beyond_this_host_tls_and_a_secret_are_needed(host: str) -> None:
    tls = ssl.create_default_context()
    for options in ({}, {"tls": tls}, {"secret": SECRET}):
        with pytest.raises(ConfigurationError, match="beyond the loopback interface needs"):
            ControlServer(ECHO, echo, node="n", host=host, **options)
        with pytest.raises(ConfigurationError, match="beyond the loopback interface needs"):
            run(connect_control(ECHO, host, 1, node="n", **options))
    blind = ssl.create_default_context()
    blind.check_hostname = False
    with pytest.raises(ConfigurationError, match="any certificate"):
        run(connect_control(ECHO, host, 1, node="n", secret=SECRET, tls=blind))


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1, with its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command is needed to make a certificate")
    key, path = tmp_path / "key.pem", tmp_path / "both.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=penstock test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, *names, "-keyout", key, "-out", path], check=True, capture_output=True, timeout=60)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


@pytest.mark.spec("OPS-2")
def test_tls(certificate: Path) -> None:
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate)
    client_tls = ssl.create_default_context(cafile=str(certificate))

    async def main() -> None:
        async with ControlServer(
            ECHO, echo, node="s", host="0.0.0.0", secret=SECRET, tls=server_tls, config=QUICK
        ) as server:
            await is_serving(server, tls=client_tls, secret=SECRET)
            with pytest.raises(UnreachableError, match="certificate"):
                await connect(server, tls=ssl.create_default_context(), secret=SECRET)
            with pytest.raises((ConnectionLostError, RemoteProtocolError)):
                await connect(server, secret=SECRET)  # plain bytes on a TLS port
            await is_serving(server, tls=client_tls, secret=SECRET)

    run(main())


@pytest.mark.spec("OPS-2")
def test_connections_in_a_tls_handshake_count_and_keep_nobody_out(certificate: Path) -> None:
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate)
    client_tls = ssl.create_default_context(cafile=str(certificate))

    async def main() -> None:
        config = ControlConfig(connections_max=2, handshake_ms=60_000, linger_ms=100)
        async with serving(tls=server_tls, config=config) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            await until(lambda: len(server._tasks) == 2)
            await is_serving(server, tls=client_tls)
            assert server.counters.by_cause("connections_refused")["connection_limit"] == 1
            assert await silent[0][0].read() == b"", "the longest silent connection was closed"
            silent[1][1].write(b"no TLS at all, but enough of it to be sure")
            for _, writer in silent:
                writer.close()
                await writer.wait_closed()
            await until(lambda: server.counters.by_cause("connections_refused").get("handshake") == 1)
            await until(lambda: not server._tasks)
            await is_serving(server, tls=client_tls)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await until(lambda: server._tasks)
        assert await reader.read() == b""  # a server that stops waits for no handshake
        writer.close()
        await writer.wait_closed()

    run(main())


def test_a_loop_that_is_closed_leaves_no_socket_open() -> None:
    thread = LoopThread("test")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        try:
            for _ in range(20):
                thread.start(connect_control(ECHO, "127.0.0.1", port, node="client", config=QUICK))
            peer, _ = silent.accept()  # at least one is connected, and waits for an answer
            with peer:
                assert peer.recv(1)
        finally:
            thread.close()  # raises OSError if a socket is open
