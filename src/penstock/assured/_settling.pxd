"""What becomes of messages that were delivered, or are not to be."""

from libc.stdint cimport uint32_t

from penstock.assured._tables cimport Tables

# Whether it is too old for its endpoint, or for its own time to live.
cdef bint is_expired(Tables tables, uint32_t place) noexcept

# An endpoint gives up the entry, which is in none of its lists: to its dead-message queue, or for good. It is logged.
cdef int give_up(Tables tables, uint32_t place, bint has_expired) except -1

# From its flow to its queue; or up, if it was delivered often enough. `hint` and the answer: queue_return().
cdef uint32_t give_back(Tables tables, uint32_t place, uint32_t hint) except? 0
