"""The links of a live agent: bytes between sockets and its fan-out, in the loop's thread.

Whatever comes on a link goes to the fan-out, and what waits there for a link is written as long as its socket takes it.
A thread of its own does that for plain sockets (data_thread.py), the loop for those with TLS. The first message of a
party that connects, its login, is looked at here: so nobody gets further who may not.
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
from penstock.net.framing import LENGTH_SIZE, FrameDecoder, encode_frame
from penstock.net.guard import Guard
from penstock.net.link import Link, LinkServer, connect_link, end_links
from penstock.net.place import parse_place
from penstock.net.secret import Secret
from penstock.net.session import Peer
from penstock.tree.config import AgentConfig
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE, Login, Order, Ordered, Refused
from penstock.tree.core.events import Arrived, Connected, ConnectFailed, LinkClosed, Noticed
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.live.data_thread import Carrier
from penstock.tree.live.desk import Desk, refusal_of

LOGIN_SIZE_MAX = 131_072
LOGIN_SECONDS = 5.0
SEND_SIZE = 256 * 1024
LAST_WORDS_SECONDS = 0.5
LOOK_SECONDS = 0.005

log = logger("tree.links")


class _Caller:
    """A party that has connected and not logged in yet."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.data = b""
        self.patience: asyncio.TimerHandle | None = None


class AgentLinks:
    """From start() to close(). `tell` gives an event to the agent's core, `order` has an operator's order done."""

    def __init__(
        self,
        config: AgentConfig,
        fanout: Fanout,
        desk: Desk,
        tell: Callable[[Any], None],
        order: Callable[[Order], Ordered | Refused],
        *,
        secret: Secret | None,
        server_tls: ssl.SSLContext | None,
        guard: Guard,
        counters: Counters,
    ) -> None:
        self._config = config
        self._fanout = fanout
        self._desk = desk
        self._tell = tell
        self._order = order
        self._guard = guard
        self.counters = counters
        self._limits = ControlConfig(
            message_size_max=MESSAGE_SIZE_MAX,
            connections_max=2 * config.children_max,
            write_size_max=config.sends_bytes_max,
        )
        self._links: dict[int, Link] = {}
        self._made: set[Link] = set()  # by this agent
        self._callers: dict[Link, _Caller] = {}
        self._attempts: dict[int, int] = {}  # by link
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = 0
        self._is_pump_due = self._is_closing = False
        self._operators: dict[int, FrameDecoder] = {}
        self._blocked: set[int] = set()
        self._held: set[int] = set()
        self._stopped: set[int] = set()  # the fan-out takes nothing from them for a while
        self._carrier = Carrier(fanout, self.pump_soon, cpu=config.cpu)
        self.server = LinkServer(
            TREE,
            self,
            node=config.name,
            host=config.control.host,
            port=config.control.port,
            secret=secret,
            tls=server_tls,
            config=self._limits,
            counters=counters,
        )

    async def start(self) -> None:
        self._carrier.start()
        await self.server.start()

    async def close(self) -> None:
        self._is_closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.pump()
        await self._let_out()
        await asyncio.to_thread(self._carrier.stop)
        await end_links({*self._links.values(), *self._made, *self._callers}, self._limits.linger_ms)
        await self.server.close()

    @property
    def port(self) -> int:
        return self.server.port

    # For the core

    def connect(self, attempt: int, place: str) -> None:
        if self._is_closing:
            return
        task = asyncio.get_running_loop().create_task(self._connect(attempt, place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, number: int) -> None:
        """When what waits for it is sent, or cannot be sent soon."""
        link = self._links.get(number)
        if link is None:
            return
        self._desk.leave(number)
        if self._carrier.has(number):
            self._end_carried(number, link, time.monotonic() + LAST_WORDS_SECONDS)
            return
        if link.is_writable:
            self._send(number, link)
        link.close()

    def _end_carried(self, number: int, link: Link, deadline: float) -> None:
        if self._waits(number) and time.monotonic() < deadline:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._end_carried, number, link, deadline)
            return
        self._carrier.give_back(number)
        link.close()

    def _waits(self, number: int) -> bool:
        """Whether something is still to be sent."""
        try:
            return self._fanout.link(number).waiting > 0
        except PenstockError:  # nobody knows it any more
            return False

    async def _let_out(self) -> None:
        """What was said last."""
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < deadline and any(map(self._waits, filter(self._carrier.has, self._links))):
            await asyncio.sleep(LOOK_SECONDS)

    def refuse(self, number: int, refusal: Refused) -> None:
        """End a link with these last words."""
        link = self._links.get(number)
        if link is None:
            return
        if number in self._operators:
            self._refuse(link, refusal)
            return
        self._note_refusal(link, refusal)
        try:
            self._fanout.say(number, encode_frame(TREE.encode(refusal, MESSAGE_SIZE_MAX)))
        except PenstockError as error:  # it takes nothing any more, or is gone already
            log.info("refusal_not_said", address=link.address, error=str(error))
        self._fanout.stop(number)
        self.end(number)

    def hold(self, number: int) -> None:
        """Take nothing from this link for a while."""
        if (link := self._links.get(number)) is None or number in self._held:
            return
        self._held.add(number)
        if self._carrier.has(number):
            self._fanout.pause(number)
        else:
            link.pause()

    def release_all(self) -> None:
        """Take from all of them again."""
        held, self._held = self._held, set()
        for number in held:
            if (link := self._links.get(number)) is not None:
                self._read_on(number, link)

    def pump_soon(self) -> None:
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Write what waits, for whoever takes it; tell the core what the fan-out has for it."""
        self._is_pump_due = True  # what follows asks for nothing more than this
        if not self._is_closing and self._fanout.has_notices():
            self._tell(Noticed())
        self._is_pump_due = False
        self._carrier.send()
        for number in self._fanout.ready():
            link = self._links.get(number)
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
        """If nothing stands against it any more."""
        if number in self._stopped or number in self._held:
            return
        if self._carrier.has(number):
            self._fanout.resume(number)
        else:
            link.resume()

    def _send(self, number: int, link: Link) -> None:
        while data := self._fanout.take(number, SEND_SIZE):
            link.write(data)
            if not link.is_writable:
                self._blocked.add(number)
                return

    async def _connect(self, attempt: int, place: str) -> None:
        self._last += 1
        number = self._last
        self._attempts[number] = attempt
        try:
            host, port = parse_place(place)
            link = await connect_link(
                TREE,
                host,
                port,
                self,
                node=self._config.name,
                secret=self._guard.secret,
                tls=self._guard.tls_for(host),
                config=self._limits,
                counters=self.counters,
                number=number,
            )
        except PenstockError as error:
            self._attempts.pop(number, None)
            log.info("not_connected", place=place, code=error.code, error=str(error))
            self._tell(ConnectFailed(attempt, str(error)))
        else:
            if not link.is_over:
                self._made.add(link)

    # What links tell

    def opened(self, link: Link, peer: Peer) -> None:
        if link.number:
            self._links[link.number] = link
            self._tell(Connected(self._attempts.pop(link.number), link.number, peer.node))
            self._carry(link, b"")
            return
        caller = self._callers[link] = _Caller(peer)
        loop = asyncio.get_running_loop()
        caller.patience = loop.call_later(LOGIN_SECONDS, self._lose_patience, link)

    def received(self, link: Link, data: bytes) -> None:
        if (caller := self._callers.get(link)) is not None:
            data = self._take_login(link, caller, data)
        if data and link.number in self._operators:
            self._take_orders(link, data)
        elif data and link.number in self._links:
            self._carrier.cork()
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
        self._made.discard(link)
        if (caller := self._callers.pop(link, None)) is not None and caller.patience is not None:
            caller.patience.cancel()
        attempt = self._attempts.pop(link.number, None)
        if attempt is not None:
            self._tell(ConnectFailed(attempt, str(error)))
        elif self._links.pop(link.number, None) is not None:
            self._forget(link.number)
            if self._operators.pop(link.number, None) is None:
                self._tell(LinkClosed(link.number, str(error)))

    def _forget(self, number: int) -> None:
        self._carrier.give_back(number)
        self._desk.leave(number)
        self._blocked.discard(number)
        self._held.discard(number)
        self._stopped.discard(number)

    # Logins

    def _take_login(self, link: Link, caller: _Caller, data: bytes) -> bytes:
        """What comes after the login, if it is good."""
        caller.data += data
        if len(caller.data) < LENGTH_SIZE:
            return b""
        size = int.from_bytes(caller.data[:LENGTH_SIZE], "little")
        if size <= LOGIN_SIZE_MAX and len(caller.data) < LENGTH_SIZE + size:
            return b""
        del self._callers[link]
        if caller.patience is not None:
            caller.patience.cancel()
        payload, rest = caller.data[LENGTH_SIZE : LENGTH_SIZE + size], caller.data[LENGTH_SIZE + size :]
        self._last += 1
        try:
            if size > LOGIN_SIZE_MAX:
                raise FrameError(f"a login of {size} bytes, at most {LOGIN_SIZE_MAX} are taken")
            login = TREE.decode(payload)
            if not isinstance(login, Login):
                raise RemoteProtocolError("the first message is a login")
            party = self._desk.admit(self._last, login, caller.peer, time.time_ns())
        except PenstockError as error:
            self._refuse(link, refusal_of(error))
            return b""
        link.number = self._last
        self._links[link.number] = link
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
        self._carrier.take_over(link.number, transport.get_extra_info("socket").fileno(), begun)
        return True

    def _take_orders(self, link: Link, data: bytes) -> None:
        try:
            for frame in self._operators[link.number].feed(data):
                order = TREE.decode(frame)
                if not isinstance(order, Order):
                    raise RemoteProtocolError("an operator gives orders")
                answer = self._order(order)
                link.write(encode_frame(TREE.encode(answer, MESSAGE_SIZE_MAX)))
        except PenstockError as error:
            self._refuse(link, refusal_of(error))

    def _note_refusal(self, link: Link, refusal: Refused) -> None:
        log.warning("party_refused", address=link.address, code=refusal.code, reason=refusal.reason)
        self.counters.add("requests_refused", cause=refusal.code)

    def _refuse(self, link: Link, refusal: Refused) -> None:
        """Of a link that the fan-out does not know."""
        self._note_refusal(link, refusal)
        link.write(encode_frame(TREE.encode(refusal, MESSAGE_SIZE_MAX)))
        link.close()

    def _lose_patience(self, link: Link) -> None:
        self._callers.pop(link, None)
        self._refuse(link, Refused("protocol", f"there was no login within {LOGIN_SECONDS:g} s"))
