"""Following a journal over TCP: across segments, a server that dies, and arbitrary bytes at its port."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.counters import Counters
from penstock.base.errors import (
    AuthenticationError,
    ConfigurationError,
    JournalGoneError,
    PenstockError,
    RemoteProtocolError,
    UnreachableError,
)
from penstock.journal import JournalConfig, JournalReader, JournalWriter, Record
from penstock.journal.client import follow_remote, follow_remote_batches
from penstock.journal.core.messages import (
    CONNECTION,
    PROTOCOL,
    CaughtUp,
    Follow,
    Records,
    cut_batch,
    decode_records,
    encode_records,
)
from penstock.journal.core.records import RecordBatch
from penstock.journal.server import JournalServer
from penstock.net.live.control_driver import ControlServer, connect_control
from penstock.net.secret import Secret

PATIENCE_SECONDS = 120
SECRET = Secret(b"sixteen bytes or more")
SERVE = [sys.executable, "-c", "from penstock.cli.main import main; main()", "journal", "serve"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def fill(path: Path, count: int, size: int = 100, config: JournalConfig | None = None) -> None:
    with JournalWriter.open(path, config or JournalConfig(segment_bytes=8_192, preallocate_bytes=0)) as journal:
        first = journal.next_sequence
        for sequence in range(first, first + count):
            journal.append(payload_of(sequence, size), sequence * 10)
            if sequence % 20 == 0:
                journal.commit()


def payload_of(sequence: int, size: int = 100) -> bytes:
    return sequence.to_bytes(8, "little") + bytes(size)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await test()

    asyncio.run(bounded())


async def first(records: AsyncGenerator[Record, None], count: int) -> list[Record]:
    async with contextlib.aclosing(records):
        return await taken(records, count)


async def taken(records: AsyncGenerator[Record, None], count: int) -> list[Record]:
    found = []
    async for record in records:
        found.append(record)
        if len(found) == count:
            break
    return found


def test_everything_and_then_what_comes(path: Path) -> None:
    fill(path, 500)

    async def test() -> None:
        async with JournalServer(path) as server:
            records = follow_remote("127.0.0.1", server.port)
            expected = [Record(n, n * 10, payload_of(n)) for n in range(1, 501)]
            assert await taken(records, 500) == expected
            await asyncio.to_thread(fill, path, 50)
            assert [record.sequence for record in await taken(records, 50)] == list(range(501, 551))
            assert server.counters["records_served"] >= 550
            await records.aclose()

    run(test)


@pytest.mark.parametrize(
    ("place", "expected"), [({"from_sequence": 321}, 321), ({"from_time_ns": 3_205}, 321), ({"from_time_ns": -1}, 1)]
)
def test_from_a_place_to_the_newest(path: Path, place: dict[str, int], expected: int) -> None:
    fill(path, 400)

    async def test() -> None:
        async with JournalServer(path) as server:
            found = [each async for each in follow_remote("127.0.0.1", server.port, is_live=False, **place)]
            assert [each.sequence for each in found] == list(range(expected, 401))

    run(test)


def test_a_follower_that_talks_on_is_cut_off(path: Path) -> None:
    fill(path, 1)

    async def test() -> None:
        async with JournalServer(path) as server:
            talker = await connect_control(PROTOCOL, "127.0.0.1", server.port, node="talker", config=CONNECTION)
            await talker.send(Follow(1))
            await talker.send(Follow(1))
            while await talker.receive() is not None:  # until the server's goodbye
                continue
            await talker.close()
            while server._server._connections:
                await asyncio.sleep(0.002)
            assert server.counters.by_cause("connections_closed") == {"closed": 1}

    run(test)


def test_large_records_pass(path: Path) -> None:
    sizes = [3_000_000, 10, 16 * 1024 * 1024 - 8, 0]
    with JournalWriter.open(path) as journal:
        for number, size in enumerate(sizes, start=1):
            journal.append(payload_of(number, size))

    async def test() -> None:
        async with JournalServer(path) as server:
            found = [each async for each in follow_remote("127.0.0.1", server.port, is_live=False)]
            assert [each.payload for each in found] == [payload_of(n, size) for n, size in enumerate(sizes, start=1)]

    run(test)


def test_records_no_longer_kept_and_records_yet_to_come(path: Path) -> None:
    fill(path, 300, config=JournalConfig(segment_bytes=4_096, retention_bytes=10_000, preallocate_bytes=0))

    async def test() -> None:
        async with JournalServer(path) as server:
            with pytest.raises(JournalGoneError) as caught:
                await first(follow_remote("127.0.0.1", server.port, from_sequence=1), 1)
            kept = caught.value.first_sequence
            (oldest,) = await first(follow_remote("127.0.0.1", server.port, from_sequence=kept), 1)
            assert oldest.sequence == kept > 1
            waiting = asyncio.create_task(first(follow_remote("127.0.0.1", server.port, from_sequence=302), 1))
            await asyncio.to_thread(fill, path, 3)
            assert [each.sequence for each in await waiting] == [302]

    run(test)


def serve(path: Path, port: int = 0) -> tuple["subprocess.Popen[str]", int]:
    process = subprocess.Popen(
        [*SERVE, str(path), "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    found = re.search(r"on 127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert found
    return process, int(found[1])


def end(process: "subprocess.Popen[str]", number: signal.Signals) -> int:
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode


def test_a_server_that_is_killed_and_comes_back_is_followed_on(path: Path) -> None:
    fill(path, 200)
    process, port = serve(path)
    try:

        async def test() -> None:
            nonlocal process
            records = follow_remote("127.0.0.1", port)
            found = await taken(records, 200)
            await asyncio.to_thread(end, process, signal.SIGKILL)
            await asyncio.to_thread(fill, path, 100)
            process, _ = await asyncio.to_thread(serve, path, port)
            found += await taken(records, 100)
            assert [each.sequence for each in found] == list(range(1, 301))
            await records.aclose()

        run(test)
        assert end(process, signal.SIGINT) == 0
    finally:
        process.kill()
        process.communicate()


def test_nobody_there(path: Path) -> None:
    async def test() -> None:
        async with JournalServer(path) as server:
            port = server.port
        with pytest.raises(UnreachableError):
            await first(follow_remote("127.0.0.1", port), 1)

    fill(path, 1)
    run(test)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x05\x00\x00\x00hello", b"\x00" * 4, os.urandom(3_000), b"\x10\x00"],
)
def test_garbage_is_refused_counted_and_harms_nobody(path: Path, garbage: bytes) -> None:
    fill(path, 10)

    async def test() -> None:
        counters = Counters("test")
        async with JournalServer(path, counters=counters) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(garbage)
            writer.write_eof()
            await reader.read()
            writer.close()
            await writer.wait_closed()
            while counters["connections_refused"] < 1:
                await asyncio.sleep(0.01)
            assert len(await first(follow_remote("127.0.0.1", server.port, is_live=False), 10)) == 10

    run(test)


def test_a_follower_that_says_something_else_is_refused(path: Path) -> None:
    fill(path, 10)

    async def test() -> None:
        async with JournalServer(path) as server:
            connection = await connect_control(PROTOCOL, "127.0.0.1", server.port, node="odd", config=CONNECTION)
            async with connection:
                await connection.send(CaughtUp())
                assert await connection.receive() is None, "the server ends it"

    run(test)


@pytest.mark.parametrize(
    "bad",
    [
        Records(1, b"\x01\x00\x00\x00", bytes(8), b""),
        Records(1, b"\x01\x00\x00", bytes(8), b"x"),
        Records(1, b"", b"", b""),
        Records(1, b"\xff\xff\xff\xff" * 3, bytes(24), b"x" * 10),
        Records(1, b"\x01\x00\x00\x00", bytes(16), b"x"),
        Records(2**63 - 1, b"\x01\x00\x00\x00", bytes(8), b"x"),
        Records(7, b"\x01\x00\x00\x00", bytes(8), b"x"),
    ],
)
def test_a_server_that_lies_is_found_out(bad: Records) -> None:
    async def lie(connection: Any) -> None:
        await connection.receive()
        await connection.send(bad)
        await connection.receive()

    async def test() -> None:
        async with ControlServer(PROTOCOL, lie, node="liar", config=CONNECTION) as server:
            with pytest.raises(RemoteProtocolError):
                await first(follow_remote("127.0.0.1", server.port, from_sequence=1), 1)

    run(test)


def test_messages_keep_to_their_size(path: Path) -> None:
    with JournalWriter.open(path) as journal:
        journal.append_batch([bytes(size) for size in (0, 200_000, 100_000, 300_000, 5, 5)])
    with JournalReader.open(path) as reader:
        batch = reader.read_batch()
    cuts = cut_batch(batch)
    assert cuts == [0, 2, 3, 4, 6]
    messages = [encode_records(batch, start, end) for start, end in itertools.pairwise(cuts)]
    decoded = [record for message in messages for record in decode_records(message)]
    assert decoded == list(batch)
    assert isinstance(batch, RecordBatch)


def test_a_follower_that_does_not_read_holds_back_the_server_not_its_memory(path: Path) -> None:
    """The server reads from the disk only as fast as the follower accepts the records."""
    fill(path, 300, size=100_000, config=JournalConfig(preallocate_bytes=0))

    async def test() -> None:
        async with JournalServer(path) as server:
            batches = follow_remote_batches("127.0.0.1", server.port)
            begun = await anext(batches)
            served, before = server.counters["records_served"], -1
            while served != before:  # until the transfer stalls: all buffers are full
                await asyncio.sleep(0.3)
                before, served = served, server.counters["records_served"]
            assert served < 200, "30 MB do not fit into the buffers of one connection"
            count = len(begun)
            async for batch in batches:
                count += len(batch)
                if count == 300:
                    break
            await batches.aclose()

    run(test)


@pytest.mark.spec("OPS-2")
def test_beyond_this_host_only_with_tls_and_a_secret(path: Path) -> None:
    fill(path, 1)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for protection in ({}, {"secret": SECRET}, {"tls": context}):
        with pytest.raises(ConfigurationError, match="beyond the loopback interface needs"):
            JournalServer(path, host="0.0.0.0", **protection)
    JournalServer(path, host="0.0.0.0", secret=SECRET, tls=context)


@pytest.mark.spec("OPS-2")
def test_only_those_who_know_the_secret_follow(path: Path) -> None:
    fill(path, 10)

    async def test() -> None:
        async with JournalServer(path, secret=SECRET) as server:
            found = await first(follow_remote("127.0.0.1", server.port, secret=SECRET), 10)
            assert len(found) == 10
            for wrong in (None, Secret(b"another one of sixteen")):
                with pytest.raises((AuthenticationError, PenstockError)) as caught:
                    await first(follow_remote("127.0.0.1", server.port, secret=wrong), 1)
                assert caught.value.code in ("authentication", "refused")

    run(test)
