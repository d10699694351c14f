"""Clock exchange over real sockets, and the command that uses it."""

import asyncio
import json
import re
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from penstock.base.errors import ConfigurationError, UnreachableError
from penstock.cli.clock import check
from penstock.net import ClockClient, ClockServer
from penstock.net.core.clock import ClockPacket, ClockPacketKind, decode_clock_packet, encode_clock_packet
from unit.net_kit import run, until

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()"]
HOUR = 3_600 * 1_000_000_000


class WrongClock:
    """A clock one hour ahead of this host's clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns() + HOUR


@pytest.mark.spec("OPS-3")
@pytest.mark.parametrize(("clock", "offset_ns"), [(None, 0), (WrongClock(), HOUR)])
def test_the_offset_is_within_its_error(clock: Any, offset_ns: int) -> None:
    async def main() -> None:
        async with ClockServer(clock=clock) as server, ClockClient("127.0.0.1", server.port) as client:
            assert client.estimate() is None
            estimate = await client.measure(10)
            assert abs(estimate.offset_ns - offset_ns) <= estimate.error_ns
            assert estimate.samples == server.counters["packets_received"] == client.counters["clock_samples"]
            assert client.counters["clock_jumps"] == 0

    run(main())


@pytest.mark.spec("OPS-3")
def test_garbage_is_dropped_and_counted_and_nothing_is_amplified() -> None:
    async def main() -> None:
        async with ClockServer() as server:
            good = encode_clock_packet(ClockPacket(ClockPacketKind.REQUEST, 7, 1))
            response = encode_clock_packet(ClockPacket(ClockPacketKind.RESPONSE, 7, 1))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.connect(("127.0.0.1", server.port))
                stranger.setblocking(False)
                for data in (b"", b"x", b"x" * 64, good[:63], good + b"x", good[:20] + b"x" + good[21:], response):
                    stranger.send(data)
                stranger.send(good)
                loop = asyncio.get_running_loop()
                answer = await loop.sock_recv(stranger, 2_000)
                assert len(answer) == len(good)
                packet = decode_clock_packet(answer)
                assert (packet.kind, packet.cookie, packet.t1) == (ClockPacketKind.RESPONSE, 7, 1)
                assert packet.t2 <= packet.t3
                with pytest.raises(BlockingIOError):
                    stranger.recv(2_000)
            dropped = {"length": 4, "foreign": 1, "checksum": 1, "unexpected": 1}
            assert server.counters.by_cause("packets_dropped") == dropped

    run(main())


@pytest.mark.spec("OPS-3")
def test_forged_answers_are_not_believed() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as liar:
            liar.bind(("127.0.0.1", 0))
            async with ClockClient("127.0.0.1", liar.getsockname()[1]) as client:
                asking = asyncio.get_running_loop().create_task(client.exchange(timeout_seconds=20))
                await until(lambda: select.select([liar], [], [], 0)[0])
                data, address = liar.recvfrom(2_000)
                request = decode_clock_packet(data)
                for cookie, t1 in ((request.cookie ^ 1, request.t1), (request.cookie, request.t1 + 1)):
                    forged = ClockPacket(ClockPacketKind.RESPONSE, cookie, t1, t2=5, t3=5)
                    liar.sendto(encode_clock_packet(forged), address)
                liar.sendto(data, address)  # its own request, sent back
                await until(lambda: client.counters.by_cause("packets_dropped") == {"unexpected": 3})
                assert client.estimate() is None
                wall_ns = time.time_ns()
                true = ClockPacket(ClockPacketKind.RESPONSE, request.cookie, request.t1, t2=wall_ns, t3=wall_ns)
                for _ in range(2):  # the second comes too late to count
                    liar.sendto(encode_clock_packet(true), address)
                assert await asking
                await until(lambda: client.counters["packets_dropped"] == 4)
                estimate = client.estimate()
                assert estimate is not None
                assert estimate.samples == 1

    run(main())


def test_nobody_there() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            async with ClockClient("127.0.0.1", silent.getsockname()[1]) as client:
                assert not await client.exchange(timeout_seconds=0.02)
                with pytest.raises(UnreachableError, match="no answer"):
                    await client.measure(1)

    run(main())


@pytest.mark.spec("OPS-3", "OPS-8")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command(number: signal.Signals) -> None:
    server = subprocess.Popen(
        [*COMMAND, "clock", "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        found = re.search(r"answering on (127\.0\.0\.1:\d+)", server.stdout.readline())
        assert found
        asking = [*COMMAND, "clock", "check", found[1], "--exchanges", "4"]
        text = subprocess.run(asking, capture_output=True, text=True, timeout=60, check=True).stdout
        assert re.search(r"µs (ahead|behind) of this clock, ± [\d,.]+ µs\n", text)
        estimate = json.loads(subprocess.run([*asking, "--json"], capture_output=True, timeout=60, check=True).stdout)
        assert abs(estimate["offset_ns"]) <= estimate["error_ns"]
        assert estimate["samples"] == 4
        server.send_signal(number)
        _, errors = server.communicate(timeout=120)
        assert server.returncode == 0, errors
        assert "agent_stopped" in errors
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("address", ["nowhere", ":1", "h:", "h:0", "h:65536", "h:x", "h:²"])
def test_bad_addresses_are_explained(address: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        check(address)
