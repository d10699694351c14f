"""Runs a session core (net/core/events.py) on a TCP connection with asyncio: reading, writing, back-pressure, end.

Everything is bounded: unread messages (inbox), unsent bytes (a sender waits, and a peer that accepts nothing for too
long is cut off), and the time of a handshake and of closing.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, Self, TypeVar

from penstock.base.clock import Clock, SystemClock
from penstock.base.core import Core
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConnectionLostError, UnreachableError
from penstock.base.log import logger
from penstock.net.config import StreamConfig
from penstock.net.core.events import (
    BytesReceived,
    ClockSampled,
    Close,
    Connected,
    Disconnect,
    EndOfStream,
    Opened,
    ReadingPaused,
    ReadingResumed,
    Received,
    Send,
    SendBytes,
    SessionEvent,
    SessionInstruction,
)
from penstock.net.live.event_loop import CoreRunner

READ_SIZE = 65_536
TCP_NOTSENT_LOWAT = 25
"""The number of this option on Linux, which some versions of Python's socket module lack."""

UNSENT_SIZE_MAX = 16_384

log = logger("net.stream")

M = TypeVar("M")
P = TypeVar("P")


class StreamConnection(Generic[M, P]):
    """One connection: send(), receive() or `async for`, close(). M are its messages, P describes a peer.

    Created by a StreamServer, or on a stream of open_stream(); opened() returns after the handshake.
    """

    def __init__(
        self,
        core: Core[SessionEvent, SessionInstruction],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        config: StreamConfig,
        counters: Counters,
        clock: Clock | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._config = config
        self._counters = counters
        self.clock = clock or SystemClock()
        self.address = _address_of(writer)
        self._peer: P | None = None
        self._inbox: deque[M] = deque()
        self._changed = asyncio.Event()  # of _peer, _inbox or _end, for waiting receive() calls
        self._room = asyncio.Event()
        self._sending = asyncio.Lock()
        self._written_size = 0
        self._lost = asyncio.Event()  # the socket is closed, by either side
        self._end: Disconnect | None = None
        self._over = asyncio.Event()
        self._runner: CoreRunner[SessionEvent, SessionInstruction] = CoreRunner(core, self._carry_out, clock=self.clock)
        self._runner.failed.add_done_callback(self._on_core_failed)
        writer.transport.set_write_buffer_limits(high=config.write_size_max)
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def peer(self) -> P:
        assert self._peer is not None, "known when opened() has returned"
        return self._peer

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self._writer.transport

    @property
    def is_over(self) -> bool:
        return self._end is not None

    async def opened(self) -> None:
        """Wait until the handshake is complete; raise the cause if it fails."""
        while self._peer is None:
            self._raise_if_over()
            await self._change()

    async def opened_or_closed(self) -> Self:
        """Return this connection, open; or closed, if opening it failed."""
        try:
            await self.opened()
        except BaseException:
            await self.close()
            raise
        return self

    async def send(self, message: M) -> None:
        """Send a message. Returns when the connection can accept more; waits for a slow peer, up to a limit."""
        async with self._sending:
            self._raise_if_over()
            self._runner.handle(Send(message))
            await self._drain()
            self._raise_if_lost()

    async def receive(self) -> M | None:
        """Return the next message, or None after a goodbye. Raise the error with which the connection ended
        otherwise."""
        while not self._inbox:
            if self._end is not None:
                self._raise_if_lost()
                return None
            await self._change()
        message = self._inbox.popleft()
        self._room.set()
        return message

    def received(self, is_taken: Callable[[M], bool]) -> M | None:
        """Return the next message if it has arrived and `is_taken` accepts it; otherwise leave it in the inbox."""
        if not self._inbox or not is_taken(self._inbox[0]):
            return None
        self._room.set()
        return self._inbox.popleft()

    async def __aiter__(self) -> AsyncIterator[M]:
        while (message := await self.receive()) is not None:
            yield message

    async def close(self, reason: str = "") -> None:
        """Send a goodbye and close. A second call has no effect."""
        self._runner.handle(Close(reason))
        await asyncio.shield(self._task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def sampled(self, instruction: ClockSampled) -> None:
        """A heartbeat was answered. Overridden to estimate clocks."""

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise_if_over(self) -> None:
        self._raise_if_lost()
        if self._end is not None:
            raise ConnectionLostError("the connection has ended")

    def _raise_if_lost(self) -> None:
        if self._end is not None and self._end.error is not None:
            raise self._end.error

    # Running the connection

    async def _run(self) -> None:
        """Run from the first byte until the socket is closed."""
        try:
            self._runner.handle(Connected())
            reading = asyncio.get_running_loop().create_task(self._read())
            reading.add_done_callback(self._on_reading_done)
            losing = asyncio.get_running_loop().create_task(self._notice_loss())
            await self._over.wait()
            reading.cancel()
            await asyncio.wait([reading])
            self._runner.stop()
            await self._linger()
            await losing
        finally:
            self._writer.transport.abort()  # closed already, unless the loop is being closed and cancels all tasks

    async def _read(self) -> None:
        while True:
            try:
                data = await self._reader.read(READ_SIZE)
            except OSError:
                data = b""
            self._runner.handle(BytesReceived(data) if data else EndOfStream())
            if not data:
                return
            await self._drain()
            if len(self._inbox) >= self._config.inbox_messages_max:
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._runner.handle(ReadingPaused())
        while len(self._inbox) >= self._config.inbox_messages_max and not self._lost.is_set():
            self._room.clear()
            await self._room.wait()
        self._runner.handle(ReadingResumed())

    async def _notice_loss(self) -> None:
        """Notice a lost peer while reading is paused: then only a failed write, such as a ping, shows the loss."""
        try:
            await self._writer.wait_closed()
        except OSError as error:
            log.debug("connection_lost", address=self.address, error=repr(error))
        self._lost.set()
        self._room.set()

    async def _drain(self) -> None:
        """Wait until the peer has read enough; a peer that accepts no bytes for write_ms is cut off."""
        taken_size, taken_size_before = self._taken_size(), -1
        try:
            while taken_size > taken_size_before:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._config.write_ms / 1_000):
                        await self._writer.drain()
                        return
                taken_size, taken_size_before = self._taken_size(), taken_size
        except OSError:
            self._runner.handle(EndOfStream())
            return
        what = f"the peer accepted no bytes for {self._config.write_ms} ms"
        self._finish(Disconnect(Cause.SLOW, ConnectionLostError(what)))
        self._writer.transport.abort()

    def _taken_size(self) -> int:
        return self._written_size - self._writer.transport.get_write_buffer_size()

    async def _linger(self) -> None:
        """Let the last messages arrive. Closing with unread bytes would reset the connection and lose them."""
        try:
            async with asyncio.timeout(self._config.linger_ms / 1_000):
                if self._writer.can_write_eof() and not self._writer.is_closing():
                    self._writer.write_eof()
                    while await self._reader.read(READ_SIZE):
                        continue
                self._writer.close()
                await self._lost.wait()
        except (OSError, TimeoutError) as error:
            log.debug("connection_aborted", address=self.address, error=repr(error))
            self._writer.transport.abort()

    def _carry_out(self, instruction: SessionInstruction) -> None:
        match instruction:
            case SendBytes():
                if not self._writer.is_closing():  # otherwise reading will notice
                    self._writer.write(instruction.data)
                    self._written_size += len(instruction.data)
            case Received():
                self._inbox.append(instruction.message)
                self._changed.set()
            case ClockSampled():
                self.sampled(instruction)
            case Opened():
                self._peer = instruction.peer
                self._counters.add("connections_opened")
                self._changed.set()
            case Disconnect():
                self._finish(instruction)

    def _finish(self, end: Disconnect) -> None:
        if self._end is not None:
            return
        self._end = end
        name = "connections_refused" if self._peer is None else "connections_closed"
        self._counters.add(name, cause=end.cause)
        if end.error is not None:
            log.warning(name.replace("connections", "connection"), address=self.address, error=str(end.error))
        self._changed.set()
        self._over.set()

    def _on_reading_done(self, reading: "asyncio.Task[None]") -> None:
        if not reading.cancelled() and (error := reading.exception()) is not None:
            log.error("reading_failed", address=self.address, error=repr(error))
            self._fail()

    def _on_core_failed(self, _: object) -> None:
        self._fail()

    def _fail(self) -> None:
        self._finish(Disconnect(Cause.FAILED, ConnectionLostError("this side failed", hint="see its log")))


async def open_stream(
    host: str, port: int, *, tls: ssl.SSLContext | None, timeout_ms: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            return await asyncio.open_connection(host, port, ssl=tls, limit=READ_SIZE)
    except (OSError, TimeoutError) as error:
        raise UnreachableError(
            f"cannot connect: {error or 'no answer'}",
            where=f"{host}:{port}",
            hint="check that the server is running there",
        ) from None


def keep_little_unsent(sock: socket.socket) -> None:
    """Limit the unsent bytes in the kernel's buffer, for a socket or for connections of a listener. Otherwise data
    would grow old there, and a peer that does not read would be noticed late."""
    sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_SIZE_MAX)


def _address_of(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if name else "unknown"
