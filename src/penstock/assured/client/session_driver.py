"""Runs a session on real links, in an asyncio loop (usually that of penstock.net.live.loop_thread)."""

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.assured.client._inline_commit import InlineLink
from penstock.assured.client.async_publishing import AsyncPublishing
from penstock.assured.client.inline_commit import ClientInlineCommit
from penstock.assured.core.session.events import DataReceived, End, Flush
from penstock.assured.core.session.parts import PublisherPart
from penstock.assured.core.session.session import AssuredSession
from penstock.assured.wire._frames import FrameSplitter
from penstock.assured.wire.control import ASSURED, MESSAGE_SIZE_MAX
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.net.config import ControlConfig
from penstock.net.core.client_session import Close, Over, Say, SendData
from penstock.net.guard import Guard
from penstock.net.live.client_session_driver import ClientSessionDriver
from penstock.net.live.link import Link

LINK = ControlConfig(message_size_max=MESSAGE_SIZE_MAX)

log = logger("assured.application")


class AssuredSessionDriver:
    """Runs from start() to close(), in the loop's thread. `carry_out` receives the instructions that do not concern
    links. While the link is handed over, the application thread that has it calls `exchanged` with refused messages
    after it has received data."""

    def __init__(
        self,
        core: AssuredSession,
        node: str,
        guard: Guard,
        counters: Counters,
        carry_out: Callable[[Any], None],
        exchanged: Callable[[PublisherPart, list[tuple[int, int, int]]], None],
    ) -> None:
        self._driver: ClientSessionDriver[FrameSplitter] = ClientSessionDriver(
            core, ASSURED, self, server="router", node=node, guard=guard, config=LINK, counters=counters, log=log
        )
        self.runner = self._driver.runner
        self._carry_out_rest = carry_out
        self.inline_commit = ClientInlineCommit(core, exchanged, self._hand_over_soon, self._returned)
        self.is_flush_due = False
        """Whether a Flush is on its way here."""

        self._is_hand_over_due = False
        self._asking: AsyncPublishing | None = None  # for the link; None: a thread
        self._held_events: list[Any] = []  # until the link is back
        self._held: list[Any] = []  # instructions that came of time alone
        self._core = core

    def start(self) -> None:
        self._driver.start()

    def handle(self, event: Any) -> None:
        """What the application wants. While the link is handed over, events wait: another thread sends what is in the
        windows."""
        if isinstance(event, Flush):
            if not self.is_flush_due:  # its messages were handed over with the link
                return
            self.is_flush_due = False
        if self.inline_commit.is_handed_over:
            self._held_events.append(event)
            self.inline_commit.reclaim(is_crowded=isinstance(event, Flush))
            return
        self._handle(event)

    def _handle(self, event: Any) -> None:
        try:
            self.runner.handle(event)
        except PenstockError as error:
            self._carry_out_rest(Over(error))

    async def close(self) -> None:
        await self.inline_commit.close()
        self._driver.tell(End())
        await self._driver.close()

    # A link that is handed over

    def _hand_over_soon(self, asking: AsyncPublishing | None) -> None:
        """To a thread when all that is on its way has come; to a loop that publishes when nobody else waits for
        anything."""
        self._is_hand_over_due = True
        self._asking = asking

    def _hand_over(self) -> None:
        asking = self._asking
        self.is_flush_due = False  # first: what is published from now on has a Flush of its own
        link = self._driver.links.get(self._core.idle_link(None if asking is None else asking.part))
        if link is None or not link.is_clear:
            self._handle(Flush())
            return
        self._is_hand_over_due = False
        self._asking = None
        self.inline_commit.hand_over(link, self._driver.splitter(link), asking)

    def _returned(self, link: Link, inline: InlineLink) -> None:
        link.write(inline.unsent)
        held, self._held = self._held, []
        for instruction in held:
            self._driver.carry_out(instruction)
        self._driver.take(link, lambda: inline.pieces)
        events, self._held_events = self._held_events, []
        for event in events:
            self._handle(event)

    # For the driver

    def new_splitter(self) -> FrameSplitter:
        return FrameSplitter()

    def data_event(self, link: int, piece: bytes) -> DataReceived:
        return DataReceived(link, piece)

    def received(self, link: Link) -> None:
        if self._is_hand_over_due:
            self._hand_over()

    def holds(self, instruction: Any) -> bool:
        if not (isinstance(instruction, SendData | Say | Close) and self.inline_commit.is_handed_over):
            return False
        self._held.append(instruction)
        asyncio.get_running_loop().call_soon(self.inline_commit.reclaim)
        return True

    def carry_out(self, instruction: Any) -> None:
        self._carry_out_rest(instruction)
