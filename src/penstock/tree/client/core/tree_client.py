"""TreeClient: the link to an agent that a subscriber and a publisher keep, move and replace. It does no I/O.

One link is in use (net/core/client_session.py). When the agent asks the client to move, or another agent serves it
better, the next link is opened before the present one closes; when a link is lost, the table (ReactionConfig) says
which agents to try.
"""

from typing import Any

from penstock.base.clock import NS_PER_MS, Randomness
from penstock.base.config import Config
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    FilterExpressionError,
    LimitError,
    NotEntitledError,
    PacketError,
    PenstockError,
    RevokedError,
    TokenError,
    TokenExpiredError,
    TopicError,
)
from penstock.net.core.client_session import ClientSession, LinkLeft, LogIn, Received, Say
from penstock.net.core.client_session import Instruction as LinkInstruction
from penstock.net.core.control import Name, Ping, Pong
from penstock.net.core.refusal_errors import RefusalErrors, by_code
from penstock.tree.client.core.agent_selector import AgentSelector
from penstock.tree.client.core.events import BlockReceived, InfoHeard, Instruction, SharedEvent
from penstock.tree.config import BackoffConfig, Milliseconds, ReactionConfig, Step
from penstock.tree.core.control import Class, Login, Message, RenewToken, Role, Welcome
from penstock.tree.core.control import Refused as Refusal
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
from penstock.tree.core.kernel._frame import check_packets, packet_at
from penstock.wire import Packet, decode

REFUSALS = RefusalErrors(
    "agent",
    by_code(
        FilterExpressionError, LimitError, NotEntitledError, RevokedError, TokenError, TokenExpiredError, TopicError
    ),
    final={
        "revoked", "not-entitled", "tree", "remote-protocol", "frame", "message", "publish", "publisher", "not-allowed",
        "replaced",
    },
)  # fmt: skip


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
    """`token` is presented to every agent; renew() replaces it."""

    role: Role

    def __init__(
        self, config: TreeClientConfig, randomness: Randomness, counters: Counters, *, token: str = ""
    ) -> None:
        self._config = config
        self._counters = counters
        self._token = token
        self._selector = AgentSelector(
            config.agents,
            config.on.parent_lost,
            config.backoff,
            randomness,
            answer_ns=config.welcome_ms * NS_PER_MS,
        )
        self._links: ClientSession[Welcome] = ClientSession(
            self._selector, REFUSALS, silence_ns=config.silence_ms * NS_PER_MS
        )
        self._home = ""
        self._out: list[Instruction] = []

    # For the driver

    @property
    def name(self) -> str:
        return self._config.name

    @property
    def session(self) -> ClientSession[Welcome]:
        """The links."""
        return self._links

    @property
    def link(self) -> int:
        """The link in use; 0: none."""
        return self._links.link

    @property
    def welcome(self) -> Welcome | None:
        """Of the agent whose link is in use."""
        return self._links.welcome

    def next_deadline_ns(self) -> int | None:
        return self._links.next_deadline_ns()

    @property
    def is_settled(self) -> bool:
        """True if a link is in use and no other one is sought."""
        return bool(self.link) and not self._links.candidate

    def expects_welcome(self, link: int) -> bool:
        return self._links.expects_welcome(link)

    def renew(self, token: str) -> list[Instruction]:
        """A newer token, for this agent and the next."""
        self._token = token
        return [Say(link, RenewToken(token)) for link in (self.link, self._links.next_link) if link]

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

    def _take_run(self, packets: bytes, at: int, end: int) -> int:
        """Take the packets between these offsets that need no further checks. Return the offset after the last of
        them, or 0 if no packet was taken."""
        return 0

    # Events

    def _handle(self, event: SharedEvent, now_ns: int) -> None:
        match event:
            case Received(link, message):
                if self._links.hear(link, now_ns):
                    self._receive(link, message, now_ns)
            case BlockReceived(link, _, packets):
                if self._links.hear(link, now_ns):
                    self._take_packets(link, packets, now_ns)
            case _:
                self._do(self._links.handle(event, now_ns))

    def _do(self, instructions: list[LinkInstruction]) -> None:
        for each in instructions:
            match each:
                case LogIn(link):
                    self._out.append(Say(link, self._login()))
                case LinkLeft(link, was_lost):
                    self._link_left(link)
                    if was_lost:
                        self._counters.add("parents_lost")
                case _:
                    self._out.append(each)

    def _fail(self, error: PenstockError) -> None:
        self._do(self._links.fail(error))

    # Messages of agents

    def _receive(self, link: int, message: Message | Ping | Pong, now_ns: int) -> None:
        match message:
            case Ping() | Pong():
                self._do(self._links.answer(link, message, now_ns))
            case Welcome():
                self._take_welcome(link, message, now_ns)
            case Refusal(number=0):
                hint = message.place if link == self._links.next_link else ""
                self._do(self._links.refuse(link, message.code, error_of(message), now_ns, hint=hint))
            case _:
                self._message_received(link, message)

    def _take_welcome(self, link: int, welcome: Welcome, now_ns: int) -> None:
        if not self._links.expects_welcome(link):
            self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)
            return
        self._do(self._links.accept(welcome, now_ns))
        self._begin_on(link, welcome)

    def _take_packets(self, link: int, packets: bytes, now_ns: int) -> None:
        at, end = 0, check_packets(packets)
        while at < end and link in (self.link, self._links.next_link):
            if taken := self._take_run(packets, at, end):
                at = taken
                continue
            data = packet_at(packets, at)
            at += len(data)
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
        welcome = self.welcome if link == self.link else self._links.next_welcome
        self._out.append(InfoHeard(welcome.agent if welcome else "", info))
        self._informed(link, info)
        if link != self.link:
            return
        match info:
            case Siblings(agents) | Alternates(agents):
                self._selector.learn([each.place for each in agents if each.place != self._links.place])
            case MoveTo(place) if self._config.on.move == "obey":
                assert self.welcome is not None
                self._home = self._home or self.welcome.agent
                self._do(self._links.move(place, now_ns))
            case ReturnTo() if self._config.on.send_back == "obey":
                self._home = ""
                self._do(self._links.move(self._selector.home, now_ns))
            case ParentLost():
                self._look_elsewhere(self._config.on.parent_unrooted, now_ns)
            case Stopping():
                self._look_elsewhere(self._config.on.parent_lost, now_ns)

    def _look_elsewhere(self, steps: tuple[Step, ...], now_ns: int) -> None:
        """Try another agent, while the present link is in use."""
        if steps != ("wait",):
            place, _ = self._selector.look(steps, self._links.place)
            self._do(self._links.move(place, now_ns))


def error_of(refusal: Refusal) -> PenstockError:
    return REFUSALS.error_of(refusal.code, refusal.reason)
