"""Updates that may wait, in the adaptive class (_adaptive.pyx) or in the metered class (_metered.pyx)."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.engine.core.kernel._adaptive cimport AdaptiveClass
from penstock.engine.core.kernel._event cimport CRITICAL, EVENT_HEAD_SIZE, METERED, Head
from penstock.engine.core.kernel._items cimport ITEM_RECORDED, Item, NONE
from penstock.engine.core.kernel._metered cimport MeteredClass
from penstock.engine.core.kernel._pairs cimport Delivery, PAIR_PENDING, PAIR_REFRESH, Pair
from penstock.engine.core.kernel._pending cimport discard
from penstock.engine.core.kernel._region_sink cimport RegionSink


@cython.final
cdef class Withheld:
    """Both classes, for callers that do not know which one withholds a pair's value."""

    def __cinit__(self, AdaptiveClass adaptive not None, MeteredClass metered not None):
        self.adaptive, self.metered = adaptive, metered
        self.items, self.pairs, self.consumers = adaptive.items, adaptive.pairs, adaptive.consumers
        self.regions = adaptive.regions

    cdef void add_event(self, uint32_t at, const Head *head, uint8_t cls, int64_t now_ns) noexcept nogil:
        cdef Item former = self.items.items[head.item]  # the item as it was when the event was logged
        former.record = <uint8_t *>head + EVENT_HEAD_SIZE
        former.record_size, former.model_version = head.body_size, head.model_version
        former.number, former.version, former.started_ns = head.number, head.version, head.started_ns
        former.merged = head.merged
        former.flags |= ITEM_RECORDED
        self.add(at, &former, cls, now_ns)

    cdef bint withdraw(self, uint32_t at, const Item *item, int64_t now_ns) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef const Delivery *delivery = &self.pairs.deliveries[at]
        cdef void *sink
        if not self.consumers.is_ordered(pair):  # if it is, the log still has updates before the withdrawal
            discard(pair, item)
        if pair.flags & PAIR_REFRESH:
            pair.flags &= ~PAIR_PENDING
            return False  # the refresh reports it
        if self.regions.takes(pair):
            pair.flags &= ~PAIR_PENDING
            sink = self.regions.find_sink(pair)
            if delivery.written and sink is not NULL and delivery.slot != NONE:
                self.regions.write(at, <RegionSink>sink)
            return pair.program is not NULL
        if pair.cls == CRITICAL or pair.program is not NULL:
            return True
        if delivery.version == 0: # the consumer never had a record
            pair.flags &= ~PAIR_PENDING
            if pair.cls == METERED:
                self.metered.restart_interval(at, now_ns - pair.interval_ns)
        elif pair.cls == METERED:
            self.metered.withdraw(at, now_ns)
        else:
            self.adaptive.add(at, item)
        return False

    cdef void clear(self, uint32_t at, int64_t now_ns) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        discard(pair, &self.items.items[pair.item])
        pair.flags &= ~PAIR_PENDING
        self.metered.restart_interval(at, now_ns)

    cdef void flush(self, uint32_t at, int64_t now_ns) noexcept nogil:
        """If there is no room, or a rate is used up, a refresh replaces the value."""
        cdef const Pair *pair = &self.pairs.pairs[at]
        cdef Delivery *delivery = &self.pairs.deliveries[at]
        cdef bint is_written
        if self.metered.is_withheld(at):
            is_written = self.metered.write_at_once(at, now_ns)
        else:
            is_written = pair.flags & PAIR_PENDING and self.adaptive.write_pending(at)
        if is_written:
            delivery.after = max(delivery.after, self.items.items[pair.item].number)

    cdef void resume(self, uint32_t number, int64_t now_ns) noexcept nogil:
        """The consumer has room again."""
        self.adaptive.resume(number)
        self.metered.resume(number, now_ns)
