from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.wire._messages cimport MessageBatch


cdef class SourceCursor:
    cdef public uint32_t stream_id
    cdef public uint32_t term
    cdef public uint64_t number  # the last message that was delivered or given up
    cdef public uint64_t source_sequence  # source position of the last delivered message
    cdef public uint16_t message_index
    cdef public uint16_t session_tag  # the session's tag; 0: before the first message
    cdef public bint has_position
    cdef public bint is_smooth


cdef class BranchCursor:
    cdef readonly uint64_t publisher_id
    cdef readonly uint32_t group
    cdef readonly uint64_t stream_id
    cdef readonly SourceCursor source    # None: messages without ORIGIN
    cdef PyObject *source_  # the same, for loops without the GIL
    cdef public uint64_t number  # the last synchronised message
    cdef public uint32_t term
    cdef public bint is_continuous
    cdef public bint is_synchronised


cdef class BranchTable:
    cdef PyObject **_slots  # open addressing; NULL: free
    cdef uint64_t _mask
    cdef uint64_t _seed  # secret, so that nobody can choose colliding ids
    cdef set _branches  # owners of the objects that slots point to
    cdef object _marks
    cdef uint8_t *_is_chosen
    cdef Py_ssize_t _room
    cdef readonly uint64_t merged_count
    cdef readonly uint64_t duplicate_count

    cdef Py_ssize_t run(self, MessageBatch batch, Py_ssize_t start, Py_ssize_t *chosen_count) noexcept nogil
    cdef PyObject *find(self, uint64_t publisher_id, uint32_t group, uint64_t stream_id) noexcept nogil
    cdef uint64_t slot_of(self, uint64_t publisher_id, uint32_t group, uint64_t stream_id) noexcept nogil
    cdef int make_marks(self, Py_ssize_t room) except -1
    cdef int allot(self, uint64_t slots) except -1
    cdef void insert(self, BranchCursor branch) noexcept
