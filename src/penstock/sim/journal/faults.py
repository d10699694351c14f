"""Faults of a process that keeps a journal: killed, crashed with its machine, and its disk full for a while."""

from penstock.base.clock import NS_PER_SECOND
from penstock.sim.disk import DiskFaults
from penstock.sim.fault_schedule import FaultSchedule
from penstock.sim.journal.node import JournalNode
from penstock.sim.node import Node
from penstock.sim.world import World

ROOM_LEFT_MAX = 2_000
"""Free bytes on a disk that is filling up."""


class MachineFaultSchedule(FaultSchedule):
    """A subclass chooses the faults of a plant, and their rates."""

    def __init__(
        self, world: World, interval_ms: int, process: Node, journal: JournalNode, *, outage_ns_max: int
    ) -> None:
        super().__init__(world, interval_ms)
        self.kills = self.full_disks = 0
        self._process = process
        self._journal = journal
        self._outage_ns_max = outage_ns_max

    def stop(self) -> None:
        """Repair the disk and restart the process."""
        super().stop()
        self._journal.disk.faults = DiskFaults()

    def kill(self, *, is_machine: bool) -> None:
        """End the process, or the machine with it; restart it after a while."""
        if not self._process.is_up:
            return
        self._process.crash()
        if is_machine:
            self._journal.disk.crash()
            self._journal.boots += 1
            self.crashes += 1
        else:
            self.kills += 1
        self._world.after(self.randomness.below(self._outage_ns_max), lambda: self.restart(self._process))

    def fill_disk(self, duration_ns_max: int = 2 * NS_PER_SECOND) -> None:
        self.full_disks += 1
        faults = self._journal.disk.faults
        faults.size_max = self._journal.disk.size() + self.randomness.below(ROOM_LEFT_MAX)

        def make_room() -> None:
            faults.size_max = DiskFaults().size_max

        self._world.after(self.randomness.below(duration_ns_max), make_room)
