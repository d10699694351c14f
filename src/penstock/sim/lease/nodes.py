"""Voters for a lease in the simulator: two routers and a witness, on clocks of their own, with a small disk each."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from penstock.assured.core.lease.keeper import LeaseKeeper
from penstock.assured.core.lease.protocol import (
    LEASE,
    DegradedNoted,
    Fit,
    Heard,
    Keep,
    Kept,
    LeaseAcquired,
    LeaseInstruction,
    LeaseLost,
    Memory,
    Message,
    NoteDegraded,
    Tell,
)
from penstock.assured.core.lease.voter import LeaseVoter
from penstock.base.clock import NS_PER_MS
from penstock.middleware.core.events import Address
from penstock.sim.clock import ClockRates, LocalWorld
from penstock.sim.network import Network
from penstock.sim.node import Node
from penstock.sim.world import World

if TYPE_CHECKING:
    from penstock.sim.lease.plant import LeasePlant

MESSAGE_SIZE_MAX = 1_024
KEEP_NS_MAX = 20 * NS_PER_MS


class VotingPlant(Protocol):
    """A plant that has voters."""

    world: World
    network: Network
    clocks: ClockRates

    @property
    def options(self) -> Any:
        """Options with the `lease` to vote for."""
        ...


class MemoryDisk:
    """Stores a voter's memory; after a crash, the memory being written or the previous one."""

    def __init__(self, node: Node) -> None:
        self.memory = Memory()
        self._node = node
        self._randomness = node.world.randomness.fork(f"memory/{node.name}")
        self._writing: Memory | None = None

    def keep(self, memory: Memory, done: Callable[[], None]) -> None:
        incarnation = self._node.incarnation
        self._writing = memory

        def end() -> None:
            if self._node.is_up and self._node.incarnation == incarnation:
                self.memory, self._writing = memory, None
                done()

        self._node.world.after(self._randomness.below(KEEP_NS_MAX), end)

    def crash(self) -> None:
        if self._writing is not None and self._randomness.chance(0.5):
            self.memory = self._writing
        self._writing = None


class VoterNode(Node):
    """The witness; a router is a witness that also requests the lease."""

    def __init__(self, plant: VotingPlant, name: str) -> None:
        randomness = plant.world.randomness.fork(f"clock/{name}")
        self.clock = LocalWorld(plant.world, plant.clocks.draw_ppm(name), randomness.below(2**40))
        super().__init__(self.clock, name, "lease")
        self.plant = plant
        self.disk = MemoryDisk(self)
        self._address: Address = (name, 1)

    def log(self, what: str) -> None:
        """Write a line with the true time to the log."""
        self.world.log.write(self.plant.world.now_ns(), self.name, what)

    def on_start(self) -> None:
        self.plant.network.attach(self._address, self._received)
        self.run(LeaseVoter(self.plant.options.lease, self.disk.memory, self.world.now_ns()))

    def on_crash(self) -> None:
        self.plant.network.detach(self._address)
        self.disk.crash()

    def carry_out(self, instruction: LeaseInstruction) -> None:
        match instruction:
            case Tell(to, message):
                data = LEASE.encode(message, MESSAGE_SIZE_MAX)
                self.plant.network.unicast(self._address, (to, 1), data)
            case Keep(memory):
                self.log(f"keep {memory}")
                self.disk.keep(memory, lambda: self.handle(Kept()))
            case _:
                self.log(f"{instruction}")

    def _received(self, data: bytes, source: Address) -> None:
        message = LEASE.decode(data)
        assert isinstance(message, Message)
        self.handle(Heard(source[0], message))


class RouterNode(VoterNode):
    """A router: requests the lease whenever it is up, and sometimes degrades."""

    plant: "LeasePlant"

    def keeper(self) -> LeaseKeeper | None:
        assert self.core is None or isinstance(self.core, LeaseKeeper)
        return self.core

    def holds(self) -> bool:
        """The answer to a caller that asks before it acts, even while the process is stalled."""
        keeper = self.keeper()
        return keeper is not None and keeper.holds(self.world.now_ns())

    def on_start(self) -> None:
        self.plant.network.attach(self._address, self._received)
        randomness = self.world.randomness.fork(f"{self.name}/{self.incarnation}")
        now_ns = self.world.now_ns()
        self.run(LeaseKeeper(self.plant.options.lease, self.name, self.disk.memory, randomness, now_ns))
        is_first = self.name == self.plant.options.lease.routers[0]
        self.handle(Fit(is_first or self.plant.checker.epoch > 0))

    def wish_degraded(self, is_degraded: bool) -> None:
        """Request or withdraw the note that this router is degraded, as routers do when they degrade or are in sync
        again.
        """
        if self.holds() and self.world.now_ns() >= self.stalled_until_ns:
            if not is_degraded:
                self.plant.checker.not_degraded(self.name)
            self.handle(NoteDegraded(is_degraded))

    def carry_out(self, instruction: LeaseInstruction) -> None:
        super().carry_out(instruction)
        match instruction:
            case LeaseAcquired(epoch):
                self.plant.checker.held(self.name, epoch)
                self.plant.somebody_held()
            case LeaseLost(epoch):
                self.plant.checker.lost(self.name, epoch)
            case DegradedNoted(_, True):
                self.plant.checker.degraded(self.name)
            case _:
                pass
