from libc.stdint cimport int64_t, uint8_t, uint64_t

from penstock.filter.live._dispatch cimport Dispatcher
from penstock.filter.core.kernel._forward cimport Forwarder
from penstock.middleware.core._inorder cimport InOrder
from penstock.net._udp cimport Inlet
from penstock.shm._ring cimport Cursor
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._outbox cimport Outbox


cdef struct RingSource:  # a publisher's ring
    Cursor *cursor
    uint64_t source  # the source address of its packets


cdef enum:
    RINGS_MAX = 1_024
    RING_BATCHES_MAX = 16  # consecutive batches from rings before sockets are read


cdef class Relay:
    cdef Inlet _inlet
    cdef InOrder _in_order
    cdef Forwarder _forwarder
    cdef Dispatcher _dispatcher
    cdef object _view
    # index in the inlet's batch: earlier datagrams were forwarded, the others need Python
    cdef readonly Py_ssize_t start
    cdef readonly int64_t now_ns  # receive time
    cdef readonly uint64_t copies  # duplicates that were dropped
    cdef readonly object lost_ring  # name of a ring that cannot be read any more, for Python to handle
    cdef RingSource _sources[RINGS_MAX]
    cdef int _ring_count
    cdef int _turn  # the ring to read next
    cdef int _ring_batches  # batches read since sockets were read
    cdef int _lost  # the ring that cannot be read, or -1
    cdef list _names
    cdef list _readers  # owners of the readers that sources point to

    cdef int fill(self, int64_t timeout_ns, bint spin) except? -1 nogil
    cdef int read_rings(self, DatagramBatch batch) noexcept nogil
    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil
    cdef bint pass_on(self, DatagramBatch batch) except -1 nogil
    cdef int forward(self, InOrder taken, Outbox outbox) except -1 nogil
