"""The promises of a voter for a lease, on its disk (protocol/lease.md).

DIRECTORY/lease.json    the memory, replaced as a whole
DIRECTORY/lease.lock    held while the voter runs; not empty once there has been a memory

A voter that forgot would vote twice. So a file that is damaged, another voter's or gone is refused, never taken for
that of a new voter.
"""

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.assured.core.lease.protocol import LeaseConfig, Memory
from penstock.base.counters import Cause, Counters
from penstock.base.crc32c import crc32c
from penstock.base.decoding import json_decoder
from penstock.base.errors import LeaseMemoryError, PenstockError
from penstock.base.files import create_or_open, make_directory
from penstock.base.log import logger
from penstock.net.secret import replace_private

MEMORY_NAME = "lease.json"
LOCK_NAME = "lease.lock"
FILE_SIZE_MAX = 4_096
RETRY_SECONDS = 0.5

log = logger("assured.lease")


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    voter: str
    routers: tuple[str, str]
    memory: Memory


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    checksum: int
    """CRC32C of `kept` as it is written."""

    kept: msgspec.Raw


class LeaseMemory:
    """The memory of one voter; used in the thread of a running loop, which never waits for the disk after open()."""

    def __init__(self, directory: Path, voter: str, lease: LeaseConfig, counters: Counters) -> None:
        self.is_storing = True
        """True if the disk accepts writes."""
        self._path = directory / MEMORY_NAME
        self._lock_path = directory / LOCK_NAME
        self._voter = voter
        self._lease = lease
        self._counters = counters
        self._lock_fd = -1
        self._writing: asyncio.Task[None] | None = None
        self._is_closing = False

    def open(self) -> Memory:
        """The last stored state; for a new voter, an empty one."""
        self._lock()
        try:
            if self._path.exists():
                memory = self._read()
            elif os.fstat(self._lock_fd).st_size:
                raise LeaseMemoryError(
                    "the stored promise of this voter is missing",
                    where=str(self._path),
                    hint=f"restore it; or remove {LOCK_NAME} to have a new voter, while both others run",
                )
            else:
                memory = Memory()
                self._write(memory)
            os.pwrite(self._lock_fd, b"a voter\n", 0)
            os.fsync(self._lock_fd)
        except OSError as error:
            self._unlock()
            raise LeaseMemoryError(f"cannot be used: {error.strerror}", where=str(self._path)) from None
        except PenstockError:
            self._unlock()
            raise
        return memory

    def keep(self, memory: Memory, done: Callable[[], None]) -> None:
        """`done` is called in the loop when the state is on the disk. Writes do not overlap; a failed write is repeated
        until it succeeds."""
        assert self._writing is None
        self._writing = asyncio.get_running_loop().create_task(self._keep(memory, done))

    async def close(self) -> None:
        """Wait for the current write: a late write must not meet the next process that uses this memory."""
        self._is_closing = True
        if self._writing is not None:
            await self._writing
        self._unlock()

    # The disk

    async def _keep(self, memory: Memory, done: Callable[[], None]) -> None:
        while not self._is_closing:
            try:
                await asyncio.to_thread(self._write, memory)
            except (OSError, PenstockError) as error:
                self.is_storing = False
                self._counters.add("disk_failures", cause=Cause.FAILED)
                log.error("lease_memory_not_kept", path=str(self._path), error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.is_storing, self._writing = True, None
                if not self._is_closing:
                    done()  # which may have another state to store
                return

    def _write(self, memory: Memory) -> None:
        kept = msgspec.json.encode(_Kept(self._voter, self._lease.routers, memory))
        replace_private(self._path, msgspec.json.encode(_File(crc32c(kept), msgspec.Raw(kept))))

    def _read(self) -> Memory:
        where = str(self._path)
        with self._path.open("rb") as file:
            data = file.read(FILE_SIZE_MAX + 1)
        try:
            if len(data) > FILE_SIZE_MAX:
                raise msgspec.ValidationError(f"more than {FILE_SIZE_MAX} bytes")
            found = json_decoder(_File).decode(data)
            if crc32c(bytes(found.kept)) != found.checksum:
                raise msgspec.ValidationError("its checksum does not match")
            kept = json_decoder(_Kept).decode(found.kept)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LeaseMemoryError(
                f"is damaged: {error}", where=where, hint="restore it; a voter that forgets would vote twice"
            ) from None
        if (kept.voter, kept.routers) != (self._voter, self._lease.routers):
            whose = f"{kept.voter}'s, of the pair {' and '.join(kept.routers)}"
            raise LeaseMemoryError(f"is {whose}", where=where, hint="each voter has a directory of its own")
        return kept.memory

    def _lock(self) -> None:
        try:
            make_directory(self._path.parent)
            self._lock_fd = create_or_open(self._lock_path, os.O_RDWR)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._unlock()
            is_locked = error.errno == errno.EWOULDBLOCK
            what = "another process votes with this memory" if is_locked else f"cannot be locked: {error.strerror}"
            raise LeaseMemoryError(what, where=str(self._lock_path)) from None

    def _unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
