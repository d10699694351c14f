"""TreeCoreRunner: runs the core of a subscriber or publisher on real links, in an asyncio loop."""

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConnectionLostError, FrameError, PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.net.config import ControlConfig
from penstock.net.core.client_session import (
    Begin,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    LinkClosed,
    Received,
    Say,
    SendData,
)
from penstock.net.core.control import ErrorMessage, Goodbye, Hello, Ping, Pong, Proof, encode_session
from penstock.net.core.framing import LENGTH_SIZE, FrameDecoder, encode_frame
from penstock.net.core.session import Peer
from penstock.net.guard import Guard
from penstock.net.live.agent import CoreRunner
from penstock.net.live.dialling import Dialling
from penstock.net.live.link import Link
from penstock.tree.client.core.events import BlockReceived
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE, Message, Welcome
from penstock.tree.core.kernel._frame import (
    BLOCK_HEADER_SIZE,
    BLOCK_LEG_AT,
    FRAME_SIZE_MAX,
    KIND_CONTROL,
    KIND_PACKETS,
)

LINK = ControlConfig(message_size_max=MESSAGE_SIZE_MAX)
LEG_AT = BLOCK_LEG_AT - LENGTH_SIZE
PACKETS_AT = BLOCK_HEADER_SIZE - LENGTH_SIZE

log = logger("tree.application")


class Core(Protocol):
    def handle(self, event: Any, now_ns: int) -> list[Any]: ...

    def next_deadline_ns(self) -> int | None: ...


class TreeCoreRunner:
    """Runs from start() to close() in the loop's thread; `carry_out` gets the instructions that are not about links."""

    def __init__(
        self, core: Core, node: str, guard: Guard, counters: Counters, carry_out: Callable[[Any], None]
    ) -> None:
        self.runner: CoreRunner[Any, Any] = CoreRunner(core, self._carry_out)
        self._dialling = Dialling(TREE, self, node=node, guard=guard, config=LINK, counters=counters)
        self._counters = counters
        self._carry_out_rest = carry_out
        self._decoders: dict[int, FrameDecoder] = {}
        self._is_paused = False

    def start(self) -> None:
        self.runner.handle(Begin())

    async def close(self) -> None:
        self.runner.stop()
        await self._dialling.close()

    def pause(self) -> None:
        """Stop reading: messages wait at the agent. A new link is read until its Welcome."""
        self._is_paused = True
        for link in self._dialling.links.values():
            link.pause()

    def resume(self) -> None:
        self._is_paused = False
        for link in self._dialling.links.values():
            link.resume()

    # Instructions

    def carry_out(self, instructions: list[Any]) -> None:
        for each in instructions:
            self._carry_out(each)

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case Connect(attempt, place):
                self._dialling.dial(attempt, place)
            case Say(link, message):
                self._dialling.write(link, encode_frame(_encoded(message)))
            case SendData(link, data):
                self._dialling.write(link, data)
            case Close(link):
                self._dialling.end(link)
            case _:
                self._carry_out_rest(instruction)

    # Links

    def link_opened(self, attempt: int, link: Link, peer: Peer) -> None:
        self._decoders[link.number] = FrameDecoder(FRAME_SIZE_MAX)
        self.runner.handle(Connected(attempt, link.number))

    def link_failed(self, attempt: int, error: PenstockError) -> None:
        self._tell(ConnectFailed(attempt, str(error)))

    def link_received(self, link: Link, data: bytes) -> None:
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
            if self._is_paused and isinstance(message, Welcome) and number in self._dialling.links:
                self._dialling.links[number].pause()
            return
        if frame[0] != KIND_PACKETS or len(frame) < PACKETS_AT:
            raise RemoteProtocolError(f"a frame of kind {frame[0]}, which no agent sends")
        leg = int.from_bytes(frame[LEG_AT : LEG_AT + 4], "little")
        self.runner.handle(BlockReceived(number, leg, frame[PACKETS_AT:]))

    def link_closed(self, number: int, why: str) -> None:
        self._decoders.pop(number, None)
        self._tell(LinkClosed(number, why))

    def _tell(self, event: Any) -> None:
        with contextlib.suppress(PenstockError):  # `runner.failed` reports a core that has failed
            self.runner.handle(event)


def _encoded(message: Message | Ping | Pong) -> bytes:
    return encode_session(message) if isinstance(message, Ping | Pong) else TREE.encode(message, MESSAGE_SIZE_MAX)
