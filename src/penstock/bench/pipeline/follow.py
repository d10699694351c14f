"""Archiving a growing capture: rate, delay, and memory of all processes."""

import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from penstock.bench.harness import Result, result
from penstock.bench.pipeline.data import TradePackets
from penstock.journal import JournalConfig, JournalWriter
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import Account
from penstock.spark.pipeline.runner import RunReport, follow
from penstock.spark.pipeline.sources.capture import STEP_RECORDS, JournalSource

CORES = 2
RATE = 400_000
"""Messages per second captured while the archive follows."""

SECONDS = float(os.environ.get("PENSTOCK_FOLLOW_SECONDS", "15"))
PAUSE_SECONDS = 0.02
RETENTION_BYTES = 4 << 30
"""Retention of the journal; archived records need not be kept."""

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class Silent:
    """Ignores the progress."""

    def begin(self, slices: int) -> None: ...

    def advance(self, slices: int, account: Account) -> None: ...

    def derive(self, name: str) -> None: ...


class Followed(msgspec.Struct, frozen=True):
    """Results of the measurement."""

    report: RunReport
    captured: int
    captured_per_s: float
    seconds: float
    """Time until everything was archived."""
    memory_mb: dict[str, list[float]]
    """By kind of process (driver, jvm, workers), after each step."""

    @property
    def per_s(self) -> float:
        return self.report.account.taken / self.seconds

    def delays_s(self) -> tuple[float, float]:
        """Return delays from capture to commit: the medians of the middle and the last third of the steps."""
        _, middle, last = thirds(self.report.delays_s)
        return statistics.median(middle), statistics.median(last)

    def growth_mb(self, kind: str) -> float:
        """Return the increase of the maximum from the middle third, when memory has settled, to the last third."""
        _, middle, last = thirds(self.memory_mb[kind])
        return max(last) - max(middle)


def thirds(values: list[float]) -> tuple[list[float], list[float], list[float]]:
    """Split at least three values into thirds, in order."""
    third = len(values) // 3
    return values[:third], values[third : 2 * third], values[2 * third :]


def follow_messages(spark: Any, folder: Path) -> Iterator[Result]:
    """Capture at a constant rate, and follow the capture into an archive."""
    followed = follow_capture(spark, folder, RATE, SECONDS)
    delays, report = sorted(followed.report.delays_s), followed.report
    grown = ", ".join(f"{followed.growth_mb(kind):.0f} MB of the {kind}" for kind in followed.memory_mb)
    yield result(
        "pipeline",
        "follow_messages_per_s",
        followed.per_s,
        "1/s",
        against="the rate of the capture",
        against_value=followed.captured_per_s,
        conditions=f"local[{CORES}]; {report.account.taken:,} messages captured over {SECONDS:.0f} s, archived "
        f"in {followed.seconds:.0f} s and {report.commits} commits; {statistics.median(delays):.1f} s from capture to "
        f"commit (median), {delays[-1]:.1f} s at most; memory grew from the second third of the steps to the last by "
        f"{grown}",
    )


def follow_capture(spark: Any, folder: Path, rate: int, seconds: float) -> Followed:
    """Capture at this rate for this time and archive meanwhile; return when everything is archived."""
    journal = folder / "followed"
    writer = _Writer(journal, rate, seconds)
    memory = _Memory()
    with Archive.writing(folder / "follower") as archive:
        source = JournalSource(JournalPlace(str(journal)), CORES, STEP_RECORDS)
        writer.write(rate // 10)
        follow(spark, archive, [source], (), Silent(), is_ended=iter([False, True]).__next__)  # warm-up
        thread = threading.Thread(target=writer.run)
        started = time.perf_counter()
        thread.start()
        try:
            report = follow(
                spark, archive, [source], (), Silent(),
                is_ended=lambda: memory.look() or (not thread.is_alive() and _has_all(archive, writer)),
            )  # fmt: skip
        finally:
            writer.is_wanted = False
            thread.join()
        took = time.perf_counter() - started
    return Followed(report, writer.written, writer.written / writer.took, took, memory.found_mb)


def _has_all(archive: Archive, writer: "_Writer") -> bool:
    return any(each.get("last") == writer.records for each in archive.catalogue.sources.values())


class _Writer:
    """Appends packets of trades to a journal at a constant rate."""

    def __init__(self, path: Path, rate: int, seconds: float) -> None:
        self._path = path
        self._packets = TradePackets()
        self._rate = rate
        self._seconds = seconds
        self.is_wanted = True
        self.records = 0
        self.written = 0
        self.took = 0.0

    def write(self, messages: int) -> None:
        with JournalWriter.open(self._path, JournalConfig()) as journal:
            self._append(journal, messages)

    def run(self) -> None:
        started = time.perf_counter()
        with JournalWriter.open(self._path, JournalConfig(retention_bytes=RETENTION_BYTES)) as journal:
            while self.is_wanted and (elapsed := time.perf_counter() - started) < self._seconds:
                due = int(elapsed * self._rate) - self.written
                if due > 0:
                    self._append(journal, due)
                    self.written += due
                time.sleep(PAUSE_SECONDS)
        self.took = time.perf_counter() - started

    def _append(self, journal: JournalWriter, messages: int) -> None:
        self.records = self._packets.append(journal, messages, time.time_ns())


class _Memory:
    """Resident memory of this process, of Spark's JVM, and of all its workers together."""

    def __init__(self) -> None:
        self.found_mb: dict[str, list[float]] = {"driver": [], "jvm": [], "workers": []}

    def look(self) -> bool:
        parents, names = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (told := _stat_of(entry)) is not None:
                names[int(entry.name)], parents[int(entry.name)] = told
        me = os.getpid()
        now = dict.fromkeys(self.found_mb, 0.0)
        for number, name in names.items():
            if number == me:
                now["driver"] += _resident_mb(number)
            elif _is_below(number, me, parents):
                now["jvm" if name == "java" else "workers"] += _resident_mb(number)
        for kind, resident in now.items():
            self.found_mb[kind].append(resident)
        return False


def _stat_of(entry: Path) -> tuple[str, int] | None:
    """Return the name and the parent of a process; None if it has ended."""
    try:
        name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(")")
    except OSError:
        return None
    return name, int(rest.split()[1])


def _is_below(number: int, above: int, parents: dict[int, int]) -> bool:
    while number in parents:
        number = parents[number]
        if number == above:
            return True
    return False


def _resident_mb(number: int) -> float:
    try:
        return int(Path(f"/proc/{number}/statm").read_text().split()[1]) * PAGE_SIZE / 2**20
    except OSError:
        return 0.0
