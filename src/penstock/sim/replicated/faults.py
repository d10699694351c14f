"""Faults of a pair: crashes, power failures, partitions, stalls, and operators who switch."""

from typing import TYPE_CHECKING, Any

from penstock.assured.core.pair.protocol import SwitchHere
from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.sim.fault_schedule import FaultSchedule
from penstock.sim.replicated.nodes import PairNode

if TYPE_CHECKING:
    from penstock.sim.replicated.plant import ReplicatedPlant

RESTART_NS_MAX = NS_PER_SECOND
STALL_NS_MAX = 400 * NS_PER_MS
SOON_NS_MAX = 100 * NS_PER_MS


class ReplicatedFaultSchedule(FaultSchedule):
    def __init__(self, plant: "ReplicatedPlant") -> None:
        super().__init__(plant.world, plant.options.fault_interval_ms)
        self._plant = plant
        self._cut: set[frozenset[str]] = set()

    def stop(self) -> None:
        super().stop()
        self._mend()
        for node in self._plant.nodes:
            self.restart(node)

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut

    def strike(self) -> None:
        node = self.randomness.choose(self._plant.nodes)
        router = self.randomness.choose(self._plant.routers)
        match self.randomness.below(14):
            case 0 | 1:
                self._crash_for(node)
            case 2:
                self._partition(node.name)
            case 3 | 4:
                self._mend()
            case 5:
                node.stall(self.randomness.below(STALL_NS_MAX))
            case 6:
                self._plant.count("planned")
                router.handle(SwitchHere())
            case 7:
                self._force(router)
            case _:
                self._strike_active()

    def _strike_active(self) -> None:
        """Fail the active router if the other one has everything and would have to take over; otherwise repair
        faults first."""
        active = next((each for each in self._plant.routers if each.is_in_step()), None)
        if active is None:
            self._mend()
            for node in self._plant.nodes:
                self.restart(node)
            return
        self.randomness.choose([self._fail_power, self._fail_behind, self._isolate])(active)

    # Crashes

    def _crash_for(self, node: Any, away_ns: int = 0, *, soon: bool = False) -> None:
        """Crash a node for at least `away_ns`."""
        if not self.is_running or not node.is_up:
            return
        self.crashes += 1
        if isinstance(node, PairNode):
            node.last_epoch, node.was_degraded = node.epoch(), node.is_degraded()
        node.crash()
        self._plant.world.after(
            away_ns + self.randomness.below(SOON_NS_MAX if soon else RESTART_NS_MAX),
            lambda: self.restart(node),
        )

    def _long_ns(self) -> int:
        """An outage that is long enough for a takeover."""
        return 2 * self._plant.options.lease_ms * NS_PER_MS

    def _other(self, router: PairNode) -> PairNode:
        return self._plant.routers[router is self._plant.routers[0]]

    def _fail_power(self, active: PairNode) -> None:
        """Both routers lose power while the disk of the standby is slow; the active router restarts late."""
        other = self._other(active)
        other.journal.store.stall(self.randomness.below(SOON_NS_MAX))

        def fail() -> None:
            self._crash_for(active, self._long_ns())
            self._crash_for(other, soon=True)

        self._plant.world.after(self.randomness.below(SOON_NS_MAX), fail)
        if not self._plant.options.has_lease:
            self._plant.world.after(3 * SOON_NS_MAX, lambda: self._force(other))

    def _fail_behind(self, active: PairNode) -> None:
        """The active router crashes while the standby is stalled or cut off, and restarts late."""
        if self.randomness.chance(0.5):
            self._other(active).stall(self.randomness.below(SOON_NS_MAX))
        else:
            self._sever(active.name, self._other(active).name)
        self._plant.world.after(self.randomness.below(SOON_NS_MAX), lambda: self._crash_for(active, self._long_ns()))
        if not self._plant.options.has_lease:
            self._plant.world.after(2 * SOON_NS_MAX, lambda: self._force(self._other(active)))

    # The network

    def _partition(self, name: str) -> None:
        self._plant.count("partitions")
        plant = self._plant
        names = ["a", "b", "w", *(each.name for each in [*plant.publishers, *plant.consumers])]
        names.remove(name)
        for other in names:
            if self.randomness.chance(0.6):
                self._sever(name, other)

    def _isolate(self, active: PairNode) -> None:
        """Cut the active router off from the other voters, not from clients: it must give up by itself."""
        self._plant.count("partitions")
        for each in self._plant.nodes:
            if each is not active:
                self._sever(active.name, each.name)

    def _sever(self, one: str, other: str) -> None:
        self._cut.add(frozenset((one, other)))
        self._plant.network.cut(one, other)
        self._plant.network.cut(other, one)

    def _mend(self) -> None:
        for pair in self._cut:
            one, other = pair
            self._plant.network.mend(one, other)
            self._plant.network.mend(other, one)
        self._cut.clear()

    # Operators

    def _force(self, router: PairNode) -> None:
        """Without a lease, operators force a router only if the other one cannot be active. A router that lacks
        messages would give up acknowledged ones."""
        other = self._other(router)
        if self._plant.options.has_lease or other.is_up or not router.is_up:
            return
        if not self.is_running or not router.has_everything(max(1, other.last_epoch)):
            return
        self._plant.count("forced")
        self._plant.checker.is_excused |= other.was_degraded
        router.handle(SwitchHere(is_forced=True))
