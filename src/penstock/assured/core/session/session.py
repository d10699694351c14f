"""A client's session with the active router of a pair, over successive links (net/core/client_session.py). No I/O.

Publishers and flows (parts.py) are opened on every new link; unacknowledged messages are sent again, unanswered
requests are repeated. A router with a lower epoch than the highest known one is refused: it was replaced, and does not
know it yet (REPL-7).
"""

from typing import Any

import msgspec

from penstock.assured.core.session.events import (
    Answered,
    Ask,
    BeginTransaction,
    Changed,
    ClosePart,
    DataReceived,
    End,
    EndTransaction,
    Event,
    Flush,
    Instruction,
    Opened,
    OpenPart,
    PartFailed,
    Refusal,
    Renew,
)
from penstock.assured.core.session.parts import FlowPart, PublisherPart
from penstock.assured.core.session.places import Places, SessionConfig
from penstock.assured.core.session.refusals import REFUSALS, error_of
from penstock.assured.core.session.transactions import PublisherTransactions
from penstock.assured.wire._frames import frames_in
from penstock.assured.wire._layout import KIND_ACKNOWLEDGE, KIND_DELIVER, PAYLOAD_SIZE_MAX
from penstock.assured.wire.control import (
    EndpointNamed,
    FlowActive,
    FlowEnded,
    FlowOpened,
    Login,
    Message,
    PublisherOpened,
    Refused,
    RenewToken,
    SteppedDown,
    Welcome,
    tell_last,
)
from penstock.base.clock import NS_PER_MS, Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.base.errors import AuthenticationError, PenstockError, RemoteProtocolError
from penstock.net.core.client_session import (
    Begin,
    ClientSession,
    Connected,
    ConnectFailed,
    LinkClosed,
    LinkLeft,
    LogIn,
    Received,
    Requests,
    Say,
    SendData,
)
from penstock.net.core.client_session import Instruction as LinkInstruction
from penstock.net.core.control import Ping, Pong


class AssuredSession:
    def __init__(self, config: SessionConfig, randomness: Randomness, counters: Counters, *, token: str = "") -> None:
        self.epoch = 0
        """The highest known epoch."""
        self.named: dict[int, EndpointNamed] = {}
        """Endpoints, by the numbers of this link's router."""
        self.places = Places(config, randomness)
        self._config = config
        self._counters = counters
        self._token = token
        self._links: ClientSession[Welcome] = ClientSession(
            self.places, REFUSALS, silence_ns=config.silence_ms * NS_PER_MS
        )
        self._parts: dict[PublisherPart | FlowPart, None] = {}
        self._publishers: dict[int, PublisherPart] = {}  # by handle
        self._flows: dict[int, FlowPart] = {}
        self._requests: Requests[PublisherPart | FlowPart | Ask] = Requests()
        """Parts that are being opened, and requests."""
        self._waiting: dict[int, Ask] = {}  # by token, until there is a link
        self._out: list[Instruction] = []
        self._transactions = PublisherTransactions(lambda each: self._out.append(each), self._requests.next_number)

    @property
    def welcome(self) -> Welcome | None:
        """Of the router whose link is in use."""
        return self._links.welcome

    @property
    def _link(self) -> int:
        """The link in use; 0: none."""
        return self._links.link

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        if not self._links.is_over:
            self._handle(event, now_ns)
        out, self._out = self._out, []
        return out

    def next_deadline_ns(self) -> int | None:
        return self._links.next_deadline_ns()

    def _handle(self, event: Event, now_ns: int) -> None:
        match event:
            case DataReceived(link, data):
                if self._links.hear(link, now_ns):
                    self._take_data(data)
            case Flush():
                self._flush()
            case Received(link, message):
                if self._links.hear(link, now_ns):
                    self._take(link, message, now_ns)
            case Ask():
                self._ask(event)
            case BeginTransaction():
                self._transactions.begin(event, self._link)
            case EndTransaction():
                self._flush()  # messages before the end are sent first
                self._transactions.end(event, self._link, self.epoch)
            case OpenPart(part):
                self._parts[part] = None
                if self._link:
                    self._open(part)
            case ClosePart(part, is_unread):
                self._close_part(part, is_unread=is_unread)
            case End():
                for part in [each for each in self._parts if isinstance(each, FlowPart)]:
                    self._close_part(part)
            case ConnectFailed():
                self._connect_failed(event, now_ns)
            case Begin() | Connected() | LinkClosed() | Tick():
                self._do(self._links.handle(event, now_ns))
            case Renew(token):
                self._token = token
                if self._link:
                    self._out.append(Say(self._link, RenewToken(token)))
            case _:
                refuse(self, event)

    # While the link is handed over (client/inline_commit.py)

    def heard(self, now_ns: int) -> None:
        """Called in the thread that uses the link: the router has answered, and need not be pinged."""
        self._links.hear_answer(now_ns)

    def idle_link(self, but: PublisherPart | None = None) -> int:
        """The link in use, if it has only idle publishers, except for one; otherwise 0."""
        is_idle = not self._requests and not self._flows and (but is None or but.is_plain)
        return self._link if is_idle and all(part.is_idle for part in self._parts if part is not but) else 0

    # Links

    def _do(self, instructions: list[LinkInstruction]) -> None:
        for each in instructions:
            match each:
                case LogIn(link):
                    config = self._config
                    self._out.append(Say(link, Login(config.name, config.role, self._token, self.epoch)))
                case LinkLeft(_, was_lost):
                    if was_lost:
                        self._counters.add("connections_closed", cause=Cause.CUT)
                    self._left()
                case _:
                    self._out.append(each)

    def _left(self) -> None:
        for part in self._parts:
            part.lose()
            if isinstance(part, PublisherPart):
                self._transactions.lose(part)
        self._publishers.clear()
        self._flows.clear()
        self.named = {}  # earlier frames are read with the earlier names
        self._waiting.update({each.token: each for each in self._requests.lose() if isinstance(each, Ask)})
        self._out.append(Changed())

    def _connect_failed(self, event: ConnectFailed, now_ns: int) -> None:
        if self._links.is_present(event.attempt) and self.places.fail(
            self._links.candidate, event.why, is_hopeless=event.is_hopeless
        ):
            self._out.append(Changed())
        if event.is_stranger and not self._links.was_welcome:
            self._do(self._links.fail(AuthenticationError(event.why)))
        else:
            self._do(self._links.handle(event, now_ns))

    # Messages of the router

    def _take(self, link: int, message: Message | Ping | Pong, now_ns: int) -> None:
        match message:
            case Ping() | Pong():
                self._do(self._links.answer(link, message, now_ns))
            case Welcome():
                self._take_welcome(link, message, now_ns)
            case Refused(number=0):
                error = error_of(message)
                self._do(self._links.refuse(link, message.code, error, now_ns, hint=message.place))
            case SteppedDown(epoch, place):
                self.epoch = max(self.epoch, epoch)
                self._do(self._links.leave(link, now_ns, hint=place))
            case FlowActive(handle):
                if (flow := self._flows.get(handle)) is not None:
                    flow.is_active = True
                    self._out.append(Changed())
            case FlowEnded(handle):
                if (flow := self._flows.pop(handle, None)) is not None:
                    self._part_failed(flow, error_of(message))
            case EndpointNamed(endpoint):
                tell_last(self.named, endpoint, message)
            case _ if number := getattr(message, "number", 0):
                self._answered(number, message)
            case _:
                self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)

    def _take_welcome(self, link: int, welcome: Welcome, now_ns: int) -> None:
        if not self._links.expects_welcome(link):
            raise RemoteProtocolError("a second welcome")
        self.places.learn(welcome.places)
        is_stale = welcome.epoch < self.epoch
        self.epoch = max(self.epoch, welcome.epoch)
        if self._config.wants_active and (is_stale or welcome.role != "active"):
            self._counters.add("connections_refused", cause=Cause.STALE_EPOCH if is_stale else Cause.REFUSED)
            self._do(self._links.leave(link, now_ns))
            return
        self._do(self._links.accept(welcome, now_ns))
        for part in self._parts:
            self._open(part)
        waiting, self._waiting = self._waiting, {}
        for ask in waiting.values():
            self._ask(ask)
        self._out.append(Changed())

    def _answered(self, number: int, message: Message) -> None:
        part = self._requests.take(number)
        if self._transactions.answered(number, message):
            self._out.append(Changed())
        elif isinstance(part, Ask):
            self._out.append(Answered(part.token, message))  # type: ignore[arg-type]
        elif isinstance(message, Refused):
            if part is not None:
                self._part_failed(part, error_of(message))
        elif isinstance(part, PublisherPart) and isinstance(message, PublisherOpened):
            part.open(message.handle, message.highest, message.transaction)
            if self.welcome is not None and self.welcome.message_bytes_max:
                part.window.payload_size_max = min(self.welcome.message_bytes_max, PAYLOAD_SIZE_MAX)
            self._transactions.reopened(part, message.transaction, self._link, self.epoch)
            self._publishers[message.handle] = part
            self._out.append(Opened(part))
            self._send(part.frames())
        elif isinstance(part, FlowPart) and isinstance(message, FlowOpened):
            part.open(message.handle, is_active=message.is_active)
            part.inbox.named = self.named
            self._flows[message.handle] = part
            self._out.append(Opened(part))
        elif part is not None:
            raise RemoteProtocolError(f"unexpected answer {type(message).__name__}")

    def _part_failed(self, part: PublisherPart | FlowPart, error: PenstockError) -> None:
        part.lose()
        self._parts.pop(part, None)
        self._out.append(PartFailed(part, error))

    def _take_data(self, data: bytes) -> None:
        refused: list[Refusal] = []
        for kind, handle, frame in frames_in(data):
            if kind == KIND_ACKNOWLEDGE:
                if (publisher := self._publishers.get(handle)) is not None:
                    runs = publisher.window.acknowledge(frame, self.named)
                    refused += [(publisher, *run) for run in runs]
            elif kind == KIND_DELIVER:
                if (flow := self._flows.get(handle)) is not None:
                    flow.inbox.feed(frame)
            else:
                raise RemoteProtocolError(f"routers must not send frames of kind {kind}")
        self._out.append(Changed(tuple(refused)))

    # Calls of the application

    def _open(self, part: PublisherPart | FlowPart) -> None:
        self._out.append(Say(self._link, part.opening(self._requests.add(part))))

    def _close_part(self, part: PublisherPart | FlowPart, *, is_unread: bool = False) -> None:
        if self._parts.pop(part, self) is self:
            return
        if self._link and part.handle:
            self._send(part.frames())
            self._out.append(Say(self._link, part.closing(self._requests.next_number(), is_unread=is_unread)))
        open_ones: dict[int, Any] = self._publishers if isinstance(part, PublisherPart) else self._flows
        open_ones.pop(part.handle, None)  # publishers and flows have separate handles
        part.lose()

    def _ask(self, ask: Ask) -> None:
        if not self._link:
            self._waiting[ask.token] = ask
            return
        number = self._requests.add(ask)
        self._out.append(Say(self._link, msgspec.structs.replace(ask.request, number=number)))

    def _flush(self) -> None:
        if self._link:
            self._send(b"".join([part.frames() for part in self._parts]))

    def _send(self, data: bytes) -> None:
        if data:
            self._out.append(SendData(self._link, data))
