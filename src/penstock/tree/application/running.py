"""Runs the core of a subscriber or publisher on real links, in an asyncio loop."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConnectionLostError, FrameError, PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.net.agent import CoreRunner
from penstock.net.config import ControlConfig
from penstock.net.control import ErrorMessage, Goodbye, Hello, Ping, Pong, Proof, encode_session
from penstock.net.framing import LENGTH_SIZE, FrameDecoder, encode_frame
from penstock.net.link import Link, connect_link, end_links
from penstock.net.place import parse_place
from penstock.net.session import Peer
from penstock.tree._frame import (
    BLOCK_HEADER_SIZE,
    BLOCK_LEG_AT,
    FRAME_SIZE_MAX,
    KIND_CONTROL,
    KIND_PACKETS,
    KIND_PUBLISHED,
    encode_block,
)
from penstock.tree.application.events import (
    Begin,
    BlockReceived,
    Received,
    Say,
    SayBlock,
)
from penstock.tree.control import MESSAGE_SIZE_MAX, TREE, Message, Welcome
from penstock.tree.events import Close, Connect, Connected, ConnectFailed, LinkClosed
from penstock.tree.guard import Guard

LINK = ControlConfig(message_size_max=MESSAGE_SIZE_MAX)
LEG_AT = BLOCK_LEG_AT - LENGTH_SIZE
PACKETS_AT = BLOCK_HEADER_SIZE - LENGTH_SIZE

log = logger("tree.application")


class Core(Protocol):
    def handle(self, event: Any, now_ns: int) -> list[Any]: ...

    def next_deadline_ns(self) -> int | None: ...


class Running:
    """From start() to close(); `carry_out` gets the instructions that are not about links. In the loop's thread."""

    def __init__(
        self, core: Core, node: str, guard: Guard, counters: Counters, carry_out: Callable[[Any], None]
    ) -> None:
        self.runner: CoreRunner[Any, Any] = CoreRunner(core, self._carry_out)
        self._node = node
        self._guard = guard
        self._counters = counters
        self._carry_out_rest = carry_out
        self._made: set[Link] = set()
        self._links: dict[int, Link] = {}
        self._decoders: dict[int, FrameDecoder] = {}
        self._attempts: dict[int, int] = {}  # by link
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_link = 0
        self._is_paused = False

    def start(self) -> None:
        self.runner.handle(Begin())

    async def close(self) -> None:
        self.runner.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await end_links(set(self._made), LINK.linger_ms)

    def pause(self) -> None:
        """Read nothing for a while: what comes waits at the agent. Who is new says its Welcome before."""
        self._is_paused = True
        for link in self._links.values():
            link.pause()

    def resume(self) -> None:
        self._is_paused = False
        for link in self._links.values():
            link.resume()

    # What the core wants

    def carry_out(self, instructions: list[Any]) -> None:
        for each in instructions:
            self._carry_out(each)

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case Connect(attempt, place):
                task = asyncio.get_running_loop().create_task(self._connect(attempt, place))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Say(link, message):
                if (found := self._links.get(link)) is not None:
                    found.write(encode_frame(_encoded(message)))
            case SayBlock(link, packets):
                if (found := self._links.get(link)) is not None:
                    found.write(encode_block(packets, kind=KIND_PUBLISHED))
            case Close(link):
                if (found := self._links.get(link)) is not None:
                    found.close()
            case _:
                self._carry_out_rest(instruction)

    async def _connect(self, attempt: int, place: str) -> None:
        self._last_link += 1
        number = self._last_link
        self._attempts[number] = attempt
        try:
            host, port = parse_place(place)
            link = await connect_link(
                TREE,
                host,
                port,
                self,
                node=self._node,
                secret=self._guard.secret,
                tls=self._guard.tls_for(host),
                config=LINK,
                counters=self._counters,
                number=number,
            )
        except PenstockError as error:
            self._attempts.pop(number, None)
            log.info("agent_unreachable", place=place, error=str(error))
            self.runner.handle(ConnectFailed(attempt, str(error)))
        else:
            if not link.is_over:
                self._made.add(link)

    # What links tell

    def opened(self, link: Link, peer: Peer) -> None:
        attempt = self._attempts.pop(link.number)
        self._links[link.number] = link
        self._decoders[link.number] = FrameDecoder(FRAME_SIZE_MAX)
        self.runner.handle(Connected(attempt, link.number, peer.node))

    def received(self, link: Link, data: bytes) -> None:
        try:
            try:
                frames = self._decoders[link.number].feed(data)
            except FrameError as error:
                for frame in error.frames:
                    self._take(link.number, frame)
                raise
            for frame in frames:
                self._take(link.number, frame)
        except PenstockError as error:
            self._counters.add("messages_skipped", cause=Cause.MESSAGE)
            log.warning("agent_misbehaves", address=link.address, code=error.code, error=str(error))
            link.close(error)

    def _take(self, number: int, frame: bytes) -> None:
        if not frame:
            raise RemoteProtocolError("a frame without content")
        if frame[0] >= KIND_CONTROL:
            message = TREE.decode(frame)
            if isinstance(message, ErrorMessage | Goodbye):
                raise ConnectionLostError("the agent said goodbye")
            if isinstance(message, Hello | Proof):
                raise RemoteProtocolError(f"a {type(message).__name__} out of turn")
            self.runner.handle(Received(number, message))
            if self._is_paused and isinstance(message, Welcome) and number in self._links:
                self._links[number].pause()
            return
        if frame[0] != KIND_PACKETS or len(frame) < PACKETS_AT:
            raise RemoteProtocolError(f"a frame of kind {frame[0]}, which no agent sends")
        leg = int.from_bytes(frame[LEG_AT : LEG_AT + 4], "little")
        self.runner.handle(BlockReceived(number, leg, frame[PACKETS_AT:]))

    def writable(self, link: Link) -> None:
        """What is written is bounded: by legs, and by what a publisher may have unconfirmed."""

    def lost(self, link: Link, error: PenstockError) -> None:
        self._made.discard(link)
        attempt = self._attempts.pop(link.number, None)
        self._links.pop(link.number, None)
        self._decoders.pop(link.number, None)
        if attempt is not None:
            log.info("agent_refuses", address=link.address, code=error.code, error=str(error))
            event: Any = ConnectFailed(attempt, str(error))
        else:
            if link.is_closing:
                log.debug("agent_left", address=link.address)
            else:
                log.info("agent_lost", address=link.address, error=str(error))
            event = LinkClosed(link.number, str(error))
        with contextlib.suppress(PenstockError):
            self.runner.handle(event)


def _encoded(message: Message | Ping | Pong) -> bytes:
    return encode_session(message) if isinstance(message, Ping | Pong) else TREE.encode(message, MESSAGE_SIZE_MAX)
