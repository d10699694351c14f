from libc.stdint cimport uint32_t, uint64_t

from penstock.convert.kernel._converted cimport Converted
from penstock.convert.kernel._directory cimport Directory
from penstock.convert.kernel._frame cimport Frame
from penstock.convert.kernel._program cimport Program
from penstock.convert.kernel._source cimport SourceBatch, SourceRow
from penstock.convert.books._state cimport StateKernel

cdef enum Stop:
    STOP_NONE
    STOP_ROOM
    STOP_JUMP

cdef struct Mark:
    uint64_t next_source_sequence
    uint64_t next_message_sequence
    uint64_t digest


cdef class ConverterKernel:
    cdef Frame frame
    cdef Program program
    cdef readonly StateKernel kernel_state
    cdef readonly Directory directory
    cdef Converted converted
    cdef bint is_own            # the frame's outputs go into `converted`
    cdef list kept
    cdef object _on_fault
    cdef public object on_each_fault
    cdef uint64_t next_source
    cdef uint64_t repeated
    cdef uint64_t taken[256]
    cdef uint64_t interval
    cdef Mark *marks            # a ring
    cdef uint64_t marks_made
    cdef uint64_t marks_read

    # What convert() does, for compiled callers: the outputs are frame.row_count rows at frame.rows, over frame.payloads
    # and directory.data_at, until the next call.
    cdef int convert_rows(self, SourceBatch batch) except -1 nogil

    cdef int begin(self, Converted into, Py_ssize_t count) except -1
    cdef int report(self, const SourceRow *row, int route, int fault) noexcept with gil
    cdef int image_of_instrument(self, uint32_t instrument, wanted) except -1
