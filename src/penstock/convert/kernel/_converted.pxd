from libc.stdint cimport uint64_t

from penstock.convert.kernel._directory cimport Directory
from penstock.convert.kernel._frame cimport Frame


cdef class Converted:
    cdef Directory _directory
    cdef object _payloads
    cdef object _rows
    cdef uint64_t payloads_room
    cdef uint64_t rows_room
    cdef readonly Py_ssize_t count
    cdef uint64_t payloads_size

    cdef int lend(self, Frame *frame) except -1
    cdef int grow(self, Frame *frame, uint64_t payloads_more, uint64_t rows_more) except -1
    cdef void take_back(self, const Frame *frame) noexcept nogil
