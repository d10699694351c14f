"""Random faults from the seed: the base of every scenario's faults."""

from penstock.base.clock import NS_PER_MS
from penstock.sim.node import Node
from penstock.sim.world import World


class FaultSchedule:
    """Injects a fault at random intervals, `interval_ms` on average, until it is stopped; 0 means never."""

    def __init__(self, world: World, interval_ms: int) -> None:
        self.randomness = world.randomness.fork("faults")
        self.is_running = False
        self.crashes = 0
        self._world = world
        self._interval_ms = interval_ms

    def strike(self) -> None:
        """Inject one fault."""
        raise NotImplementedError

    def start(self) -> None:
        self.is_running = self._interval_ms > 0
        if self.is_running:
            self._wait()

    def stop(self) -> None:
        """Inject no more faults; a subclass ends lasting faults."""
        self.is_running = False

    def crash(self, node: Node, outage_ns_max: int) -> None:
        """Crash a node, and restart it after a while."""
        if node.is_up:
            node.crash()
            self.crashes += 1
            self._world.after(self.randomness.below(outage_ns_max), lambda: self.restart(node))

    def restart(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    def _wait(self) -> None:
        self._world.after(self.randomness.below(2 * self._interval_ms * NS_PER_MS), self._strike)

    def _strike(self) -> None:
        if self.is_running:
            self.strike()
            self._wait()

    def _log(self, what: str) -> None:
        self._world.log.write(self._world.now_ns(), "faults", what)
