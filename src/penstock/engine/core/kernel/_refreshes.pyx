"""Events that wait for one consumer only, in this order: a loss receipt, refreshes and removals of items, live
marks."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from penstock.engine.core.kernel._consumers cimport Consumer, set_head
from penstock.engine.core.kernel._event cimport (
    ADAPTIVE,
    AFTER_OVERRUN,
    AS_REFRESH,
    CRITICAL,
    EVENT_HEAD_SIZE,
    Head,
    ITEM_ALL,
    LIVE,
    LIVE_SIZE,
    LIVE_SUBSCRIPTION_AT,
    RECEIPT,
    RECEIPT_CAUSE_AT,
    RECEIPT_FIRST_AT,
    RECEIPT_LAST_AT,
    RECEIPT_SIZE,
    REFRESH,
    REMOVE,
    SLOW,
    WITHDRAW,
    event_size,
    write_event,
)
from penstock.engine.core.kernel._items cimport ITEM_RECORDED, ITEM_WITHDRAWN, Item, NONE
from penstock.engine.core.kernel._pairs cimport (
    Delivery,
    PAIR_GONE,
    PAIR_REFRESH,
    PAIR_REMOVE,
    PAIR_REPAIR,
    PAIR_SWALLOWED,
    Pair,
)
from penstock.engine.core.kernel._withheld cimport Withheld
from penstock.wire._codec cimport store_u32, store_u64

cdef enum:
    LIVES_STEP = 16


@cython.final
cdef class Refreshes:
    def __cinit__(self, Withheld withheld not None):
        cdef uint32_t number
        self.items, self.pairs, self.consumers = withheld.items, withheld.pairs, withheld.consumers
        self.regions, self.withheld = withheld.regions, withheld
        self._queues = <RefreshQueue *>calloc(<size_t>self.consumers.consumers_max + 1, sizeof(RefreshQueue))
        if self._queues is NULL:
            raise MemoryError
        for number in range(self.consumers.consumers_max):
            self._queues[number].first = self._queues[number].last = NONE

    def __dealloc__(self):
        cdef uint32_t number
        if self._queues is not NULL:
            for number in range(self.consumers.consumers_max):
                free(self._queues[number].lives)
        free(self._queues)

    cdef void detach(self, uint32_t number) noexcept nogil:
        cdef RefreshQueue *queue = &self._queues[number]
        cdef uint32_t at
        while queue.first != NONE:
            at = queue.first
            queue.first = self.pairs.deliveries[at].next_refresh
            self.pairs.leave_queue(at, PAIR_REFRESH)
        free(queue.lives)
        memset(queue, 0, sizeof(RefreshQueue))
        queue.first = queue.last = NONE

    cdef void add(self, uint32_t at, uint8_t flags) noexcept nogil:
        """Refresh the pair, or remove it if it is gone. `flags` are set in the pair."""
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef RefreshQueue *queue = &self._queues[pair.consumer]
        pair.flags |= flags
        if pair.flags & PAIR_REFRESH:
            return
        pair.flags |= PAIR_REFRESH
        self.pairs.deliveries[at].next_refresh = NONE
        if queue.first == NONE:
            queue.first = at
        else:
            self.pairs.deliveries[queue.last].next_refresh = at
        queue.last = at
        queue.added += 1

    cdef int add_live(self, uint32_t number, uint32_t subscription) except -1:
        cdef RefreshQueue *queue = &self._queues[number]
        cdef void *bigger
        if queue.live_count == queue.live_capacity:
            bigger = realloc(queue.lives, (queue.live_capacity + LIVES_STEP) * sizeof(LiveMark))
            if bigger is NULL:
                raise MemoryError
            queue.lives = <LiveMark *>bigger
            queue.live_capacity += LIVES_STEP
        queue.lives[queue.live_count] = LiveMark(queue.added, subscription)
        queue.live_count += 1
        return 0

    # Losses

    cdef void note_loss(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil:
        cdef Receipt *receipt = &self._queues[number].receipt
        receipt.first = min(first, receipt.first) if receipt.first else first
        receipt.last = max(last, receipt.last)
        receipt.cause = cause

    cdef void lose(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil:
        cdef uint32_t at = self.pairs.first_of(number)
        cdef const Pair *pair
        self.note_loss(number, first, last, cause)
        while at != NONE:
            pair = &self.pairs.pairs[at]
            if (pair.cls == CRITICAL or pair.program is not NULL) and (
                self.items.items[pair.item].flags & (ITEM_RECORDED | ITEM_WITHDRAWN)
            ):
                self.add(at, PAIR_REPAIR)
            at = self.pairs.next_of(at)

    cdef void repeat_receipts(self, uint32_t number, uint64_t last_number) noexcept nogil:
        cdef const RefreshQueue *queue = &self._queues[number]
        cdef const SentReceipt *sent
        cdef uint32_t at
        for at in range(queue.sent_count):
            sent = &queue.sent[at]
            if sent.number >= last_number:
                self.note_loss(number, sent.receipt.first, sent.receipt.last, sent.receipt.cause)

    cdef void begin_repair(self, uint32_t number) noexcept nogil:
        self._queues[number].is_repairing = True

    cdef void end_repair(self, uint32_t number) noexcept nogil:
        """The replay is complete: refresh the items that it did not cover, and only then send live marks."""
        cdef RefreshQueue *queue = &self._queues[number]
        cdef uint32_t at = self.pairs.first_of(number)
        queue.is_repairing = False
        while at != NONE:
            if self.pairs.pairs[at].flags & PAIR_REPAIR:
                self.add(at, PAIR_REPAIR)
            at = self.pairs.next_of(at)
        for at in range(queue.live_count):
            queue.lives[at].after = queue.added

    # Writing

    cdef bint write(self, uint32_t number, int64_t now_ns) noexcept nogil:
        cdef RefreshQueue *queue = &self._queues[number]
        cdef uint32_t at
        if not self.write_receipt(number):
            return False
        while queue.first != NONE:
            if not self.write_lives(number):
                return False
            at = queue.first
            if self.pairs.pairs[at].flags & PAIR_GONE:
                if not self.write_remove(number, &self.pairs.pairs[at]):
                    return False
                if self.pairs.pairs[at].flags & PAIR_REMOVE:
                    self.consumers.end_remove(number)
            elif not self.write_refresh(number, at, now_ns):
                return False
            queue.first = self.pairs.deliveries[at].next_refresh
            queue.written += 1
            self.pairs.leave_queue(at, PAIR_REFRESH | PAIR_REPAIR)
        return self.write_lives(number)

    cdef bint write_remove(self, uint32_t number, const Pair *pair) noexcept nogil:
        """Notify the consumer that the item is gone, if it was defined. False if there was no room."""
        cdef const Consumer *consumer = &self.consumers.consumers[number]
        cdef const Delivery *delivery = self.pairs.delivery(pair)
        cdef Head head
        memset(&head, 0, sizeof(Head))
        head.kind, head.item, head.cls = REMOVE, pair.item, pair.cls
        if not pair.flags & PAIR_REMOVE:
            return True
        if delivery.notice_era == consumer.notice_era:
            self.consumers.put_notice(number, <const uint8_t *>&head, EVENT_HEAD_SIZE)
        if delivery.era != consumer.era:
            return True
        return self.consumers.write(number, &head, NULL)

    cdef bint write_refresh(self, uint32_t number, uint32_t at, int64_t now_ns) noexcept nogil:
        """Write the pair's current record, or its withdrawal. False if there was no room."""
        if self.pairs.pairs[at].cls == ADAPTIVE and self.consumers.consumers[number].notices is not NULL:
            return self.regions.write_refresh(at)
        if not self.write_record(number, at):
            return False
        self.withheld.clear(at, now_ns)
        return True

    cdef bint write_record(self, uint32_t number, uint32_t at) noexcept nogil:
        cdef Consumer *consumer = &self.consumers.consumers[number]
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Delivery *delivery = &self.pairs.deliveries[at]
        cdef const Item *item = &self.items.items[pair.item]
        cdef uint32_t size = event_size(item.record_size)
        cdef bint is_recorded = item.flags & ITEM_RECORDED
        cdef Head head
        if not is_recorded and delivery.version == 0 and not pair.flags & PAIR_REPAIR:
            delivery.after = item.number
            return True # the consumer never had a record
        if pair.flags & PAIR_SWALLOWED:
            self.note_loss(number, delivery.after + 1, item.number, SLOW)
            if not self.write_receipt(number):
                return False
            pair.flags &= ~PAIR_SWALLOWED
        if not self.consumers.has_room(consumer, self.consumers.define_size(pair) + size):
            return False
        self.consumers.define(number, pair)
        set_head(&head, REFRESH if is_recorded else WITHDRAW, pair, item)
        head.flags |= AFTER_OVERRUN if pair.flags & PAIR_REPAIR else 0
        head.flags |= 0 if is_recorded else AS_REFRESH
        head.body_size = item.record_size
        if not self.consumers.write(number, &head, item.record):
            return False
        consumer.allowance -= size
        consumer.counts[pair.cls].sent += 1
        consumer.counts[pair.cls].bytes += size
        delivery.after = item.number
        if delivery.version != item.version:
            delivery.since = item.number
        if delivery.version == 0:
            delivery.begun = item.number
        delivery.version = item.version
        delivery.refreshed = self.items.number
        return True

    cdef bint write_receipt(self, uint32_t number) noexcept nogil:
        cdef RefreshQueue *queue = &self._queues[number]
        cdef uint8_t[RECEIPT_SIZE] body
        cdef Head head
        if queue.receipt.first == 0:
            return True
        memset(&head, 0, sizeof(Head))
        memset(body, 0, RECEIPT_SIZE)
        head.kind, head.item, head.body_size, head.number = RECEIPT, <uint32_t>ITEM_ALL, RECEIPT_SIZE, self.items.number
        store_u64(body + RECEIPT_FIRST_AT, queue.receipt.first)
        store_u64(body + RECEIPT_LAST_AT, queue.receipt.last)
        body[RECEIPT_CAUSE_AT] = queue.receipt.cause
        if not self.consumers.write(number, &head, body):
            return False
        keep_receipt(queue, self.items.number)
        queue.receipt.first = 0
        queue.receipts += 1
        return True

    cdef bint write_lives(self, uint32_t number) noexcept nogil:
        """Write the live marks whose refreshes have been written. False if there was no room."""
        cdef RefreshQueue *queue = &self._queues[number]
        cdef uint8_t[EVENT_HEAD_SIZE + LIVE_SIZE] event
        cdef uint8_t[LIVE_SIZE] body
        cdef Head head
        cdef uint32_t done = 0, at
        if queue.is_repairing:
            return True  # refreshes are still pending
        while done < queue.live_count and queue.lives[done].after <= queue.written:
            memset(&head, 0, sizeof(Head))
            memset(body, 0, LIVE_SIZE)
            head.kind, head.item, head.body_size, head.number = LIVE, <uint32_t>ITEM_ALL, LIVE_SIZE, self.items.number
            store_u32(body + LIVE_SUBSCRIPTION_AT, queue.lives[done].subscription)
            if not self.consumers.write(number, &head, body):
                break
            if self.consumers.consumers[number].notices is not NULL:
                write_event(event, &head, body)
                self.consumers.put_notice(number, event, sizeof(event))
            done += 1
        for at in range(done, queue.live_count):
            queue.lives[at - done] = queue.lives[at]
        queue.live_count -= done
        return queue.live_count == 0 or queue.lives[0].after > queue.written


cdef void keep_receipt(RefreshQueue *queue, uint64_t number) noexcept nogil:
    """Keep the written receipt. If there are too many, merge the two oldest."""
    cdef uint32_t at
    if queue.sent_count == SENT_RECEIPTS_MAX:
        queue.sent[1].receipt.first = min(queue.sent[0].receipt.first, queue.sent[1].receipt.first)
        queue.sent[1].receipt.last = max(queue.sent[0].receipt.last, queue.sent[1].receipt.last)
        for at in range(1, SENT_RECEIPTS_MAX):
            queue.sent[at - 1] = queue.sent[at]
        queue.sent_count -= 1
    queue.sent[queue.sent_count] = SentReceipt(queue.receipt, number)
    queue.sent_count += 1
