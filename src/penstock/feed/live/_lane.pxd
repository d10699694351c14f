from libc.stdint cimport int64_t, uint64_t

from penstock.convert.kernel._converter cimport ConverterKernel
from penstock.convert.kernel._source cimport SourceBatch
from penstock.feed.core.lines._lines cimport LineCursor
from penstock.feed.live._tap cimport Tap
from penstock.middleware.core._outgoing cimport OutgoingCursor
from penstock.net._udp cimport UDP_BATCH, Inlet, Outlet

cpdef enum Why:
    """The reason why run() returned."""
    WHY_NOTHING = 0
    WHY_RUNG = 1  # another thread called ring()
    WHY_DEADLINE = 2  # the deadline has passed
    WHY_DATAGRAMS = 3  # the stream's batch has datagrams that are not in order, from `rest` on
    WHY_CHECKPOINT = 4  # the stream's converter has passed a checkpoint
    WHY_REPAIR = 5  # a repair request arrived
    WHY_ERROR = 6  # a socket failed


cdef class Histogram:
    cdef object _array
    cdef int64_t *_counts
    cdef readonly int64_t maximum

    cdef void record(self, int64_t value, int64_t count) noexcept nogil


cdef class Exit:
    cdef OutgoingCursor _cursor
    cdef Outlet _outlet
    cdef bint _is_sending
    cdef uint64_t _destination
    cdef int _tap_count
    cdef Tap _first_tap
    cdef Tap _second_tap
    cdef readonly uint64_t unsent
    cdef readonly int last_error

    cdef bint is_ready(self) noexcept nogil
    cdef void send(self, ConverterKernel converter, int64_t now_ns) noexcept nogil


cdef class StreamLane:
    cdef readonly int number
    cdef public bint is_flowing  # this stream may be converted and published here
    cdef public bint has_worked  # set by work, reset by the caller
    cdef readonly int64_t latency_ns  # of the last published message
    cdef readonly int error
    cdef readonly Py_ssize_t rest
    cdef Inlet _inlet
    cdef LineCursor _cursor
    cdef ConverterKernel _converter
    cdef Exit _exit
    cdef Histogram _latencies
    cdef StreamLane _next
    cdef bint _has_next
    cdef SourceBatch _source

    cdef int step(self, bint spin) except -1 nogil
    cdef int step_all(self, bint spin, int *number) except -1 nogil


cdef class Lane:
    cdef StreamLane _first
    cdef bint _has_streams
    cdef int _fds[UDP_BATCH]
    cdef int _fd_count
    cdef int _repair_fd  # the last descriptor, if any
    cdef public int64_t repairs_from_ns  # earlier requests wait until this time
    cdef int _bell
    cdef uint64_t _is_rung
    cdef uint64_t _is_asleep

    cdef bint has_requests(self, int64_t now_ns) noexcept nogil
    cdef int loop(self, int64_t wake_ns, bint spin, int *number) except -1 nogil
