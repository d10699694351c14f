"""What becomes of messages that were delivered, or are not to be."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._containers cimport Bytes
from penstock.assured.core.router._tables cimport Tables


cdef class Settlement:
    """Ids that an endpoint has no more, gathered for one record, or several if there are very many."""

    cdef Bytes runs
    cdef uint32_t count

    cdef int add(self, uint64_t id) except -1
    cdef int log(self, Tables tables, uint32_t endpoint, uint8_t flags) except -1


# Whether it is too old for its endpoint, or for its own time to live.
cdef bint is_expired(Tables tables, uint32_t place) noexcept

# An endpoint gives up the entry, which is in none of its lists: to its dead-message queue, or for good. It is logged.
cdef int give_up(Tables tables, uint32_t place, uint8_t why) except -1

# The same, to an endpoint that was its dead-message queue at some time, or (0) for good.
cdef int give_up_to(Tables tables, uint32_t place, uint32_t dead_to, uint8_t why) except -1

# From its flow to its queue; or up, if it was delivered often enough. `hint` and the answer: queue_return().
cdef uint32_t give_back(Tables tables, uint32_t place, uint32_t hint) except? 0

# That an endpoint has given a message up, to another or (0) for good; that one is back in its queue.
cdef int log_dead(Tables tables, uint32_t source, uint32_t target, uint64_t id, uint8_t why, uint8_t flags) except -1
cdef int log_returned(Tables tables, uint32_t endpoint, uint32_t deliveries, uint64_t id) except -1

# Queue to this endpoint (0: to any) what others gave up to it when it had no room.
cdef int retry_stuck(Tables tables, uint32_t target) except -1
