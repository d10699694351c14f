"""When and how a plant is hurt: crashes, stalls, cut links, storms of loss, all from the seed."""

from typing import TYPE_CHECKING

from penstock.sim.network import LinkFaults
from penstock.sim.node import Node
from penstock.sim.world import NS_PER_MS, NS_PER_SECOND

if TYPE_CHECKING:
    from penstock.sim.plant import MiddlewarePlant


class FaultSchedule:
    """Strikes at random intervals until it is stopped; then everything is put right again."""

    def __init__(self, plant: "MiddlewarePlant") -> None:
        self._plant = plant
        self._world = plant.world
        self._randomness = plant.world.randomness.fork("faults")
        self._is_running = False
        self.crashes = 0

    def start(self) -> None:
        self._is_running = self._plant.options.fault_interval_ms > 0
        if self._is_running:
            self._wait()

    def stop(self) -> None:
        """Heal the network and start every node that is down."""
        self._is_running = False
        self._plant.network.heal()
        for publisher in self._plant.publishers:
            publisher.disk.faults.fsync_failure = 0.0
        for node in self._plant.nodes:
            if not node.is_up:
                node.start()

    def _wait(self) -> None:
        mean_ns = self._plant.options.fault_interval_ms * NS_PER_MS
        self._world.after(self._randomness.below(2 * mean_ns), self._strike)

    def _strike(self) -> None:
        if not self._is_running:
            return
        self._randomness.choose([self._crash, self._stall, self._cut, self._storm])()
        self._wait()

    def _crash(self) -> None:
        node = self._randomness.choose(self._plant.nodes)
        if node.is_up:
            node.crash()
            self.crashes += 1
            self._world.after(self._randomness.below(8 * NS_PER_SECOND), lambda: self._restart(node))

    def _restart(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    def _stall(self) -> None:
        self._randomness.choose(self._plant.nodes).stall(self._randomness.below(NS_PER_SECOND))

    def _cut(self) -> None:
        host = self._randomness.choose(self._plant.nodes)
        other = self._randomness.choose(self._plant.nodes)
        self._world.log.write(self._world.now_ns(), "network", f"cut {host.name} {other.name}")
        self._plant.network.cut(host.name, other.name)
        self._world.after(self._randomness.below(8 * NS_PER_SECOND), lambda: self._mend(host.name, other.name))

    def _mend(self, host: str, other: str) -> None:
        self._world.log.write(self._world.now_ns(), "network", f"mend {host} {other}")
        self._plant.network.mend(host, other)

    def _storm(self) -> None:
        """For a moment almost nothing gets through."""
        network, before = self._plant.network, self._plant.options.link
        network.faults = LinkFaults(loss=0.9, delay_max_ns=before.delay_max_ns)
        self._world.log.write(self._world.now_ns(), "network", "storm")

        def calm() -> None:
            if self._is_running:
                network.faults = before

        self._world.after(self._randomness.below(NS_PER_SECOND), calm)
