"""One router's half of a live pair: its core, its link to the other router (peer_connection.py), and operators' orders.

The core decides on orders; this part knows the operators that wait for an answer.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.assured.core.lease.protocol import Keep, Reached, Tell
from penstock.assured.core.pair.pair import Pair
from penstock.assured.core.pair.protocol import Degrade as DegradeHere
from penstock.assured.core.pair.protocol import (
    HandOver,
    PairEvent,
    PeerEnd,
    PeerEvent,
    PeerFrame,
    PeerOpened,
    PeerSend,
    SwitchHere,
)
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.core.status import Replication
from penstock.assured.live.observation import copying_of, lacking_of, objection
from penstock.assured.live.peer_connection import PeerConnection
from penstock.assured.live.peer_settings import HEAD, PeerSettings
from penstock.assured.live.voter import LiveVoter
from penstock.assured.node_config import LivePairConfig
from penstock.assured.wire.control import Degrade, Done, Message, Refused, Switch
from penstock.base.clock import SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.security.live.gate import TokenState

SWITCH_SECONDS = 8.0
"""Maximum wait of an operator; shorter than a client's time limit for an answer."""

HAND_OVER_SECONDS = 4.0
"""How long a router that is told to stop waits until the other one is active; less than those wait who told it."""

log = logger("assured.pair")


class LivePair:
    """`directory` is where the router keeps what it promised as a voter. `tell` gives an event to the core, `say` a
    message to a client."""

    def __init__(
        self,
        config: LivePairConfig,
        router: MessageRouter,
        directory: Path,
        tell: Callable[[PairEvent], None],
        say: Callable[[int, Message], None],
        mirroring: PeerSettings,
        counters: Counters,
    ) -> None:
        self.config = config
        self.lease: LiveVoter | None = None
        memory = None
        if config.voting is not None:
            lease, voting = config.voting.lease(config.routers), config.voting
            self.lease = LiveVoter(
                lease,
                router.config.name,
                voting.listen,
                voting.voters,
                directory,
                tell,
                counters,
                reached=lambda voter: tell(Reached(voter)),
            )
            config, memory = msgspec.structs.replace(config, lease=lease), self.lease.open()
        self.core = Pair(router, config, SystemRandomness(), memory)
        self.peering = PeerConnection(config, router.config.name, self._heard, counters)
        self._tell = tell
        self._mirroring = mirroring
        self._link = 0
        self._say = say
        self._state = copying_of(self.core)
        self._since_ns = time.time_ns()
        self._counters = counters
        self._orders: dict[tuple[int, int], asyncio.TimerHandle] = {}
        """By link and number: operators who wait until this router is active."""
        self._handed_over: asyncio.Event | None = None

    async def start(self) -> None:
        await self.peering.start()
        if self.lease is not None:
            await self.lease.start()

    @property
    def tasks(self) -> list["asyncio.Task[None]"]:
        """The tasks that keep the connections of the pair."""
        dialling = [] if self.peering.task is None else [self.peering.task]
        return dialling if self.lease is None else [*dialling, *self.lease.tasks]

    async def hand_over(self) -> None:
        """Hand over to the other router if that router has everything, so that it takes over without a timeout."""
        peer = self.core.link.peer
        if not self.core.is_active or self._state != "in step" or peer is None or not peer.is_storing:
            return
        self._handed_over = asyncio.Event()
        self._tell(HandOver())
        try:
            await asyncio.wait_for(self._handed_over.wait(), HAND_OVER_SECONDS)
        except TimeoutError:
            log.warning("not_handed_over", other=self.peering.other)

    async def close(self) -> None:
        for timer in self._orders.values():
            timer.cancel()
        await self.peering.close()
        if self.lease is not None:
            await self.lease.close()

    def carry_out(self, instruction: PeerSend | PeerEnd | Tell | Keep) -> None:
        match instruction:
            case Tell() | Keep():
                assert self.lease is not None
                self.lease.carry_out(instruction)
            case PeerSend(link, data):
                self.peering.send(link, data)
            case PeerEnd(link):
                self.peering.end(link)

    # Messages between the routers

    def _heard(self, event: PeerEvent) -> None:
        """Handle a frame of the other router; settings are not passed to the core."""
        match event:
            case PeerFrame(link, data) if data[:1] == HEAD[:1]:
                try:
                    self._mirroring.frame(data, self.peering.other)
                except PenstockError as error:
                    self._counters.add("connections_closed", cause=Cause.MESSAGE)
                    log.warning("other_router_misbehaves", other=self.peering.other, error=str(error))
                    self.peering.end(link)
            case PeerOpened(link):
                self._link = link
                self._tell(event)
                self._send(self._mirroring.opening())
            case _:
                self._tell(event)

    def tell_tokens(self, state: TokenState) -> None:
        """Send the administration server's state to the other router, too."""
        self._send(self._mirroring.tokens(state))

    def _send(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.peering.send(self._link, frame)

    # Operators

    def order(self, link: int, order: Switch | Degrade) -> None:
        """Handle an order; answered with Done or the reason of the refusal."""
        match order:
            case Switch(number, is_forced, may_lose):
                why, hint = objection(self.core, is_forced, may_lose)
                if why:
                    self._say(link, Refused("not_active", why, number, hint))
                    return
                loop = asyncio.get_running_loop()
                self._orders[link, number] = loop.call_later(SWITCH_SECONDS, self._lose_patience, link, number)
                self._tell(SwitchHere(is_forced))
            case Degrade(number, is_ordered):
                if not self.core.is_active:
                    self._say(
                        link, Refused("not_active", "this router is the standby", number, place=self.config.clients)
                    )
                    return
                self._tell(DegradeHere(is_ordered))
                self._say(link, Done(number))

    def _lose_patience(self, link: int, number: int) -> None:
        del self._orders[link, number]
        reason = "the other router has not yielded: with a witness, a live router keeps its lease"
        self._say(link, Refused("not_active", reason, number))

    # Results of an event

    def look(self) -> None:
        """Called after each event."""
        state = copying_of(self.core)
        if state != self._state:
            log.info("replication_state", state=state, before=self._state, other=self.peering.other)
            self._state, self._since_ns = state, time.time_ns()
        if self._handed_over is not None and self._has_handed_over():
            self._handed_over.set()
        if self._orders and self.core.is_active:
            orders, self._orders = self._orders, {}
            for (link, number), timer in orders.items():
                timer.cancel()
                self._say(link, Done(number, self.core.planned_switch.left_there))

    def _has_handed_over(self) -> bool:
        """True if the other router is active, or the planned switch is over."""
        peer = self.core.link.peer
        return peer is None or (
            not self.core.planned_switch.is_under_way if self.core.is_active else peer.role == "active"
        )

    def status(self) -> Replication:
        """May be called in any thread."""
        core = self.core
        sending = core.sending
        return Replication(
            other=self.peering.other,
            state=self._state,
            since_ns=self._since_ns,
            is_linked=core.link.peer is not None,
            is_ordered=core.degradation.is_ordered,
            backlog=sending.backlog if sending is not None else 0,
            differences=self._mirroring.differences,
            lacking=lacking_of(core),
            is_other_storing=core.link.peer is None or core.link.peer.is_storing,
            voting=None if self.lease is None else self.lease.status(),
        )
