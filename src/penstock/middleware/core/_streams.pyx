"""An index of streams by publisher and group, without Python and the GIL."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    SLOTS_MIN = 64


cdef class StreamEntry:
    """Base of the state kept for a stream; its key does not change while it is in an index."""


cdef class StreamIndex:
    """The entries of all streams, at most one per stream."""

    def __cinit__(self, uint64_t seed, *_, **__):
        self._seed = seed
        self._entries = set()
        self.allot(SLOTS_MIN)

    def __dealloc__(self):
        PyMem_Free(self._slots)

    def add(self, StreamEntry entry not None) -> None:
        if 2 * (<uint64_t>len(self._entries) + 1) > self._mask + 1:
            self.allot(2 * (self._mask + 1))
        self._entries.add(entry)
        self.insert(entry)

    def remove(self, StreamEntry entry not None) -> None:
        cdef uint64_t hole, at, home
        if entry not in self._entries:
            return
        self._entries.discard(entry)
        hole = self.slot_of(entry.publisher_id, entry.group)
        while self._slots[hole] != <PyObject *>entry:
            hole = (hole + 1) & self._mask
        # move entries displaced by a collision back into the hole, so that every probe still finds its entry
        at = hole
        while True:
            at = (at + 1) & self._mask
            if self._slots[at] is NULL:
                break
            home = self.slot_of((<StreamEntry>self._slots[at]).publisher_id, (<StreamEntry>self._slots[at]).group)
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._slots[hole] = self._slots[at]
                hole = at
        self._slots[hole] = NULL

    cdef PyObject *find(self, uint64_t publisher_id, uint32_t group) noexcept nogil:
        """Return the stream's entry, or NULL."""
        cdef uint64_t at = self.slot_of(publisher_id, group)
        cdef PyObject *slot = self._slots[at]
        while slot is not NULL and not (
            (<StreamEntry>slot).publisher_id == publisher_id and (<StreamEntry>slot).group == group
        ):
            at = (at + 1) & self._mask
            slot = self._slots[at]
        return slot

    cdef uint64_t slot_of(self, uint64_t publisher_id, uint32_t group) noexcept nogil:
        cdef uint64_t mixed = (publisher_id ^ self._seed ^ <uint64_t>group << 32) * <uint64_t>0x9E3779B97F4A7C15
        mixed = (mixed ^ mixed >> 32) * <uint64_t>0xD6E8FEB86659FD93
        return mixed >> 32 & self._mask

    cdef int allot(self, uint64_t slots) except -1:
        cdef PyObject **fresh = <PyObject **>PyMem_Calloc(slots, sizeof(PyObject *))
        if fresh is NULL:
            raise MemoryError
        PyMem_Free(self._slots)
        self._slots = fresh
        self._mask = slots - 1
        for entry in self._entries:
            self.insert(<StreamEntry>entry)
        return 0

    cdef void insert(self, StreamEntry entry) noexcept:
        cdef uint64_t at = self.slot_of(entry.publisher_id, entry.group)
        while self._slots[at] is not NULL:
            at = (at + 1) & self._mask
        self._slots[at] = <PyObject *>entry
