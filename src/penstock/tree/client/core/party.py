"""What a subscriber and a publisher have in common: a link to an agent, made, kept, moved and made again. No I/O.

One link is in use. When the agent asks the party to move, or it is better off elsewhere, the next link is made before
the present one ends; when a link is lost, the table (ReactionConfig) says where to look.
"""

from penstock.base.clock import NS_PER_MS, Randomness
from penstock.base.config import Config
from penstock.base.core import Tick
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    FilterExpressionError,
    LimitError,
    NotEntitledError,
    PacketError,
    PenstockError,
    RefusedError,
    RevokedError,
    TokenError,
    TokenExpiredError,
    TopicError,
)
from penstock.net.core.control import Name, Ping, Pong
from penstock.tree.client.core.events import (
    Begin,
    BlockReceived,
    Heard,
    Instruction,
    Over,
    Received,
    Say,
    SharedEvent,
)
from penstock.tree.client.core.places import Places
from penstock.tree.config import BackoffConfig, Milliseconds, ReactionConfig, Step
from penstock.tree.core.control import Class, Login, Message, RenewToken, Role, Welcome
from penstock.tree.core.control import Refused as Refusal
from penstock.tree.core.events import Close, Connect, Connected, ConnectFailed, LinkClosed
from penstock.tree.core.infostream import STREAM as INFOSTREAM
from penstock.tree.core.infostream import (
    Alternates,
    Info,
    MoveTo,
    ParentLost,
    ReturnTo,
    Siblings,
    Stopping,
    decode_info,
)
from penstock.tree.core.kernel._frame import split_packets
from penstock.wire import Packet, decode

_KINDS: tuple[type[PenstockError], ...] = (
    FilterExpressionError, LimitError, NotEntitledError, RevokedError, TokenError, TokenExpiredError, TopicError
)  # fmt: skip
ERRORS = {kind.code: kind for kind in _KINDS}
"""What refusals are to an application, by their codes; others are RefusedError."""

FINAL_CODES = frozenset((
    "revoked", "not-entitled", "tree", "remote-protocol", "frame", "message", "publish", "publisher", "not-allowed",
    "replaced",
))  # fmt: skip
"""Refusals that another attempt would not change."""

TOKEN_CODES = frozenset({"token", "token-expired"})
"""Those that a newer token may change."""

PINGS_PER_SILENCE = 3
"""A party that has nothing to say shows by these that it lives."""


class PartyConfig(Config, frozen=True):
    """Of a subscriber or publisher: who it is, where its agents are, and what it does when it loses one."""

    name: Name
    agents: tuple[str, ...]
    """host:port of the agent, and of those that can take its place, in this order."""

    tree: Name = "tree"
    cls: Class = "lossless"
    on: ReactionConfig = ReactionConfig(parent_lost=("parent", "alternate", "sibling"))
    backoff: BackoffConfig = BackoffConfig()
    silence_ms: Milliseconds = 5_000
    """Silence of the agent after which it is taken for dead."""

    welcome_ms: Milliseconds = 5_000
    """How long an agent may take to answer the login."""


class Party:
    """`token` is shown to every agent; a newer one by renew()."""

    role: Role

    def __init__(self, config: PartyConfig, randomness: Randomness, counters: Counters, *, token: str = "") -> None:
        self.welcome: Welcome | None = None
        """Of the agent whose link is in use."""
        self.place = config.agents[0]
        self.link = 0
        """The link in use; 0: none."""
        self._config = config
        self._counters = counters
        self._token = token
        self._places = Places(config.agents, config.backoff, randomness)
        self._home = ""
        self._attempt = 0
        self._sought = ""  # the place of the present attempt
        self._next = 0  # a link that is not in use yet
        self._welcomed: Welcome | None = None  # on that link
        self._retry_ns: int | None = None
        self._heard_ns = self._asked_ns = self._ping_ns = 0
        self._is_paused = self._was_welcome = False
        self._is_over = False
        self._out: list[Instruction] = []

    # For its driver

    def next_deadline_ns(self) -> int | None:
        if self._is_over:
            return None
        due = [self._retry_ns, self._ping_ns if self.link else None]
        if self.link and not self._is_paused:
            due.append(self._heard_ns + self._config.silence_ms * NS_PER_MS)
        if self._is_answer_due:
            due.append(self._asked_ns + self._config.welcome_ms * NS_PER_MS)
        return min((each for each in due if each is not None), default=None)

    def renew(self, token: str) -> list[Instruction]:
        """A newer token, for this agent and the next."""
        self._token = token
        return [Say(link, RenewToken(token)) for link in (self.link, self._next) if link]

    def _take(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    # What subclasses do

    def _login(self) -> Login:
        raise NotImplementedError

    def _begin_on(self, link: int, welcome: Welcome) -> None:
        """A link is welcome, and not in use yet."""
        raise NotImplementedError

    def _left(self, link: int) -> None:
        """A link is gone, or given up."""
        raise NotImplementedError

    def _said(self, link: int, message: Message) -> None:
        """Anything but Welcome and refusals of the party."""
        raise NotImplementedError

    def _told(self, link: int, info: Info) -> None:
        """On the infostream."""

    def _brought(self, link: int, packet: Packet) -> None:
        """A packet of a stream."""
        self._counters.add("packets_dropped", cause=Cause.UNEXPECTED)

    # Events that both have

    def _handle(self, event: SharedEvent, now_ns: int) -> None:
        if self._is_over:
            return
        match event:
            case Begin():
                self._seek(self._places.first, now_ns)
            case Connected(attempt, link, _):
                self._connected(attempt, link)
            case ConnectFailed(attempt):
                if attempt == self._attempt and self._sought:
                    self._give_up(now_ns)
            case LinkClosed(link):
                self._closed(link, now_ns)
            case Received(link, message):
                self._hear(link, now_ns)
                self._receive(link, message, now_ns)
            case BlockReceived(link, _, packets):
                self._hear(link, now_ns)
                self._take_packets(link, packets, now_ns)
            case Tick():
                self._tick(now_ns)

    @property
    def _is_answer_due(self) -> bool:
        """Whether an attempt is under way; while nothing is read, a link that was welcome is not silent."""
        is_unread = self._is_paused and self._welcomed is not None
        return bool(self._sought) and self._retry_ns is None and not is_unread

    def _hear(self, link: int, now_ns: int) -> None:
        if link == self.link:
            self._heard_ns = now_ns

    def _tick(self, now_ns: int) -> None:
        if self._retry_ns is not None and now_ns >= self._retry_ns:
            self._retry_ns = None
            self._connect(now_ns)
        elif self._is_answer_due and now_ns >= self._asked_ns + self._config.welcome_ms * NS_PER_MS:
            self._end(self._next, Cause.SILENT)
            self._give_up(now_ns)
        silence_ns = self._config.silence_ms * NS_PER_MS
        if self.link and now_ns >= self._ping_ns:
            self._ping_ns = now_ns + silence_ns // PINGS_PER_SILENCE
            self._out.append(Say(self.link, Ping(now_ns)))
        if self.link and not self._is_paused and now_ns >= self._heard_ns + silence_ns:
            self._end(self.link, Cause.SILENT)
            self._closed(self.link, now_ns)

    # Links

    def _seek(self, place: str, now_ns: int, wait_ns: int = 0) -> None:
        self._sought = place
        if wait_ns:
            self._retry_ns = now_ns + wait_ns
        else:
            self._connect(now_ns)

    def _connect(self, now_ns: int) -> None:
        self._attempt += 1
        self._asked_ns = now_ns
        self._out.append(Connect(self._attempt, self._sought))

    def _connected(self, attempt: int, link: int) -> None:
        if attempt != self._attempt or not self._sought or self._next:
            self._out.append(Close(link, Cause.UNEXPECTED))
            return
        self._next = link
        self._out.append(Say(link, self._login()))

    def _give_up(self, now_ns: int) -> None:
        """The present attempt has failed: try elsewhere, unless there is a link."""
        if self._next:
            self._left(self._next)
        self._next, self._welcomed = 0, None
        lost, self._sought = self._sought, ""
        if self.link:
            return
        place, wait_ns = self._places.next(self._config.on.parent_lost, lost)
        self._seek(place, now_ns, wait_ns)

    def _closed(self, link: int, now_ns: int) -> None:
        if link == self._next and link:
            self._give_up(now_ns)
        elif link == self.link and link:
            self._left(link)
            self.link, self.welcome = 0, None
            self._counters.add("parents_lost")
            if self._welcomed is not None:  # what was to be the next one is there
                self._use_next(now_ns)
            elif not self._sought:
                place, wait_ns = self._places.next(self._config.on.parent_lost, self.place)
                self._seek(place, now_ns, wait_ns)

    def _use_next(self, now_ns: int) -> None:
        """From now on the next link is the one in use."""
        old, self.link = self.link, self._next
        self.welcome, self.place = self._welcomed, self._sought
        self._next, self._welcomed, self._sought = 0, None, ""
        self._heard_ns = now_ns
        self._places.succeed()
        if old:
            self._left(old)
            self._end(old, Cause.CLOSED)

    def _end(self, link: int, cause: Cause) -> None:
        if link:
            self._out.append(Close(link, cause))

    def _move(self, place: str, now_ns: int) -> None:
        if place and place != self.place and not self._sought:
            self._seek(place, now_ns)

    def _fail(self, error: PenstockError) -> None:
        self._is_over = True
        for link in (self.link, self._next):
            self._end(link, Cause.REFUSED)
        self.link = self._next = 0
        self._out.append(Over(error))

    # What agents say

    def _receive(self, link: int, message: Message | Ping | Pong, now_ns: int) -> None:
        if link not in (self.link, self._next) or not link:
            return
        match message:
            case Ping(t1):
                self._out.append(Say(link, Pong(t1, now_ns, now_ns)))
            case Pong():
                pass
            case Welcome():
                self._take_welcome(link, message, now_ns)
            case Refusal(number=0):
                self._refused(link, message, now_ns)
            case _:
                self._said(link, message)

    def _take_welcome(self, link: int, welcome: Welcome, now_ns: int) -> None:
        if link != self._next or self._welcomed is not None:
            self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)
            return
        self._welcomed, self._was_welcome = welcome, True
        if not self.link:
            self._use_next(now_ns)
            assert self.welcome is not None
        self._begin_on(link, welcome)

    def _refused(self, link: int, refusal: Refusal, now_ns: int) -> None:
        if refusal.code in FINAL_CODES or (refusal.code in TOKEN_CODES and not self._was_welcome):
            self._fail(error_of(refusal))
            return
        self._end(link, Cause.REFUSED)
        if refusal.place and link == self._next:
            self._left(link)
            self._next, self._welcomed, self._sought = 0, None, ""
            self._seek(refusal.place, now_ns)
        else:
            self._closed(link, now_ns)

    def _take_packets(self, link: int, packets: bytes, now_ns: int) -> None:
        for data in split_packets(packets):
            if self._is_over or link not in (self.link, self._next):
                return
            try:
                packet = decode(data)
            except PacketError as error:
                self._counters.add("packets_dropped", cause=error.cause)
                continue
            if packet.group == INFOSTREAM:
                self._inform(link, data, now_ns)
            else:
                self._brought(link, packet)

    def _inform(self, link: int, packet: bytes, now_ns: int) -> None:
        try:
            info = decode_info(packet).info
        except PacketError as error:
            self._counters.add("packets_dropped", cause=error.cause)
            return
        welcome = self.welcome if link == self.link else self._welcomed
        self._out.append(Heard(welcome.agent if welcome else "", info))
        self._told(link, info)
        if link != self.link:
            return
        match info:
            case Siblings(agents) | Alternates(agents):
                self._places.learn([each.place for each in agents if each.place != self.place])
            case MoveTo(place) if self._config.on.move == "obey":
                assert self.welcome is not None
                self._home = self._home or self.welcome.agent
                self._move(place, now_ns)
            case ReturnTo() if self._config.on.send_back == "obey":
                self._home = ""
                self._move(self._places.first, now_ns)
            case ParentLost():
                self._look_elsewhere(self._config.on.parent_unrooted, now_ns)
            case Stopping():
                self._look_elsewhere(self._config.on.parent_lost, now_ns)

    def _look_elsewhere(self, steps: tuple[Step, ...], now_ns: int) -> None:
        """While the present link is there."""
        if steps != ("wait",):
            place, _ = self._places.next(steps, self.place)
            self._move(place, now_ns)


def error_of(refusal: Refusal) -> PenstockError:
    kind = ERRORS.get(refusal.code)
    if kind is not None:
        return kind(refusal.reason)
    return RefusedError(f"the agent refuses: {refusal.reason}", peer_code=refusal.code)
