"""A disk that keeps only what was synced, and sometimes less than one hoped of the rest.

What POSIX lets a real disk do: a crash may keep, lose or tear each unsynced write; fsync may be slow, or fail, and
after a failed fsync nothing is known of the writes it covered; the disk may be full.
"""

import errno
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from penstock.sim.world import World


class DiskFaults(msgspec.Struct, kw_only=True):
    fsync_delay_min_ns: int = 50_000
    fsync_delay_max_ns: int = 500_000
    fsync_failure: float = 0.0
    slow_fsync: float = 0.0
    slow_fsync_delay_ns: int = 2_000_000_000
    torn_write: float = 0.5
    size_max: int = 64 * 1024 * 1024


class DiskStatistics(msgspec.Struct):
    writes: int = 0
    fsyncs: int = 0
    fsyncs_failed: int = 0
    writes_lost: int = 0
    writes_torn: int = 0
    refused_full: int = 0


class _State(Enum):
    PENDING = auto()
    DOUBTFUL = auto()  # covered by a failed fsync: the kernel forgot it, the platter may not have
    DURABLE = auto()


class _Write(msgspec.Struct, eq=False):
    offset: int
    data: bytes
    state: _State = _State.PENDING


class _File:
    """Writes in their order; those at the front that are durable are merged into `content`."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.writes: list[_Write] = []

    def current(self) -> bytearray:
        """What a reader sees while the machine is up."""
        content = bytearray(self.content)
        for write in self.writes:
            _apply(content, write.offset, write.data)
        return content

    def merge(self) -> None:
        while self.writes and self.writes[0].state is _State.DURABLE:
            write = self.writes.pop(0)
            _apply(self.content, write.offset, write.data)


class Disk:
    """The disk of one node; it survives the node's crashes, as far as disks do."""

    def __init__(self, world: World, name: str, faults: DiskFaults) -> None:
        self.faults = faults
        self.statistics = DiskStatistics()
        self._world = world
        self._name = name
        self._randomness = world.randomness.fork(f"disk/{name}")
        self._files: dict[str, _File] = {}
        self._crashes = 0

    def read(self, path: str) -> bytes:
        file = self._files.get(path)
        return bytes(file.current()) if file else b""

    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(file.current()) for file in self._files.values())

    def append(self, path: str, data: bytes) -> None:
        """Write at the end; OSError(ENOSPC) when the disk is full, and then nothing is written."""
        self.write(path, len(self.read(path)), data)

    def write(self, path: str, offset: int, data: bytes) -> None:
        file = self._files.setdefault(path, _File())
        growth = max(0, offset + len(data) - len(file.current()))
        if growth and self.size() + growth > self.faults.size_max:
            self.statistics.refused_full += 1
            raise OSError(errno.ENOSPC, "no space left on the simulated disk", path)
        file.writes.append(_Write(offset, data))
        self.statistics.writes += 1

    def fsync(self, path: str, done: Callable[[bool], None]) -> None:
        """Make everything written to `path` so far durable; `done(False)` when that failed. A crash calls nothing."""
        file = self._files.setdefault(path, _File())
        covered = [write for write in file.writes if write.state is _State.PENDING]
        crashes = self._crashes
        faults = self.faults
        delay_ns = self._randomness.between(faults.fsync_delay_min_ns, faults.fsync_delay_max_ns)
        if self._randomness.chance(faults.slow_fsync):
            delay_ns += faults.slow_fsync_delay_ns
        is_failing = self._randomness.chance(faults.fsync_failure)

        def finish() -> None:
            if self._crashes != crashes:
                return
            self.statistics.fsyncs += 1
            self.statistics.fsyncs_failed += is_failing
            for write in covered:
                write.state = _State.DOUBTFUL if is_failing else _State.DURABLE
            file.merge()
            self._world.log.write(
                self._world.now_ns(), self._name, f"fsync {path} {'failed' if is_failing else 'done'}"
            )
            done(not is_failing)

        self._world.after(delay_ns, finish)

    def crash(self) -> None:
        """The machine stops: each write that was not synced is kept, lost or torn."""
        self._crashes += 1
        for file in self._files.values():
            for write in file.writes:
                self._survive(file, write)
            file.writes.clear()

    def _survive(self, file: _File, write: _Write) -> None:
        data = write.data
        if write.state is _State.DURABLE:
            _apply(file.content, write.offset, data)
            return
        if self._randomness.chance(0.5):
            self.statistics.writes_lost += 1
            return
        if self._randomness.chance(self.faults.torn_write):
            self.statistics.writes_torn += 1
            data = data[: self._randomness.below(len(data) + 1)]
        _apply(file.content, write.offset, data)


def _apply(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
