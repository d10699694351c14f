"""Faults of a distribution plant, and the rules that its operators change."""

from typing import TYPE_CHECKING

from penstock.base.clock import NS_PER_MS
from penstock.sim.fault_schedule import FaultSchedule

if TYPE_CHECKING:
    from penstock.sim.engine.plant import EnginePlant

OUTAGE_NS_MAX = 150 * NS_PER_MS
STALL_NS_MAX = 200 * NS_PER_MS
NODE_STALL_NS_MAX = 30 * NS_PER_MS
STORM_NS_MAX = 120 * NS_PER_MS
STORM = 12
"""Factor by which the update rate grows in a storm."""
CONGESTED_BYTES_PER_S = 60_000


class EngineFaultSchedule(FaultSchedule):
    def __init__(self, plant: "EnginePlant") -> None:
        super().__init__(plant.world, plant.options.fault_interval_ms)
        self._plant = plant

    def stop(self) -> None:
        super().stop()
        self._plant.storm = 1
        for node in (*self._plant.nodes, *self._plant.consumers):
            self.restart(node)

    def strike(self) -> None:
        kinds = [
            self._crash_node, self._crash_consumer, self._stall_consumer, self._stall_consumer, self._stall_node,
            self._cut_consumer, self._cut_chain, self._congest, self._congest, self._storm, self._storm,
            self._change_rules, self._overload,
        ]  # fmt: skip
        self.randomness.choose(kinds)()

    def _crash_node(self) -> None:
        self.crash(self.randomness.choose(self._plant.nodes), OUTAGE_NS_MAX)

    def _crash_consumer(self) -> None:
        self.crash(self.randomness.choose(self._plant.consumers), OUTAGE_NS_MAX)

    def _stall_consumer(self) -> None:
        self.randomness.choose(self._plant.consumers).stall(self.randomness.below(STALL_NS_MAX))

    def _stall_node(self) -> None:
        self.randomness.choose(self._plant.nodes).stall(self.randomness.below(NODE_STALL_NS_MAX))

    def _cut_consumer(self) -> None:
        consumer = self.randomness.choose(self._plant.consumers)
        if consumer.is_up:
            self._log(f"{consumer.name} loses its connection")
            consumer.cut()

    def _cut_chain(self) -> None:
        if self._plant.muxes:
            mux = self.randomness.choose(self._plant.muxes)
            if mux.is_up:
                mux.cut()

    def _congest(self) -> None:
        """Slow down the line of a session or of a chain for a while."""
        links = self._plant.links()
        if links:
            link = self.randomness.choose(links)
            before, link.bytes_per_s = link.bytes_per_s, CONGESTED_BYTES_PER_S
            self._log("a line is congested")

            def clear() -> None:
                link.bytes_per_s = max(before, link.bytes_per_s)

            self._world.after(self.randomness.below(STALL_NS_MAX), clear)

    def _change_rules(self) -> None:
        node = self.randomness.choose(self._plant.nodes)
        self._log(f"the rules of {node.name} change")
        self._plant.change_rules(node)

    def _overload(self) -> None:
        node = self.randomness.choose(self._plant.nodes)
        self._log(f"{node.name} is busy all the time")
        node.load = 1.0

        def calm() -> None:
            node.load = 0.0

        self._world.after(self.randomness.below(STALL_NS_MAX), calm)

    def _storm(self) -> None:
        self._plant.storm = STORM
        self._log("the market is in a storm")

        def calm() -> None:
            self._plant.storm = 1

        self._world.after(self.randomness.below(STORM_NS_MAX), calm)
