"""Where the newest packets are put, in two halves; tail.py says what for."""

from libc.stdint cimport uint8_t, uint64_t


cdef class TailMemory:
    cdef readonly uint64_t half_size
    cdef Py_buffer _memory
    cdef bint _is_held
    cdef uint64_t _at           # where the next packet goes
    cdef uint64_t _untold_at    # from here on packets were put that take_untold() has not given

    # Where a packet may be written of at most so many bytes; NULL if this half has no room for it.
    cdef uint8_t *room(self, uint64_t size) noexcept nogil

    # It is there now, and has so many; take_untold() gives it.
    cdef void put(self, uint64_t size) noexcept nogil

    cdef int check_told(self) except -1
    cdef uint64_t end_of_half(self) noexcept nogil
