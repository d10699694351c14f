"""Pairs of a consumer and one of its items.

An update reads and changes one cache line of each pair (Pair), even if it only moves the pair on the timing wheel. The
rest (Delivery) is used when an event is written for the pair, or when the consumer's subscriptions change.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.engine.core.kernel._items cimport Item
from penstock.engine.core.kernel._wheel cimport WheelEntry


cdef struct Pair:  # 64 bytes, aligned to 64
    WheelEntry entry  # time of the next metered send; links of the wheel, or of its consumer's queue
    int64_t interval_ns  # of the metered class
    PyObject *program  # the ClassProgram that selects the class of each record; NULL: always `cls`
    uint32_t consumer
    uint32_t item
    uint32_t span  # one of the item's spans: its value that waits, or was not read yet
    uint32_t merged  # updates since the last event written
    uint8_t metered  # a MeterState
    uint8_t cls
    uint8_t served  # two bits per class: the class that is served instead
    uint8_t flags


cdef struct Delivery:  # what the pair's consumer has been sent, and the lists of the pair
    uint64_t after  # number up to which a refresh, or the subscription's beginning, covers all updates
    uint64_t begun  # number from which on each critical update is due
    uint64_t since  # number since which none was left out for a refresh
    uint64_t refreshed  # number of the last update when the last refresh was written
    uint64_t version  # of the last event written
    uint64_t written  # generation of the record in the consumer's region
    uint32_t place  # index in the item's interest list
    uint32_t previous  # in the list of the consumer's pairs; NONE
    uint32_t next
    uint32_t next_refresh  # in the consumer's queues; NONE
    uint32_t next_pending
    uint32_t slot  # in the consumer's region
    uint32_t era  # the consumer's era when the item was defined to it
    uint32_t notice_era
    uint16_t uses  # number of subscriptions that have it


cdef enum PairFlag:
    PAIR_USED = 1
    PAIR_REFRESH = 2  # in the queue of refreshes
    PAIR_QUEUED = 4  # in the queue of the adaptive class
    PAIR_PENDING = 8  # the adaptive class has a pending value
    PAIR_GONE = 16  # no subscription has it; still in a queue
    PAIR_REMOVE = 32  # its consumer must be notified of the removal
    PAIR_REPAIR = 64  # its pending refresh repairs a loss
    PAIR_SWALLOWED = 128  # updates arrived during its pending refresh, and the consumer has earlier ones


cdef struct ConsumerPairs:  # the pairs of one consumer
    uint32_t first          # NONE
    uint32_t count


cdef class Pairs:
    cdef Pair *pairs
    cdef Delivery *deliveries
    cdef readonly uint32_t used
    cdef readonly uint32_t pairs_max
    cdef readonly uint32_t room  # number of pairs with memory
    cdef readonly uint32_t consumers_max
    cdef ConsumerPairs *_by_consumer
    cdef uint32_t _count
    cdef uint32_t _free  # the first free pair; linked by `next_refresh`
    cdef uint32_t *_slots
    cdef uint64_t _mask
    cdef uint64_t _seed

    cdef inline Delivery *delivery(self, const Pair *pair) noexcept nogil:
        return &self.deliveries[pair - self.pairs]

    # The consumer's pairs: the first, the one after a pair, and their number.
    cdef inline uint32_t first_of(self, uint32_t consumer) noexcept nogil:
        return self._by_consumer[consumer].first

    cdef inline uint32_t next_of(self, uint32_t number) noexcept nogil:
        return self.deliveries[number].next

    cdef inline uint32_t count_of(self, uint32_t consumer) noexcept nogil:
        return self._by_consumer[consumer].count

    # The pair has left the queue of this flag. A pair that is gone is released when it has left both queues.
    cdef inline void leave_queue(self, uint32_t number, uint8_t flag) noexcept nogil:
        cdef Pair *pair = &self.pairs[number]
        pair.flags &= ~flag
        if pair.flags & PAIR_GONE and not pair.flags & (PAIR_REFRESH | PAIR_QUEUED):
            self.release(number)

    cdef uint32_t find(self, uint32_t consumer, uint32_t item) noexcept nogil
    cdef uint32_t add(self, Item *entry, uint32_t consumer, uint32_t item) except? 0xFFFFFFFF
    # Raise LimitError if there is no room for `count` more.
    cdef int check_room(self, uint32_t count) except -1
    cdef void remove(self, Item *entry, uint32_t number) noexcept nogil
    cdef void release(self, uint32_t number) noexcept nogil
    cdef uint64_t slot_of(self, uint32_t consumer, uint32_t item) noexcept nogil
    cdef int allot(self, uint64_t slots) except -1
    # Make room for `count` pairs, zeroed; pointers to pairs become invalid.
    cdef int reserve(self, uint32_t count) except -1
    cdef uint32_t fresh(self) except? 0xFFFFFFFF
    cdef void close_hole(self, uint64_t hole) noexcept nogil
