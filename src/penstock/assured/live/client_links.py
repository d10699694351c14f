"""The links of clients to a live message router: bytes between sockets and its core, in the loop's thread.

The login of a client is checked here. After that, data frames go to the core as they come, many at a time, and control
messages one by one.
"""

import asyncio
import select
import ssl
import time
from collections.abc import Callable
from typing import Protocol

from penstock.assured.live.access import REFUSALS, ClientAccess, ClientRights
from penstock.assured.node_config import RouterNodeConfig
from penstock.assured.wire._frames import FrameSplitter
from penstock.assured.wire.control import (
    ASSURED,
    MESSAGE_SIZE_MAX,
    Login,
    Message,
    Refused,
)
from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Cause, Counters
from penstock.base.errors import FrameError, PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.net._tcp import Receiver
from penstock.net.config import ControlConfig
from penstock.net.core.control import (
    ErrorMessage,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Proof,
    UnknownMessageError,
    encode_session,
)
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import encode_frame
from penstock.net.live.link import Link, end_links
from penstock.net.secret import Secret
from penstock.runtime.link_service import LOGIN_SIZE_MAX, LinkService
from penstock.runtime.service_settings import ServiceSettings

LOOK_SECONDS = 1.0
AWAIT_NEXT_NS = 100_000
"""How long the router busy-waits for the next message of a publisher that waits for each acknowledgement."""

log = logger("assured.links")


class LinkUser(Protocol):
    """Handles events of clients."""

    def arrived(self, link: int, login: Login, rights: ClientRights) -> None: ...

    def said(self, link: int, message: Message) -> None: ...

    def brought(self, link: int, data: bytes) -> None: ...

    def left(self, link: int) -> None: ...


class _Client:
    """A client that has connected. Its link has a number once it has logged in."""

    def __init__(self, peer: Peer, now: float) -> None:
        self.peer = peer
        self.splitter = FrameSplitter(LOGIN_SIZE_MAX)
        self.heard = now


class ClientLinks(LinkService[Message, Login, ClientRights]):
    """From start() to close()."""

    def __init__(
        self,
        config: RouterNodeConfig,
        access: ClientAccess,
        user: LinkUser,
        *,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        counters: Counters,
        is_crowded: Callable[[], bool],
    ) -> None:
        super().__init__(
            ASSURED,
            access,
            REFUSALS,
            ServiceSettings(
                config.name,
                config.control,
                secret,
                tls,
                ControlConfig(message_size_max=MESSAGE_SIZE_MAX, connections_max=2 * config.links_max),
                counters,
                log,
            ),
            party="client",
        )
        self._config = config
        self._names = access
        self._user = user
        self._is_crowded = is_crowded
        self._clients: dict[Link, _Client] = {}
        self._held: set[Link] = set()
        self._answered: Link | None = None  # the client that got data last
        self._sends_at_once = False  # its next message followed the last answer within AWAIT_NEXT_NS
        self._answered_ns = 0
        self.receiver = Receiver(AWAIT_NEXT_NS)
        self.readable = select.epoll()
        """All client sockets; ready when any client has sent something."""

        self._looking: asyncio.TimerHandle | None = None

    async def bind(self) -> None:
        """Before start(): bind the port; nobody can connect yet."""
        await self.server.bind()

    async def start(self) -> None:
        await self.server.start()
        self._look()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await end_links(set(self._clients), self.limits.linger_ms)
        await self.server.close()
        self.readable.close()

    @property
    def count(self) -> int:
        return len(self.links)

    # For the router

    def say(self, number: int, message: Message) -> None:
        if (link := self.links.get(number)) is not None:
            self._write(link, self.frame(message))

    def send(self, number: int, data: bytes) -> None:
        if (link := self.links.get(number)) is not None:
            self._answered, self._answered_ns = link, time.monotonic_ns()
            link.write_now(data)
            self._check_pace(link)

    @property
    def waiting_publisher(self) -> Link | None:
        """The link of the client that was answered last, if this client waits for each acknowledgement and sends its
        next message at once."""
        return self._answered if self._sends_at_once else None

    def is_between(self, link: Link) -> bool:
        """True if no message is partly received there, and no answer partly sent."""
        return link.is_clear and link not in self._held and self._clients[link].splitter.is_between

    def await_next(self) -> None:
        """Busy-wait for the next message of the waiting publisher, if there is one."""
        if self._sends_at_once and self._answered is not None:
            self._sends_at_once = self._answered.await_next(self.receiver)

    def committed_inline(self, link: Link, rest: bytes, *, is_next_ready: bool) -> None:
        """Take back a link whose messages were committed inline. `rest` has the bytes that were not handled there;
        `is_next_ready`: the next message has come already."""
        if (client := self._clients.get(link)) is None:
            return
        self._answered_ns = time.monotonic_ns()
        client.heard = self._answered_ns / NS_PER_SECOND
        self._sends_at_once = is_next_ready
        if rest:
            link.data_received(rest)

    def _write(self, link: Link, data: bytes) -> None:
        link.write(data)
        self._check_pace(link)

    def _check_pace(self, link: Link) -> None:
        """Disconnect a client that does not read its answers."""
        if not link.is_writable and link.transport.get_write_buffer_size() > self._config.sends_bytes_max:
            self.counters.add("connections_closed", cause=Cause.SLOW)
            log.warning("client_is_slow", client=self._names.name_of(link.number), address=link.address)
            link.abort()

    def refuse(self, number: int, refusal: Refused) -> None:
        """End a link; the refusal is its last message."""
        if (link := self.links.get(number)) is not None:
            self.refuse_link(link, refusal)

    def dismiss(self, number: int, farewell: Message) -> None:
        """End a link. The farewell is sent unless other bytes still wait to be sent."""
        if (link := self.links.get(number)) is None:
            return
        if link.transport.get_write_buffer_size():
            link.abort()
        else:
            self.say(number, farewell)
            link.close()

    def numbers(self) -> list[int]:
        return list(self.links)

    def release(self) -> None:
        """Resume reading from all clients."""
        for link in self._held:
            link.resume()
        self._held.clear()

    # Events of links

    def opened(self, link: Link, peer: Peer) -> None:
        self.readable.register(link.socket_fd, select.EPOLLIN)
        self._clients[link] = _Client(peer, time.monotonic())
        super().opened(link, peer)

    def received(self, link: Link, data: bytes) -> None:
        client = self._clients.get(link)
        if client is None:
            return
        now_ns = time.monotonic_ns()
        client.heard = now_ns / NS_PER_SECOND
        if link is self._answered:
            self._sends_at_once = now_ns - self._answered_ns < AWAIT_NEXT_NS
        try:
            for is_data, piece in client.splitter.feed(data):
                if link not in self._clients:  # it was refused in the meantime
                    return
                if is_data:
                    self._take_data(link, piece)
                else:
                    self._take_message(link, client, piece)
            if client.splitter.failure:
                raise FrameError(client.splitter.failure)
        except PenstockError as error:
            self.refuse_error(link, error)

    def _take_data(self, link: Link, data: bytes) -> None:
        if not link.number:
            raise RemoteProtocolError("the first message must be a login")
        self._user.brought(link.number, data)
        if self._is_crowded() and link not in self._held:
            self._held.add(link)
            link.pause()

    def _take_message(self, link: Link, client: _Client, payload: bytes) -> None:
        try:
            message = ASSURED.decode(payload)
        except UnknownMessageError:
            self.counters.add("messages_skipped", cause=Cause.MESSAGE)
            return
        match message:
            case Login() if not link.number:
                self._take_login(link, client, message)
            case Ping(t1):
                now_ns = time.time_ns()
                self._write(link, encode_frame(encode_session(Pong(t1, now_ns, now_ns))))
            case Pong():
                pass
            case ErrorMessage() | Goodbye():
                link.close()
            case Login() | Hello() | Proof():
                raise RemoteProtocolError(f"unexpected {type(message).__name__}")
            case _ if not link.number:
                raise RemoteProtocolError("the first message must be a login")
            case _:
                self._user.said(link.number, message)

    def _take_login(self, link: Link, client: _Client, login: Login) -> None:
        rights = self.log_in(link, login)
        client.splitter.allow_more()
        self._user.arrived(link.number, login, rights)

    def writable(self, link: Link) -> None:
        """The flows of a client, and sends_bytes_max, bound the data that waits for it."""

    def lost(self, link: Link, error: PenstockError) -> None:
        self._clients.pop(link, None)
        self._held.discard(link)
        if link is self._answered:
            self._answered = None
        name = self._names.name_of(link.number)
        if self.forget(link):
            say = log.debug if link.is_closing else log.info  # refused clients, as during a switch, are normal
            say("client_left", client=name, address=link.address, why=str(error))
            self._user.left(link.number)

    def _look(self) -> None:
        """Disconnect clients that were silent for too long; a live client sends pings."""
        before = time.monotonic() - self._config.silence_ms / 1_000
        for link, client in list(self._clients.items()):
            if link.number and client.heard < before and link not in self._held:
                log.warning("client_is_silent", client=client.peer.node, address=link.address)
                self.counters.add("connections_closed", cause=Cause.SILENT)
                link.abort()
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
