"""The exchange of timestamps over UDP: server and client.

A response is as long as its request, so forged source addresses do not amplify traffic. If the kernel provides the
arrival time of a datagram (SO_TIMESTAMPNS), that time is used, which excludes the scheduling delay of this process.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Self, TypeAlias

from penstock.base.clock import Clock, Randomness, SystemClock, SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConfigurationError, PacketError, UnreachableError
from penstock.base.log import logger
from penstock.net.config import ClockConfig
from penstock.net.core.clock import (
    CLOCK_PACKET_SIZE,
    ClockEstimate,
    ClockEstimator,
    ClockPacket,
    ClockPacketKind,
    decode_clock_packet,
    encode_clock_packet,
)
from penstock.net.core.events import ClockSample

SO_TIMESTAMPNS = 35
"""The option on Linux, which Python does not name. The ancillary data has the same number and a timespec."""

TIMESPEC = struct.Struct("@qq")
DATAGRAMS_PER_TURN = 64
KERNEL_WAIT_NS_MAX = 1_000_000_000
COOKIE_LIMIT = 2**64
UNANSWERED_MAX = 3

SocketAddress: TypeAlias = Any
"""As the socket module returns it: (host, port), or four values for IPv6."""

log = logger("net.clock")


class _ClockSocket:
    """A UDP socket that passes on every valid packet with the wall-clock time of its arrival."""

    def __init__(
        self, took: Callable[[ClockPacket, int, SocketAddress], None], clock: Clock, counters: Counters
    ) -> None:
        self._took = took
        self._clock = clock
        self._counters = counters
        self.socket: socket.socket | None = None

    async def open(self, host: str, port: int, *, is_server: bool) -> None:
        self._loop = asyncio.get_running_loop()
        kind = socket.SOCK_DGRAM
        flags = socket.AI_PASSIVE if is_server else 0
        try:
            family, _, _, _, address = (await self._loop.getaddrinfo(host, port, type=kind, flags=flags))[0]
            self.socket = socket.socket(family, kind | socket.SOCK_NONBLOCK)
            self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            if is_server:
                self.socket.bind(address)
            else:
                self.socket.connect(address)
        except OSError as error:
            self.close()
            verb = "listen on" if is_server else "reach"
            raise ConfigurationError(f"cannot {verb} {host}:{port}: {error.strerror}") from None
        self._loop.add_reader(self.socket.fileno(), self._read)

    def close(self) -> None:
        if self.socket is not None:
            self._loop.remove_reader(self.socket.fileno())
            self.socket.close()
            self.socket = None

    def send(self, packet: ClockPacket, address: SocketAddress | None = None) -> None:
        if self.socket is None:
            return
        try:
            data = encode_clock_packet(packet)
            if address is None:
                self.socket.send(data)
            else:
                self.socket.sendto(data, address)
        except OSError as error:  # a full buffer or a refusal: equivalent to a lost datagram
            log.debug("clock_packet_not_sent", error=repr(error))

    def _read(self) -> None:
        for _ in range(DATAGRAMS_PER_TURN):
            if self.socket is None:
                return
            try:
                data, ancillary, _, address = self.socket.recvmsg(CLOCK_PACKET_SIZE + 1, socket.CMSG_SPACE(16))
            except BlockingIOError:
                return
            except OSError as error:  # the peer's host reports a closed port
                log.debug("clock_packet_refused", error=repr(error))
                return
            try:
                packet = decode_clock_packet(data)
            except PacketError as error:
                self._counters.add("packets_dropped", cause=error.cause)
                continue
            # before the clock is read: a late time keeps the bounds valid, an early one does not
            waited_ns = _waited_ns(ancillary)
            self._took(packet, self._clock.wall_ns() - waited_ns, address)

    def drop(self, cause: Cause) -> None:
        self._counters.add("packets_dropped", cause=cause)


def _waited_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Time since the kernel received a datagram; 0 if the kernel does not provide it, or if it is implausible."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack(data)
            waited_ns = time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)
            return waited_ns if 0 <= waited_ns <= KERNEL_WAIT_NS_MAX else 0
    return 0


class ClockServer:
    """Answers requests from start() to close(); port 0 is any free port."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        counters: Counters | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._clock = clock or SystemClock()
        self.counters = counters or Counters("clock")
        self._socket = _ClockSocket(self._answer, self._clock, self.counters)

    @property
    def port(self) -> int:
        assert self._socket.socket is not None, "known while the server runs"
        return int(self._socket.socket.getsockname()[1])

    async def start(self) -> None:
        await self._socket.open(self._host, self._port, is_server=True)

    def close(self) -> None:
        self._socket.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _answer(self, packet: ClockPacket, received_ns: int, address: SocketAddress) -> None:
        if packet.kind is not ClockPacketKind.REQUEST:
            self._socket.drop(Cause.UNEXPECTED)
            return
        self.counters.add("packets_received")
        response = ClockPacket(
            ClockPacketKind.RESPONSE, packet.cookie, packet.t1, t2=received_ns, t3=self._clock.wall_ns()
        )
        self._socket.send(response, address)


class ClockClient:
    """Queries one server, one request at a time."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        config: ClockConfig | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        counters: Counters | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._clock = clock or SystemClock()
        self._randomness = randomness or SystemRandomness()
        self.counters = counters or Counters("clock")
        self._estimator = ClockEstimator(config or ClockConfig(), self.counters)
        self._request: ClockPacket | None = None
        self._answered = asyncio.Event()
        self._socket = _ClockSocket(self._take, self._clock, self.counters)

    async def __aenter__(self) -> Self:
        await self._socket.open(self._host, self._port, is_server=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    def estimate(self) -> ClockEstimate | None:
        return self._estimator.estimate(self._clock.now_ns())

    async def exchange(self, timeout_seconds: float = 1.0) -> bool:
        """Send one request. Return True if an answer came in time."""
        self._answered.clear()
        cookie = self._randomness.below(COOKIE_LIMIT)
        self._request = ClockPacket(ClockPacketKind.REQUEST, cookie, self._clock.wall_ns())
        self._socket.send(self._request)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._answered.wait()
        except TimeoutError:
            self._request = None
            return False
        return True

    async def measure(self, exchanges: int, *, pause_seconds: float = 0.01) -> ClockEstimate:
        """Return the estimate after this number of exchanges, answered or not. Raise UnreachableError if the first
        few were not answered."""
        for number in range(exchanges):
            if number:
                await asyncio.sleep(pause_seconds)
            await self.exchange()
            if number + 1 >= UNANSWERED_MAX and self.estimate() is None:
                break
        if (estimate := self.estimate()) is None:
            raise UnreachableError(
                "no answer", where=f"{self._host}:{self._port}", hint="start `penstock clock serve` there"
            )
        return estimate

    def _take(self, packet: ClockPacket, received_ns: int, _: SocketAddress) -> None:
        request = self._request
        is_ours = request is not None and (packet.cookie, packet.t1) == (request.cookie, request.t1)
        if packet.kind is not ClockPacketKind.RESPONSE or not is_ours:
            self._socket.drop(Cause.UNEXPECTED)
            return
        self._request = None
        self.counters.add("packets_received")
        self._estimator.add(ClockSample(packet.t1, packet.t2, packet.t3, received_ns), self._clock.now_ns())
        self._answered.set()
