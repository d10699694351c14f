from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.filter._dispatch cimport Dispatcher
from penstock.filter._forward cimport Forwarder
from penstock.middleware._inorder cimport InOrder
from penstock.net._udp cimport Inlet
from penstock.shm._ring cimport Cursor, State
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._outbox cimport Outbox


# A publisher's ring.
cdef struct RingPlace:
    Cursor *cursor
    uint64_t source # from which its datagrams are said to come


cdef class Relay:
    cdef Inlet _inlet
    cdef InOrder _in_order
    cdef Forwarder _forwarder
    cdef Dispatcher _dispatcher
    cdef DatagramBatch _rings_batch
    cdef RingPlace *_places
    cdef uint32_t _rings_max
    cdef uint32_t _ring_count
    cdef uint32_t _ring_next # whose turn it is
    cdef State _trouble      # of the ring whose turn it is
    cdef list _readers       # and the numbers of the rings, in the order of the places
    cdef bint _is_ring       # whether the batch at hand came from a ring
    cdef readonly Py_ssize_t start # of `batch`: datagrams before it were forwarded, the others are for Python
    cdef readonly int64_t now_ns   # when they were received

    cdef place_rings(self)
    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil
    cdef int wait(self, int64_t wake_ns, bint spin) except? -1 nogil
    cdef int read_rings(self, DatagramBatch batch) noexcept nogil
    cdef int take(self, DatagramBatch batch) except -1 nogil
    cdef int forward(self, DatagramBatch batch, InOrder taken, Outbox outbox) except -1 nogil
