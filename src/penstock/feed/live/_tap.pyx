"""A reader of published packets in another thread, for which the data thread never waits.

The data thread overwrites the oldest packets of its store. The reader therefore checks the packets that take() has
copied: a packet with a wrong number or checksum was overwritten meanwhile, and so were those before it.
"""

from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import os

import numpy

from penstock.wire._packets cimport PacketStore, Place

cdef enum:
    PACKETS_PER_TAKE = 4_096


cdef class Tap:
    """One reader of a store's packets, from its creation on. Its descriptor (fileno) becomes readable when packets
    arrive after arm() returned True."""

    def __cinit__(self, PacketStore store not None):
        self._fd = -1
        self._store = store
        self._cursor = store.next_sequence
        self._published = store.next_sequence
        self._fd = tap_eventfd()
        if self._fd < 0:
            raise OSError("cannot create a descriptor")

    def __dealloc__(self):
        if self._fd >= 0:
            tap_close(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            tap_close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        return self._fd

    def arm(self) -> bool:
        """True if there are no packets now; then the descriptor becomes readable when some arrive."""
        tap_store(&self._is_waiting, 1)
        if tap_load(&self._published) == self._cursor:
            return True
        tap_store(&self._is_waiting, 0)
        return False

    def clear(self) -> None:
        """Make the descriptor unreadable again."""
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return

    def take(self) -> tuple | None:
        """Return (first number, data, offsets, sizes) of the packets after those taken before, or None."""
        cdef uint64_t published = tap_load(&self._published)
        cdef uint64_t count = min(published - self._cursor, <uint64_t>PACKETS_PER_TAKE)
        if count == 0:
            return None
        offsets = numpy.empty(count, numpy.uint32)
        sizes = numpy.empty(count, numpy.uint32)
        data = numpy.empty(self.measure(count, offsets, sizes), numpy.uint8)
        self.copy(count, data, offsets, sizes)
        first = self._cursor
        self._cursor += count
        return first, data, offsets, sizes

    def announce(self, uint64_t next_sequence) -> None:
        """Make packets below this number available; called by the thread that creates them."""
        self.advance(next_sequence)

    def skip_to_newest(self) -> int:
        """Skip the available packets. Return their number."""
        cdef uint64_t published = tap_load(&self._published)
        cdef uint64_t skipped = published - self._cursor
        self._cursor = published
        return skipped

    def measure(self, uint64_t count, uint32_t[::1] offsets, uint32_t[::1] sizes) -> int:
        cdef uint64_t index
        cdef uint64_t total = 0
        cdef uint32_t size
        with nogil:
            for index in range(count):
                size = self._store.place(self._cursor + index).size
                if total + size > UINT32_MAX:
                    size = 0
                offsets[index] = <uint32_t>total
                sizes[index] = size
                total += size
        return total

    def copy(self, uint64_t count, uint8_t[::1] data, uint32_t[::1] offsets, uint32_t[::1] sizes) -> None:
        """Copy packets. An entry may have changed since it was measured, so all reads are checked against the
        memory's bounds."""
        cdef uint64_t index, offset
        with nogil:
            for index in range(count):
                offset = self._store.place(self._cursor + index).offset
                if sizes[index] and offset + sizes[index] <= self._store.data_size:
                    memcpy(&data[offsets[index]], self._store.data + offset, sizes[index])

    cdef void advance(self, uint64_t next_sequence) noexcept nogil:
        tap_store(&self._published, next_sequence)
        if tap_load(&self._is_waiting) and tap_swap(&self._is_waiting, 0):
            tap_wake(self._fd)
