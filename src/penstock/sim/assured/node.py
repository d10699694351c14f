"""The process of a simulated message router, with its journal and its options."""

from typing import TYPE_CHECKING

import msgspec

from penstock.assured.config import EndpointConfig, RouterConfig, Want
from penstock.assured.core.router.events import (
    Append,
    DiskRecovered,
    DiskTroubled,
    EndLink,
    Event,
    Instruction,
    Noted,
    ReadRecords,
    RecordsRead,
    RemoveBefore,
    Replay,
    SendData,
    SendMessage,
    Start,
    Stored,
)
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire.control import EndpointNamed, FlowActive
from penstock.base.clock import NS_PER_MS
from penstock.journal.config import JournalConfig
from penstock.sim.assured.disk import AssuredDisk
from penstock.sim.disk import DiskFaults
from penstock.sim.node import Node
from penstock.sim.randomness import SeededRandomness

if TYPE_CHECKING:
    from penstock.sim.assured.plant import AssuredPlant

WANTS = {
    b"t.1": frozenset({"all", "one"}),
    b"t.2": frozenset({"all", "small"}),
    b"t.3": frozenset({"all", "brief"}),
    b"t.4": frozenset({"all"}),
    b"t.5": frozenset({"all", "work"}),
}


class AssuredOptions(msgspec.Struct, kw_only=True):
    """Options of a plant."""

    router: RouterConfig
    journal: JournalConfig
    disk: DiskFaults
    payload_size_max: int
    publishers: int
    consumers: int
    transactors: int
    fault_interval_ms: int

    @staticmethod
    def draw(pick: SeededRandomness) -> "AssuredOptions":
        small = pick.choose([3, 20])
        endpoints = (
            EndpointConfig(name="dead", dead_to="", messages_max=pick.choose([4, 10_000])),
            EndpointConfig(name="all", wants=(Want(topics=("t.>",)),)),
            EndpointConfig(
                name="one", wants=(Want(topics=("t.1",)),), consumers="exclusive", deliveries_max=pick.choose([0, 2])
            ),
            EndpointConfig(
                name="small",
                wants=(Want(topics=("t.2",)),),
                messages_max=small,
                when_full=pick.choose(["refuse", "dead"]),
            ),
            EndpointConfig(name="brief", wants=(Want(topics=("t.3",)),), age_ms_max=pick.choose([0, 50, 500])),
            EndpointConfig(name="work", wants=(Want(topics=("t.5",)),)),
        )
        return AssuredOptions(
            router=RouterConfig(
                name="router",
                endpoints=endpoints,
                message_bytes_max=4_096,
                cache_bytes=pick.choose([65_536, 1_048_576]),
                section_bytes=pick.choose([4_096, 16_384, 65_536]),
                fetch_messages_max=pick.choose([3, 1_024]),
                unsettled_max=pick.choose([5, 1_000]),
                sweep_messages=pick.choose([10, 10_000]),
                transaction_ms_max=pick.choose([100, 60_000]),
            ),
            journal=JournalConfig(
                segment_bytes=pick.choose([4_096, 32_768]),
                linger_us=0,
                gather_bytes_max=pick.choose([16_384, 1_048_576]),
                retry_ms=10,
                failures_max=pick.choose([1, 3]),
            ),
            disk=DiskFaults(
                fsync_failure=pick.choose([0.0, 0.0, 0.02]),
                write_failure=pick.choose([0.0, 0.02]),
                slow_fsync=pick.choose([0.0, 0.02]),
                slow_fsync_delay_ns=100 * NS_PER_MS,
                torn_write=pick.choose([0.5, 1.0]),
            ),
            payload_size_max=pick.choose([20, 1_000]),
            publishers=pick.between(1, 3),
            consumers=pick.between(1, 3),
            transactors=pick.between(0, 2),
            fault_interval_ms=pick.choose([150, 600]),
        )


class AssuredNode(Node):
    """A router's process, with its journal."""

    def __init__(self, plant: "AssuredPlant") -> None:
        super().__init__(plant.world, "router", "assured")
        self.plant = plant
        self.options = plant.options
        self.disk = AssuredDisk(self, "journal")
        self.is_ready = False
        self.fetched = self.sections_removed = self.given_up = self.moved = 0
        self._last = 0
        self._late: list[Event] = []
        self._randomness = plant.world.randomness.fork("router")

    def router(self) -> MessageRouter | None:
        assert self.core is None or isinstance(self.core, MessageRouter)
        return self.core

    def on_start(self) -> None:
        self.disk.start()

    def crash(self) -> None:
        if (router := self.router()) is not None:
            self.given_up += router.tables.given_up_total
            self.moved += router.tables.moved_total
        super().crash()

    def on_crash(self) -> None:
        self.is_ready = False
        self._late = []
        self.disk.crash()
        self.plant.lose_links()

    def kill(self, *, is_machine: bool) -> None:
        self.plant.kill(is_machine=is_machine)

    def handle(self, event: Event) -> None:
        """Events that arrive during a stall keep their order, as links and disks do."""
        now_ns = self.world.now_ns()
        if self.core is None or (now_ns >= self.stalled_until_ns and not self._late):
            super().handle(event)
            return
        self._late.append(event)
        if len(self._late) == 1:
            self._wake_later(self.incarnation)

    def _wake_later(self, incarnation: int) -> None:
        def wake() -> None:
            if self.incarnation != incarnation or not self.is_up:
                return
            if self.world.now_ns() < self.stalled_until_ns:
                self._wake_later(incarnation)
                return
            late, self._late = self._late, []
            for event in late:
                super(AssuredNode, self).handle(event)

        self.world.at(self.stalled_until_ns, wake)

    # The content of its journal

    def appended(self, sequence: int, timestamp_ns: int, payload: bytes) -> None:
        """The plant checks what clients see."""

    def recovered(self, durable: int, last: int) -> None:
        self._last = last
        if durable == last:
            self._begin()

    def acknowledged(self, through: int) -> None:
        if self.core is not None:
            self.handle(Stored(through))
        elif through >= self._last:
            self._begin()

    def journal_said(self, event: Stored | DiskTroubled | DiskRecovered | RecordsRead) -> None:
        if isinstance(event, RecordsRead):
            self.fetched += len(event.rows)
        self.handle(event)

    def _begin(self) -> None:
        core = MessageRouter(self.options.router, self._randomness)
        batch = self.disk.everything()
        if len(batch):
            core.handle(Replay(batch.data, batch.rows), self.world.now_ns())
        self.run(core)
        self.log(f"has {core.tables.message_count} messages")
        self.handle(Start(self._last + 1, self.world.now_ns()))
        self.is_ready = True

    def from_client(self, link: int, event: Event) -> None:
        if self.is_ready:
            self.handle(event)

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Append():
                self.disk.append(instruction)
            case ReadRecords():
                self.disk.read(instruction)
            case RemoveBefore(sequence):
                self.sections_removed += 1
                self.disk.remove_before(sequence)
            case SendMessage(_, EndpointNamed()):
                self.log("NameEndpoint")
            case SendMessage(_, FlowActive()):
                self.log("FlowActive")
            case SendMessage(link) | SendData(link) | EndLink(link):
                self.plant.to_client(link, instruction)
            case Noted(what):
                self.log(what)
            case _:
                self.log(type(instruction).__name__)
