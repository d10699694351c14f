"""A disk that keeps synced data, and may lose or tear everything else in a crash.

The model is POSIX: a crash may keep, lose or tear each unsynced write, and of a torn write it may keep any sectors;
created, changed and removed names are durable only after a sync of their directory; fsync may be slow, or fail, and
after a failed fsync the state of the covered writes is unknown; a write may fail; the disk may be full.
"""

import errno
from collections.abc import Callable, Iterator
from enum import Enum, auto

import msgspec

from penstock.sim.world import World

SECTOR_SIZE = 512
"""Bytes that a disk writes atomically."""


class DiskFaults(msgspec.Struct, kw_only=True):
    fsync_delay_min_ns: int = 50_000
    fsync_delay_max_ns: int = 500_000
    fsync_failure: float = 0.0
    write_failure: float = 0.0
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
    DOUBTFUL = auto()  # covered by a failed fsync: the kernel considers it written, but the platter may not have it
    DURABLE = auto()


class _Write(msgspec.Struct, eq=False):
    offset: int
    data: bytes | None
    """None truncates the file at the offset."""
    state: _State = _State.PENDING


class _File:
    """Writes in their order; those at the front that are durable are merged into `content`."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.writes: list[_Write] = []
        self.current = bytearray()
        """The content with all writes, as a reader sees it while the machine is up."""

    def write(self, write: _Write) -> None:
        self.writes.append(write)
        _apply(self.current, write)

    def merge(self) -> None:
        while self.writes and self.writes[0].state is _State.DURABLE:
            write = self.writes.pop(0)
            _apply(self.content, write)


class _Rename(msgspec.Struct, eq=False):
    """An unsynced change of the directory: a removed name, a created name, or both."""

    file: _File
    old_name: str | None
    new_name: str | None


class Disk:
    """The disk of one node; synced data survives the node's crashes."""

    def __init__(self, world: World, name: str, faults: DiskFaults) -> None:
        self.faults = faults
        self.statistics = DiskStatistics()
        self._world = world
        self._name = name
        self._randomness = world.randomness.fork(f"disk/{name}")
        self._files: dict[str, _File] = {}
        self._durable_files: dict[str, _File] = {}
        self._renames: list[_Rename] = []
        self._crashes = 0

    def read(self, path: str) -> bytes:
        file = self._files.get(path)
        return bytes(file.current) if file else b""

    def open(self, path: str) -> Callable[[], bytes] | None:
        """Return a function that reads this file even after its name is changed or removed; None if there is no such
        file.
        """
        file = self._files.get(path)
        return (lambda: bytes(file.current)) if file else None

    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(len(file.current) for file in self._files.values())

    def names(self) -> list[str]:
        return sorted(self._files)

    def append(self, path: str, data: bytes) -> None:
        """Write at the end of the file."""
        self.write(path, len(self.read(path)), data)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Raise OSError(ENOSPC) if the disk is full, or OSError(EIO); part of the data may have been written."""
        file = self._file(path)
        size = len(file.current)
        growth = max(0, offset + len(data) - size)
        error = 0
        if growth and self.size() + growth > self.faults.size_max:
            self.statistics.refused_full += 1
            error, data = errno.ENOSPC, data[: max(0, size + self.faults.size_max - self.size() - offset)]
        elif self._randomness.chance(self.faults.write_failure):
            whole = (offset + self._randomness.below(len(data) + 1)) // SECTOR_SIZE * SECTOR_SIZE
            error, data = errno.EIO, data[: max(0, whole - offset)]
        if data:
            file.write(_Write(offset, data))
            self.statistics.writes += 1
        if error == errno.ENOSPC:
            raise OSError(error, "no space left on the simulated disk", path)
        if error:
            raise OSError(error, "the simulated disk failed", path)

    def truncate(self, path: str, size: int) -> None:
        self._file(path).write(_Write(size, None))

    def create(self, path: str) -> None:
        """Create an empty file; its name is durable after a sync of the directory."""
        file = _File()
        self._renames.append(_Rename(file, None, path))
        self._files[path] = file

    def rename(self, path: str, new_path: str) -> None:
        file = self._files.pop(path)
        self._renames.append(_Rename(file, path, new_path))
        self._files[new_path] = file

    def remove(self, path: str) -> None:
        self._renames.append(_Rename(self._files.pop(path), path, None))

    def fsync_directory(self, done: Callable[[bool], None]) -> None:
        """Make all current names durable; after `done(False)` the state of the names is unknown."""
        covered = list(self._renames)

        def finish(is_done: bool) -> None:
            if is_done:
                for each in covered:
                    self._make_durable(each)
            done(is_done)

        self._finish_later("the directory", finish)

    def fsync(self, path: str, done: Callable[[bool], None]) -> None:
        """Make all data written to `path` so far durable; `done(False)` reports a failure. After a crash, `done` is not
        called."""
        file = self._file(path)
        covered = [write for write in file.writes if write.state is _State.PENDING]

        def finish(is_done: bool) -> None:
            for write in covered:
                write.state = _State.DURABLE if is_done else _State.DOUBTFUL
            file.merge()
            done(is_done)

        self._finish_later(path, finish)

    def _file(self, path: str) -> _File:
        """Return the file. If it does not exist, create it with a durable name."""
        if path not in self._files:
            self._files[path] = self._durable_files[path] = _File()
        return self._files[path]

    def _make_durable(self, rename: _Rename) -> None:
        if rename not in self._renames:
            return  # an earlier sync has ended first
        self._renames.remove(rename)
        if rename.old_name is not None:
            self._durable_files.pop(rename.old_name, None)
        if rename.new_name is not None:
            self._durable_files[rename.new_name] = rename.file

    def _finish_later(self, what: str, finish: Callable[[bool], None]) -> None:
        """Decide the result of a sync and schedule its end, unless a crash precedes it."""
        crashes = self._crashes
        faults = self.faults
        delay_ns = self._randomness.between(faults.fsync_delay_min_ns, faults.fsync_delay_max_ns)
        if self._randomness.chance(faults.slow_fsync):
            delay_ns += faults.slow_fsync_delay_ns
        is_failing = self._randomness.chance(faults.fsync_failure)

        def end() -> None:
            if self._crashes != crashes:
                return
            self.statistics.fsyncs += 1
            self.statistics.fsyncs_failed += is_failing
            self._world.log.write(
                self._world.now_ns(), self._name, f"fsync {what} {'failed' if is_failing else 'done'}"
            )
            finish(not is_failing)

        self._world.after(delay_ns, end)

    def crash(self) -> None:
        """Crash the machine: each unsynced write is kept, lost or torn, and the first few of the unsynced name changes
        are kept.
        """
        self._crashes += 1
        for rename in self._renames[: self._randomness.below(len(self._renames) + 1)]:
            self._make_durable(rename)
        self._renames.clear()
        self._files = dict(self._durable_files)
        for file in self._files.values():
            for write in file.writes:
                self._survive(file, write)
            file.writes.clear()
            file.current = bytearray(file.content)

    def _survive(self, file: _File, write: _Write) -> None:
        if write.state is _State.DURABLE:
            _apply(file.content, write)
        elif self._randomness.chance(0.5):
            self.statistics.writes_lost += 1
        elif write.data is not None and self._randomness.chance(self.faults.torn_write):
            self.statistics.writes_torn += 1
            for part in self._torn(write.offset, write.data):
                _apply(file.content, part)
        else:
            _apply(file.content, write)

    def _torn(self, offset: int, data: bytes) -> Iterator[_Write]:
        """Return the beginning of the data, or some of its sectors."""
        if self._randomness.chance(0.5):
            yield _Write(offset, data[: self._randomness.below(len(data) + 1)])
            return
        at = 0
        while at < len(data):
            size = SECTOR_SIZE - (offset + at) % SECTOR_SIZE
            if self._randomness.chance(0.5):
                yield _Write(offset + at, data[at : at + size])
            at += size


def _apply(content: bytearray, write: _Write) -> None:
    if write.data is None:
        del content[write.offset :]
        return
    if len(content) < write.offset:
        content.extend(bytes(write.offset - len(content)))
    content[write.offset : write.offset + len(write.data)] = write.data
