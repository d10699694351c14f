"""The adaptive class: each consumer gets the newest record of an item when there is room for it.

A consumer has a queue of the pairs with pending values, without duplicates; consumers take turns. The written value is
the newest at that moment. It goes into the consumer's region (_regions.pyx), or into its sink as an event.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from penstock.base._crc32c cimport crc32c_initialise
from penstock.engine.core.kernel._consumers cimport Consumer
from penstock.engine.core.kernel._event cimport ADAPTIVE
from penstock.engine.core.kernel._items cimport Item, NONE
from penstock.engine.core.kernel._pairs cimport (
    Delivery,
    PAIR_GONE,
    PAIR_PENDING,
    PAIR_QUEUED,
    PAIR_REFRESH,
    Pair,
)
from penstock.engine.core.kernel._pending cimport accumulate, discard
from penstock.engine.core.kernel._region_sink cimport RegionSink
from penstock.engine.core.kernel._regions cimport Regions

crc32c_initialise()

cdef enum:
    QUANTUM = 4_096  # bytes per turn of a consumer


@cython.final
cdef class AdaptiveClass:
    def __cinit__(self, Regions regions not None, bint serves_all):
        cdef uint32_t number
        self.items, self.pairs, self.consumers = regions.items, regions.pairs, regions.consumers
        self.regions = regions
        self._serves_all = serves_all
        self._first = self._last = NONE
        self._queues = <AdaptiveQueue *>malloc((<size_t>self.consumers.consumers_max + 1) * sizeof(AdaptiveQueue))
        if self._queues is NULL:
            raise MemoryError
        for number in range(self.consumers.consumers_max):
            self._queues[number] = AdaptiveQueue(NONE, NONE, 0, NONE, False, False)

    def __dealloc__(self):
        free(self._queues)

    cdef void add(self, uint32_t at, const Item *item) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Delivery *delivery = &self.pairs.deliveries[at]
        cdef AdaptiveQueue *queue = &self._queues[pair.consumer]
        cdef void *sink
        if not pair.flags & PAIR_PENDING:
            sink = self.regions.find_sink(pair)
            if sink is not NULL and delivery.written and (<RegionSink>sink).is_read(delivery.slot, delivery.written):
                discard(pair, item)
        if pair.merged:
            self.consumers.count_conflated(pair.consumer, ADAPTIVE)
        accumulate(pair, item, True)
        pair.flags |= PAIR_PENDING
        if pair.flags & PAIR_QUEUED:
            return
        pair.flags |= PAIR_QUEUED
        delivery.next_pending = NONE
        if queue.first == NONE:
            queue.first = at
        else:
            self.pairs.deliveries[queue.last].next_pending = at
        queue.last = at
        queue.count += 1
        if not queue.is_stopped:
            self.join_round(pair.consumer)

    cdef int64_t serve(self, int64_t bytes_max) noexcept nogil:
        cdef int64_t written = 0
        cdef uint32_t number
        cdef AdaptiveQueue *queue
        while self._first != NONE and (bytes_max < 0 or written < bytes_max):
            number = self._first
            queue = &self._queues[number]
            self._first = queue.next_in_round
            queue.is_in_round = False
            written += self.serve_consumer(number, QUANTUM)
            if queue.first != NONE and not queue.is_stopped:
                self.join_round(number)
        return written

    cdef int64_t serve_consumer(self, uint32_t number, int64_t bytes_max) noexcept nogil:
        cdef AdaptiveQueue *queue = &self._queues[number]
        cdef int64_t written = 0
        cdef uint32_t at, size
        while queue.first != NONE and written < bytes_max:
            at = queue.first
            if self.pairs.pairs[at].flags & (PAIR_PENDING | PAIR_GONE | PAIR_REFRESH) == PAIR_PENDING:
                size = self.write_pending(at)
                if size == 0:
                    queue.is_stopped = True
                    self.consumers.count_congested(number, ADAPTIVE)
                    self.consumers.wait(number)
                    break
                written += size
                if self._serves_all:
                    written += self.serve_others(self.pairs.pairs[at].item)
            queue.first = self.pairs.deliveries[at].next_pending
            queue.count -= 1
            self.pairs.leave_queue(at, PAIR_QUEUED | PAIR_PENDING)
        return written

    cdef int64_t serve_others(self, uint32_t item) noexcept nogil:
        """Write the record, which is in the cache, for all waiting consumers with room."""
        cdef const Item *entry = &self.items.items[item]
        cdef int64_t written = 0
        cdef uint32_t index, at
        for index in range(entry.pair_count):
            at = entry.pairs[index]
            if self.pairs.pairs[at].flags & (PAIR_PENDING | PAIR_REFRESH) == PAIR_PENDING:
                if not self._queues[self.pairs.pairs[at].consumer].is_stopped:
                    written += self.write_pending(at)
        return written

    cdef uint32_t write_pending(self, uint32_t at) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef const Delivery *delivery = &self.pairs.deliveries[at]
        cdef const Consumer *consumer = &self.consumers.consumers[pair.consumer]
        cdef void *sink
        cdef uint32_t size
        if consumer.notices is NULL:
            size = self.consumers.write_value(at, ADAPTIVE)
        else:
            sink = self.regions.find_sink(pair)
            if sink is NULL or delivery.slot == NONE:
                return 1  # the value is written when the region is open
            if consumer.removes and delivery.notice_era != consumer.notice_era:
                return 0  # the item that had this number before must be removed first
            size = self.regions.write(at, <RegionSink>sink)
        if size:
            pair.flags &= ~PAIR_PENDING
        return size

    cdef void resume(self, uint32_t number) noexcept nogil:
        self._queues[number].is_stopped = False
        if self._queues[number].first != NONE:
            self.join_round(number)

    cdef void detach(self, uint32_t number) noexcept nogil:
        cdef AdaptiveQueue *queue = &self._queues[number]
        cdef uint32_t at
        self.leave_round(number)
        while queue.first != NONE:
            at = queue.first
            queue.first = self.pairs.deliveries[at].next_pending
            self.pairs.leave_queue(at, PAIR_QUEUED)
        self._queues[number] = AdaptiveQueue(NONE, NONE, 0, NONE, False, False)

    cdef void join_round(self, uint32_t number) noexcept nogil:
        if self._queues[number].is_in_round:
            return
        self._queues[number].is_in_round = True
        self._queues[number].next_in_round = NONE
        if self._first == NONE:
            self._first = number
        else:
            self._queues[self._last].next_in_round = number
        self._last = number

    cdef void leave_round(self, uint32_t number) noexcept nogil:
        cdef uint32_t at = self._first, before = NONE
        if not self._queues[number].is_in_round:
            return
        while at != number:
            before = at
            at = self._queues[at].next_in_round
        if before == NONE:
            self._first = self._queues[number].next_in_round
        else:
            self._queues[before].next_in_round = self._queues[number].next_in_round
        if self._last == number:
            self._last = before
        self._queues[number].is_in_round = False
