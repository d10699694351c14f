"""Faults of a lease: voters crash, stall and lose each other, clocks are set, operators release and force."""

from typing import TYPE_CHECKING

from penstock.assured.core.lease.protocol import Force, Release
from penstock.base.clock import NS_PER_SECOND
from penstock.sim.fault_schedule import FaultSchedule
from penstock.sim.lease.nodes import RouterNode, VoterNode

if TYPE_CHECKING:
    from penstock.sim.lease.plant import LeasePlant

RESTART_LEASES_MAX = 3


class LeaseFaultSchedule(FaultSchedule):
    def __init__(self, plant: "LeasePlant") -> None:
        super().__init__(plant.world, plant.options.fault_interval_ms)
        self.partitions = self.stalls = self.clocks_set = self.releases = self.forced = 0
        self._plant = plant
        self._lease_ns = plant.options.lease.promise_ns
        self._cut: set[tuple[str, str]] = set()

    def stop(self) -> None:
        super().stop()
        self._mend()
        self._plant.network.heal()
        for node in self._plant.nodes:
            self.restart(node)

    def reached(self, router: RouterNode) -> list[str]:
        """Names of the other voters that are up and connected with this router both ways."""
        others = [node for node in self._plant.nodes if node is not router and node.is_up]
        ways = [(router.name, node.name) for node in others]
        return [there for here, there in ways if (here, there) not in self._cut and (there, here) not in self._cut]

    def strike(self) -> None:
        node = self.randomness.choose(self._plant.nodes)
        router = self.randomness.choose(self._plant.routers)
        match self.randomness.below(12):
            case 0 | 1:
                self.crash(node, RESTART_LEASES_MAX * self._lease_ns)
            case 2 | 3:
                self._partition(node)
            case 4 | 10:
                self._mend()
            case 5:
                node.stall(self.randomness.below(2 * self._lease_ns))
                self.stalls += 1
            case 6:
                node.clock.set_wall(self.randomness.between(-NS_PER_SECOND, NS_PER_SECOND) * 86_400)
                self.clocks_set += 1
            case 7 | 11:
                router.wish_degraded(self.randomness.chance(0.5))
            case 8:
                if router.holds():
                    self.releases += 1
                    router.handle(Release())
            case _:
                self._force(router)

    def _force(self, router: RouterNode) -> None:
        if self.randomness.chance(0.2):
            self.forced += 1
            self._plant.checker.forced(router.name)
            router.handle(Force())

    def _partition(self, node: VoterNode) -> None:
        """Cut one voter off from both others or from one, in both directions or one; or cut off the holder from both
        others."""
        self.partitions += 1
        holders = [router for router in self._plant.routers if router.holds()]
        is_whole = bool(holders) and self.randomness.chance(0.5)
        node = holders[0] if is_whole else node
        others = [each.name for each in self._plant.nodes if each is not node]
        for other in others if is_whole or self.randomness.chance(0.5) else [self.randomness.choose(others)]:
            ways = [(node.name, other), (other, node.name)]
            for way in ways if is_whole or self.randomness.chance(0.7) else [self.randomness.choose(ways)]:
                self._cut.add(way)
                self._plant.network.cut(*way)

    def _mend(self) -> None:
        for way in self._cut:
            self._plant.network.mend(*way)
        self._cut.clear()
