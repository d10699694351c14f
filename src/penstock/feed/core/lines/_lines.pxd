from libc.stdint cimport int64_t, uint8_t, uint64_t

from penstock.convert.kernel._source cimport SourceBatch
from penstock.wire._datagrams cimport DatagramBatch

cpdef enum:
    LINES_MAX = 8


cdef struct Line:
    int64_t heard_ns
    uint64_t datagrams
    uint64_t first_copies  # messages that this line delivered before the other lines
    uint64_t duplicates  # messages that had already arrived
    uint64_t latest_sequence  # newest message known to its last datagram


cdef class LineCursor:
    cdef public uint64_t next_sequence
    cdef public bint is_smooth
    cdef public uint64_t messages
    cdef readonly Py_ssize_t index
    cdef int _kind
    cdef uint8_t _session[16]
    cdef Line _lines[LINES_MAX]
    cdef list _batches
    cdef Py_ssize_t _used

    cdef int check(self, int line) except -1
    cdef bint take_one(self, SourceBatch batch, DatagramBatch datagrams, Py_ssize_t index, int64_t now_ns) except -1 nogil
