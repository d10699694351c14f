from libc.stdint cimport uint32_t, uint64_t

from penstock.net._udp cimport Outlet
from penstock.shm._ring cimport Cursor
from penstock.wire._authentication cimport Key
from penstock.wire._outbox cimport Outbox


cdef struct Place:          # where a consumer's packets go
    uint64_t destination    # a key as net's sockets have them
    Cursor *ring            # in place of it, or NULL
    uint32_t *bell          # of the ring
    bint is_rung            # whether the bell is still to be rung
    bint has_key            # whether datagrams get a trailer
    Key key
    uint64_t packets
    uint64_t bytes


cdef class Dispatcher:
    cdef Outlet _outlet
    cdef Place *_places
    cdef uint32_t _consumers_max
    cdef dict _rings            # by consumer; owns what the places point to
    cdef readonly uint64_t unsent # datagrams that the system would not send
    cdef readonly int last_error

    cpdef int send(self, Outbox outbox) except -1

    # Send all that is in the outbox, in its order: how many datagrams could not be sent.
    cdef int send_rows(self, Outbox outbox) noexcept nogil
    cdef void ring_bells(self, Outbox outbox) noexcept nogil
