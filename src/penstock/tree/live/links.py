"""The links of a live agent: bytes between sockets and its fan-out, in the loop's thread.

The bytes of a link go to the fan-out, and the bytes that wait there for a link are written while its socket takes them.
The data thread does that for plain sockets (data_thread.py), the loop for sockets with TLS. The login of a party that
connects is checked here, before the fan-out knows the link.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any

from penstock.base.counters import Counters
from penstock.base.errors import FrameError, PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.net.config import ControlConfig
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import LENGTH_SIZE, FrameDecoder
from penstock.net.guard import Guard
from penstock.net.live.dialling import Dialling
from penstock.net.live.link import Link, end_links
from penstock.net.secret import Secret
from penstock.runtime.link_service import LOGIN_SIZE_MAX, LinkService
from penstock.runtime.service_settings import ServiceSettings
from penstock.security.core.access_control import Rights
from penstock.tree.config import AgentConfig
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE, Login, Message, Order, Ordered, Refused
from penstock.tree.core.events import Arrived, Connected, ConnectFailed, LinkClosed, Noticed
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.live.access import REFUSALS, PartyAccess, party_of
from penstock.tree.live.data_thread import DataThread

SEND_SIZE = 256 * 1024
LAST_MESSAGE_SECONDS = 0.5
LOOK_SECONDS = 0.005

log = logger("tree.links")


class AgentLinks(LinkService[Message, Login, Rights]):
    """From start() to close(). `tell` gives an event to the agent's core, `order` carries out an operator's order."""

    def __init__(
        self,
        config: AgentConfig,
        fanout: Fanout,
        access: PartyAccess,
        tell: Callable[[Any], None],
        order: Callable[[Order], Ordered | Refused],
        *,
        secret: Secret | None,
        server_tls: ssl.SSLContext | None,
        guard: Guard,
        counters: Counters,
    ) -> None:
        super().__init__(
            TREE,
            access,
            REFUSALS,
            ServiceSettings(
                config.name,
                config.control,
                secret,
                server_tls,
                ControlConfig(
                    message_size_max=MESSAGE_SIZE_MAX,
                    connections_max=2 * config.children_max,
                    write_size_max=config.sends_bytes_max,
                ),
                counters,
                log,
            ),
            party="party",
        )
        self._fanout = fanout
        self._tell = tell
        self._order = order
        self._logins: dict[Link, bytes] = {}  # the bytes of logins that are not complete
        self._dialling = Dialling(
            TREE,
            self,
            node=config.name,
            guard=guard,
            config=self.limits,
            counters=counters,
            next_number=self.next_number,
            on_writable=self.writable,
        )
        self._is_pump_due = self._is_closing = False
        self._operators: dict[int, FrameDecoder] = {}
        self._blocked: set[int] = set()
        self._held: set[int] = set()
        self._stopped: set[int] = set()  # the fan-out has paused them
        self._data_thread = DataThread(fanout, self.pump_soon, cpu=config.cpu)

    async def start(self) -> None:
        self._data_thread.start()
        await self.server.start()

    async def close(self) -> None:
        self._is_closing = True
        await self._dialling.stop()
        self.pump()
        await self._let_out()
        await asyncio.to_thread(self._data_thread.stop)
        await end_links({*self.links.values(), *self._dialling.made, *self.callers}, self.limits.linger_ms)
        await self.server.close()

    # For the core

    def connect(self, attempt: int, place: str) -> None:
        if not self._is_closing:
            self._dialling.dial(attempt, place)

    def end(self, number: int) -> None:
        """End the link when its waiting data is sent, or cannot be sent soon."""
        link = self.links.get(number)
        if link is None:
            return
        self.access.leave(number)
        if self._data_thread.has(number):
            self._end_carried(number, link, time.monotonic() + LAST_MESSAGE_SECONDS)
            return
        if link.is_writable:
            self._send(number, link)
        link.close()

    def _end_carried(self, number: int, link: Link, deadline: float) -> None:
        if self._waits(number) and time.monotonic() < deadline:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._end_carried, number, link, deadline)
            return
        self._data_thread.give_back(number)
        link.close()

    def _waits(self, number: int) -> bool:
        """True if something is still to be sent."""
        try:
            return self._fanout.link(number).waiting > 0
        except PenstockError:  # the core has forgotten it
            return False

    async def _let_out(self) -> None:
        """Wait until the last messages are sent, up to LAST_MESSAGE_SECONDS."""
        deadline = time.monotonic() + LAST_MESSAGE_SECONDS
        while time.monotonic() < deadline and any(map(self._waits, filter(self._data_thread.has, self.links))):
            await asyncio.sleep(LOOK_SECONDS)

    def refuse(self, number: int, refusal: Refused) -> None:
        """End a link; the refusal is its last message."""
        link = self.links.get(number)
        if link is None:
            return
        if number in self._operators:
            self.refuse_link(link, refusal)
            return
        self.note_refusal(link, refusal)
        try:
            self._fanout.say(number, self.frame(refusal))
        except PenstockError as error:  # it accepts no data any more, or is gone already
            log.info("refusal_not_said", address=link.address, error=str(error))
        self._fanout.stop(number)
        self.end(number)

    def hold(self, number: int) -> None:
        """Pause reading from this link."""
        if (link := self.links.get(number)) is None or number in self._held:
            return
        self._held.add(number)
        if self._data_thread.has(number):
            self._fanout.pause(number)
        else:
            link.pause()

    def release_all(self) -> None:
        """Resume reading from all links."""
        held, self._held = self._held, set()
        for number in held:
            if (link := self.links.get(number)) is not None:
                self._read_on(number, link)

    def pump_soon(self) -> None:
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Write waiting bytes to links that take them; tell the core what the fan-out has for it."""
        self._is_pump_due = True  # this call already does what follows requests
        if not self._is_closing and self._fanout.has_notices():
            self._tell(Noticed())
        self._is_pump_due = False
        self._data_thread.send()
        for number in self._fanout.ready():
            link = self.links.get(number)
            if link is None:
                continue
            if number in self._stopped and self._fanout.is_taking(number):
                self._stopped.discard(number)
                self._read_on(number, link)
            if link.is_writable:
                self._send(number, link)
            else:
                self._blocked.add(number)

    def _read_on(self, number: int, link: Link) -> None:
        """Resume reading from a link, unless it is paused for another reason."""
        if number in self._stopped or number in self._held:
            return
        if self._data_thread.has(number):
            self._fanout.resume(number)
        else:
            link.resume()

    def _send(self, number: int, link: Link) -> None:
        while data := self._fanout.take(number, SEND_SIZE):
            link.write(data)
            if not link.is_writable:
                self._blocked.add(number)
                return

    # Events of links

    def link_opened(self, attempt: int, link: Link, peer: Peer) -> None:
        self.links[link.number] = link
        self._tell(Connected(attempt, link.number, peer.node))
        self._carry(link, b"")

    def link_failed(self, attempt: int, error: PenstockError) -> None:
        self._tell(ConnectFailed(attempt, str(error)))

    def link_received(self, link: Link, data: bytes) -> None:
        if link.number in self.links:
            self._receive(link, data)

    def link_closed(self, number: int, why: str) -> None:
        if self.links.pop(number, None) is not None:
            self._forget(number)
            self._tell(LinkClosed(number, why))

    def received(self, link: Link, data: bytes) -> None:
        if not link.number:
            data = self._take_login(link, data)
        if data and link.number in self._operators:
            self._take_orders(link, data)
        elif data and link.number in self.links:
            self._receive(link, data)

    def _receive(self, link: Link, data: bytes) -> None:
        self._data_thread.cork()
        if not self._fanout.receive(link.number, data, time.monotonic_ns()):
            self._stopped.add(link.number)
            link.pause()
        self._tell(Noticed())
        self.pump()

    def writable(self, link: Link) -> None:
        if link.number in self._blocked:
            self._blocked.discard(link.number)
            self._send(link.number, link)
            self._tell(Noticed())

    def lost(self, link: Link, error: PenstockError) -> None:
        self._logins.pop(link, None)
        if self.forget(link):
            self._forget(link.number)
            if self._operators.pop(link.number, None) is None:
                self._tell(LinkClosed(link.number, str(error)))

    def _forget(self, number: int) -> None:
        self._data_thread.give_back(number)
        self._blocked.discard(number)
        self._held.discard(number)
        self._stopped.discard(number)

    # Logins

    def _take_login(self, link: Link, data: bytes) -> bytes:
        """Returns the bytes after the login, if the party is admitted and its link is read here."""
        if link not in self.callers:
            return b""
        data = self._logins.pop(link, b"") + data
        size = int.from_bytes(data[:LENGTH_SIZE], "little")
        if len(data) < LENGTH_SIZE or (size <= LOGIN_SIZE_MAX and len(data) < LENGTH_SIZE + size):
            self._logins[link] = data
            return b""
        payload, rest = data[LENGTH_SIZE : LENGTH_SIZE + size], data[LENGTH_SIZE + size :]
        try:
            if size > LOGIN_SIZE_MAX:
                raise FrameError(f"a login of {size} bytes, at most {LOGIN_SIZE_MAX} are taken")
            login = TREE.decode(payload)
            if not isinstance(login, Login):
                raise RemoteProtocolError("the first message is a login")
            party = party_of(login, self.log_in(link, login))
        except PenstockError as error:
            self.refuse_error(link, error)
            return b""
        if party.role == "operator":
            self._operators[link.number] = FrameDecoder(MESSAGE_SIZE_MAX)
            self._take_orders(link, rest)
            return b""
        self._tell(Arrived(link.number, party))
        return b"" if self._carry(link, rest) else rest

    def _carry(self, link: Link, begun: bytes) -> bool:
        """Have the data thread take over, if the core has taken the link and it is a plain socket."""
        transport = link.transport
        if transport.get_extra_info("ssl_object") is not None or link.number not in self._fanout.links():
            return False
        link.pause()
        self._data_thread.take_over(link.number, transport.get_extra_info("socket").fileno(), begun)
        return True

    def _take_orders(self, link: Link, data: bytes) -> None:
        try:
            for frame in self._operators[link.number].feed(data):
                order = TREE.decode(frame)
                if not isinstance(order, Order):
                    raise RemoteProtocolError("an operator gives orders")
                self.write_message(link, self._order(order))
        except PenstockError as error:
            self.refuse_error(link, error)
