"""The critical class: delivers every update, in order, from the log to its consumers.

The log has the newest critical events. It is both the queue of events to fan out and the history for overrun and slow
consumers: each of these has its own position in the log, and delays no other consumer.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise, crc32c_joins
from penstock.engine.core.kernel._conflate cimport SpanStore
from penstock.engine.core.kernel._consumers cimport Consumer, renew_allowance
from penstock.engine.core.kernel._event cimport (
    ADAPTIVE,
    CRITICAL,
    EVENT_HEAD_SIZE,
    Head,
    ITEM_ALL,
    NONCONFLATABLE,
    OVERRUN,
    REPLAYED,
    SATURATED,
    SESSION,
    SLOW,
    UPDATE,
    WITHDRAW,
    event_size,
    write_event,
)
from penstock.engine.core.kernel._items cimport ITEM_NONCONFLATABLE, ITEM_RECORDED, ITEM_WITHDRAWN, Item, NONE
from penstock.engine.core.kernel._pairs cimport Delivery, PAIR_REFRESH, PAIR_REPAIR, PAIR_SWALLOWED, Pair
from penstock.engine.core.kernel._refreshes cimport Refreshes
from penstock.engine.core.kernel._withheld cimport class_of
from penstock.wire._packets cimport PacketStore, Place

from penstock.engine.core.kernel._event import EVENT_SIZE_MAX

crc32c_initialise()

cdef enum:
    POSITION_FIRST = 1


cdef inline void swallow(Pair *pair, const Delivery *delivery, const Head *head) noexcept nogil:
    """The pair's pending refresh covers the update, which is a loss for a consumer of every update."""
    if pair.flags & PAIR_REFRESH and delivery.version and pair.cls == CRITICAL and head.number > delivery.after and (
        head.kind == UPDATE
    ):
        pair.flags |= PAIR_SWALLOWED


cdef inline bint is_needless(const Head *head, const Delivery *delivery) noexcept nogil:
    """A withdrawal for a consumer that never had a record of the item."""
    return head.kind == WITHDRAW and delivery.version == 0


cdef inline uint8_t class_of_event(const Pair *pair, const Head *head) noexcept nogil:
    """The class in which the pair gets an event of the log. A withdrawal is never withheld."""
    if head.kind == WITHDRAW:
        return CRITICAL
    return class_of(pair, <const uint8_t *>head + EVENT_HEAD_SIZE, head.body_size)


@cython.final
cdef class CriticalClass:
    """`history_bytes` is the size of the log."""

    def __cinit__(self, Refreshes refreshes not None, uint64_t history_bytes):
        self.items, self.pairs, self.consumers = refreshes.items, refreshes.pairs, refreshes.consumers
        self.refreshes, self.withheld = refreshes, refreshes.withheld
        self._log = PacketStore(history_bytes // EVENT_HEAD_SIZE, history_bytes, first_sequence=POSITION_FIRST)
        self._served = self._log.next_sequence
        self._cursors = <LogCursor *>calloc(<size_t>self.consumers.consumers_max + 1, sizeof(LogCursor))
        self._scratch = <uint8_t *>malloc(EVENT_SIZE_MAX)
        if self._cursors is NULL or self._scratch is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._cursors)
        free(self._scratch)

    @property
    def backlog(self) -> int:
        """Number of critical events that were not fanned out yet."""
        return self._log.next_sequence - self._served

    def begin_replay(self, uint32_t number, uint64_t last_number) -> bool:
        """The consumer has updates up to `last_number` and subscribes again: later updates are replayed instead of
        refreshed where subscribe() is told so. False if the log lacks some of them; then the consumer gets a
        receipt."""
        cdef LogCursor *cursor = &self._cursors[number]
        cdef uint32_t at
        self.consumers.consumer(number)
        last_number = min(last_number, self._served_number)
        if cursor.is_behind or not self.has_all_after(last_number):
            self.refreshes.note_loss(number, last_number + 1, self._served_number, OVERRUN)
            return False
        at = self.pairs.first_of(number)
        while at != NONE:  # items that the consumer already gets need no replay
            self.pairs.deliveries[at].after = max(self.pairs.deliveries[at].after, self._served_number)
            at = self.pairs.next_of(at)
        cursor.position = self.position_after(last_number)
        cursor.replay_end = self._served
        cursor.passed = last_number
        cursor.is_behind = cursor.position < self._served
        return True

    def told_sessions(self, uint32_t number) -> None:
        """The consumer knows the running sessions: it needs none of the SESSION events in the log so far."""
        self.consumers.consumer(number)
        self._cursors[number].sessions_after = self.items.number

    def sessions_after(self, uint32_t number) -> int:
        """Number of the last event before the consumer was sent the running sessions; 0: never."""
        self.consumers.consumer(number)
        return self._cursors[number].sessions_after

    def take_sessions_lost(self) -> list:
        """Consumers that lost events since the last call: SESSION events may be among them."""
        cdef uint32_t number
        cdef list found = []
        if self._sessions_lost == 0:
            return found
        self._sessions_lost = 0
        for number in range(self.consumers.consumers_max):
            if self._cursors[number].has_lost_sessions:
                self._cursors[number].has_lost_sessions = False
                found.append(number)
        return found

    cdef void detach(self, uint32_t number) noexcept nogil:
        memset(&self._cursors[number], 0, sizeof(LogCursor))

    # The log

    cdef void append(self, uint32_t number, const Item *item) noexcept nogil:
        cdef uint32_t size = event_size(item.record_size)
        cdef uint8_t kind = UPDATE if item.flags & ITEM_RECORDED else WITHDRAW
        cdef Head head = Head(
            number, kind, CRITICAL, NONCONFLATABLE if item.flags & ITEM_NONCONFLATABLE else 0, item.number,
            item.version, item.started_ns, item.merged, item.model_id, item.model_version, item.record_size,
            item.session_id if kind == UPDATE else 0,
        )
        write_event(self._log.reserve(size), &head, item.record)
        self._log.commit(size)

    cdef void append_session(self, const uint8_t *body, uint32_t body_size) noexcept nogil:
        cdef uint32_t size = event_size(body_size)
        cdef Head head = Head(<uint32_t>ITEM_ALL, SESSION, 0, 0, self.items.number, 0, 0, 0, 0, 0, body_size, 0)
        write_event(self._log.reserve(size), &head, body)
        self._log.commit(size)

    cdef bint has_all_after(self, uint64_t number) noexcept nogil:
        """True if the log has every event with a larger number."""
        cdef uint64_t oldest = self._log.next_sequence - self._log.count
        return oldest == POSITION_FIRST or self._log.count and self.head_at(oldest).number <= number + 1

    cdef uint64_t position_after(self, uint64_t number) noexcept nogil:
        """Position of the log's first event with a larger number, or the log's end."""
        cdef uint64_t low = self._log.next_sequence - self._log.count, high = self._log.next_sequence, middle
        while low < high:
            middle = (low + high) // 2
            if self.head_at(middle).number <= number:
                low = middle + 1
            else:
                high = middle
        return low

    cdef void check_overwritten(self) noexcept nogil:
        cdef uint64_t oldest = self._log.next_sequence - self._log.count
        cdef uint64_t first = self._served_number + 1, last = self.items.number
        cdef uint32_t number
        if self._served >= oldest:
            return
        if self._log.count:
            last = self.head_at(oldest).number - 1
        self._served = oldest
        self._served_number = last
        for number in range(self.consumers.consumers_max):
            if self.consumers.consumers[number].is_used and self.pairs.count_of(number):
                self._cursors[number].is_behind = False
                self.lose(number, first, last, SATURATED)
                self.consumers.wake(number)

    cdef void lose(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil:
        """The log lacks these updates, which the consumer did not get."""
        self.refreshes.lose(number, first, last, cause)
        self._cursors[number].has_lost_sessions = True
        self._sessions_lost += 1

    # Fan-out

    cdef int64_t fan_out(self, int64_t bytes_max, int64_t now_ns) noexcept nogil:
        cdef int64_t written = 0
        cdef const Place *place
        self.check_overwritten()
        while self._served < self._log.next_sequence and (bytes_max < 0 or written < bytes_max):
            place = self._log.place(self._served)
            self._served += 1  # the position for a consumer that falls behind at this event
            if (<const Head *>(self._log.data + place.offset)).kind == SESSION:
                written += self.fan_out_session(self._served - 1, self._log.data + place.offset, place.size)
            else:
                written += self.fan_out_event(self._served - 1, self._log.data + place.offset, place.size, now_ns)
        return written

    cdef int64_t fan_out_event(
        self, uint64_t position, const uint8_t *event, uint32_t size, int64_t now_ns
    ) noexcept nogil:
        cdef const Head *head = <const Head *>event
        cdef const Item *item = &self.items.items[head.item]
        cdef int64_t written = 0
        cdef uint32_t index, at
        cdef Pair *pair
        cdef const Delivery *delivery
        cdef uint8_t cls
        cdef bint is_summed = item.pair_count > 1 and crc32c_joins(size)
        cdef uint32_t checksum = crc32c_extend(0, event, size) if is_summed else 0
        self._served_number = head.number
        for index in range(item.pair_count):
            at = item.pairs[index]
            pair, delivery = &self.pairs.pairs[at], &self.pairs.deliveries[at]
            if pair.cls != CRITICAL and pair.program is NULL:
                continue  # only one cache line of such a pair is read
            if head.number <= delivery.after or pair.flags & PAIR_REFRESH:
                swallow(pair, delivery, head)
                continue
            if self._cursors[pair.consumer].is_behind or is_needless(head, delivery):
                continue
            cls = class_of_event(pair, head)
            if cls != CRITICAL:
                if self.consumers.is_ordered(pair):
                    self.withheld.add_event(at, head, cls, now_ns)
                continue
            if self.deliver(pair, event, size, is_summed, checksum, now_ns):
                written += size
            else:
                self.fall_behind(pair.consumer, position, head)
        return written

    cdef int64_t fan_out_session(self, uint64_t position, const uint8_t *event, uint32_t size) noexcept nogil:
        """Send to every consumer: those without interest in the source stream ignore the event."""
        cdef const Head *head = <const Head *>event
        cdef int64_t written = 0
        cdef uint32_t number
        self._served_number = head.number
        for number in range(self.consumers.consumers_max):
            if not self.consumers.consumers[number].is_used or head.number <= self._cursors[number].sessions_after:
                continue
            if self.consumers.consumers[number].notices is not NULL:
                self.consumers.put_notice(number, event, size)
            if self._cursors[number].is_behind:
                continue
            if self.consumers.put(number, event, size):
                written += size
            else:
                self.fall_behind(number, position, head)
        return written

    cdef void fall_behind(self, uint32_t number, uint64_t position, const Head *head) noexcept nogil:
        """The consumer has no room for the event at this position of the log."""
        cdef LogCursor *cursor = &self._cursors[number]
        cursor.is_behind = True
        cursor.position = position
        cursor.replay_end = position
        cursor.passed = head.number - 1
        self.consumers.count_congested(number, CRITICAL)
        self.consumers.wait(number)

    cdef bint deliver(
        self, Pair *pair, const uint8_t *event, uint32_t size, bint is_summed, uint32_t checksum, int64_t now_ns
    ) noexcept nogil:
        cdef uint32_t number = pair.consumer
        cdef Consumer *consumer = &self.consumers.consumers[number]
        cdef const Head *head = <const Head *>event
        cdef uint32_t define_size = self.consumers.define_size(pair)
        cdef bint is_owed = pair.merged and self.consumers.is_ordered(pair)
        if define_size and consumer.removes:
            return False  # the item that had this number before must be removed first
        if define_size or is_owed:
            if consumer.queue is not NULL and not self.consumers.has_room(consumer, define_size + size):
                return False
            self.consumers.define(number, pair)
        if is_owed and head.kind == UPDATE:  # a withdrawal cancels the pending value
            event = self.with_pending(pair, event)
            is_summed = False
        if is_summed:
            if not self.consumers.put_summed(number, event, size, checksum):
                return False
        elif not self.consumers.put(number, event, size):
            return False
        if is_owed:
            self.withheld.clear(<uint32_t>(pair - self.pairs.pairs), now_ns)
        consumer.counts[<int>CRITICAL].sent += 1
        consumer.counts[<int>CRITICAL].bytes += size
        self.pairs.delivery(pair).version = head.version
        return True

    cdef const uint8_t *with_pending(self, Pair *pair, const uint8_t *event) noexcept nogil:
        """The event merged with the pair's pending value, in the scratch buffer."""
        cdef const Item *item = &self.items.items[pair.item]
        cdef Head *head = <Head *>self._scratch
        if event != self._scratch:
            memcpy(self._scratch, event, event_size((<const Head *>event).body_size))
        head.merged = <uint32_t>min(<uint64_t>head.merged + pair.merged, <uint64_t>0xFFFFFFFF)
        if pair.span and (<SpanStore>item.spans).hold(
            &pair.span, self._scratch + EVENT_HEAD_SIZE, head.body_size, head.model_version, head.version, head.started_ns
        ):
            memcpy(self._scratch + EVENT_HEAD_SIZE, (<SpanStore>item.spans).record(pair.span), head.body_size)
        return self._scratch

    cdef bint write_session(self, uint32_t number, const uint8_t *body, uint32_t body_size) noexcept nogil:
        """The event has number 0, because it is not in the log."""
        cdef Consumer *consumer = &self.consumers.consumers[number]
        cdef uint32_t size = event_size(body_size)
        cdef Head head = Head(<uint32_t>ITEM_ALL, SESSION, 0, 0, 0, 0, 0, 0, 0, 0, body_size, 0)
        write_event(self._scratch, &head, body)
        if not self.consumers.has_room(consumer, size) or not self.consumers.put(number, self._scratch, size):
            return False
        consumer.allowance -= size
        if consumer.notices is not NULL:
            self.consumers.put_notice(number, self._scratch, size)
            consumer.notice_allowance -= size
        return True

    # Replay

    cdef bint restart(self, uint32_t number, uint64_t last_number, int64_t now_ns) except -1:
        """The consumer's ring was overrun after the update `last_number`: restart the ring, and replay what the consumer
        missed. False if the log does not have all of it; then the consumer gets a receipt and refreshes."""
        cdef LogCursor *cursor = &self._cursors[number]
        cdef uint64_t read_number
        cdef bint is_kept
        self.consumers.restart_ring(number)
        renew_allowance(&self.consumers.consumers[number], now_ns)
        last_number = min(last_number, self._served_number)
        read_number = last_number
        self.refreshes.repeat_receipts(number, last_number)
        is_kept = self.mark_repairs(number, &last_number)
        if last_number > read_number:  # SESSION events in between are not replayed
            cursor.has_lost_sessions = True
            self._sessions_lost += 1
        if not is_kept:
            self.lose(number, last_number + 1, self._served_number, OVERRUN)
        cursor.position = self.position_after(last_number)
        cursor.replay_end = self._served
        cursor.passed = last_number
        cursor.is_behind = is_kept and cursor.position < self._served
        self.refreshes.begin_repair(number)
        return is_kept

    cdef bint mark_repairs(self, uint32_t number, uint64_t *last_number) noexcept nogil:
        """Mark pairs whose events may be lost: they are refreshed unless the replay covers them. `last_number` is
        moved to where the first of them had a pending value. True if the log has all updates since then."""
        cdef uint32_t at = self.pairs.first_of(number)
        cdef uint64_t first = self._served_number, last = last_number[0]
        cdef Pair *pair
        cdef Delivery *delivery
        cdef const Item *item
        while at != NONE:
            pair, delivery = &self.pairs.pairs[at], &self.pairs.deliveries[at]
            item = &self.items.items[pair.item]
            if item.flags & (ITEM_RECORDED | ITEM_WITHDRAWN) and not (
                pair.cls == ADAPTIVE and self.consumers.consumers[number].notices is not NULL
            ):
                if pair.cls == CRITICAL:
                    first = min(first, delivery.since)
                if pair.merged and self.consumers.is_ordered(pair):  # its value is newer than the first replayed events
                    self.refreshes.note_loss(
                        number, min(last, delivery.after) + 1, max(last + 1, self._served_number), OVERRUN
                    )
                    self.withheld.clear(at, self.served_ns)
                if delivery.refreshed >= last or pair.cls != CRITICAL or pair.program is not NULL:
                    pair.flags |= PAIR_REPAIR
                if pair.cls != CRITICAL or pair.program is not NULL or item.unlogged > max(last, delivery.since) or (
                    pair.flags & PAIR_REFRESH and delivery.version
                ):
                    self.refreshes.note_loss(number, last + 1, max(last + 1, self._served_number), OVERRUN)
                else:
                    delivery.after = delivery.since  # updates before a refresh may be lost too
                    if delivery.begun < delivery.since and last < delivery.since:
                        self.refreshes.note_loss(number, last + 1, delivery.since, OVERRUN)
            at = delivery.next
        last_number[0] = max(last, first)
        return self.has_all_after(last_number[0])

    cdef bint replay(self, uint32_t number, int64_t now_ns) noexcept nogil:
        cdef LogCursor *cursor = &self._cursors[number]
        cdef const Place *place
        cdef uint8_t *event
        cdef uint32_t at
        cdef bint is_written
        if cursor.position < self._log.next_sequence - self._log.count:
            self.lose(
                number, cursor.passed + 1, self._served_number,
                SLOW if self.consumers.consumers[number].ring is NULL else OVERRUN,
            )
            cursor.is_behind = False
            return True
        while cursor.position < self._served:
            place = self._log.place(cursor.position)
            event = self._log.data + place.offset
            if (<const Head *>event).kind == SESSION:
                is_written = self.replay_session(number, event, place.size)
            else:
                at = self.pairs.find(number, (<const Head *>event).item)
                is_written = at == NONE or self.replay_event(number, at, event, place.size, now_ns)
            if not is_written:
                return False
            cursor.position += 1
            cursor.passed = (<const Head *>event).number
        cursor.is_behind = False
        return True

    cdef bint replay_event(
        self, uint32_t number, uint32_t at, uint8_t *event, uint32_t size, int64_t now_ns
    ) noexcept nogil:
        """Deliver the event to the pair, if needed. False if there was no room."""
        cdef const Head *head = <const Head *>event
        cdef Consumer *consumer = &self.consumers.consumers[number]
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef const Delivery *delivery = &self.pairs.deliveries[at]
        cdef uint8_t cls
        swallow(pair, delivery, head)
        if head.number <= delivery.after or pair.flags & PAIR_REFRESH or is_needless(head, delivery):
            return True
        cls = class_of_event(pair, head)
        if cls != CRITICAL:
            if cls and self.consumers.is_ordered(pair):
                self.withheld.add_event(at, head, cls, now_ns)
            return True
        if not self.consumers.has_room(consumer, self.consumers.define_size(pair) + size):
            return False
        if not self.deliver(pair, self.marked_replayed(&self._cursors[number], event, size), size, False, 0, now_ns):
            return False
        consumer.allowance -= size
        if pair.program is NULL:
            pair.flags &= ~PAIR_REPAIR
        return True

    cdef bint replay_session(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil:
        """False if there was no room. An event older than the consumer's sessions is skipped."""
        cdef LogCursor *cursor = &self._cursors[number]
        cdef Consumer *consumer = &self.consumers.consumers[number]
        if (<const Head *>event).number <= cursor.sessions_after:
            return True
        event = self.marked_replayed(cursor, event, size)
        if not self.consumers.has_room(consumer, size) or not self.consumers.put(number, event, size):
            return False
        consumer.allowance -= size
        return True

    cdef const uint8_t *marked_replayed(self, const LogCursor *cursor, const uint8_t *event, uint32_t size) noexcept nogil:
        """The event, flagged in the scratch buffer if it was written to the consumer before."""
        if cursor.position >= cursor.replay_end:
            return event
        memcpy(self._scratch, event, size)
        (<Head *>self._scratch).flags |= REPLAYED
        return self._scratch
