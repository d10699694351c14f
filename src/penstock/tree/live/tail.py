"""The newest packets of a root's streams, in a mapped file: what is written here outlives the process at once.

A journal brings records to the disk in batches, and what waits for it is lost with the process. So packets are put
here first, by the root's intake or when they are appended; after a crash, those that a journal does not have are taken
from here. Only a crash of the machine can lose what no journal has synced. (With persist = "synced" nothing is
distributed before that.)

    ┌───────────────────────────────┬───────────────────────────────┐
    │ half: packet, packet, …, zeros│ half: packet, packet, …, zeros│     written in turns
    └───────────────────────────────┴───────────────────────────────┘

A half is written again when all that it has is in synced journals. Packets say their stream, sequence, term and
checksum themselves: whatever is left of older ones, or torn, does no harm. A file of another size, from a run with
other halves, is put aside (tail.SIZE) until what it has was taken.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.base.errors import JournalError, PacketError
from penstock.base.files import create_or_open
from penstock.tree.core.kernel._tail import TailMemory
from penstock.wire import Packet, decode
from penstock.wire._codec import PACKET_HEADER_SIZE, PACKET_SIZE_AT


class Tail:
    """`settle` returns when everything that was written here before its last call is on the disk elsewhere, or raises
    why it is not."""

    def __init__(self, path: Path, half_size: int, settle: Callable[[], None]) -> None:
        self._half_size = half_size
        self._settle = settle
        try:
            if path.exists() and path.stat().st_size not in (0, 2 * half_size):
                path.rename(f"{path}.{path.stat().st_size}")
            self._others = sorted(path.parent.glob(f"{path.name}.*"))
            descriptor = create_or_open(path, os.O_RDWR)
            try:
                os.posix_fallocate(descriptor, 0, 2 * half_size)
                self._map = mmap.mmap(descriptor, 2 * half_size)
                self.memory = TailMemory(self._map, half_size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise JournalError(f"cannot be made: {error.strerror}", where=str(path)) from None

    @property
    def size_max(self) -> int:
        """Maximum size of one write."""
        return self._half_size - PACKET_HEADER_SIZE

    def packets(self) -> Iterator[Packet]:
        """The packets left by the last run, in no order; call before the first write."""
        for path in self._others:
            data = path.read_bytes()
            yield from _sound(data, len(data) // 2)
        yield from _sound(self._map, self._half_size)

    def forget_others(self) -> None:
        """The packets in files of other sizes have been stored: remove the files."""
        while self._others:
            self._others.pop().unlink()

    def make_room(self, size: int) -> None:
        """Make room for this number of bytes: write() then finds it. Raises what `settle` raises."""
        if not self.memory.has_room(size):
            self._settle()
            self.memory.turn()

    def write(self, data: bytes | memoryview) -> None:
        """Whole packets, for which there is room."""
        self.memory.write(data)

    def close(self) -> None:
        self.memory.release()
        self._map.close()


def _sound(data: bytes | mmap.mmap, half_size: int) -> Iterator[Packet]:
    """The packets of both halves, of each half up to the first invalid packet. The rest is not read: the rest of a map
    stays out of memory."""
    for begin in (0, half_size):
        at, end = begin, begin + half_size
        while at + PACKET_HEADER_SIZE <= end:
            size = int.from_bytes(data[at + PACKET_SIZE_AT : at + PACKET_SIZE_AT + 4], "little")
            if not PACKET_HEADER_SIZE <= size <= end - at:
                break
            try:
                packet = decode(data[at : at + size])
            except PacketError:
                break
            yield packet
            at += size
