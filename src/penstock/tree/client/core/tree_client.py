"""TreeClient: the link to an agent that a subscriber and a publisher keep, move and replace. It does no I/O.

One link is in use. When the agent asks the client to move, or another agent serves it better, the next link is opened
before the present one closes; when a link is lost, the table (ReactionConfig) says which agents to try.
"""

from typing import Any

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
from penstock.tree.client.core.agent_selector import AgentSelector
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
"""The error that an application gets, by the code of the refusal; RefusedError for other codes."""

FINAL_CODES = frozenset((
    "revoked", "not-entitled", "tree", "remote-protocol", "frame", "message", "publish", "publisher", "not-allowed",
    "replaced",
))  # fmt: skip
"""Refusals that another attempt would not change."""

TOKEN_CODES = frozenset({"token", "token-expired"})
"""Refusals that a newer token may change."""

PINGS_PER_SILENCE = 3
"""Pings show the agent that an idle client is alive."""


class TreeClientConfig(Config, frozen=True):
    """Name and agents of a subscriber or publisher, and its reaction to the loss of one."""

    name: Name
    agents: tuple[str, ...]
    """host:port of the agent, and of those that can take its place, in this order."""

    tree: Name = "tree"
    cls: Class = "lossless"
    on: ReactionConfig = ReactionConfig(parent_lost=("parent", "alternate", "sibling"))
    backoff: BackoffConfig = BackoffConfig()
    silence_ms: Milliseconds = 5_000
    """Silence of the agent after which the link counts as dead."""

    welcome_ms: Milliseconds = 5_000
    """How long an agent may take to answer the login."""


class TreeClient:
    """`token` is shown to every agent; renew() replaces it."""

    role: Role

    def __init__(
        self, config: TreeClientConfig, randomness: Randomness, counters: Counters, *, token: str = ""
    ) -> None:
        self.welcome: Welcome | None = None
        """Of the agent whose link is in use."""
        self.place = config.agents[0]
        self.link = 0
        """The link in use; 0: none."""
        self._config = config
        self._counters = counters
        self._token = token
        self._selector = AgentSelector(config.agents, config.backoff, randomness)
        self._home = ""
        self._attempt = 0
        self._candidate = ""
        """The place of the present attempt; empty: none is under way."""
        self._next_link = 0
        """A link that is not in use yet."""
        self._next_welcome: Welcome | None = None
        """The Welcome on that link."""
        self._retry_ns: int | None = None
        self._heard_ns = self._asked_ns = self._ping_ns = 0
        self._is_paused = self._was_welcome = False
        self._is_over = False
        self._out: list[Instruction] = []

    # For the driver

    @property
    def name(self) -> str:
        return self._config.name

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
        return [Say(link, RenewToken(token)) for link in (self.link, self._next_link) if link]

    def _take_instructions(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    # For subclasses

    def handle(self, event: Any, now_ns: int) -> list[Instruction]:
        raise NotImplementedError

    def _login(self) -> Login:
        raise NotImplementedError

    def _begin_on(self, link: int, welcome: Welcome) -> None:
        """The agent has accepted the link, which is not in use yet."""
        raise NotImplementedError

    def _link_left(self, link: int) -> None:
        """A link is closed, or about to be."""
        raise NotImplementedError

    def _message_received(self, link: int, message: Message) -> None:
        """Any message but Welcome and a refusal of the client."""
        raise NotImplementedError

    def _informed(self, link: int, info: Info) -> None:
        """A message of the infostream."""

    def _packet_received(self, link: int, packet: Packet) -> None:
        """A packet of a stream."""
        self._counters.add("packets_dropped", cause=Cause.UNEXPECTED)

    # Events

    def _handle(self, event: SharedEvent, now_ns: int) -> None:
        if self._is_over:
            return
        match event:
            case Begin():
                self._seek(self._selector.first, now_ns)
            case Connected(attempt, link, _):
                self._connected(attempt, link)
            case ConnectFailed(attempt):
                if attempt == self._attempt and self._candidate:
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
        """True while an attempt is under way; a link with a Welcome is not silent while nothing is read."""
        is_unread = self._is_paused and self._next_welcome is not None
        return bool(self._candidate) and self._retry_ns is None and not is_unread

    def _hear(self, link: int, now_ns: int) -> None:
        if link == self.link:
            self._heard_ns = now_ns

    def _tick(self, now_ns: int) -> None:
        if self._retry_ns is not None and now_ns >= self._retry_ns:
            self._retry_ns = None
            self._connect(now_ns)
        elif self._is_answer_due and now_ns >= self._asked_ns + self._config.welcome_ms * NS_PER_MS:
            self._end(self._next_link, Cause.SILENT)
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
        self._candidate = place
        if wait_ns:
            self._retry_ns = now_ns + wait_ns
        else:
            self._connect(now_ns)

    def _connect(self, now_ns: int) -> None:
        self._attempt += 1
        self._asked_ns = now_ns
        self._out.append(Connect(self._attempt, self._candidate))

    def _connected(self, attempt: int, link: int) -> None:
        if attempt != self._attempt or not self._candidate or self._next_link:
            self._out.append(Close(link, Cause.UNEXPECTED))
            return
        self._next_link = link
        self._out.append(Say(link, self._login()))

    def _give_up(self, now_ns: int) -> None:
        """The present attempt has failed: try the next agent, unless a link is in use."""
        if self._next_link:
            self._link_left(self._next_link)
        self._next_link, self._next_welcome = 0, None
        lost, self._candidate = self._candidate, ""
        if self.link:
            return
        place, wait_ns = self._selector.next(self._config.on.parent_lost, lost)
        self._seek(place, now_ns, wait_ns)

    def _closed(self, link: int, now_ns: int) -> None:
        if link == self._next_link and link:
            self._give_up(now_ns)
        elif link == self.link and link:
            self._link_left(link)
            self.link, self.welcome = 0, None
            self._counters.add("parents_lost")
            if self._next_welcome is not None:  # the next link is ready
                self._use_next(now_ns)
            elif not self._candidate:
                place, wait_ns = self._selector.next(self._config.on.parent_lost, self.place)
                self._seek(place, now_ns, wait_ns)

    def _use_next(self, now_ns: int) -> None:
        """Replace the link in use by the next link."""
        old, self.link = self.link, self._next_link
        self.welcome, self.place = self._next_welcome, self._candidate
        self._next_link, self._next_welcome, self._candidate = 0, None, ""
        self._heard_ns = now_ns
        self._selector.succeed()
        if old:
            self._link_left(old)
            self._end(old, Cause.CLOSED)

    def _end(self, link: int, cause: Cause) -> None:
        if link:
            self._out.append(Close(link, cause))

    def _move(self, place: str, now_ns: int) -> None:
        if place and place != self.place and not self._candidate:
            self._seek(place, now_ns)

    def _fail(self, error: PenstockError) -> None:
        self._is_over = True
        for link in (self.link, self._next_link):
            self._end(link, Cause.REFUSED)
        self.link = self._next_link = 0
        self._out.append(Over(error))

    # What agents say

    def _receive(self, link: int, message: Message | Ping | Pong, now_ns: int) -> None:
        if link not in (self.link, self._next_link) or not link:
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
                self._message_received(link, message)

    def _take_welcome(self, link: int, welcome: Welcome, now_ns: int) -> None:
        if link != self._next_link or self._next_welcome is not None:
            self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)
            return
        self._next_welcome, self._was_welcome = welcome, True
        if not self.link:
            self._use_next(now_ns)
            assert self.welcome is not None
        self._begin_on(link, welcome)

    def _refused(self, link: int, refusal: Refusal, now_ns: int) -> None:
        if refusal.code in FINAL_CODES or (refusal.code in TOKEN_CODES and not self._was_welcome):
            self._fail(error_of(refusal))
            return
        self._end(link, Cause.REFUSED)
        if refusal.place and link == self._next_link:
            self._link_left(link)
            self._next_link, self._next_welcome, self._candidate = 0, None, ""
            self._seek(refusal.place, now_ns)
        else:
            self._closed(link, now_ns)

    def _take_packets(self, link: int, packets: bytes, now_ns: int) -> None:
        for data in split_packets(packets):
            if self._is_over or link not in (self.link, self._next_link):
                return
            try:
                packet = decode(data)
            except PacketError as error:
                self._counters.add("packets_dropped", cause=error.cause)
                continue
            if packet.group == INFOSTREAM:
                self._inform(link, data, now_ns)
            else:
                self._packet_received(link, packet)

    def _inform(self, link: int, packet: bytes, now_ns: int) -> None:
        try:
            info = decode_info(packet).info
        except PacketError as error:
            self._counters.add("packets_dropped", cause=error.cause)
            return
        welcome = self.welcome if link == self.link else self._next_welcome
        self._out.append(Heard(welcome.agent if welcome else "", info))
        self._informed(link, info)
        if link != self.link:
            return
        match info:
            case Siblings(agents) | Alternates(agents):
                self._selector.learn([each.place for each in agents if each.place != self.place])
            case MoveTo(place) if self._config.on.move == "obey":
                assert self.welcome is not None
                self._home = self._home or self.welcome.agent
                self._move(place, now_ns)
            case ReturnTo() if self._config.on.send_back == "obey":
                self._home = ""
                self._move(self._selector.first, now_ns)
            case ParentLost():
                self._look_elsewhere(self._config.on.parent_unrooted, now_ns)
            case Stopping():
                self._look_elsewhere(self._config.on.parent_lost, now_ns)

    def _look_elsewhere(self, steps: tuple[Step, ...], now_ns: int) -> None:
        """Try another agent, while the present link is in use."""
        if steps != ("wait",):
            place, _ = self._selector.next(steps, self.place)
            self._move(place, now_ns)


def error_of(refusal: Refusal) -> PenstockError:
    kind = ERRORS.get(refusal.code)
    if kind is not None:
        return kind(refusal.reason)
    return RefusedError(f"the agent refuses: {refusal.reason}", peer_code=refusal.code)
