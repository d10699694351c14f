"""Settlement of deliveries, and removal of messages."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._containers cimport Bytes
from penstock.assured.core.router._tables cimport Tables


cdef class Settlement:
    """Ids that an endpoint has lost, collected for one record, or several if there are very many."""

    cdef Bytes runs
    cdef uint32_t count

    cdef int add(self, uint64_t id) except -1
    cdef int log(self, Tables tables, uint32_t endpoint, uint8_t flags) except -1


# True if the entry is too old for its endpoint, or past its own time to live.
cdef bint is_expired(Tables tables, uint32_t place) noexcept

# Remove the entry, which is in none of its endpoint's lists: move it to the dead-letter endpoint, or discard it.
# Logged.
cdef int give_up(Tables tables, uint32_t place, uint8_t why) except -1

# The same, with the endpoint that was its dead-letter endpoint at some time; 0: discard it.
cdef int give_up_to(Tables tables, uint32_t place, uint32_t dead_to, uint8_t why) except -1

# Return the entry from its flow to its queue; or remove it, if it was delivered often enough. `hint` and result:
# queue_return().
cdef uint32_t give_back(Tables tables, uint32_t place, uint32_t hint) except? 0

# Log that an endpoint has moved a message to another one or (0) discarded it; and that a message is back in its queue.
cdef int log_dead(Tables tables, uint32_t source, uint32_t target, uint64_t id, uint8_t why, uint8_t flags) except -1
cdef int log_returned(Tables tables, uint32_t endpoint, uint32_t deliveries, uint64_t id) except -1

# Retry to queue messages for this dead-letter endpoint (0: any) that it had no room for.
cdef int retry_stuck(Tables tables, uint32_t target) except -1
