"""Runs a session on real links, in an asyncio loop (the thread of penstock.net.live.loop_thread, mostly)."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from penstock.assured.client._inline_commit import InlineLink
from penstock.assured.client.inline_commit import ClientInlineCommit
from penstock.assured.core.session.events import (
    DataReceived,
    End,
    Flush,
)
from penstock.assured.core.session.parts import PublisherPart
from penstock.assured.core.session.session import Session
from penstock.assured.wire._frames import FrameSplitter
from penstock.assured.wire.control import ASSURED, MESSAGE_SIZE_MAX
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionLostError,
    FrameError,
    NoSuchHostError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
)
from penstock.base.log import logger
from penstock.net.config import ControlConfig
from penstock.net.core.client_session import (
    Begin,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    LinkClosed,
    Over,
    Received,
    Say,
    SendData,
)
from penstock.net.core.control import ErrorMessage, Goodbye, Hello, Ping, Pong, Proof, encode_session
from penstock.net.core.framing import encode_frame
from penstock.net.core.session import Peer
from penstock.net.guard import Guard
from penstock.net.live.agent import CoreRunner
from penstock.net.live.dialling import Dialling
from penstock.net.live.link import Link

LINK = ControlConfig(message_size_max=MESSAGE_SIZE_MAX)

log = logger("assured.application")


class SessionDriver:
    """From start() to close(); `carry_out` gets the instructions that are not about links. In the loop's thread. One
    that the link is lent to calls `exchanged` when it has taken something in, with what was refused."""

    def __init__(
        self,
        core: Session,
        node: str,
        guard: Guard,
        counters: Counters,
        carry_out: Callable[[Any], None],
        exchanged: Callable[[PublisherPart, list[tuple[int, int, int]]], None],
    ) -> None:
        self.runner: CoreRunner[Any, Any] = CoreRunner(core, self._carry_out)
        self._dialling = Dialling(ASSURED, self, node=node, guard=guard, config=LINK, counters=counters)
        self._counters = counters
        self._carry_out_rest = carry_out
        self._splitters: dict[int, FrameSplitter] = {}
        self.inline_commit = ClientInlineCommit(core, exchanged, self._hand_over_soon, self._returned)
        self._is_hand_over_due = False
        self._held_events: list[Any] = []  # until the link is back
        self._held: list[Any] = []  # instructions that came of time alone
        self._core = core

    def start(self) -> None:
        self.runner.handle(Begin())

    def handle(self, event: Any) -> None:
        """What the application wants. While its link is lent, that waits: what it has put into outboxes is another
        thread's to send."""
        if self.inline_commit.is_handed_over:
            self._held_events.append(event)
            self.inline_commit.reclaim(is_crowded=isinstance(event, Flush))
            return
        try:
            self.runner.handle(event)
        except PenstockError as error:
            self._carry_out_rest(Over(error))

    async def close(self) -> None:
        await self.inline_commit.close()
        self._tell(End())
        self.runner.stop()
        await self._dialling.close()

    # What the core wants

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case SendData() | Say() | Close() if self.inline_commit.is_handed_over:
                self._held.append(instruction)
                asyncio.get_running_loop().call_soon(self.inline_commit.reclaim)
            case SendData(link, data):
                self._dialling.write(link, data)
            case Say(link, message):
                self._dialling.write(link, encode_frame(_encoded(message)))
            case Connect(attempt, place):
                self._dialling.dial(attempt, place)
            case Close(link):
                self._dialling.end(link)
            case _:
                self._carry_out_rest(instruction)

    # A link that is lent

    def _hand_over_soon(self) -> None:
        """When all that is on its way has come."""
        self._is_hand_over_due = True

    def _hand_over(self) -> None:
        link = self._dialling.links.get(self._core.idle_link)
        if link is not None:
            self._is_hand_over_due = False
            self.inline_commit.hand_over(link, self._splitters[link.number])

    def _returned(self, link: Link, inline: InlineLink) -> None:
        link.write(inline.unsent)
        held, self._held = self._held, []
        for instruction in held:
            self._carry_out(instruction)
        self._take_pieces(link, inline.pieces)
        events, self._held_events = self._held_events, []
        for event in events:
            self.handle(event)

    # What links tell

    def link_opened(self, attempt: int, link: Link, peer: Peer) -> None:
        self._splitters[link.number] = FrameSplitter()
        self.runner.handle(Connected(attempt, link.number))

    def link_failed(self, attempt: int, error: PenstockError) -> None:
        code = error.peer_code if isinstance(error, RefusedError) else error.code
        is_hopeless = isinstance(error, NoSuchHostError | ConfigurationError)
        self._tell(ConnectFailed(attempt, str(error), code == AuthenticationError.code, is_hopeless))

    def link_received(self, link: Link, data: bytes) -> None:
        if (splitter := self._splitters.get(link.number)) is not None:
            self._take_pieces(link, splitter.feed(data))
            if self._is_hand_over_due:
                self._hand_over()

    def _take_pieces(self, link: Link, pieces: Iterable[tuple[bool, bytes]]) -> None:
        try:
            for is_data, piece in pieces:
                if is_data:
                    self.runner.handle(DataReceived(link.number, piece))
                else:
                    self._take(link.number, piece)
            splitter = self._splitters.get(link.number)  # none: the link is lost
            if splitter is not None and splitter.failure:
                raise FrameError(splitter.failure)
        except PenstockError as error:
            self._counters.add("messages_skipped", cause=Cause.MESSAGE)
            log.warning("router_misbehaves", address=link.address, code=error.code, error=str(error))
            link.close(error)

    def _take(self, number: int, payload: bytes) -> None:
        message = ASSURED.decode(payload)
        if isinstance(message, ErrorMessage | Goodbye):
            raise ConnectionLostError("the router said goodbye")
        if isinstance(message, Hello | Proof):
            raise RemoteProtocolError(f"a {type(message).__name__} out of turn")
        self.runner.handle(Received(number, message))

    def link_closed(self, number: int, why: str) -> None:
        self._splitters.pop(number, None)
        self._tell(LinkClosed(number, why))

    def _tell(self, event: Any) -> None:
        with contextlib.suppress(PenstockError):  # a core that has failed says so by `runner.failed`
            self.runner.handle(event)


def _encoded(message: Any) -> bytes:
    return encode_session(message) if isinstance(message, Ping | Pong) else ASSURED.encode(message, MESSAGE_SIZE_MAX)
