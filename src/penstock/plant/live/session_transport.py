"""asyncio connections that a session sender (_session_sender.pyx) writes to, in the data thread.

The loop's thread reads from the socket. Only the session sender writes to it and shuts it down, so control messages of
a connection and events of its session are never mixed.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from penstock.base.errors import PenstockError
from penstock.base.free_rows import FreeRows
from penstock.base.log import logger
from penstock.net.live.stream import keep_little_unsent
from penstock.plant.live._session_sender import Framing, SessionSender

READ_SIZE = 16_384
log = logger("plant.sessions")

Ask = Callable[[Callable[[], None]], "Future[None]"]
"""Run a function in the data thread, after all earlier ones."""


class SessionTransports:
    """The session sender, as the loop's thread uses it; `sessions_max` is the session sender's."""

    def __init__(self, session_sender: SessionSender, sessions_max: int, ask: Ask) -> None:
        self.session_sender = session_sender
        self.transports: dict[int, SessionTransport] = {}
        """By session."""

        self._ask = ask
        self._free = FreeRows(sessions_max)
        self._loop = asyncio.get_running_loop()

    def through(self, sock: socket.socket, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Create the transport of a connection for a StreamServer. At most `sessions_max` connections are open at
        once."""
        try:
            peer = sock.getpeername()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_little_unsent(sock)
        except OSError:  # the connection has ended already
            sock.close()
            raise
        session, fd = self._free.take(), sock.fileno()
        transport = self.transports[session] = SessionTransport(self, session, sock, peer, protocol)
        self._do(lambda: self.session_sender.open(session, fd), transport)
        transport.begin()
        return transport

    def say(self, transport: "SessionTransport", data: bytes) -> None:
        self._do(lambda: self.session_sender.say(transport.session, data, time.monotonic_ns()), transport)

    def finish(self, transport: "SessionTransport") -> None:
        self._do(lambda: self.session_sender.finish(transport.session, time.monotonic_ns()), transport)

    def shut(self, transport: "SessionTransport") -> None:
        """Have the session sender release the socket; the transport is notified then, or when the data thread has
        ended."""

        def shut(_: object) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._left, transport)

        self._ask(lambda: self.session_sender.shut(transport.session)).add_done_callback(shut)

    def _left(self, transport: "SessionTransport") -> None:
        del self.transports[transport.session]
        self._free.give_back(transport.session)
        transport.end()

    def _do(self, call: Callable[[], None], transport: "SessionTransport") -> None:
        def done(answer: "Future[None]") -> None:
            error = answer.exception()
            if isinstance(error, PenstockError) and not self._loop.is_closed():
                log.warning("session_not_carried", code=error.code, what=str(error))
                self._loop.call_soon_threadsafe(transport.abort)

        self._ask(call).add_done_callback(done)


def session_place(connection: "SessionConnection") -> tuple[int, Framing] | None:
    """Return the session of a connection and its framing; None for a connection whose events need conversion."""
    transport = connection.transport
    if not isinstance(transport, SessionTransport):
        return None
    framing = getattr(connection, "framing", Framing.EVENTS_MESSAGE)
    return None if framing is None else (transport.session, framing)


class SessionConnection(Protocol):
    """A control connection. A connection with another framing has an attribute `framing`, which may be None."""

    @property
    def transport(self) -> asyncio.WriteTransport: ...


class SessionTransport(asyncio.Transport):
    """One socket: read here, written to by the session sender, closed here once the session sender has released it. The
    descriptor of a closed socket is reused at once."""

    def __init__(
        self, transports: SessionTransports, session: int, sock: socket.socket, peer: object, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self.session = session
        self._transports = transports
        self._socket = sock
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._peer = peer
        self._is_closing = False
        self._is_reading = False
        self._error: OSError | None = None

    def begin(self) -> None:
        self._protocol.connection_made(self)
        self.resume_reading()

    def end(self) -> None:
        self._socket.close()
        self._protocol.connection_lost(self._error)

    # Reading

    def is_reading(self) -> bool:
        return self._is_reading

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._loop.add_reader(self._socket, self._read)

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._error = error
            self.abort()
            return
        if data:
            self._protocol.data_received(data)
        else:
            self.pause_reading()
            self._protocol.eof_received()

    # Writing is done by the session sender

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._transports.say(self, bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._is_closing:
            self._transports.finish(self)

    def get_write_buffer_size(self) -> int:
        """The session sender bounds its own buffer."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """No effect: nothing is buffered here."""

    # Closing

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self.pause_reading()
            self._is_closing = True
            self._transports.shut(self)

    def abort(self) -> None:
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._peer, "socket": self._socket}.get(name, default)
