"""TreeCoreRunner: runs the core of a subscriber or publisher on real links, in an asyncio loop."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from penstock.base.counters import Counters
from penstock.base.errors import FrameError, RemoteProtocolError
from penstock.base.log import logger
from penstock.net._tcp import send_now
from penstock.net.config import ControlConfig
from penstock.net.core.client_session import SendData
from penstock.net.core.framing import LENGTH_SIZE, FrameDecoder
from penstock.net.guard import Guard
from penstock.net.live.client_session_driver import ClientSessionDriver
from penstock.net.live.link import Link
from penstock.tree.client.core.events import BlockReceived
from penstock.tree.client.core.tree_client import TreeClient
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE
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


class BlockSplitter:
    """Splits a link's bytes into control messages and blocks."""

    def __init__(self) -> None:
        self.failure = ""
        self._decoder = FrameDecoder(FRAME_SIZE_MAX)

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            self.failure = error.what
            frames = list(error.frames)
        for frame in frames:
            if not frame:
                raise RemoteProtocolError("a frame without content")
            yield frame[0] < KIND_CONTROL, frame


class TreeCoreRunner:
    """Runs from start() to close() in the loop's thread; `carry_out` gets the instructions that are not about links.
    Threads that have the `turn` may use the core between its events."""

    def __init__(
        self,
        core: TreeClient,
        node: str,
        guard: Guard,
        counters: Counters,
        carry_out: Callable[[Any], None],
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._core = core
        self._carry_out_rest = carry_out
        self._is_paused = False
        self._turn = turn or contextlib.nullcontext()
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[SendData] = deque()
        """Data that send_now() has left for the loop's thread."""
        self._driver: ClientSessionDriver[BlockSplitter] = ClientSessionDriver(
            core,
            TREE,
            self,
            server="agent",
            node=node,
            guard=guard,
            config=LINK,
            counters=counters,
            log=log,
            turn=self._turn,
        )
        self.runner = self._driver.runner

    def start(self) -> None:
        self._driver.start()

    async def close(self) -> None:
        await self._driver.close()

    @property
    def links(self) -> dict[int, Link]:
        return self._driver.links

    def pause(self) -> None:
        """Stop reading: messages wait at the agent. A new link is read until its Welcome."""
        self._is_paused = True
        for link in self.links.values():
            link.pause()

    def resume(self) -> None:
        self._is_paused = False
        for link in self.links.values():
            link.resume()

    def carry_out_all(self, instructions: list[Any]) -> None:
        with self._turn:
            self._write_unsent()
            for each in instructions:
                self._driver.carry_out(each)

    def send_now(self, instructions: Iterable[Any]) -> None:
        """Carry out SendData instructions at once, in any thread that has the turn. The loop's thread writes what the
        socket does not take."""
        for each in instructions:
            link = self.links.get(each.link)
            is_clear = link is not None and link.is_clear and not self._unsent
            left = each.data[send_now(link.fd, each.data) :] if link is not None and is_clear else each.data
            if left:
                self._unsent.append(SendData(each.link, left))
                if len(self._unsent) == 1:
                    self._loop.call_soon_threadsafe(self.carry_out_all, [])

    def _write_unsent(self) -> None:
        """Before anything else is written: it may be the rest of a frame."""
        while self._unsent:
            self._driver.carry_out(self._unsent.popleft())

    # For the driver

    def new_splitter(self) -> BlockSplitter:
        return BlockSplitter()

    def data_event(self, link: int, piece: bytes) -> BlockReceived:
        if piece[0] != KIND_PACKETS or len(piece) < PACKETS_AT:
            raise RemoteProtocolError(f"a frame of kind {piece[0]}, which no agent sends")
        return BlockReceived(link, int.from_bytes(piece[LEG_AT : LEG_AT + 4], "little"), piece[PACKETS_AT:])

    def received(self, link: Link) -> None:
        if self._is_paused and not self._core.expects_welcome(link.number):
            link.pause()

    def holds(self, instruction: Any) -> bool:
        self._write_unsent()
        return False

    def carry_out(self, instruction: Any) -> None:
        self._carry_out_rest(instruction)
