from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from penstock.filter._dispatch cimport Dispatcher
from penstock.filter._forward cimport Forwarder
from penstock.middleware._inorder cimport InOrder
from penstock.net._udp cimport Inlet
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._outbox cimport Outbox


cdef struct Source:         # a publisher's ring
    PyObject *ring          # a RingReader
    uint64_t key            # of the publisher's socket, as if the packets came from there


cdef class Relay:
    cdef Inlet _inlet
    cdef InOrder _in_order
    cdef Forwarder _forwarder
    cdef Dispatcher _dispatcher
    cdef DatagramBatch _ring_batch
    cdef Source *_sources
    cdef int _source_count
    cdef list _rings                # owns what the sources point to
    cdef readonly DatagramBatch batch # that has something for Python: datagrams from `start` on
    cdef readonly Py_ssize_t start  # those before it were forwarded
    cdef readonly int64_t now_ns    # when they were received
    cdef readonly uint64_t copies   # packets that had come before, and were passed over

    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil
    cdef int read_rings(self) except? -1 nogil
    cdef bint pass_on(self, DatagramBatch batch) except -1 nogil
    cdef int forward(self, DatagramBatch batch, InOrder taken, Outbox outbox) except -1 nogil
