"""Attached consumers: their sinks, and writing events into them.

A ring accepts every event at once. Refreshes and replays are paced, so that they do not overrun its reader: they fill
at most a share of the ring per interval. A session's buffer may be full; then the consumer waits until bytes have been
removed from the buffer.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from penstock.base._crc32c cimport crc32c_initialise
from penstock.engine.core.kernel._conflate cimport Span, SpanStore
from penstock.engine.core.kernel._event cimport (
    DEFINE,
    EVENT_HEAD_SIZE,
    Head,
    NONCONFLATABLE,
    REFRESH,
    UPDATE,
    WITHDRAW,
    event_size,
    write_event,
)
from penstock.engine.core.kernel._items cimport ITEM_NONCONFLATABLE, ITEM_RECORDED, Item, Items, NONE
from penstock.engine.core.kernel._pairs cimport Delivery, Pair, Pairs
from penstock.engine.core.kernel._pending cimport discard
from penstock.engine.core.kernel._sinks cimport DrainList, SessionBuffer, queue_extend, queue_reserve, queue_tell
from penstock.shm._memory cimport doorbell_wake, fence_full, store_release
from penstock.shm._ring cimport RingWriter, push, put_summed

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.engine.core.kernel._event import EVENT_SIZE_MAX

crc32c_initialise()

cdef enum:
    DEFINE_SIZE_MAX = EVENT_HEAD_SIZE + 256
    FRESH_SIZE = 16_384  # bytes of values that may wait in a session's buffer: more would only become stale


@cython.final
cdef class Consumers:
    """Callers choose the numbers of consumers, which are small."""

    def __cinit__(self, uint32_t consumers_max, Items items not None, Pairs pairs not None):
        self.consumers_max = consumers_max
        self.items = items
        self.pairs = pairs
        self._drained = DrainList(consumers_max)
        self._sinks = {}
        self.consumers = <Consumer *>calloc(<size_t>consumers_max + 1, sizeof(Consumer))
        self._touched = <uint32_t *>malloc((<size_t>consumers_max + 1) * sizeof(uint32_t))
        self._ready = <uint32_t *>malloc((<size_t>consumers_max + 1) * sizeof(uint32_t))
        self._paced = <uint32_t *>malloc((<size_t>consumers_max + 1) * sizeof(uint32_t))
        self._composed = <uint8_t *>malloc(EVENT_SIZE_MAX)
        if (
            self.consumers is NULL or self._touched is NULL or self._ready is NULL or self._paced is NULL
            or self._composed is NULL
        ):
            raise MemoryError

    def __dealloc__(self):
        free(self.consumers)
        free(self._touched)
        free(self._ready)
        free(self._paced)
        free(self._composed)

    def attach(self, uint32_t number, RingWriter ring, SessionBuffer buffer, RingWriter notices = None) -> None:
        """Attach a consumer with a ring or a session's buffer. With a ring of notices, it takes records in regions."""
        if number >= self.consumers_max:
            raise LimitError(f"consumer {number} is not below {self.consumers_max}", hint="raise consumers_max")
        if self.consumers[number].is_used:
            raise LocalProtocolError(f"consumer {number} already exists")
        if (ring is None) == (buffer is None) or (notices is not None and ring is None):
            raise LocalProtocolError("a consumer needs either a ring, with an optional ring of notices, or a buffer")
        if ring is not None:
            check_ring(ring, EVENT_SIZE_MAX)
        if notices is not None:
            check_ring(notices, DEFINE_SIZE_MAX)
        cdef Consumer *consumer = &self.consumers[number]
        memset(consumer, 0, sizeof(Consumer))
        if ring is not None:
            consumer.ring = &ring._cursor
            consumer.bell = <uint32_t *>ring._doorbell.start
            consumer.allowance = consumer.ring.capacity // SHARE
        else:
            buffer.attach(self._drained, number)
            consumer.queue = &buffer.queue
        if notices is not None:
            consumer.notices = &notices._cursor
            consumer.notices_bell = <uint32_t *>notices._doorbell.start
            consumer.notice_allowance = consumer.notices.capacity // SHARE
        # also keep the mappings: closing a ring too early must not unmap memory that is written here
        self._sinks[number] = (
            ring, buffer, notices, None if ring is None else (ring._mapping, ring._doorbell),
            None if notices is None else (notices._mapping, notices._doorbell),
        )
        consumer.era = consumer.notice_era = 1
        consumer.is_used = True

    def take_ready(self) -> list:
        """Consumers whose sessions have bytes to send. Each is listed once until its driver asks again."""
        cdef uint32_t at
        found = []
        for at in range(self._ready_count):
            self.consumers[self._ready[at]].is_ready = False
            found.append(self._ready[at])
        self._ready_count = 0
        return found

    def next_pace_ns(self) -> int | None:
        """Time at which a waiting ring may be written again."""
        cdef uint32_t at
        if self._paced_count == 0:
            return None
        return min([self.consumers[self._paced[at]].paced_ns for at in range(self._paced_count)]) + PACE_NS

    cdef Consumer *consumer(self, uint32_t number) except NULL:
        if number >= self.consumers_max or not self.consumers[number].is_used:
            raise LocalProtocolError(f"unknown consumer {number}")
        return &self.consumers[number]

    cdef int detach(self, uint32_t number) except -1:
        """Release the consumer's sinks, which the caller owns. Its pairs must be dropped before."""
        cdef SessionBuffer buffer = self._sinks.pop(number)[1]
        if buffer is not None:
            buffer.detach()
        forget(self._touched, &self._touched_count, number)
        forget(self._ready, &self._ready_count, number)
        forget(self._paced, &self._paced_count, number)
        forget(self._drained.drain.consumers, &self._drained.drain.count, number)
        memset(&self.consumers[number], 0, sizeof(Consumer))
        return 0

    cdef int restart_ring(self, uint32_t number) except -1:
        cdef Consumer *consumer = self.consumer(number)
        if consumer.ring is NULL:
            raise LocalProtocolError(f"consumer {number} has no ring")
        (<RingWriter>self._sinks[number][0]).restart()
        consumer.era += 1
        consumer.overruns += 1
        return 0

    cdef int restart_notices(self, uint32_t number) except -1:
        cdef Consumer *consumer = self.consumer(number)
        if consumer.notices is NULL:
            raise LocalProtocolError(f"consumer {number} has no ring of notices")
        (<RingWriter>self._sinks[number][2]).restart()
        consumer.notice_era += 1
        consumer.overruns += 1
        return 0

    # Writing

    cdef bint put(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        cdef uint8_t *out
        if consumer.ring is not NULL:
            push(consumer.ring, event, size)
        else:
            out = queue_reserve(consumer.queue, size)
            if out is NULL:
                return False
            memcpy(out, event, size)
            queue_extend(consumer.queue, <const Head *>event, size)
        self.touch(number)
        return True

    cdef bint write(self, uint32_t number, const Head *head, const void *body) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        cdef uint32_t size = event_size(head.body_size)
        cdef uint8_t *out
        if consumer.ring is not NULL:
            write_event(self._composed, head, body)
            push(consumer.ring, self._composed, size)
        else:
            out = queue_reserve(consumer.queue, size)
            if out is NULL:
                return False
            write_event(out, head, body)
            queue_extend(consumer.queue, head, size)
        self.touch(number)
        return True

    cdef bint put_summed(self, uint32_t number, const uint8_t *event, uint32_t size, uint32_t checksum) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        cdef uint8_t *at
        cdef uint64_t word
        if consumer.ring is NULL:
            return self.put(number, event, size)
        at = consumer.ring.events + consumer.ring.at
        word = put_summed(consumer.ring, event, size, checksum)
        store_release(at, word)
        self.touch(number)
        return True

    cdef void put_notice(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil:
        """Write an event into the consumer's ring of notices."""
        push(self.consumers[number].notices, event, size)
        self.touch(number)

    cdef uint32_t define_size(self, const Pair *pair) noexcept nogil:
        if self.pairs.delivery(pair).era == self.consumers[pair.consumer].era:
            return 0
        return event_size(self.items.items[pair.item].topic_size)

    cdef void define(self, uint32_t number, Pair *pair) noexcept nogil:
        """Send the item's definition to the consumer, unless it has it. The caller has checked that there is room."""
        cdef const Item *item = &self.items.items[pair.item]
        cdef Delivery *delivery = self.pairs.delivery(pair)
        cdef Head head
        if delivery.era == self.consumers[number].era:
            return
        set_head(&head, DEFINE, pair, item)
        head.slot = delivery.slot
        head.body_size = item.topic_size
        self.write(number, &head, item.topic)
        delivery.era = self.consumers[number].era

    cdef uint32_t write_value(self, uint32_t at, uint8_t cls) noexcept nogil:
        """Write one event for all updates since the last one."""
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Delivery *delivery = &self.pairs.deliveries[at]
        cdef Consumer *consumer = &self.consumers[pair.consumer]
        cdef Item *item = &self.items.items[pair.item]
        cdef const uint8_t *record = item.record
        cdef uint32_t define_size = self.define_size(pair), size
        cdef const Span *span
        cdef Head head
        set_head(&head, UPDATE, pair, item)
        head.cls = cls
        head.merged = pair.merged
        if item.flags & ITEM_RECORDED:
            head.body_size = item.record_size
        elif not pair.span:
            head.kind, head.slot = WITHDRAW, 0
        if pair.span:  # accumulated from the log, which may not have reached the newest record yet
            span = (<SpanStore>item.spans).at(pair.span)
            record = span.record
            head.body_size, head.model_version = span.size, span.version
            if head.version != span.last:
                head.version, head.slot = span.last, 0
            head.started_ns = span.started_ns
        size = event_size(head.body_size)
        if define_size and consumer.removes or consumer.queue is not NULL and (
            consumer.queue.end - consumer.queue.begin > FRESH_SIZE or not self.has_room(consumer, define_size + size)
        ):
            return 0
        self.define(pair.consumer, pair)
        if not self.write(pair.consumer, &head, record):
            return 0
        consumer.counts[cls].sent += 1
        consumer.counts[cls].bytes += size
        delivery.version = head.version
        discard(pair, item)
        return size

    # Waiting

    cdef void wait(self, uint32_t number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        if consumer.queue is not NULL:
            consumer.queue.is_waited_for = True
        elif not consumer.is_paced:
            consumer.is_paced = True
            self._paced[self._paced_count] = number
            self._paced_count += 1

    cdef void wake(self, uint32_t number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        if consumer.queue is not NULL:
            queue_tell(consumer.queue)
        else:
            self.wait(number)

    cdef uint32_t take_drained(self) noexcept nogil:
        """Return a consumer whose buffer has room again, or NONE."""
        cdef uint32_t number
        if self._drained.drain.count == 0:
            return NONE
        self._drained.drain.count -= 1
        number = self._drained.drain.consumers[self._drained.drain.count]
        self.consumers[number].queue.is_drained = False
        return number

    cdef uint32_t take_paced_count(self) noexcept nogil:
        """Number of consumers that wait for their rings' readers. Call take_paced() for each of them, in order;
        wait() may add consumers meanwhile, for the next time."""
        cdef uint32_t count = self._paced_count
        self._paced_count = 0
        return count

    cdef uint32_t take_paced(self, uint32_t at, int64_t now_ns) noexcept nogil:
        cdef uint32_t number = self._paced[at]
        self.consumers[number].is_paced = False
        renew_allowance(&self.consumers[number], now_ns)
        return number

    cdef void ring_bells(self) noexcept nogil:
        """Wake the readers of rings that were written, and list sessions that have bytes to send."""
        cdef uint32_t at
        cdef Consumer *consumer
        if self._touched_count == 0:
            return
        fence_full()
        for at in range(self._touched_count):
            consumer = &self.consumers[self._touched[at]]
            consumer.is_touched = False
            if consumer.notices is not NULL:
                doorbell_wake(consumer.notices_bell)
            if consumer.ring is not NULL:
                doorbell_wake(consumer.bell)
            elif not consumer.is_ready and consumer.queue.end > consumer.queue.begin:
                consumer.is_ready = True
                self._ready[self._ready_count] = self._touched[at]
                self._ready_count += 1
        self._touched_count = 0


cdef void forget(uint32_t *numbers, uint32_t *count, uint32_t number) noexcept:
    cdef uint32_t at, kept = 0
    for at in range(count[0]):
        if numbers[at] != number:
            numbers[kept] = numbers[at]
            kept += 1
    count[0] = kept


cdef int check_ring(RingWriter ring, uint32_t size) except -1:
    ring.check_open()
    if ring._cursor.event_size_max < size:
        raise LocalProtocolError(
            f"the ring takes events of {ring._cursor.event_size_max} bytes", hint=f"the minimum is {size}"
        )
    return 0


cdef void set_head(Head *head, uint8_t kind, const Pair *pair, const Item *item) noexcept nogil:
    """Write the head of an event about an item in its current state, without a body."""
    memset(head, 0, sizeof(Head))
    head.item = pair.item
    head.kind = kind
    head.cls = pair.cls
    head.flags = NONCONFLATABLE if item.flags & ITEM_NONCONFLATABLE else 0
    head.number = item.number
    head.version = item.version
    head.started_ns = item.started_ns
    head.model_id = item.model_id
    head.model_version = item.model_version
    if kind == REFRESH or kind == UPDATE:
        head.slot = item.session_id
