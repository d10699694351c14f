"""A journal on a disk that fails: a writer with a workload, a reader that follows it, and the verdict.

The promises, over any fault of the machine, the process and the disk:

- records that were acknowledged, or delivered to a reader, exist after every crash: in order, unchanged, once;
- every record was appended by the writer, and a record that was given up does not return;
- when the disk works again, every appended record is acknowledged.
"""

from typing import Any

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import JournalGoneError
from penstock.journal.config import FollowConfig, JournalConfig
from penstock.journal.live.reader import JournalReader
from penstock.sim.checker import Checker
from penstock.sim.disk import DiskFaults
from penstock.sim.journal.faults import MachineFaultSchedule
from penstock.sim.journal.node import RESTART_DELAY_NS_MAX, JournalNode
from penstock.sim.plant import Plant, PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.seed_run import SeedRun
from penstock.sim.world import World

SETTLING_NS = 2 * NS_PER_SECOND


class JournalOptions(msgspec.Struct, kw_only=True):
    """Options of a plant."""

    payload_size_max: int = 300
    journal: JournalConfig = JournalConfig(segment_bytes=8_192)
    disk: DiskFaults = msgspec.field(default_factory=DiskFaults)
    fault_interval_ms: int = 300
    """Mean time between crashes, kills, stalls and full disks."""

    @staticmethod
    def draw(pick: SeededRandomness) -> "JournalOptions":
        return JournalOptions(
            payload_size_max=pick.choose([1, 100, 2_000]),
            journal=JournalConfig(
                segment_bytes=pick.choose([4_096, 16_384, 1_048_576]),
                linger_us=pick.choose([0, 1_000, 20_000]),
                gather_bytes_max=pick.choose([4_096, 65_536]),
                retention_bytes=pick.choose([0, 0, 40_000]),
                retention_seconds=pick.choose([0, 0, 1]),
                retry_ms=pick.choose([10, 200]),
                failures_max=pick.choose([1, 3]),
            ),
            disk=DiskFaults(
                fsync_failure=pick.choose([0.0, 0.02, 0.3]),
                write_failure=pick.choose([0.0, 0.05]),
                slow_fsync=pick.choose([0.0, 0.05]),
                slow_fsync_delay_ns=100 * NS_PER_MS,
                torn_write=pick.choose([0.5, 1.0]),
            ),
            fault_interval_ms=pick.choose([100, 400]),
        )


class JournalSummary(PlantSummary, kw_only=True):
    records_appended: int
    records_acknowledged: int
    records_committed_inline: int
    records_read: int
    crashes: int
    kills: int
    full_disks: int
    syncs_failed: int
    writes_torn: int
    segments_created: int
    segments_removed: int


class JournalChecker(Checker):
    """Compares the records appended, acknowledged and delivered to readers with the content of the journal."""

    def __init__(self) -> None:
        self.appended = 0
        self.shown = 0
        self.durable = 0
        self._contents: dict[int, tuple[int, bytes]] = {}
        """The record of each number that may be in the journal."""
        self._owed: dict[int, tuple[int, bytes]] = {}
        """Acknowledged records and records shown to a reader; they must never be lost."""

    def append(self, sequence: int, timestamp_ns: int, payload: bytes) -> None:
        self.require(sequence not in self._contents, f"{sequence} was given to two records")
        self._contents[sequence] = (timestamp_ns, payload)
        self.appended += 1

    def acknowledge(self, through: int) -> None:
        self.require(through >= self.durable, f"acknowledged {through} after {self.durable}")
        for sequence in range(self.durable + 1, through + 1):
            self.require(sequence in self._contents, f"{sequence} was acknowledged, but never appended")
            self._owed[sequence] = self._contents[sequence]
        self.durable = through

    def recover(self, last: int) -> None:
        """The writer continues after record `last`; later records are given up."""
        self.require(
            last >= max(self._owed, default=0),
            f"recovery ends with {last}, expected at least {max(self._owed, default=0)}",
        )
        self._contents = {sequence: each for sequence, each in self._contents.items() if sequence <= last}

    def show(self, sequence: int, timestamp_ns: int, payload: bytes) -> None:
        content = (timestamp_ns, payload)
        self.require(self._contents.get(sequence) == content, f"record {sequence} is not what was appended")
        self.require(self._owed.setdefault(sequence, content) == content, f"record {sequence} has changed")
        self.shown += 1

    def compare(self, reader: JournalReader, durable: int, *, is_kept: bool) -> None:
        """Read all records, at least up to `durable`; with `is_kept`, retention removes no record."""
        expected = 1 if is_kept else reader.first_sequence
        last = 0
        for sequence, timestamp_ns, payload in reader.read():
            self.require(sequence == expected, f"record {sequence} follows {expected - 1}")
            self.show(sequence, timestamp_ns, payload)
            expected, last = sequence + 1, sequence
        self.require(last >= durable, f"records up to {durable} are on the disk, the last is {last}")

    def require_acknowledged(self) -> None:
        """Everything appended is acknowledged."""
        waiting = max(self._contents, default=0) - self.durable
        self.require(waiting <= 0, f"{waiting} records are still not acknowledged")


class JournalFaultSchedule(MachineFaultSchedule):
    def __init__(self, plant: "JournalPlant") -> None:
        super().__init__(
            plant.world,
            plant.options.fault_interval_ms,
            plant.node,
            plant.node,
            outage_ns_max=RESTART_DELAY_NS_MAX,
        )
        self._plant = plant

    def strike(self) -> None:
        match self.randomness.below(4):
            case 0:
                self._plant.kill(is_machine=True)
            case 1:
                self._plant.kill(is_machine=False)
            case 2:
                self._plant.node.stall(self.randomness.below(NS_PER_SECOND))
            case _:
                self.fill_disk()


class JournalPlant(Plant[JournalOptions, JournalSummary]):
    """One writer, one reader that follows it, and their faults."""

    options_type = JournalOptions
    summary_type = JournalSummary
    faults: JournalFaultSchedule

    def __init__(self, world: World, options: JournalOptions) -> None:
        super().__init__(world, options)
        self.checker = JournalChecker()
        self.checkers = [self.checker]
        self.node = JournalNode(self)
        self.nodes = [self.node]
        self.faults = JournalFaultSchedule(self)
        self._randomness = self.faults.randomness
        self._reader = self._new_reader()

    # Reports of the node

    def appended(self, sequence: int, timestamp_ns: int, payload: bytes) -> None:
        self.checker.append(sequence, timestamp_ns, payload)

    def acknowledged(self, through: int) -> None:
        self.checker.acknowledge(through)

    def recovered(self, durable: int, last: int) -> None:
        """The writer continues after `last`. Records up to `durable` are durable; it appends the others again."""
        self.checker.recover(last)
        self.checker.compare(self._new_reader(), durable, is_kept=self._is_all_kept())

    # The run

    def start(self) -> None:
        super().start()
        self._follow()

    def settle(self) -> None:
        """Let the journal acknowledge all records, crash the machine once more, and compare the content."""
        self.faults.restart(self.node)
        self.run(SETTLING_NS)
        self.node.rest()
        self.run(SETTLING_NS)
        self.checker.require_acknowledged()
        self.kill(is_machine=True)
        self.run(SETTLING_NS)
        self.checker.compare(self._new_reader(), self.checker.durable, is_kept=self._is_all_kept())

    def counts(self) -> dict[str, Any]:
        statistics, counters = self.node.disk.statistics, self.node.counters
        return {
            "records_appended": self.checker.appended,
            "records_acknowledged": self.checker.durable,
            "records_committed_inline": self.node.inline_commits,
            "records_read": self.checker.shown,
            "crashes": self.faults.crashes,
            "kills": self.faults.kills,
            "full_disks": self.faults.full_disks,
            "syncs_failed": statistics.fsyncs_failed,
            "writes_torn": statistics.writes_torn,
            "segments_created": counters["segments_created"],
            "segments_removed": counters["segments_removed"],
        }

    def kill(self, *, is_machine: bool) -> None:
        boots = self.node.boots
        self.faults.kill(is_machine=is_machine)
        if self.node.boots > boots:
            self._reader = self._new_reader()

    def _is_all_kept(self) -> bool:
        return not self.options.journal.retention_bytes and not self.options.journal.retention_seconds

    def _new_reader(self) -> JournalReader:
        return JournalReader(self.node.source, self.node.boot_id(), FollowConfig(chunk_bytes=4_096), "simulated")

    def _follow(self) -> None:
        """The reader polls at intervals, also without a writer."""
        self.world.after(self._randomness.below(50 * NS_PER_MS), self._follow)
        try:
            for sequence, timestamp_ns, payload in self._reader.read_batch(rows_max=self._randomness.between(1, 50)):
                self.checker.show(sequence, timestamp_ns, payload)
        except JournalGoneError as error:
            if self._is_all_kept():
                raise
            self._reader.seek(error.first_sequence)


run_journal_seed = SeedRun("journal", JournalPlant.draw, "every acknowledged record exists, unchanged and in order")
