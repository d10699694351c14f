from libc.stdint cimport int64_t, uint8_t, uint64_t

from penstock.filter.live._dispatch cimport Dispatcher
from penstock.filter.core.kernel._forward cimport Forwarder
from penstock.middleware.core._inorder cimport InOrder
from penstock.net._udp cimport Inlet
from penstock.shm._ring cimport Cursor
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._outbox cimport Outbox


cdef struct RingSource:     # a publisher's ring
    Cursor *cursor
    uint64_t source         # where its packets are said to come from


cdef enum:
    RINGS_MAX = 1_024
    RING_BATCHES_MAX = 16   # in a row, before the sockets have their turn


cdef class Relay:
    cdef Inlet _inlet
    cdef InOrder _in_order
    cdef Forwarder _forwarder
    cdef Dispatcher _dispatcher
    cdef object _view
    cdef readonly Py_ssize_t start # of the inlet's batch: datagrams before it were forwarded, the others are for Python
    cdef readonly int64_t now_ns   # when they were received
    cdef readonly uint64_t copies  # packets that had come before, and were passed over
    cdef readonly object lost_ring # the name of one that cannot be read any further; for Python to see to
    cdef RingSource _sources[RINGS_MAX]
    cdef int _ring_count
    cdef int _turn                 # of the rings: which is read first
    cdef int _ring_batches         # that were read since the sockets were looked at
    cdef int _lost                 # the ring that cannot be read, or -1
    cdef list _names
    cdef list _readers             # own what the sources point to

    cdef int fill(self, int64_t timeout_ns, bint spin) except? -1 nogil
    cdef int read_rings(self, DatagramBatch batch) noexcept nogil
    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil
    cdef bint pass_on(self, DatagramBatch batch) except -1 nogil
    cdef int forward(self, InOrder taken, Outbox outbox) except -1 nogil
