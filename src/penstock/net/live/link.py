"""TCP links: connections that begin with the handshake of control connections (control_session.py) and then carry
any bytes, for subsystems whose frames are not all control messages.

    class User:
        def opened(self, link, peer): ...          # the handshake is complete
        def received(self, link, data): ...        # bytes, in arbitrary pieces
        def writable(self, link): ...              # most written bytes have been sent
        def lost(self, link, error): ...           # the last call

    link = await connect_link(TREE, "127.0.0.1", 7420, user, node="leaf", secret=secret, ...)
    link.write(frames)

All calls are made in the thread of the loop. The user bounds unsent bytes with is_writable().
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Collection
from typing import Any, Protocol, cast

from penstock.base.clock import SystemClock, random_bytes
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConnectionLostError, FrameError, NoSuchHostError, PenstockError, UnreachableError
from penstock.base.log import logger
from penstock.net._tcp import Receiver, send_now
from penstock.net.config import ControlConfig
from penstock.net.core.control import HANDSHAKE_SIZE_MAX, NONCE_SIZE, ControlProtocol
from penstock.net.core.control_session import ControlSession, Peer, Side
from penstock.net.core.events import BytesReceived, Connected, Disconnect, Opened, SendBytes
from penstock.net.core.framing import LENGTH_SIZE
from penstock.net.live.control_driver import require_protection, require_verified
from penstock.net.live.stream_server import Listener
from penstock.net.secret import Secret

NO_SUCH_HOST = (socket.EAI_NONAME, socket.EAI_NODATA)

log = logger("net.link")


class LinkUser(Protocol):
    def opened(self, link: "Link", peer: Peer) -> None: ...

    def received(self, link: "Link", data: bytes) -> None: ...

    def writable(self, link: "Link") -> None: ...

    def lost(self, link: "Link", error: PenstockError) -> None: ...


class Link(asyncio.Protocol):
    """One connection; the user chooses its `number`."""

    def __init__(
        self,
        protocol: ControlProtocol[Any],
        side: Side,
        user: LinkUser,
        *,
        node: str,
        secret: Secret | None,
        config: ControlConfig,
        counters: Counters,
    ) -> None:
        self.number = 0
        self.address = ""
        self.is_writable = True
        self.is_over = False
        self._is_closing = False
        self._user = user
        self._config = config
        self._counters = counters
        self._clock = SystemClock()
        self._session: ControlSession[Any] | None = ControlSession(
            protocol,
            side,
            node=node,
            nonce=random_bytes(NONCE_SIZE),
            secret=secret,
            clock=self._clock,
            config=config,
            counters=counters,
        )
        self._kept = b""
        self.fd = -1
        """File descriptor of a connection without TLS, otherwise -1."""

        self.socket_fd = -1

        self._transport: asyncio.Transport | None = None
        self._error: PenstockError | None = None
        self._patience: asyncio.TimerHandle | None = None
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handshake is complete or the connection has ended."""

        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when lost() was called."""

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    # Methods for the user

    def write(self, data: bytes) -> None:
        if self._is_usable():
            self.transport.write(data)

    def write_now(self, data: bytes) -> None:
        """Write now instead of in the loop's next turn, because the peer waits for this data."""
        sent = send_now(self.fd, data) if self.is_clear else 0
        if sent < len(data):
            self.write(data[sent:])

    def await_next(self, receiver: Receiver) -> bool:
        """Busy-wait for the peer's next bytes, as long as the receiver spins. Return True if any arrived."""
        data = receiver.receive(self.fd) if self.fd >= 0 and self._is_usable() else None
        if data:
            self.data_received(data)
        return bool(data)

    @property
    def is_clear(self) -> bool:
        """True if all written bytes have been sent, on a connection without TLS."""
        return self.fd >= 0 and self._is_usable() and not self.transport.get_write_buffer_size()

    def pause(self) -> None:
        """Stop reading until reading is resumed."""
        if self._is_usable():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._is_usable():
            self.transport.resume_reading()

    def close(self, error: PenstockError | None = None) -> None:
        """Close the link when everything written has been sent and the peer has closed too, or after linger_ms.
        Closing with unread bytes would reset the connection and lose the last messages."""
        self._error = self._error or error
        if self._transport is None or self.is_over or self._is_closing:
            return
        self._is_closing = True
        try:
            if self._transport.can_write_eof():
                self._transport.resume_reading()
                self._transport.write_eof()
            else:
                self._transport.close()
        except OSError as error:  # the connection has already ended
            log.debug("link_was_gone", address=self.address, error=repr(error))
            self._transport.abort()
        self._set_patience(self._config.linger_ms)

    @property
    def is_closing(self) -> bool:
        """True if this side closes the link."""
        return self._is_closing

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _is_usable(self) -> bool:
        return self._transport is not None and not self._is_closing and not self._transport.is_closing()

    # Methods for asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._config.write_size_max)
        name = transport.get_extra_info("peername")
        self.address = f"{name[0]}:{name[1]}" if name else "unknown"
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket_fd = sock.fileno()
            if transport.get_extra_info("sslcontext") is None:
                self.fd = self.socket_fd
        self._set_patience(self._config.handshake_ms)
        assert self._session is not None
        self._carry_out(self._session.handle(Connected(), self._clock.now_ns()))

    def data_received(self, data: bytes) -> None:
        if not self._is_usable():
            return
        if self._session is None:
            self._user.received(self, data)
            return
        self._kept += data
        while self._session is not None and self._is_usable():
            size = self._frame_size()
            if not size or len(self._kept) < size:
                return
            frame, self._kept = self._kept[:size], self._kept[size:]
            self._carry_out(self._session.handle(BytesReceived(frame), self._clock.now_ns()))
        rest, self._kept = self._kept, b""
        if rest and self._is_usable():
            self._user.received(self, rest)

    def _frame_size(self) -> int:
        """Size of the next frame; 0 while unknown."""
        if len(self._kept) < LENGTH_SIZE:
            return 0
        length = int.from_bytes(self._kept[:LENGTH_SIZE], "little")
        if length > HANDSHAKE_SIZE_MAX:
            self._refuse(Cause.LENGTH, FrameError(f"a handshake frame has {length} bytes"))
            return 0
        return LENGTH_SIZE + length

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._session is None:
            self._user.writable(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        self.fd = -1
        if self._patience is not None:
            self._patience.cancel()
        why = self._error or ConnectionLostError(f"the connection ended: {error}" if error else "the peer ended it")
        self._counters.add("connections_refused" if self._session else "connections_closed", cause=Cause.CUT)
        try:
            self._user.lost(self, why)
        finally:
            for each in (self.greeted, self.over):
                if not each.done():
                    each.set_result(None)

    # The handshake

    def _carry_out(self, instructions: list[Any]) -> None:
        for each in instructions:
            match each:
                case SendBytes(data):
                    self.write(data)
                case Opened(peer):
                    self._session = None
                    if self._patience is not None:
                        self._patience.cancel()
                    self._counters.add("connections_opened")
                    self.greeted.set_result(None)
                    self._user.opened(self, peer)
                case Disconnect(cause, error):
                    self._refuse(cause, error or ConnectionLostError("the peer closed the connection"))

    def _refuse(self, cause: Cause, error: PenstockError) -> None:
        log.warning("link_refused", address=self.address, cause=str(cause), error=str(error))
        self.close(error)

    def _set_patience(self, milliseconds: int) -> None:
        if self._patience is not None:
            self._patience.cancel()
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(milliseconds / 1_000, self._lose_patience)

    def _lose_patience(self) -> None:
        if self._error is None:
            self._error = ConnectionLostError("the handshake was not complete in time")
        self.abort()


class LinkServer(Listener):
    """Accepts links. Beyond the loopback address it needs `tls` and `secret`."""

    def __init__(
        self,
        protocol: ControlProtocol[Any],
        user: LinkUser,
        *,
        node: str,
        host: str,
        port: int,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        config: ControlConfig,
        counters: Counters,
    ) -> None:
        require_protection(host, secret, tls)
        super().__init__(host, port, config, counters)
        self._tls = tls
        self._links: set[Link] = set()

        def make() -> Link:
            return Link(protocol, "server", user, node=node, secret=secret, config=config, counters=counters)

        self._make = make

    async def converse(self, sock: socket.socket) -> None:
        link = self._make()
        patience = {} if self._tls is None else {"ssl_handshake_timeout": self._config.handshake_ms / 1_000}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: link, sock, ssl=self._tls, **patience)
        except OSError as error:
            self._counters.add("connections_refused", cause=Cause.HANDSHAKE)
            log.warning("link_refused", error=f"no TLS handshake: {error}")
            return
        self._links.add(link)
        try:
            await asyncio.shield(link.greeted)
            self.greeted()
            await asyncio.shield(link.over)
        finally:
            self._links.discard(link)
            link.abort()

    async def _end_all(self) -> None:
        for link in list(self._links):
            link.close()


async def connect_link(
    protocol: ControlProtocol[Any],
    host: str,
    port: int,
    user: LinkUser,
    *,
    node: str,
    secret: Secret | None,
    tls: ssl.SSLContext | None,
    config: ControlConfig,
    counters: Counters,
    number: int = 0,
) -> Link:
    """Return a link whose TCP (and TLS) connection is established; `user` is then notified by opened() or lost()."""
    require_protection(host, secret, tls)
    require_verified(host, tls)
    link = Link(protocol, "client", user, node=node, secret=secret, config=config, counters=counters)
    link.number = number
    try:
        async with asyncio.timeout(config.handshake_ms / 1_000):
            await asyncio.get_running_loop().create_connection(lambda: link, host, port, ssl=tls)
    except (OSError, TimeoutError, UnicodeError) as error:
        with contextlib.suppress(asyncio.InvalidStateError):
            link.over.set_result(None)
        if isinstance(error, UnicodeError) or (isinstance(error, socket.gaierror) and error.errno in NO_SUCH_HOST):
            raise NoSuchHostError("unknown host", where=f"{host}:{port}", hint="check the name") from None
        raise UnreachableError(
            f"cannot connect: {error or 'no answer'}",
            where=f"{host}:{port}",
            hint="check that the node is running there",
        ) from None
    return link


async def end_links(links: Collection[Link], linger_ms: int) -> None:
    """Close these links in order and wait; those that take longer than linger_ms are cut off."""
    for link in links:
        link.close()
    if links:
        await asyncio.wait([link.over for link in links], timeout=linger_ms / 1_000)
    for link in links:
        link.abort()
    await asyncio.gather(*(link.over for link in links))
