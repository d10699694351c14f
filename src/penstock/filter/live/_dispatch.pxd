from libc.stdint cimport uint32_t, uint64_t

from penstock.net._udp cimport Outlet
from penstock.shm._ring cimport Cursor
from penstock.wire._authentication cimport Key
from penstock.wire._outbox cimport Outbox


cdef struct Place:  # destination of a consumer's packets
    uint64_t destination  # an address key of net's sockets
    Cursor *ring  # used instead of the destination; or NULL
    uint32_t *bell  # the ring's bell
    bint is_rung  # True if the bell must be rung
    bint has_key  # True if datagrams get a trailer
    Key key
    uint64_t packets
    uint64_t bytes


cdef class Dispatcher:
    cdef Outlet _outlet
    cdef Place *_places
    cdef uint32_t _consumers_max
    cdef dict _rings  # by consumer; owners of the objects that places point to
    cdef readonly uint64_t unsent  # datagrams that the system refused to send
    cdef readonly int last_error

    cpdef int send(self, Outbox outbox) except -1

    # Send the outbox's content in order. Return the number of datagrams that could not be sent.
    cdef int send_rows(self, Outbox outbox) noexcept nogil
    cdef void ring_bells(self, Outbox outbox) noexcept nogil
