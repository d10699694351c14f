from libc.stdint cimport int64_t, uint8_t

from penstock.filter._dispatch cimport Dispatcher
from penstock.filter._forward cimport Forwarder
from penstock.middleware._inorder cimport InOrder
from penstock.net._udp cimport Inlet
from penstock.wire._outbox cimport Outbox


cdef class Relay:
    cdef Inlet _inlet
    cdef InOrder _in_order
    cdef Forwarder _forwarder
    cdef Dispatcher _dispatcher
    cdef object _view
    cdef readonly Py_ssize_t start # of the inlet's batch: datagrams before it were forwarded, the others are for Python
    cdef readonly int64_t now_ns   # when they were received

    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil
    cdef int forward(self, InOrder taken, Outbox outbox) except -1 nogil
