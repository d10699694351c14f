"""The routers of a simulated pair: production cores, each with a journal, a voter's memory and links."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.assured.core.lease.protocol import LEASE, Heard, Keep, Kept, Message, Tell
from penstock.assured.core.pair._receiving import are_synchronous, held_ids
from penstock.assured.core.pair.pair import Pair
from penstock.assured.core.pair.protocol import PairInstruction, PeerClosed, PeerEnd, PeerFrame, PeerOpened, PeerSend
from penstock.assured.core.router.events import (
    Append,
    EndLink,
    LinkClosed,
    LinkOpened,
    Noted,
    ReadRecords,
    RemoveBefore,
    SendData,
    SendMessage,
    Start,
    Stored,
)
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire._layout import PEER_FRAME_SIZE_MAX
from penstock.assured.wire.control import EndpointNamed
from penstock.base.clock import NS_PER_MS
from penstock.middleware.core.events import Address
from penstock.net.core.framing import FrameDecoder
from penstock.sim.clock import LocalWorld
from penstock.sim.lease.nodes import MESSAGE_SIZE_MAX, MemoryDisk
from penstock.sim.link import LinkEnd
from penstock.sim.node import Node
from penstock.sim.replicated.disk import RouterDisk

if TYPE_CHECKING:
    from penstock.sim.replicated.plant import ReplicatedPlant


class PairNode(Node):
    def __init__(self, plant: "ReplicatedPlant", name: str) -> None:
        rate_ppm, zero_ns = plant.clocks.draw_ppm(name), plant.world.randomness.fork(name).below(2**40)
        self.clock = LocalWorld(plant.world, rate_ppm, zero_ns)
        super().__init__(self.clock, name, "router")
        self.plant = plant
        self.journal = RouterDisk(
            plant.world, plant.world.randomness.fork(f"journal/{name}"), plant.options.sync_ms * NS_PER_MS
        )
        self.memory = MemoryDisk(self)
        self._address: Address = (name, 1)
        self._links: dict[int, LinkEnd[Any]] = {}
        self._peer: tuple[int, LinkEnd[Any], FrameDecoder] | None = None
        self._number = 0
        self.last_epoch = 0
        self.was_degraded = False
        """Time of its crash."""
        self._late: deque[Any] = deque()
        self._was_active = False
        """Time of the event in progress."""

    def handle(self, event: Any) -> None:
        """Events that arrive during a stall keep their order."""
        if self.is_up and self.world.now_ns() < self.stalled_until_ns:
            if not self._late:
                self.world.at(self.stalled_until_ns, self._catch_up)
            self._late.append(event)
            return
        self._tell(event)

    def _tell(self, event: Any) -> None:
        self._was_active = self.is_active()
        super().handle(event)

    def _catch_up(self) -> None:
        if self.world.now_ns() < self.stalled_until_ns:
            self.world.at(self.stalled_until_ns, self._catch_up)
            return
        late, self._late = self._late, deque()
        for event in late:
            self._tell(event)

    def log(self, what: str) -> None:
        """Write a line with the true time to the log."""
        self.world.log.write(self.plant.world.now_ns(), self.name, what)

    def pair(self) -> Pair | None:
        assert self.core is None or isinstance(self.core, Pair)
        return self.core

    def is_active(self) -> bool:
        """True if the router would deliver or acknowledge now."""
        pair = self.pair()
        if pair is None or not pair.is_active:
            return False
        return pair.keeper is None or pair.keeper.holds(self.world.now_ns())

    def is_degraded(self) -> bool:
        pair = self.pair()
        return pair is not None and pair.is_active and pair.degradation.mode != "synchronous"

    def may_speak(self) -> bool:
        """True if the router may send to clients: it is active, or was active when it received the event in
        progress."""
        return self._was_active or self.is_active()

    def is_in_step(self) -> bool:
        """True if this router is active and the other router is in sync."""
        pair = self.pair()
        if pair is None or not self.is_active():
            return False
        return pair.sending is not None and pair.sending.is_whole and pair.degradation.mode == "synchronous"

    def has_everything(self, epoch: int) -> bool:
        """True if this router has everything that the active router of that epoch promised."""
        pair = self.pair()
        return pair is not None and pair.epoch >= epoch and not pair.router.log.is_partial

    def message_count(self) -> int:
        """Messages of an active router; of a standby, only those that the active router must have too."""
        pair = self.pair()
        if pair is None:
            return 0
        tables = pair.router.tables
        if self.is_active():
            return tables.message_count
        return sum(int(are_synchronous(tables, ids).sum()) for ids in held_ids(tables).values())

    def epoch(self) -> int:
        pair = self.pair()
        return pair.epoch if pair is not None else 0

    # Starting and ending

    def on_start(self) -> None:
        self.plant.network.attach(self._address, self._heard)
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        router = MessageRouter(self.plant.options.router(self.name), randomness)
        pair = Pair(router, self.plant.options.pair, randomness, self.memory.memory)
        now_ns = self.world.now_ns()
        pair.handle(self.journal.replay(), now_ns)
        self.run(pair)
        self.handle(Start(self.journal.next_sequence, self.plant.world.now_ns()))

    def on_crash(self) -> None:
        self.plant.network.detach(self._address)
        self.journal.crash()
        self.memory.crash()
        for end in [*self._links.values(), *([self._peer[1]] if self._peer else [])]:
            end.link.end()
        self._links.clear()
        self._peer = None
        self._late.clear()
        self.stalled_until_ns = 0

    def run_later(self, action: Callable[..., None]) -> Callable[..., None]:
        """Does nothing once the process has ended."""
        incarnation = self.incarnation

        def act(*arguments: Any) -> None:
            if self.is_up and self.incarnation == incarnation:
                action(*arguments)

        return act

    # Links

    def client_opened(self, end: LinkEnd[Any], name: str) -> int:
        self._number += 1
        number = self._number
        self._links[number] = end
        self.handle(LinkOpened(number, name))
        return number

    def client_said(self, number: int, make: Callable[[int], Any]) -> None:
        if number in self._links:
            self.handle(make(number))

    def client_gone(self, number: int) -> None:
        if self._links.pop(number, None) is not None:
            self.handle(LinkClosed(number))

    def peer_opened(self, end: LinkEnd[Any]) -> None:
        self._number += 1
        self._peer = (self._number, end, FrameDecoder(PEER_FRAME_SIZE_MAX))
        self.handle(PeerOpened(self._number))

    def peer_said(self, end: LinkEnd[Any], data: bytes) -> None:
        if self._peer is not None and self._peer[1] is end:
            for frame in self._peer[2].feed(data):
                self.handle(PeerFrame(self._peer[0], frame))
                if self._peer is None or self._peer[1] is not end:
                    break

    def peer_gone(self, end: LinkEnd[Any]) -> None:
        if self._peer is not None and self._peer[1] is end:
            number, self._peer = self._peer[0], None
            self.handle(PeerClosed(number))

    def has_peer(self) -> bool:
        return self._peer is not None

    def _heard(self, data: bytes, source: Address) -> None:
        message = LEASE.decode(data)
        assert isinstance(message, Message)
        self.handle(Heard(source[0], message))

    # Instructions of the core

    def carry_out(self, instruction: PairInstruction) -> None:
        match instruction:
            case Append():
                self.journal.append(instruction, self.run_later(lambda through: self.handle(Stored(through))))
            case ReadRecords():
                self.journal.read(instruction, self.run_later(self.handle))
            case RemoveBefore(sequence):
                self.journal.store.remove_before(sequence)
            case SendMessage(_, EndpointNamed()):
                pass  # no client of this plant asks why an endpoint is full
            case SendData(link) | SendMessage(link) | EndLink(link):
                self._to_client(link, instruction)
            case PeerSend(link, data):
                if self._peer is not None and self._peer[0] == link:
                    self._peer[1].send(data)
            case PeerEnd(link):
                if self._peer is not None and self._peer[0] == link:
                    self._peer[1].link.end()
            case Tell(to, message):
                data = LEASE.encode(message, MESSAGE_SIZE_MAX)
                self.plant.network.unicast(self._address, (to, 1), data)
            case Keep(memory):
                self.log(f"keep {memory}")
                self.memory.keep(memory, lambda: self.handle(Kept()))
            case Noted():
                self.plant.noted(instruction)
                self.log(f"{instruction}")
            case _:
                self.log(f"{instruction}")

    def _to_client(self, link: int, instruction: Any) -> None:
        if isinstance(instruction, SendData):
            self.plant.sends(self)
        end = self._links.get(link)
        if end is not None:
            end.send(instruction)
            if isinstance(instruction, EndLink):
                del self._links[link]
