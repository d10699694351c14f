"""Runs a session on real links, in an asyncio loop (the thread of penstock.net.loop_thread, mostly)."""

import contextlib
from collections.abc import Callable
from typing import Any

from penstock.assured._frames import FrameSplitter
from penstock.assured.application.events import (
    Begin,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    DataReceived,
    End,
    LinkClosed,
    Received,
    Say,
    SendData,
)
from penstock.assured.application.session import Session
from penstock.assured.control import ASSURED, MESSAGE_SIZE_MAX
from penstock.base.counters import Cause, Counters
from penstock.base.errors import (
    AuthenticationError,
    ConnectionLostError,
    FrameError,
    PenstockError,
    RefusedError,
    RemoteProtocolError,
)
from penstock.base.log import logger
from penstock.net.agent import CoreRunner
from penstock.net.config import ControlConfig
from penstock.net.control import ErrorMessage, Goodbye, Hello, Ping, Pong, Proof, encode_session
from penstock.net.dialling import Dialling
from penstock.net.framing import encode_frame
from penstock.net.guard import Guard
from penstock.net.link import Link
from penstock.net.session import Peer

LINK = ControlConfig(message_size_max=MESSAGE_SIZE_MAX)

log = logger("assured.application")


class Running:
    """From start() to close(); `carry_out` gets the instructions that are not about links. In the loop's thread."""

    def __init__(
        self, core: Session, node: str, guard: Guard, counters: Counters, carry_out: Callable[[Any], None]
    ) -> None:
        self.runner: CoreRunner[Any, Any] = CoreRunner(core, self._carry_out)
        self._dialling = Dialling(ASSURED, self, node=node, guard=guard, config=LINK, counters=counters)
        self._counters = counters
        self._carry_out_rest = carry_out
        self._splitters: dict[int, FrameSplitter] = {}

    def start(self) -> None:
        self.runner.handle(Begin())

    async def close(self) -> None:
        self._tell(End())
        self.runner.stop()
        await self._dialling.close()

    # What the core wants

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
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

    # What links tell

    def link_opened(self, attempt: int, link: Link, peer: Peer) -> None:
        self._splitters[link.number] = FrameSplitter()
        self.runner.handle(Connected(attempt, link.number))

    def link_failed(self, attempt: int, error: PenstockError) -> None:
        code = error.peer_code if isinstance(error, RefusedError) else error.code
        self._tell(ConnectFailed(attempt, str(error), is_stranger=code == AuthenticationError.code))

    def link_received(self, link: Link, data: bytes) -> None:
        splitter = self._splitters.get(link.number)
        if splitter is None:
            return
        try:
            for is_data, piece in splitter.feed(data):
                if is_data:
                    self.runner.handle(DataReceived(link.number, piece))
                else:
                    self._take(link.number, piece)
            if splitter.failure:
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
