from libc.stdint cimport int64_t, uint32_t

from penstock.engine.core.kernel._consumers cimport Consumers
from penstock.engine.core.kernel._items cimport Item, Items, NONE
from penstock.engine.core.kernel._pairs cimport Pairs
from penstock.engine.core.kernel._regions cimport Regions


cdef struct AdaptiveQueue:  # of one consumer: pairs with a pending value
    uint32_t first          # NONE
    uint32_t last
    uint32_t count
    uint32_t next_in_round  # the consumer after this one; NONE
    bint is_in_round
    bint is_stopped  # there was no room


cdef class AdaptiveClass:
    cdef Items items
    cdef Pairs pairs
    cdef Consumers consumers
    cdef Regions regions
    cdef bint _serves_all  # a record is written for all waiting consumers when it is in the cache
    cdef AdaptiveQueue *_queues  # by consumer
    cdef uint32_t _first  # of the round of consumers with values to write; NONE
    cdef uint32_t _last

    # The item was updated: the pair has a pending value.
    cdef void add(self, uint32_t at, const Item *item) noexcept nogil
    # Write values, at most about `bytes_max` (-1: all). Return the number of bytes.
    cdef int64_t serve(self, int64_t bytes_max) noexcept nogil
    # The consumer has room again.
    cdef void resume(self, uint32_t number) noexcept nogil
    # Write the pair's value. Return its size, or 0 if there was no room.
    cdef uint32_t write_pending(self, uint32_t at) noexcept nogil
    cdef void detach(self, uint32_t number) noexcept nogil

    cdef inline bint has_backlog(self) noexcept nogil:
        return self._first != NONE

    cdef inline uint32_t pending_count(self, uint32_t number) noexcept nogil:
        return self._queues[number].count

    cdef int64_t serve_consumer(self, uint32_t number, int64_t bytes_max) noexcept nogil
    cdef int64_t serve_others(self, uint32_t item) noexcept nogil
    cdef void join_round(self, uint32_t number) noexcept nogil
    cdef void leave_round(self, uint32_t number) noexcept nogil
