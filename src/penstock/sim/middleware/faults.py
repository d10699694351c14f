"""Faults of the middleware's plant: crashes, stalls, cut links, bursts of loss, full disks."""

from typing import TYPE_CHECKING

from penstock.base.clock import NS_PER_SECOND
from penstock.sim.disk import DiskFaults
from penstock.sim.fault_schedule import FaultSchedule
from penstock.sim.network import LinkFaults

if TYPE_CHECKING:
    from penstock.sim.middleware.plant import MiddlewarePlant

OUTAGE_NS_MAX = 8 * NS_PER_SECOND


class MiddlewareFaultSchedule(FaultSchedule):
    """Faults of the middleware's plant."""

    def __init__(self, plant: "MiddlewarePlant") -> None:
        super().__init__(plant.world, plant.options.fault_interval_ms)
        self._plant = plant

    def stop(self) -> None:
        """Heal the network and start every node that is down."""
        super().stop()
        self._plant.network.heal()
        for publisher in self._plant.publishers:
            publisher.disk.faults = DiskFaults()
        for node in self._plant.nodes:
            self.restart(node)

    def strike(self) -> None:
        self.randomness.choose([self._crash, self._stall, self._cut, self._storm, self._fill_disk])()

    def _crash(self) -> None:
        self.crash(self.randomness.choose(self._plant.nodes), OUTAGE_NS_MAX)

    def _stall(self) -> None:
        self.randomness.choose(self._plant.nodes).stall(self.randomness.below(NS_PER_SECOND))

    def _cut(self) -> None:
        host = self.randomness.choose(self._plant.nodes)
        other = self.randomness.choose(self._plant.nodes)
        delay_ns = self.randomness.below(8 * NS_PER_SECOND)
        self._cut_way(host.name, other.name, delay_ns)
        if self.randomness.chance(0.5):
            self._cut_way(other.name, host.name, delay_ns)

    def _cut_way(self, source: str, destination: str, delay_ns: int) -> None:
        self._log(f"the link from {source} to {destination} is cut for {delay_ns} ns")
        self._plant.network.cut(source, destination)
        self._world.after(delay_ns, lambda: self._plant.network.mend(source, destination))

    def _storm(self) -> None:
        """Lose almost all packets for a moment."""
        network, before = self._plant.network, self._plant.options.link
        network.faults = LinkFaults(loss=0.9, delay_max_ns=before.delay_max_ns)
        self._log("a storm begins: nine of ten datagrams are lost")

        def calm() -> None:
            if self.is_running:
                network.faults = before
                self._log("the storm is over")

        self._world.after(self.randomness.below(NS_PER_SECOND), calm)

    def _fill_disk(self) -> None:
        disk = self.randomness.choose(self._plant.publishers).disk
        faults = disk.faults
        faults.size_max = disk.size()
        self._log("a disk is full")

        def make_room() -> None:
            faults.size_max = DiskFaults().size_max

        self._world.after(self.randomness.below(8 * NS_PER_SECOND), make_room)
