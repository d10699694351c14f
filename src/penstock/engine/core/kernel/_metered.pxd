from libc.stdint cimport int64_t, uint32_t

from penstock.engine.core.kernel._consumers cimport Consumers
from penstock.engine.core.kernel._items cimport Item, Items
from penstock.engine.core.kernel._metering cimport Metering
from penstock.engine.core.kernel._pairs cimport Pairs


cdef class MeteredClass:
    cdef readonly Metering metering  # None: the class is not served
    cdef Items items
    cdef Pairs pairs
    cdef Consumers consumers
    cdef bint _drops  # withheld updates are not conflated: only the newest record is sent

    # The item was updated: the pair has a pending value, unless its refresh is pending.
    cdef void add(self, uint32_t at, const Item *item, int64_t now_ns) noexcept nogil
    # The item has no record: notify the consumer regardless of its rate.
    cdef void withdraw(self, uint32_t at, int64_t now_ns) noexcept nogil
    # Write due values, at most about `bytes_max` (-1: all). Return the number of bytes.
    cdef int64_t serve(self, int64_t bytes_max, int64_t now_ns) noexcept nogil
    # Move due pairs into the queues of their consumers.
    cdef void advance(self, int64_t now_ns) noexcept nogil
    cdef bint has_backlog(self) noexcept nogil
    cdef bint is_withheld(self, uint32_t at) noexcept nogil
    # Write a withheld value before its turn. False if there is no room, or a rate is used up.
    cdef bint write_at_once(self, uint32_t at, int64_t now_ns) noexcept nogil
    # A newer value was sent: restart the pair's interval.
    cdef void restart_interval(self, uint32_t at, int64_t now_ns) noexcept nogil
    cdef void resume(self, uint32_t number, int64_t now_ns) noexcept nogil
    cdef void end(self, uint32_t at) noexcept nogil
    cdef void prefetch_round(self) noexcept nogil
