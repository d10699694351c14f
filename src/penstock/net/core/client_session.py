"""ClientSession: keeps a client linked to one of several servers, without I/O.

           Begin                    Connected              accept()                   leave(), LinkClosed, silence
    idle ────────► CONNECTING ────────────► LOGGING IN ────────────► IN USE ────────────────────────────────┐
                    ▲   ▲  │                    │                                                           │
                    │   │  └── ConnectFailed, ──┴─ refuse(), leave(), LinkClosed, no answer ──► next address ◄┘
                    │   └───────────────────────────────────────────────────────────────── at once ──┤
                    └──────────────────────────────────────────────────────── WAITING ◄── back-off ──┘

    any ── a final refusal, fail() ──► over

While one link is in use, move() establishes the next one (connecting, logging in), and use_next() changes to it, so
there may be one of each. The protocol's part (addresses, the content of a login, and whether its answer is acceptable)
belongs to the core that owns the ClientSession. It passes link events to handle(), and carries out or passes on the
returned instructions.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from penstock.base.core import Tick, refuse
from penstock.base.errors import PenstockError
from penstock.net.core.control import Ping, Pong
from penstock.net.core.heartbeat import Heartbeat
from penstock.net.core.refusal_errors import RefusalErrors

PINGS_PER_SILENCE = 3
"""Number of pings per silence interval. Pings show the server that an idle client is alive, and the reverse."""

U32_MAX = 2**32 - 1

# Events


class Begin(msgspec.Struct, frozen=True):
    """Start to connect."""


class Connected(msgspec.Struct, frozen=True):
    """The handshake requested by Connect is complete."""

    attempt: int
    link: int


class ConnectFailed(msgspec.Struct, frozen=True):
    attempt: int
    why: str = ""
    is_stranger: bool = False
    """The two sides have different secrets."""

    is_hopeless: bool = False
    """The host name is unknown, or the configuration does not allow this connection."""


class LinkClosed(msgspec.Struct, frozen=True):
    link: int
    why: str = ""


class Received(msgspec.Struct, frozen=True):
    """A control message arrived on a link."""

    link: int
    message: Any


LinkEvent: TypeAlias = Begin | Connected | ConnectFailed | LinkClosed | Tick

# Instructions


class Connect(msgspec.Struct, frozen=True):
    attempt: int
    place: str


class LogIn(msgspec.Struct, frozen=True):
    """Send the login on this link. The core then calls accept(), refuse() or leave(), depending on the answer."""

    link: int


class Say(msgspec.Struct, frozen=True):
    """Send a control message on a link."""

    link: int
    message: Any


class SendData(msgspec.Struct, frozen=True):
    """Send complete data frames on a link."""

    link: int
    data: bytes


class Close(msgspec.Struct, frozen=True):
    link: int


class LinkLeft(msgspec.Struct, frozen=True):
    """Requests on this link will not be answered. The link is closed, or about to be."""

    link: int
    was_lost: bool
    """True if the link was in use and no other link has replaced it."""


class Over(msgspec.Struct, frozen=True):
    """No server will accept this client."""

    error: PenstockError


Instruction: TypeAlias = Connect | LogIn | Say | Close | LinkLeft | Over


class Addresses(Protocol):
    """Chooses the next server and the back-off before the attempt."""

    def first(self) -> tuple[str, int]:
        """Return the first address, and the nanoseconds to wait before the attempt."""
        ...

    def next(self, lost: str, hint: str) -> tuple[str, int]:
        """Return the next address and wait after a link or attempt was lost. `hint` is the address that the server
        named, if any."""
        ...

    @property
    def answer_ns(self) -> int:
        """Time limit from the attempt until the answer to the login."""
        ...

    def pass_over(self) -> None:
        """The last address did not answer."""

    def succeed(self, now_ns: int) -> None:
        """The last address is in use."""

    def lose(self, now_ns: int) -> None:
        """The link in use was lost."""


W = TypeVar("W")


class ClientSession(Generic[W]):
    """W is the message with which a server accepts the login."""

    def __init__(self, addresses: Addresses, refusals: RefusalErrors, *, silence_ns: int) -> None:
        self.link = 0
        """The link in use; 0: none."""
        self.welcome: W | None = None
        """The answer to the login on that link."""
        self.place = ""
        """The address of that link, or of the last one."""
        self.next_link = 0
        """The link that is being established, not in use yet."""
        self.next_welcome: W | None = None
        """The answer to the login on the next link."""
        self.candidate = ""
        """The address of the next link, or of the current attempt; empty: none."""
        self.was_welcome = False
        """True if a server has accepted the client once, so that its name and secret are right."""
        self.is_over = False
        self._addresses = addresses
        self._refusals = refusals
        self._silence_ns = silence_ns
        self._heartbeat: Heartbeat | None = None
        self._attempt = 0
        self._asked_ns = 0
        self._retry_ns: int | None = None
        self._is_paused = False
        self._out: list[Instruction] = []

    # Events

    def handle(self, event: LinkEvent, now_ns: int) -> list[Instruction]:
        if self.is_over:
            return []
        match event:
            case Begin():
                self._seek(self._addresses.first(), now_ns)
            case Connected(attempt, link):
                self._connected(attempt, link)
            case ConnectFailed(attempt):
                if self.is_present(attempt):
                    self._give_up(now_ns)
            case LinkClosed(link):
                self._closed(link, now_ns)
            case Tick():
                self._tick(now_ns)
            case _:
                refuse(self, event)
        return self._take_instructions()

    def next_deadline_ns(self) -> int | None:
        if self.is_over:
            return None
        due = [self._retry_ns, None if self._heartbeat is None else self._heartbeat.next_deadline_ns()]
        if self._is_answer_due:
            due.append(self._asked_ns + self._addresses.answer_ns)
        return min((each for each in due if each is not None), default=None)

    def is_present(self, attempt: int) -> bool:
        """False for an attempt that was abandoned or has led to a link."""
        return attempt == self._attempt and bool(self.candidate) and self._retry_ns is None and not self.next_link

    def hear(self, link: int, now_ns: int) -> bool:
        """Note data on a link. Return False for a link that was left, whose data is ignored."""
        if link == self.link and self._heartbeat is not None:
            if not self._is_paused:
                self._heartbeat.heard(now_ns)
            return True
        return link == self.next_link and link != 0

    def hear_answer(self, now_ns: int) -> None:
        """The server has answered a request on the link in use, so the next ping can wait."""
        if self._heartbeat is not None:
            self._heartbeat.heard(now_ns)
            self._heartbeat.postpone_ping(now_ns)

    def answer(self, link: int, message: Ping | Pong, now_ns: int) -> list[Instruction]:
        return [Say(link, Pong(message.t1, now_ns, now_ns))] if isinstance(message, Ping) else []

    def pause(self) -> None:
        """Stop reading from the link in use, and from the next link after its welcome: silence is not a failure now."""
        self._is_paused = True
        if self._heartbeat is not None:
            self._heartbeat.pause()

    def resume(self, now_ns: int) -> None:
        self._is_paused = False
        self._asked_ns = now_ns
        if self._heartbeat is not None:
            self._heartbeat.heard(now_ns)

    # Answers of the server to the login

    def expects_welcome(self, link: int) -> bool:
        return link == self.next_link and link != 0 and self.next_welcome is None

    def accept(self, welcome: W, now_ns: int) -> list[Instruction]:
        """The server has accepted the login on the next link, which is used at once if no other link is in use."""
        self.next_welcome, self.was_welcome = welcome, True
        return [] if self.link else self.use_next(now_ns)

    def use_next(self, now_ns: int) -> list[Instruction]:
        """Replace the link in use by the next one."""
        self._use_next(now_ns)
        return self._take_instructions()

    def refuse(self, link: int, code: str, error: PenstockError, now_ns: int, *, hint: str = "") -> list[Instruction]:
        """The server refuses this client; `hint` is the address to try instead."""
        if self._refusals.is_final(code, was_welcome=self.was_welcome):
            return self.fail(error)
        return self.leave(link, now_ns, hint=hint)

    def leave(self, link: int, now_ns: int, *, hint: str = "") -> list[Instruction]:
        """Close the link and try another server."""
        self._end(link)
        self._closed(link, now_ns, hint)
        return self._take_instructions()

    def move(self, place: str, now_ns: int) -> list[Instruction]:
        """Establish a link to another server while the current one is in use, unless that is already in progress."""
        if place and place != self.place and not self.candidate:
            self._seek((place, 0), now_ns)
        return self._take_instructions()

    def fail(self, error: PenstockError) -> list[Instruction]:
        """End the session with this error."""
        self.is_over = True
        self._end(self.link)
        self._end(self.next_link)
        self.link = self.next_link = 0
        self._heartbeat = None
        self._out.append(Over(error))
        return self._take_instructions()

    # Internals

    def _take_instructions(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    @property
    def _is_answer_due(self) -> bool:
        is_unread = self._is_paused and self.next_welcome is not None
        return bool(self.candidate) and self._retry_ns is None and not is_unread

    def _tick(self, now_ns: int) -> None:
        if self._retry_ns is not None:
            if now_ns >= self._retry_ns:
                self._retry_ns = None
                self._connect(now_ns)
        elif self._is_answer_due and now_ns >= self._asked_ns + self._addresses.answer_ns:
            self._addresses.pass_over()
            self._end(self.next_link)
            self._give_up(now_ns)
        if self._heartbeat is None:
            return
        if self._heartbeat.is_silent(now_ns):
            self._addresses.pass_over()
            self._end(self.link)
            self._closed(self.link, now_ns)
        elif self._heartbeat.take_ping(now_ns):
            self._out.append(Say(self.link, Ping(now_ns)))

    def _seek(self, address: tuple[str, int], now_ns: int) -> None:
        self.candidate, wait_ns = address
        if wait_ns:
            self._retry_ns = now_ns + wait_ns
        else:
            self._retry_ns = None
            self._connect(now_ns)

    def _connect(self, now_ns: int) -> None:
        self._attempt += 1
        self._asked_ns = now_ns
        self._out.append(Connect(self._attempt, self.candidate))

    def _connected(self, attempt: int, link: int) -> None:
        if not self.is_present(attempt):
            self._end(link)
            return
        self.next_link = link
        self._out.append(LogIn(link))

    def _give_up(self, now_ns: int, hint: str = "") -> None:
        """The current attempt has failed: try the next address, unless a link is in use."""
        if self.next_link:
            self._out.append(LinkLeft(self.next_link, was_lost=False))
        self.next_link, self.next_welcome = 0, None
        failed, self.candidate = self.candidate, ""
        if hint or not self.link:
            self._seek(self._addresses.next(failed, hint), now_ns)

    def _closed(self, link: int, now_ns: int, hint: str = "") -> None:
        if link == self.next_link and link:
            self._give_up(now_ns, hint)
        elif link == self.link and link:
            self.link, self.welcome, self._heartbeat = 0, None, None
            self._addresses.lose(now_ns)
            self._out.append(LinkLeft(link, was_lost=True))
            if self.next_welcome is not None:
                self._use_next(now_ns)
            elif not self.candidate:
                self._seek(self._addresses.next(self.place, hint), now_ns)

    def _use_next(self, now_ns: int) -> None:
        old, self.link = self.link, self.next_link
        self.welcome, self.place = self.next_welcome, self.candidate
        self.next_link, self.next_welcome, self.candidate = 0, None, ""
        ping_ns = self._silence_ns // PINGS_PER_SILENCE
        self._heartbeat = Heartbeat(now_ns, ping_ns=ping_ns, silence_ns=self._silence_ns, forgives_suspension=False)
        self._heartbeat.postpone_ping(now_ns)
        if self._is_paused:
            self._heartbeat.pause()
        self._addresses.succeed(now_ns)
        if old:
            self._out.append(LinkLeft(old, was_lost=False))
            self._end(old)

    def _end(self, link: int) -> None:
        if link:
            self._out.append(Close(link))


class RequestNumbers:
    """Numbers of requests: from 1 to 2**32 - 1, and then from 1 again, without those for which `is_used` is true."""

    def __init__(self, is_used: Callable[[int], bool]) -> None:
        self._is_used = is_used
        self._last = 0

    def next(self) -> int:
        while True:
            self._last = self._last % U32_MAX + 1
            if not self._is_used(self._last):
                return self._last


R = TypeVar("R")


class Requests(Generic[R]):
    """A client's unanswered requests, by number. Numbers of waiting requests are skipped, and those for which `is_used`
    is true."""

    def __init__(self, is_used: Callable[[int], bool] | None = None) -> None:
        self._waiting: dict[int, R] = {}
        self._numbers = RequestNumbers(lambda number: number in self._waiting or bool(is_used and is_used(number)))

    def __len__(self) -> int:
        return len(self._waiting)

    def next_number(self) -> int:
        return self._numbers.next()

    def add(self, request: R) -> int:
        """Add a request and return its number."""
        number = self.next_number()
        self._waiting[number] = request
        return number

    def take(self, number: int) -> R | None:
        """Remove and return the request of this number, if there is one."""
        return self._waiting.pop(number, None)

    def lose(self) -> list[R]:
        """The link is lost: return the requests to repeat on the next link, in order."""
        lost, self._waiting = list(self._waiting.values()), {}
        return lost
