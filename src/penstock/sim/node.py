"""A simulated driver: runs one core as an asyncio driver would, and can crash, restart and stall it."""

from typing import Any

from penstock.base.core import Core, Tick
from penstock.base.counters import Counters
from penstock.base.errors import SimulationError
from penstock.sim.world import World

TICKS_IN_A_ROW_MAX = 10_000
"""A core that requests a Tick at the same instant more often than this makes no progress."""


class Node:
    """One process on one host. Subclasses define how to start the core and how to carry out its instructions."""

    def __init__(self, world: World, name: str, component: str) -> None:
        self.world = world
        self.name = name
        self.counters = Counters(component, node=name)
        self.incarnation = 0
        self.is_up = False
        self.core: Core[Any, Any] | None = None
        self.stalled_until_ns = 0
        self._timer_ns: int | None = None
        self._ticks_in_a_row = 0
        self._fired_ns = -1

    # Provided by a subclass

    def on_start(self) -> None:
        """Start the process: call `run(core)`, now or after an answer of the disk."""
        raise NotImplementedError

    def on_crash(self) -> None:
        """End the process: detach it from the network and crash its disk."""
        raise NotImplementedError

    def carry_out(self, instruction: Any) -> None:
        """Execute the core's instructions."""
        raise NotImplementedError

    # Called by the plant

    def start(self) -> None:
        self.incarnation += 1
        self.is_up = True
        self.log(f"start {self.incarnation}")
        self.on_start()

    def crash(self) -> None:
        if not self.is_up:
            return
        self.log("crash")
        self.is_up = False
        self.core = None
        self._timer_ns = None
        self.on_crash()

    def stall(self, duration_ns: int) -> None:
        """Stall the process for a while (a garbage collection, a busy host); arriving events wait."""
        self.stalled_until_ns = max(self.stalled_until_ns, self.world.now_ns() + duration_ns)
        self.log(f"stall {duration_ns}")

    # The driver

    def run(self, core: Core[Any, Any]) -> None:
        self.core = core
        self._set_timer()

    def handle(self, event: Any) -> None:
        """Give the core an event, now or when the stall is over."""
        if not self.is_up or self.core is None:
            return
        if self.world.now_ns() < self.stalled_until_ns:
            incarnation = self.incarnation
            self.world.at(self.stalled_until_ns, lambda: self._handle_late(event, incarnation))
            return
        self.take(event)
        self._set_timer()

    def take(self, event: Any) -> None:
        """Give the core an event at once."""
        if self.core is not None:
            for instruction in self.core.handle(event, self.world.now_ns()):
                self.carry_out(instruction)

    def log(self, what: str) -> None:
        self.world.log.write(self.world.now_ns(), self.name, what)

    def _handle_late(self, event: Any, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self.handle(event)

    def _set_timer(self) -> None:
        deadline_ns = self.core.next_deadline_ns() if self.core else None
        if deadline_ns is None or (self._timer_ns is not None and self._timer_ns <= deadline_ns):
            return
        self._timer_ns = deadline_ns
        incarnation = self.incarnation
        self.world.at(deadline_ns, lambda: self._fire(deadline_ns, incarnation))

    def _fire(self, deadline_ns: int, incarnation: int) -> None:
        if self.incarnation != incarnation or self._timer_ns != deadline_ns:
            return
        self._ticks_in_a_row = self._ticks_in_a_row + 1 if self._fired_ns == deadline_ns else 0
        self._fired_ns = deadline_ns
        if self._ticks_in_a_row > TICKS_IN_A_ROW_MAX:
            raise SimulationError(f"{self.name} requests the same deadline repeatedly", where=f"{deadline_ns} ns")
        self._timer_ns = None
        self.handle(Tick())
