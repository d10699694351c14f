"""The newest packets of a root's streams, in a mapped file: packets written here survive the process at once.

A journal writes records to the disk in batches, and waiting records are lost with the process. So packets are written
here first, by the root's intake or by an append; after a crash, packets that a journal lacks are read from here. Only a
crash of the machine can lose packets that no journal has synced. (With persist = "synced", packets are distributed
after the sync.)

    ┌───────────────────────────────┬───────────────────────────────┐
    │ half: packet, packet, …, zeros│ half: packet, packet, …, zeros│     written alternately
    └───────────────────────────────┴───────────────────────────────┘

A half is overwritten when all of its packets are in synced journals. Each packet has its stream, sequence number, term
and checksum, so remains of older packets and torn packets do no harm. A file of another size, from a run with another
half size, is renamed (tail.SIZE) until its packets are stored.
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
    """`settle` returns when all packets written here before its last call are on the disk elsewhere, or raises the
    error that prevents it."""

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
        """Make room for this number of bytes, so that write() finds it. Raises the errors of `settle`."""
        if not self.memory.has_room(size):
            self._settle()
            self.memory.turn()

    def write(self, data: bytes | memoryview) -> None:
        """Write whole packets, for which there must be room."""
        self.memory.write(data)

    def close(self) -> None:
        self.memory.release()
        self._map.close()


def _sound(data: bytes | mmap.mmap, half_size: int) -> Iterator[Packet]:
    """The packets of both halves, of each half up to the first invalid packet. The rest of the map is not read, and so
    uses no memory."""
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
