"""Runs a session on real links, in an asyncio loop (the thread of penstock.net.loop_thread, mostly)."""

import asyncio
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
    LinkClosed,
    Received,
    Say,
    SendData,
)
from penstock.assured.application.session import Session
from penstock.assured.control import ASSURED, MESSAGE_SIZE_MAX
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ConnectionLostError, FrameError, PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.net.agent import CoreRunner
from penstock.net.config import ControlConfig
from penstock.net.control import ErrorMessage, Goodbye, Hello, Ping, Pong, Proof, encode_session
from penstock.net.framing import encode_frame
from penstock.net.guard import Guard
from penstock.net.link import Link, connect_link, end_links
from penstock.net.place import parse_place
from penstock.net.session import Peer

LINK = ControlConfig(message_size_max=MESSAGE_SIZE_MAX)

log = logger("assured.application")


class Running:
    """From start() to close(); `carry_out` gets the instructions that are not about links. In the loop's thread."""

    def __init__(
        self, core: Session, node: str, guard: Guard, counters: Counters, carry_out: Callable[[Any], None]
    ) -> None:
        self.runner: CoreRunner[Any, Any] = CoreRunner(core, self._carry_out)
        self._node = node
        self._guard = guard
        self._counters = counters
        self._carry_out_rest = carry_out
        self._made: set[Link] = set()
        self._links: dict[int, Link] = {}
        self._splitters: dict[int, FrameSplitter] = {}
        self._attempts: dict[int, int] = {}  # by link
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_link = 0

    def start(self) -> None:
        self.runner.handle(Begin())

    async def close(self) -> None:
        self.runner.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await end_links(set(self._made), LINK.linger_ms)

    # What the core wants

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case SendData(link, data):
                if (found := self._links.get(link)) is not None:
                    found.write(data)
            case Say(link, message):
                if (found := self._links.get(link)) is not None:
                    encoded = (
                        encode_session(message)
                        if isinstance(message, Ping | Pong)
                        else ASSURED.encode(message, MESSAGE_SIZE_MAX)
                    )
                    found.write(encode_frame(encoded))
            case Connect(attempt, place):
                task = asyncio.get_running_loop().create_task(self._connect(attempt, place))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
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
                ASSURED,
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
            log.info("router_unreachable", place=place, error=str(error))
            self.runner.handle(ConnectFailed(attempt, str(error)))
        else:
            if not link.is_over:
                self._made.add(link)

    # What links tell

    def opened(self, link: Link, peer: Peer) -> None:
        attempt = self._attempts.pop(link.number)
        self._links[link.number] = link
        self._splitters[link.number] = FrameSplitter()
        self.runner.handle(Connected(attempt, link.number))

    def received(self, link: Link, data: bytes) -> None:
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

    def writable(self, link: Link) -> None:
        """What is written is bounded: by the windows of publishers, and by what flows may settle."""

    def lost(self, link: Link, error: PenstockError) -> None:
        self._made.discard(link)
        attempt = self._attempts.pop(link.number, None)
        self._links.pop(link.number, None)
        self._splitters.pop(link.number, None)
        log.info("router_lost", address=link.address, code=error.code, error=str(error))
        event: Any = LinkClosed(link.number, str(error)) if attempt is None else ConnectFailed(attempt, str(error))
        with contextlib.suppress(PenstockError):
            self.runner.handle(event)
