from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t


cdef class StreamEntry:
    cdef public uint64_t publisher_id
    cdef public uint32_t group


cdef class StreamIndex:
    cdef PyObject **_slots  # open addressing; NULL: free
    cdef uint64_t _mask
    cdef uint64_t _seed  # secret, so that nobody can choose colliding ids
    cdef set _entries  # owners of the objects that slots point to

    cdef PyObject *find(self, uint64_t publisher_id, uint32_t group) noexcept nogil
    cdef uint64_t slot_of(self, uint64_t publisher_id, uint32_t group) noexcept nogil
    cdef int allot(self, uint64_t slots) except -1
    cdef void insert(self, StreamEntry entry) noexcept
