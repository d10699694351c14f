"""Faults of a plant with filters."""

from typing import TYPE_CHECKING

from penstock.base.clock import NS_PER_MS
from penstock.sim.disk import DiskFaults
from penstock.sim.fault_schedule import FaultSchedule
from penstock.sim.network import LinkFaults, Network

if TYPE_CHECKING:
    from penstock.sim.filter.plant import FilterPlant

OUTAGE_NS_MAX = 700 * NS_PER_MS
STALL_NS_MAX = 300 * NS_PER_MS
STORM_NS_MAX = 150 * NS_PER_MS


class FilterFaultSchedule(FaultSchedule):
    """Faults of publishers, filters, applications and both kinds of network."""

    def __init__(self, plant: "FilterPlant") -> None:
        super().__init__(plant.world, plant.options.fault_interval_ms)
        self._plant = plant

    def stop(self) -> None:
        super().stop()
        plant = self._plant
        for network in (plant.network, *plant.locals):
            network.heal()
        for publisher in plant.publishers:
            publisher.disk.faults = DiskFaults()
        for node in plant.nodes:
            self.restart(node)

    def strike(self) -> None:
        kinds = [
            self._crash_publisher, self._crash_filter, self._crash_application, self._crash_application, self._stall,
            self._stall, self._cut, self._storm, self._local_storm,
        ]  # fmt: skip
        self.randomness.choose(kinds)()

    def _crash_publisher(self) -> None:
        self.crash(self.randomness.choose(self._plant.publishers), OUTAGE_NS_MAX)

    def _crash_filter(self) -> None:
        self.crash(self.randomness.choose(self._plant.filters), OUTAGE_NS_MAX)

    def _crash_application(self) -> None:
        self.crash(self.randomness.choose(self._plant.applications), OUTAGE_NS_MAX)

    def _stall(self) -> None:
        self.randomness.choose(self._plant.nodes).stall(self.randomness.below(STALL_NS_MAX))

    def _cut(self) -> None:
        """Cut the link between a publisher and a filter, in one or both directions."""
        publisher = self.randomness.choose(self._plant.publishers).name
        module = self.randomness.choose(self._plant.filters).name
        network, delay_ns = self._plant.network, self.randomness.below(OUTAGE_NS_MAX)
        ways = self.randomness.choose(
            [[(publisher, module)], [(module, publisher)], [(publisher, module), (module, publisher)]]
        )
        for way in ways:
            self._log(f"the link from {way[0]} to {way[1]} is cut for {delay_ns} ns")
            network.cut(*way)
            self._world.after(delay_ns, lambda way=way: network.mend(*way))  # type: ignore[misc]

    def _storm(self) -> None:
        self._lose_most(self._plant.network, self._plant.options.link)

    def _local_storm(self) -> None:
        """Lose most packets on one host."""
        self._lose_most(self.randomness.choose(self._plant.locals), self._plant.options.local)

    def _lose_most(self, network: Network, before: LinkFaults) -> None:
        network.faults = LinkFaults(loss=0.8, delay_max_ns=before.delay_max_ns)
        self._log("a storm begins: four of five datagrams are lost")

        def calm() -> None:
            if self.is_running:
                network.faults = before
                self._log("the storm is over")

        self._world.after(self.randomness.below(STORM_NS_MAX), calm)
