"""A client's link to the active router of a pair: made, kept, and made again elsewhere. No I/O.

Publishers and flows (parts.py) are opened on every new link; what was published and not acknowledged is sent again,
what was asked and not answered is asked again. A router of a lower epoch than one that was heard of is refused: it was
replaced, and does not know it yet (REPL-7).
"""

from typing import Any

import msgspec

from penstock.assured.core.session.events import (
    Answered,
    Ask,
    Begin,
    BeginTransaction,
    Changed,
    Close,
    ClosePart,
    Connect,
    Connected,
    ConnectFailed,
    DataReceived,
    End,
    EndTransaction,
    Event,
    Flush,
    Instruction,
    LinkClosed,
    Opened,
    OpenPart,
    Over,
    PartFailed,
    Received,
    Refusal,
    Renew,
    Say,
    SendData,
)
from penstock.assured.core.session.parts import FlowPart, PublisherPart
from penstock.assured.core.session.places import Places, SessionConfig
from penstock.assured.core.session.refusals import FINAL_CODES, TOKEN_CODES, error_of
from penstock.assured.core.session.transactions import Transactions
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
from penstock.net.core.control import Ping, Pong

PINGS_PER_SILENCE = 3
SHORT_LINKS_MAX = 3
"""Links in a row that were lost soon, after which there are pauses although routers bid welcome."""


class Session:
    def __init__(self, config: SessionConfig, randomness: Randomness, counters: Counters, *, token: str = "") -> None:
        self.welcome: Welcome | None = None
        """Of the router whose link is in use."""
        self.epoch = 0
        """The highest that was heard of."""
        self.named: dict[int, EndpointNamed] = {}
        """Endpoints, by the numbers of this link's router."""
        self._config = config
        self._counters = counters
        self._token = token
        self.places = Places(config, randomness)
        self._attempt = 0
        self._link = 0
        self._is_welcome = self._was_welcome = self._is_over = False
        self._place = ""  # that is sought, or in use
        self._asked_ns = self._heard_ns = self._ping_ns = self._welcome_ns = 0
        self._short_links = 0  # in a row
        self._retry_ns: int | None = None
        self._parts: dict[PublisherPart | FlowPart, None] = {}
        self._publishers: dict[int, PublisherPart] = {}  # by handle
        self._flows: dict[int, FlowPart] = {}
        self._number = 0
        self._opening: dict[int, PublisherPart | FlowPart] = {}  # by number of the request
        self._asked: dict[int, Ask] = {}
        self._waiting: dict[int, Ask] = {}  # by token, until there is a link
        self._out: list[Instruction] = []
        self._transactions = Transactions(lambda each: self._out.append(each), self._next_number)

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        if not self._is_over:
            self._handle(event, now_ns)
        out, self._out = self._out, []
        return out

    def next_deadline_ns(self) -> int | None:
        if self._is_over:
            return None
        if self._retry_ns is not None:
            return self._retry_ns
        if self._is_welcome:
            return min(self._ping_ns, self._heard_ns + self._config.silence_ms * NS_PER_MS)
        return self._asked_ns + self.places.patience_ns if self._attempt else None

    def _handle(self, event: Event, now_ns: int) -> None:
        match event:
            case DataReceived(link, data):
                if link == self._link:
                    self._heard_ns = now_ns
                    self._take_data(data)
            case Flush():
                self._flush()
            case Received(link, message):
                if link == self._link:
                    self._heard_ns = now_ns
                    self._take(message, now_ns)
            case Ask():
                self._ask(event)
            case BeginTransaction():
                self._transactions.begin(event, self._link)
            case EndTransaction():
                self._flush()  # what it ends is sent before
                self._transactions.end(event, self._link, self.epoch)
            case OpenPart(part):
                self._parts[part] = None
                if self._is_welcome:
                    self._open(part)
            case ClosePart(part, is_unread):
                self._close_part(part, is_unread=is_unread)
            case End():
                for part in [each for each in self._parts if isinstance(each, FlowPart)]:
                    self._close_part(part)
            case Begin():
                self._seek(now_ns)
            case Connected(attempt, link):
                self._connected(attempt, link)
            case ConnectFailed(attempt, why, is_stranger):
                if attempt == self._attempt and self.places.fail(self._place, why, is_hopeless=event.is_hopeless):
                    self._out.append(Changed())
                if is_stranger and not self._was_welcome:
                    self._fail(AuthenticationError(why))
                elif attempt == self._attempt and not self._link:
                    self._seek(now_ns)
            case LinkClosed(link):
                if link == self._link and link:
                    self._lost(now_ns)
            case Renew(token):
                self._token = token
                if self._is_welcome:
                    self._out.append(Say(self._link, RenewToken(token)))
            case Tick():
                self._tick(now_ns)
            case _:
                refuse(self, event)

    def _tick(self, now_ns: int) -> None:
        silence_ns = self._config.silence_ms * NS_PER_MS
        if self._retry_ns is not None:
            if now_ns >= self._retry_ns:
                self._retry_ns = None
                self._connect(now_ns)
        elif not self._is_welcome:
            if now_ns >= self._asked_ns + self.places.patience_ns:
                self.places.pass_over()
                self._leave(now_ns)
        elif now_ns >= self._heard_ns + silence_ns:
            self.places.pass_over()
            self._leave(now_ns)
        elif now_ns >= self._ping_ns:
            self._ping_ns = now_ns + silence_ns // PINGS_PER_SILENCE
            self._out.append(Say(self._link, Ping(now_ns)))

    # While the link is handed over (client/inline_commit.py)

    def heard(self, now_ns: int) -> None:
        """In the thread that has it: the router has answered, and need not be asked whether it lives."""
        self._heard_ns = now_ns
        self._ping_ns = now_ns + self._config.silence_ms * NS_PER_MS // PINGS_PER_SILENCE

    @property
    def idle_link(self) -> int:
        """The link in use, if there are only publishers on it that wait for nothing; else 0."""
        is_idle = self._is_welcome and not (self._asked or self._opening or self._flows)
        return self._link if is_idle and all(part.is_idle for part in self._parts) else 0

    # Links

    def _seek(self, now_ns: int, hint: str = "") -> None:
        self._place, wait_ns = self.places.next(hint)
        if wait_ns:
            self._retry_ns = now_ns + wait_ns
        else:
            self._connect(now_ns)

    def _connect(self, now_ns: int) -> None:
        self._attempt += 1
        self._asked_ns = now_ns
        self._out.append(Connect(self._attempt, self._place))

    def _connected(self, attempt: int, link: int) -> None:
        if attempt != self._attempt or self._link:
            self._out.append(Close(link))
            return
        self._link = link
        self._out.append(Say(link, Login(self._config.name, self._config.role, self._token, self.epoch)))

    def _leave(self, now_ns: int, place: str = "") -> None:
        """Give up the present link, or attempt."""
        if self._link:
            self._out.append(Close(self._link))
            self._lost(now_ns, place)
        else:
            self._attempt += 1  # what comes of the present one is too late
            self._seek(now_ns, place)

    def _lost(self, now_ns: int, place: str = "") -> None:
        self._link = 0
        if self._is_welcome:
            is_short = now_ns - self._welcome_ns < self._config.backoff_ms_max * NS_PER_MS
            self._short_links = self._short_links + 1 if is_short else 0
            self._counters.add("connections_closed", cause=Cause.CUT)
        self._is_welcome, self.welcome = False, None
        for part in self._parts:
            part.lose()
            if isinstance(part, PublisherPart):
                self._transactions.lose(part)
        self._publishers.clear()
        self._flows.clear()
        self.named = {}  # what came before is read by the names of before
        self._opening.clear()
        self._waiting.update({ask.token: ask for ask in self._asked.values()})
        self._asked.clear()
        self._out.append(Changed())
        self._seek(now_ns, place)

    def _fail(self, error: PenstockError) -> None:
        self._is_over = True
        if self._link:
            self._out.append(Close(self._link))
        self._out.append(Over(error))

    # What the router says

    def _take(self, message: Message | Ping | Pong, now_ns: int) -> None:
        match message:
            case Ping(t1):
                self._out.append(Say(self._link, Pong(t1, now_ns, now_ns)))
            case Pong():
                pass
            case Welcome():
                self._take_welcome(message, now_ns)
            case Refused(number=0):
                self._refused(message, now_ns)
            case SteppedDown(epoch, place):
                self.epoch = max(self.epoch, epoch)
                self._leave(now_ns, place)
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

    def _take_welcome(self, welcome: Welcome, now_ns: int) -> None:
        if self._is_welcome:
            raise RemoteProtocolError("a second welcome")
        self.places.learn(welcome.places)
        is_stale = welcome.epoch < self.epoch
        self.epoch = max(self.epoch, welcome.epoch)
        if self._config.wants_active and (is_stale or welcome.role != "active"):
            self._counters.add("connections_refused", cause=Cause.STALE_EPOCH if is_stale else Cause.REFUSED)
            self._leave(now_ns)
            return
        self.welcome = welcome
        self._is_welcome = self._was_welcome = True
        self._welcome_ns = now_ns
        if self._short_links < SHORT_LINKS_MAX:
            self.places.succeed()
        self._ping_ns = now_ns + self._config.silence_ms * NS_PER_MS // PINGS_PER_SILENCE
        for part in self._parts:
            self._open(part)
        waiting, self._waiting = self._waiting, {}
        for ask in waiting.values():
            self._ask(ask)
        self._out.append(Changed())

    def _refused(self, refusal: Refused, now_ns: int) -> None:
        if refusal.code in FINAL_CODES or (refusal.code in TOKEN_CODES and not self._was_welcome):
            self._fail(error_of(refusal))
        else:
            self._leave(now_ns, refusal.place)

    def _answered(self, number: int, message: Message) -> None:
        part = self._opening.pop(number, None)
        ask = self._asked.pop(number, None)
        if self._transactions.answered(number, message):
            self._out.append(Changed())
        elif ask is not None:
            self._out.append(Answered(ask.token, message))  # type: ignore[arg-type]
        elif isinstance(message, Refused):
            if part is not None:
                self._part_failed(part, error_of(message))
        elif isinstance(part, PublisherPart) and isinstance(message, PublisherOpened):
            part.open(message.handle, message.highest, message.transaction)
            if self.welcome is not None and self.welcome.message_bytes_max:
                part.outbox.payload_size_max = min(self.welcome.message_bytes_max, PAYLOAD_SIZE_MAX)
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
            raise RemoteProtocolError(f"a {type(message).__name__} for what was asked")

    def _part_failed(self, part: PublisherPart | FlowPart, error: PenstockError) -> None:
        part.lose()
        self._parts.pop(part, None)
        self._out.append(PartFailed(part, error))

    def _take_data(self, data: bytes) -> None:
        refused: list[Refusal] = []
        for kind, handle, frame in frames_in(data):
            if kind == KIND_ACKNOWLEDGE:
                if (publisher := self._publishers.get(handle)) is not None:
                    runs = publisher.outbox.acknowledge(frame, self.named)
                    refused += [(publisher, *run) for run in runs]
            elif kind == KIND_DELIVER:
                if (flow := self._flows.get(handle)) is not None:
                    flow.inbox.feed(frame)
            else:
                raise RemoteProtocolError(f"a frame of kind {kind}, which no router sends")
        self._out.append(Changed(tuple(refused)))

    # What the application wants

    def _next_number(self) -> int:
        self._number = self._number % (2**32 - 1) + 1
        return self._number

    def _open(self, part: PublisherPart | FlowPart) -> None:
        number = self._next_number()
        self._opening[number] = part
        self._out.append(Say(self._link, part.opening(number)))

    def _close_part(self, part: PublisherPart | FlowPart, *, is_unread: bool = False) -> None:
        if self._parts.pop(part, self) is self:
            return
        if self._is_welcome and part.handle:
            self._send(part.frames())
            self._out.append(Say(self._link, part.closing(self._next_number(), is_unread=is_unread)))
        open_ones: dict[int, Any] = self._publishers if isinstance(part, PublisherPart) else self._flows
        open_ones.pop(part.handle, None)  # publishers and flows have handles of their own
        part.lose()

    def _ask(self, ask: Ask) -> None:
        if not self._is_welcome:
            self._waiting[ask.token] = ask
            return
        number = self._next_number()
        self._asked[number] = ask
        self._out.append(Say(self._link, msgspec.structs.replace(ask.request, number=number)))

    def _flush(self) -> None:
        if self._is_welcome:
            self._send(b"".join([part.frames() for part in self._parts]))

    def _send(self, data: bytes) -> None:
        if data:
            self._out.append(SendData(self._link, data))
