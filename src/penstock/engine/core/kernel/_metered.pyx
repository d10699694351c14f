"""The metered class: each consumer gets an item's record at most as often as its rate allows.

_metering.pyx selects the pair whose turn it is. A withheld pair waits on the timing wheel.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.base._crc32c cimport crc32c_initialise
from penstock.base._prefetch cimport CACHE_LINE, prefetch, prefetch_span
from penstock.engine.core.kernel._conflate cimport SpanStore
from penstock.engine.core.kernel._consumers cimport ClassCounts, Consumers
from penstock.engine.core.kernel._event cimport EVENT_HEAD_SIZE, METERED, event_size
from penstock.engine.core.kernel._items cimport Item, NONE
from penstock.engine.core.kernel._metering cimport METER_WITHHELD, Metering
from penstock.engine.core.kernel._pairs cimport Delivery, Pair
from penstock.engine.core.kernel._pending cimport accumulate
from penstock.engine.core.kernel._sinks cimport Queue

from penstock.base.errors import LocalProtocolError

crc32c_initialise()

cdef enum:
    ROUND_AHEAD = 16  # consumers whose turn comes soon, whose memory is prefetched


@cython.final
cdef class MeteredClass:
    """With `metering` None the class is not served. With `drops`, withheld updates are not conflated."""

    def __cinit__(self, Consumers consumers not None, Metering metering, bint drops):
        if metering is not None and metering.pairs is not consumers.pairs:
            raise LocalProtocolError("the metering engine belongs to other pairs")
        self.items, self.pairs, self.consumers = consumers.items, consumers.pairs, consumers
        self.metering = metering
        self._drops = drops

    cdef void add(self, uint32_t at, const Item *item, int64_t now_ns) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        if self.metering.offer(at, now_ns):
            if pair.merged:  # the consumer's cache line is needed only for counting
                self.consumers.count_conflated(pair.consumer, METERED)
            accumulate(pair, item, not self._drops)

    cdef void withdraw(self, uint32_t at, int64_t now_ns) noexcept nogil:
        self.pairs.pairs[at].merged = 1
        if self.consumers.write_value(at, METERED):
            self.metering.live(at, now_ns)
        else:
            self.metering.offer(at, now_ns)

    cdef int64_t serve(self, int64_t bytes_max, int64_t now_ns) noexcept nogil:
        cdef int64_t written = 0
        cdef uint32_t at = 0, size, ahead = 0, number
        if self.metering is None:
            return 0
        self.metering.advance(now_ns, NONE)
        while bytes_max < 0 or written < bytes_max:
            if ahead == 0:
                self.prefetch_round()
                ahead = ROUND_AHEAD
            if not self.metering.next_pair(now_ns, &at):
                break
            ahead -= 1
            size = EVENT_HEAD_SIZE if self.pairs.pairs[at].merged == 0 else self.consumers.write_value(at, METERED)
            if size:
                self.metering.sent(at, now_ns)
                written += size
            else:
                number = self.pairs.pairs[at].consumer
                self.metering.refused(at)
                self.consumers.count_congested(number, METERED)
                self.consumers.wait(number)
        return written

    cdef void advance(self, int64_t now_ns) noexcept nogil:
        if self.metering is not None:
            self.metering.advance(now_ns, NONE)

    cdef bint has_backlog(self) noexcept nogil:
        return self.metering is not None and self.metering.first != 0

    cdef bint is_withheld(self, uint32_t at) noexcept nogil:
        return self.metering is not None and self.metering.state_of(at) >= METER_WITHHELD

    cdef bint write_at_once(self, uint32_t at, int64_t now_ns) noexcept nogil:
        cdef uint32_t number = self.pairs.pairs[at].consumer
        if self.metering.is_early(number, now_ns) or not self.consumers.write_value(at, METERED):
            return False
        self.metering.spend(number, now_ns)
        self.metering.live(at, now_ns)
        return True

    cdef void restart_interval(self, uint32_t at, int64_t now_ns) noexcept nogil:
        if self.metering is not None:
            self.metering.live(at, now_ns)

    cdef void resume(self, uint32_t number, int64_t now_ns) noexcept nogil:
        if self.metering is not None:
            self.metering.resume(number, now_ns)

    cdef void end(self, uint32_t at) noexcept nogil:
        if self.metering is not None:
            self.metering.end(at)

    cdef void prefetch_round(self) noexcept nogil:
        """Prefetch the memory for the next values of several consumers: it is scattered, and each address depends on
        the previous one."""
        cdef uint32_t[ROUND_AHEAD] ahead
        cdef uint32_t count = self.metering.look_ahead(ahead, ROUND_AHEAD), index
        cdef const Pair *pair
        cdef const Item *item
        cdef const Queue *queue
        for index in range(count):
            pair = &self.pairs.pairs[ahead[index]]
            prefetch_span(<const uint8_t *>&self.pairs.deliveries[ahead[index]], sizeof(Delivery))
            prefetch_span(
                <const uint8_t *>&self.consumers.consumers[pair.consumer], sizeof(ClassCounts[4]) + CACHE_LINE
            )
            prefetch(&self.items.items[pair.item])
        for index in range(count):
            pair = &self.pairs.pairs[ahead[index]]
            prefetch(self.consumers.consumers[pair.consumer].queue)
            if pair.span:
                prefetch((<SpanStore>self.items.items[pair.item].spans).at(pair.span))
        for index in range(count):
            pair = &self.pairs.pairs[ahead[index]]
            item, queue = &self.items.items[pair.item], self.consumers.consumers[pair.consumer].queue
            if pair.span:
                prefetch_span((<SpanStore>item.spans).record(pair.span), item.record_size)
            if queue is not NULL:
                prefetch_span(queue.data + queue.end, event_size(item.record_size))
