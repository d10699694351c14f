"""Accepts TCP connections, with or without TLS, and serves each as a StreamConnection; their number is bounded."""

import asyncio
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeAlias

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.log import logger
from penstock.net.config import StreamConfig
from penstock.net.live.stream import READ_SIZE, StreamConnection

BACKLOG = 100
ACCEPT_PAUSE_SECONDS = 0.1

Through: TypeAlias = Callable[[socket.socket, asyncio.Protocol], asyncio.Transport]
"""Makes the transport of an accepted socket, for servers that share sockets with other code than asyncio."""

log = logger("net.stream")


def _bound(family: int, address: Any) -> socket.socket:
    """Bind like socket.create_server(), without listening."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


class Listener:
    """Accepts connections at an address; a subclass serves them. Port 0 is any free port.

    At the limit of connections, the one that has been longest in its handshake is closed, so that connections
    without a handshake do not keep others out. Connections with a complete handshake stay.
    """

    def __init__(self, host: str, port: int, config: StreamConfig, counters: Counters) -> None:
        self._host = host
        self._port = port
        self._config = config
        self._counters = counters
        self._listens_at = 0
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting: dict[asyncio.Task[None], None] = {}  # connections in the handshake, oldest first

    @property
    def port(self) -> int:
        assert self._listens_at, "known when start() has returned"
        return self._listens_at

    async def bind(self) -> None:
        """Bind before start(), if there is much to do until then: a port in use is reported at once. No connections
        are accepted yet."""
        loop = asyncio.get_running_loop()
        try:
            places = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, *_, address in dict.fromkeys(places):
                self._listeners.append(_bound(family, address))
        except OSError as error:
            raise self._cannot_listen(error) from None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._listeners:
            await self.bind()
        try:
            for listener in self._listeners:
                listener.listen(BACKLOG)
        except OSError as error:
            raise self._cannot_listen(error) from None
        self._listens_at = int(self._listeners[0].getsockname()[1])
        self._accepting = [loop.create_task(self._accept(listener)) for listener in self._listeners]
        log.info("listening", host=self._host, port=self.port)

    def _cannot_listen(self, error: OSError) -> ConfigurationError:
        self._stop_listening()
        return ConfigurationError(
            f"cannot listen on {self._host}:{self._port}: {error.strerror}", hint="choose another port, or 0"
        )

    async def close(self) -> None:
        """Stop accepting, end all connections, and wait up to linger_ms until they are closed."""
        for accepting in self._accepting:
            accepting.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        self._stop_listening()
        tasks = list(self._tasks)
        await self._end_all()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._config.linger_ms / 1_000)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def converse(self, sock: socket.socket) -> None:
        """Serve one connection until it is over; call greeted() when its handshake is done."""
        raise NotImplementedError

    def greeted(self) -> None:
        """The handshake of this task's connection is complete."""
        task = asyncio.current_task()
        assert task is not None
        self._greeting.pop(task, None)

    async def _end_all(self) -> None:
        raise NotImplementedError

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections. They count from here on, before the cost of a TLS handshake."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors, or the peer has disconnected
                log.warning("accept_failed", error=error.strerror)
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            if len(self._tasks) >= self._config.connections_max:
                self._counters.add("connections_refused", cause=Cause.CONNECTION_LIMIT)
                if not self._greeting:
                    sock.close()
                    continue
                self._make_room(next(iter(self._greeting)))
            task = loop.create_task(self.converse(sock))
            self._tasks.add(task)
            self._greeting[task] = None
            task.add_done_callback(functools.partial(self._conversed, sock))

    def _make_room(self, task: "asyncio.Task[None]") -> None:
        task.cancel()
        self._tasks.discard(task)
        self._greeting.pop(task, None)

    def _conversed(self, sock: socket.socket, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            sock.close()  # the task may have ended before it began
        self._tasks.discard(task)
        self._greeting.pop(task, None)


class StreamServer(Listener):
    """Accepts connections and calls `serve(connection)` for each successful handshake, until close().

    An exception of `serve` ends its connection and is logged.
    """

    def __init__(
        self,
        connection: Callable[[asyncio.StreamReader, asyncio.StreamWriter], StreamConnection[Any, Any]],
        serve: Callable[[Any], Awaitable[None]],
        *,
        host: str,
        port: int,
        config: StreamConfig,
        counters: Counters,
        tls: ssl.SSLContext | None,
        through: Through | None = None,
    ) -> None:
        super().__init__(host, port, config, counters)
        self._connection = connection
        self._serve = serve
        self._tls = tls
        self._through = through
        self._connections: set[StreamConnection[Any, Any]] = set()

    async def _end_all(self) -> None:
        await asyncio.gather(*(connection.close() for connection in list(self._connections)))

    async def converse(self, sock: socket.socket) -> None:
        try:
            connection = self._connection(*await self._streams_of(sock))
        except OSError as error:
            self._counters.add("connections_refused", cause=Cause.HANDSHAKE)
            log.warning("connection_refused", error=f"no TLS handshake: {error}")
            return
        self._connections.add(connection)
        try:
            await connection.opened()
            self.greeted()
            await self._serve(connection)
        except PenstockError as error:
            if not connection.is_over:
                log.error("connection_failed", address=connection.address, code=error.code, error=str(error))
        except Exception as error:
            log.error("connection_failed", address=connection.address, error=repr(error))
        finally:
            await connection.close()
            self._connections.discard(connection)

    async def _streams_of(self, sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=READ_SIZE)
        protocol = asyncio.StreamReaderProtocol(reader)
        if self._through is not None:
            transport = self._through(sock, protocol)
        else:
            patience = {} if self._tls is None else {"ssl_handshake_timeout": self._config.handshake_ms / 1_000}
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=self._tls, **patience)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
