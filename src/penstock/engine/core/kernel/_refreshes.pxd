from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.engine.core.kernel._consumers cimport Consumers
from penstock.engine.core.kernel._items cimport Items
from penstock.engine.core.kernel._pairs cimport Pair, Pairs
from penstock.engine.core.kernel._regions cimport Regions
from penstock.engine.core.kernel._withheld cimport Withheld

cdef enum:
    SENT_RECEIPTS_MAX = 8  # receipts kept in case an overrun loses them


cdef struct LiveMark:
    uint64_t after  # refreshes to write before it
    uint32_t subscription


cdef struct Receipt:
    uint64_t first  # 0: none
    uint64_t last
    uint8_t cause


cdef struct SentReceipt:
    Receipt receipt
    uint64_t number  # number of the last update when the receipt was written


cdef struct RefreshQueue:  # of one consumer
    uint32_t first  # pair; NONE
    uint32_t last
    bint is_repairing  # after the replay, items that it did not cover are refreshed
    Receipt receipt  # to be written
    SentReceipt[8] sent
    uint32_t sent_count
    uint64_t added  # number of refreshes
    uint64_t written
    LiveMark *lives
    uint32_t live_count
    uint32_t live_capacity
    uint64_t receipts  # number written


cdef class Refreshes:
    cdef Items items
    cdef Pairs pairs
    cdef Consumers consumers
    cdef Regions regions
    cdef Withheld withheld
    cdef RefreshQueue *_queues

    cdef void add(self, uint32_t at, uint8_t flags) noexcept nogil
    # Report the subscription as live once the refreshes added so far have been written.
    cdef int add_live(self, uint32_t number, uint32_t subscription) except -1
    # These updates did not reach the consumer: it gets a receipt.
    cdef void note_loss(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil
    # Report the loss, and refresh all items whose every update the consumer should have got.
    cdef void lose(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil
    # Repeat receipts that the consumer may not have read, because the last update that it read has this number.
    cdef void repeat_receipts(self, uint32_t number, uint64_t last_number) noexcept nogil
    # Write the waiting events while there is room. False if some still wait.
    cdef bint write(self, uint32_t number, int64_t now_ns) noexcept nogil
    # The consumer's ring was overrun. Between these two calls, updates are replayed.
    cdef void begin_repair(self, uint32_t number) noexcept nogil
    cdef void end_repair(self, uint32_t number) noexcept nogil
    cdef void detach(self, uint32_t number) noexcept nogil

    cdef inline bint is_repairing(self, uint32_t number) noexcept nogil:
        return self._queues[number].is_repairing

    cdef inline uint64_t waiting(self, uint32_t number) noexcept nogil:
        return self._queues[number].added - self._queues[number].written

    cdef inline uint64_t receipts(self, uint32_t number) noexcept nogil:
        return self._queues[number].receipts

    cdef bint write_refresh(self, uint32_t number, uint32_t at, int64_t now_ns) noexcept nogil
    cdef bint write_record(self, uint32_t number, uint32_t at) noexcept nogil
    cdef bint write_receipt(self, uint32_t number) noexcept nogil
    cdef bint write_lives(self, uint32_t number) noexcept nogil
    cdef bint write_remove(self, uint32_t number, const Pair *pair) noexcept nogil
