"""The memory of the newest packets, in two halves; tail.py describes its purpose."""

from libc.stdint cimport uint8_t, uint64_t


cdef class TailMemory:
    cdef readonly uint64_t half_size
    cdef Py_buffer _memory
    cdef bint _is_held
    cdef uint64_t _at  # position of the next packet
    cdef uint64_t _untold_at  # begin of the packets that take_untold() has not returned

    # The position for a packet of at most this size; NULL if this half has no room.
    cdef uint8_t *room(self, uint64_t size) noexcept nogil

    # A packet of this size was written; take_untold() will return it.
    cdef void put(self, uint64_t size) noexcept nogil

    cdef int check_told(self) except -1
    cdef uint64_t end_of_half(self) noexcept nogil
