from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.shm._memory cimport Mapping
from penstock.shm._ring cimport Cursor, State
from penstock.wire._datagrams cimport DatagramBatch


# Fill rows until rows or events are exhausted; return the final state, STATE_EVENT if the next event is too long.
cdef State take_rows(
    Cursor *cursor,
    uint8_t *row,
    uint64_t row_count,
    uint64_t row_size,
    uint32_t *sizes,
    uint64_t *count,
    bint is_padded,
) noexcept nogil


cdef class RingReader:
    cdef Mapping _mapping
    cdef Mapping _doorbell
    cdef Cursor _cursor
    cdef bint _is_busy
    cdef bint _is_blocking
    cdef object _lifeline

    cpdef int receive(self, DatagramBatch batch, uint64_t source, int64_t timeout_ns) except -1
    cdef int check_open(self) except -1
    cdef bytes next_payload(self, int64_t timeout_ns)
    cdef State wait(self, int64_t timeout_ns) except *
    cdef int check_producer(self) except -1
    cdef object error(self, State state)
