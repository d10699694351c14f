from libc.stdint cimport int64_t, uint64_t

from penstock.shm._memory cimport Mapping
from penstock.shm._ring cimport Cursor, State
from penstock.wire._datagrams cimport DatagramBatch


cdef class RingReader:
    cdef Mapping _mapping
    cdef Mapping _doorbell
    cdef Cursor _cursor
    cdef bint _is_busy
    cdef bint _is_blocking
    cdef object _lifeline

    cpdef int receive(self, DatagramBatch batch, uint64_t source, int64_t timeout_ns) except -1

    # The same without waiting, of a reader that is open; -1 when something is wrong, which receive() says.
    cdef int fill(self, DatagramBatch batch, uint64_t source) noexcept nogil
    cdef int check_open(self) except -1
    cdef bytes next_payload(self, int64_t timeout_ns)
    cdef State wait(self, int64_t timeout_ns) except *
    cdef int check_producer(self) except -1
    cdef object error(self, State state)
