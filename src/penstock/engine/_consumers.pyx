"""Who is attached to an engine: each consumer's sink, its pairs, and what waits to be written for it alone.

A ring takes everything at once; so that refreshes do not overrun it, they and replays are written no faster than a
share of the ring in a while. A session's buffer may be full; then what is to be said waits here, in the order receipt,
refreshes, live marks, and the buffer tells when bytes were taken out of it.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from penstock.base._crc32c cimport crc32c_initialise
from penstock.engine._event cimport (
    AFTER_OVERRUN,
    AS_REFRESH,
    CRITICAL,
    DEFINE,
    EVENT_HEAD_SIZE,
    Head,
    ITEM_ALL,
    LIVE,
    LIVE_SIZE,
    LIVE_SUBSCRIPTION_AT,
    NONCONFLATABLE,
    RECEIPT,
    RECEIPT_CAUSE_AT,
    RECEIPT_FIRST_AT,
    RECEIPT_LAST_AT,
    RECEIPT_SIZE,
    REFRESH,
    UPDATE,
    REMOVE,
    SLOW,
    WITHDRAW,
    event_size,
    write_event,
)
from penstock.engine._items cimport (
    ITEM_NONCONFLATABLE,
    ITEM_RECORDED,
    ITEM_WITHDRAWN,
    Item,
    Items,
    NONE,
)
from penstock.engine._pairs cimport (
    PAIR_GONE,
    PAIR_QUEUED,
    PAIR_REFRESH,
    PAIR_REMOVE,
    PAIR_REPAIR,
    PAIR_SWALLOWED,
    Pair,
    Pairs,
    Standing,
)
from penstock.engine._sinks cimport Drained, SessionBuffer, queue_extend, queue_reserve, queue_tell
from penstock.shm._memory cimport doorbell_wake, fence_full, store_release
from penstock.shm._ring cimport RingWriter, push, put_summed
from penstock.wire._codec cimport store_u32, store_u64

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.engine._event import EVENT_SIZE_MAX

crc32c_initialise()

cdef enum:
    DEFINE_SIZE_MAX = EVENT_HEAD_SIZE + 256


cdef class Consumers:
    """Consumers are small numbers of the caller's choice."""

    def __cinit__(self, *, uint32_t consumers_max, Items items not None, Pairs pairs not None, **_):
        self.consumers_max = consumers_max
        self.items = items
        self.pairs = pairs
        self._drained = Drained(consumers_max)
        self._sinks = {}
        self.consumers = <Consumer *>calloc(<size_t>consumers_max + 1, sizeof(Consumer))
        self._touched = <uint32_t *>malloc((<size_t>consumers_max + 1) * sizeof(uint32_t))
        self._ready = <uint32_t *>malloc((<size_t>consumers_max + 1) * sizeof(uint32_t))
        self._paced = <uint32_t *>malloc((<size_t>consumers_max + 1) * sizeof(uint32_t))
        self._scratch = <uint8_t *>malloc(EVENT_SIZE_MAX)
        self._composed = <uint8_t *>malloc(EVENT_SIZE_MAX)
        if (
            self.consumers is NULL or self._touched is NULL or self._ready is NULL or self._paced is NULL
            or self._scratch is NULL or self._composed is NULL
        ):
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t number
        if self.consumers is not NULL:
            for number in range(self.consumers_max):
                free(self.consumers[number].lives)
                free(self.consumers[number].outlets)
        free(self.consumers)
        free(self._touched)
        free(self._ready)
        free(self._paced)
        free(self._scratch)
        free(self._composed)

    def attach(self, uint32_t number, RingWriter ring, SessionBuffer buffer, RingWriter notices = None) -> None:
        """A consumer with a ring or a session's buffer; with a ring of notices, it takes records in regions."""
        if number >= self.consumers_max:
            raise LimitError(f"consumer {number} is not below {self.consumers_max}", hint="raise consumers_max")
        if self.consumers[number].is_used:
            raise LocalProtocolError(f"consumer {number} is there already")
        if (ring is None) == (buffer is None) or (notices is not None and ring is None):
            raise LocalProtocolError("a consumer has either a ring, perhaps with one of notices, or a buffer")
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
        # the mappings as well: who closes a ring too early does not take the memory away that is written here
        self._sinks[number] = (
            ring, buffer, notices, None if ring is None else (ring._mapping, ring._doorbell),
            None if notices is None else (notices._mapping, notices._doorbell),
        )
        consumer.refreshes.first = consumer.refreshes.last = consumer.pairs = NONE
        consumer.pending.first = consumer.pending.last = consumer.next_in_round = NONE
        consumer.era = consumer.notice_era = 1
        consumer.is_used = True

    def detach(self, uint32_t number) -> None:
        """It is gone, with its pairs; its sink stays the caller's."""
        cdef Consumer *consumer = self.consumer(number)
        cdef uint32_t waiting
        cdef SessionBuffer buffer
        while consumer.pairs != NONE:
            self.drop_pair(consumer.pairs)
        while consumer.refreshes.first != NONE: # those that only waited to be forgotten
            waiting = consumer.refreshes.first
            consumer.refreshes.first = self.pairs.standings[waiting].next_refresh
            self.leave_queue(waiting, PAIR_REFRESH)
        while consumer.pending.first != NONE:
            waiting = consumer.pending.first
            consumer.pending.first = self.pairs.standings[waiting].next_pending
            self.leave_queue(waiting, PAIR_QUEUED)
        buffer = self._sinks.pop(number)[1]
        if buffer is not None:
            buffer.detach()
        free(consumer.lives)
        free(consumer.outlets)
        self.forget(self._touched, &self._touched_count, number)
        self.forget(self._ready, &self._ready_count, number)
        self.forget(self._paced, &self._paced_count, number)
        self.forget(self._drained.drain.consumers, &self._drained.drain.count, number)
        memset(consumer, 0, sizeof(Consumer))

    def take_ready(self) -> list:
        """Consumers whose sessions have something to send and were not named since it was last asked."""
        cdef uint32_t at
        found = []
        for at in range(self._ready_count):
            self.consumers[self._ready[at]].is_ready = False
            found.append(self._ready[at])
        self._ready_count = 0
        return found

    # Pairs

    @property
    def pair_count(self) -> int:
        return self.pairs.used

    def unwant(self, uint32_t number, uint32_t item, bint is_told = False) -> int:
        """One subscription less wants the item: how many still do. If none, the consumer is told if it does not know."""
        self.consumer(number)
        cdef uint32_t at = self.pairs.find(number, item)
        cdef Pair *pair
        cdef Standing *standing
        if at == NONE:
            return 0
        pair, standing = &self.pairs.pairs[at], &self.pairs.standings[at]
        standing.uses -= 1
        if standing.uses:
            return standing.uses
        if not is_told:
            pair.flags |= PAIR_REMOVE
        self.drop_pair(at)
        return 0

    def items_of(self, uint32_t number) -> list:
        """The items that the consumer gets."""
        cdef uint32_t at = self.consumer(number).pairs
        found = []
        while at != NONE:
            found.append(self.pairs.pairs[at].item)
            at = self.pairs.standings[at].behind
        return found

    def live(self, uint32_t number, uint32_t subscription) -> None:
        """All items of the subscription are wanted: say so when their refreshes have been written."""
        cdef Consumer *consumer = self.consumer(number)
        cdef void *bigger
        if consumer.live_count == consumer.live_capacity:
            bigger = realloc(consumer.lives, (consumer.live_capacity + 16) * sizeof(LiveMark))
            if bigger is NULL:
                raise MemoryError
            consumer.lives = <LiveMark *>bigger
            consumer.live_capacity += 16
        consumer.lives[consumer.live_count] = LiveMark(consumer.refreshes_in, subscription)
        consumer.live_count += 1

    def tally(self, uint32_t number) -> dict:
        """Counts of the consumer, by name."""
        cdef const Consumer *consumer = self.consumer(number)
        counts = {
            "items": consumer.pair_count,
            "overruns": consumer.overruns,
            "receipts": consumer.receipts,
            "waiting": consumer.refreshes_in - consumer.refreshes_out,
            "pending": consumer.pending_count,
            "is_behind": consumer.is_behind,
        }
        for cls, name in ((1, "critical"), (2, "adaptive"), (3, "metered")):
            counts[name] = {
                "sent": consumer.tallies[cls].sent, "bytes": consumer.tallies[cls].bytes,
                "conflated": consumer.tallies[cls].conflated, "congested": consumer.tallies[cls].congested,
            }
        return counts

    cdef Consumer *consumer(self, uint32_t number) except NULL:
        if number >= self.consumers_max or not self.consumers[number].is_used:
            raise LocalProtocolError(f"there is no consumer {number}")
        return &self.consumers[number]

    cdef void forget(self, uint32_t *numbers, uint32_t *count, uint32_t number) noexcept:
        cdef uint32_t at, kept = 0
        for at in range(count[0]):
            if numbers[at] != number:
                numbers[kept] = numbers[at]
                kept += 1
        count[0] = kept

    cdef void drop_pair(self, uint32_t number) noexcept nogil:
        """The consumer has lost the item; what still waits for the pair is told so there, and forgets it."""
        cdef Pair *pair = &self.pairs.pairs[number]
        cdef Standing *standing = &self.pairs.standings[number]
        cdef Consumer *consumer = &self.consumers[pair.consumer]
        self.pairs.remove(&self.items.items[pair.item], number)
        if standing.before == NONE:
            consumer.pairs = standing.behind
        else:
            self.pairs.standings[standing.before].behind = standing.behind
        if standing.behind != NONE:
            self.pairs.standings[standing.behind].before = standing.before
        consumer.pair_count -= 1
        if pair.flags & PAIR_REMOVE:
            self.refresh_later(number, 0)
            consumer.removes += 1
            self.wake(pair.consumer)
        pair.flags |= PAIR_GONE
        self.leave_queue(number, 0)

    cdef void leave_queue(self, uint32_t number, uint8_t flag) noexcept nogil:
        """The pair is out of the queue of this flag; one that is gone is forgotten when it is out of both."""
        cdef Pair *pair = &self.pairs.pairs[number]
        pair.flags &= ~flag
        if pair.flags & PAIR_GONE and not pair.flags & (PAIR_REFRESH | PAIR_QUEUED):
            self.pairs.release(number)

    # Writing

    cdef void touch(self, uint32_t number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        if not consumer.is_touched:
            consumer.is_touched = True
            self._touched[self._touched_count] = number
            self._touched_count += 1

    cdef void ring_bells(self) noexcept nogil:
        """Wake the readers of rings that were written, and name sessions that have something to send."""
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

    cdef bint has_room(self, const Consumer *consumer, uint32_t size) noexcept nogil:
        """For a refresh or a replay: of a ring, whether its reader may be expected to follow."""
        if consumer.ring is not NULL:
            return consumer.allowance > 0
        return consumer.queue.capacity_max - (consumer.queue.end - consumer.queue.begin) >= size

    cdef bint put(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil:
        """Write a whole event: whether there was room."""
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
        """put() of an event in two parts."""
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
        """put() of an event that goes to several: its checksum was computed once, if crc32c_joins(size)."""
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

    cdef void wait(self, uint32_t number) noexcept nogil:
        """There is no room: have it looked at again when there is."""
        cdef Consumer *consumer = &self.consumers[number]
        if consumer.queue is not NULL:
            consumer.queue.is_waited_for = True
        elif not consumer.is_paced:
            consumer.is_paced = True
            self._paced[self._paced_count] = number
            self._paced_count += 1

    cdef void wake(self, uint32_t number) noexcept nogil:
        """Have it looked at when next the engine serves."""
        cdef Consumer *consumer = &self.consumers[number]
        if consumer.queue is not NULL:
            queue_tell(consumer.queue)
        else:
            self.wait(number)

    cdef uint32_t define_size(self, const Pair *pair) noexcept nogil:
        """What define() has to write."""
        if self.pairs.standing(pair).era == self.consumers[pair.consumer].era:
            return 0
        return event_size(self.items.items[pair.item].topic_size)

    cdef void define(self, uint32_t number, Pair *pair) noexcept nogil:
        """Tell the consumer what the item's number means, if it does not know; there is room."""
        cdef const Item *item = &self.items.items[pair.item]
        cdef Standing *standing = self.pairs.standing(pair)
        cdef Head head
        if standing.era == self.consumers[number].era:
            return
        set_head(&head, DEFINE, pair, item)
        head.slot = standing.slot
        head.body_size = item.topic_size
        self.write(number, &head, item.topic)
        standing.era = self.consumers[number].era

    # What waits

    cdef void refresh_later(self, uint32_t number, uint8_t flags) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[number]
        cdef Standing *standing = &self.pairs.standings[number]
        cdef Consumer *consumer = &self.consumers[pair.consumer]
        pair.flags |= flags
        if pair.flags & PAIR_REFRESH:
            return
        pair.flags |= PAIR_REFRESH
        standing.next_refresh = NONE
        if consumer.refreshes.first == NONE:
            consumer.refreshes.first = number
        else:
            self.pairs.standings[consumer.refreshes.last].next_refresh = number
        consumer.refreshes.last = number
        consumer.refreshes_in += 1

    cdef bint write_refreshes(self, uint32_t number, int64_t now_ns) noexcept nogil:
        """The receipt, refreshes and live marks that wait for the consumer, while there is room; whether all were written."""
        cdef Consumer *consumer = &self.consumers[number]
        cdef uint32_t at
        if not self.write_receipt(number):
            return False
        while consumer.refreshes.first != NONE:
            if not self.write_lives(number):
                return False
            at = consumer.refreshes.first
            if self.pairs.pairs[at].flags & PAIR_GONE:
                if not self.write_remove(number, &self.pairs.pairs[at]):
                    return False
                consumer.removes -= self.pairs.pairs[at].flags & PAIR_REMOVE != 0
            elif not self.write_refresh(number, at, now_ns):
                return False
            consumer.refreshes.first = self.pairs.standings[at].next_refresh
            consumer.refreshes_out += 1
            self.leave_queue(at, PAIR_REFRESH | PAIR_REPAIR)
        return self.write_lives(number)

    cdef bint write_remove(self, uint32_t number, const Pair *pair) noexcept nogil:
        """That the item is gone, if the consumer has heard of it: whether there was room."""
        cdef Consumer *consumer = &self.consumers[number]
        cdef const Standing *standing = self.pairs.standing(pair)
        cdef Head head
        memset(&head, 0, sizeof(Head))
        head.kind, head.item, head.cls = REMOVE, pair.item, pair.cls
        if not pair.flags & PAIR_REMOVE:
            return True
        if standing.notice_era == consumer.notice_era:
            push(consumer.notices, <const uint8_t *>&head, EVENT_HEAD_SIZE)
            self.touch(number)
        if standing.era != consumer.era:
            return True
        return self.write(number, &head, NULL)

    cdef bint write_refresh(self, uint32_t number, uint32_t at, int64_t now_ns) noexcept nogil:
        """The pair's current record, or that it has none any more: whether there was room."""
        cdef Consumer *consumer = &self.consumers[number]
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
        cdef const Item *item = &self.items.items[pair.item]
        cdef uint32_t size = event_size(item.record_size)
        cdef bint is_recorded = item.flags & ITEM_RECORDED
        cdef Head head
        if not is_recorded and standing.version == 0 and not pair.flags & PAIR_REPAIR:
            standing.after = item.number
            return True # the consumer never had a record
        if pair.flags & PAIR_SWALLOWED:
            self.note_loss(number, standing.after + 1, item.number, SLOW)
            if not self.write_receipt(number):
                return False
            pair.flags &= ~PAIR_SWALLOWED
        if not self.has_room(consumer, self.define_size(pair) + size):
            return False
        self.define(number, pair)
        set_head(&head, REFRESH if is_recorded else WITHDRAW, pair, item)
        head.flags |= AFTER_OVERRUN if pair.flags & PAIR_REPAIR else 0
        head.flags |= 0 if is_recorded else AS_REFRESH
        head.body_size = item.record_size
        if not self.write(number, &head, item.record):
            return False
        consumer.allowance -= size
        consumer.tallies[pair.cls].sent += 1
        consumer.tallies[pair.cls].bytes += size
        standing.after = item.number
        if standing.version != item.version:
            standing.since = item.number
        if standing.version == 0:
            standing.begun = item.number
        standing.version = item.version
        standing.refreshed = self.number
        return True

    cdef bint write_receipt(self, uint32_t number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        cdef uint8_t[RECEIPT_SIZE] body
        cdef Head head
        if consumer.receipt.first == 0:
            return True
        memset(&head, 0, sizeof(Head))
        memset(body, 0, RECEIPT_SIZE)
        head.kind, head.item, head.body_size, head.number = RECEIPT, <uint32_t>ITEM_ALL, RECEIPT_SIZE, self.number
        store_u64(body + RECEIPT_FIRST_AT, consumer.receipt.first)
        store_u64(body + RECEIPT_LAST_AT, consumer.receipt.last)
        body[RECEIPT_CAUSE_AT] = consumer.receipt.cause
        if not self.write(number, &head, body):
            return False
        remember(consumer, self.number)
        consumer.receipt.first = 0
        consumer.receipts += 1
        return True

    cdef bint write_lives(self, uint32_t number) noexcept nogil:
        """Live marks whose refreshes have been written."""
        cdef Consumer *consumer = &self.consumers[number]
        cdef uint8_t[EVENT_HEAD_SIZE + LIVE_SIZE] event
        cdef uint8_t[LIVE_SIZE] body
        cdef Head head
        cdef uint32_t done = 0, at
        if consumer.is_repairing:
            return True # refreshes are still to come
        while done < consumer.live_count and consumer.lives[done].after <= consumer.refreshes_out:
            memset(&head, 0, sizeof(Head))
            memset(body, 0, LIVE_SIZE)
            head.kind, head.item, head.body_size, head.number = LIVE, <uint32_t>ITEM_ALL, LIVE_SIZE, self.number
            store_u32(body + LIVE_SUBSCRIPTION_AT, consumer.lives[done].subscription)
            if not self.write(number, &head, body):
                break
            if consumer.notices is not NULL:
                write_event(event, &head, body)
                push(consumer.notices, event, sizeof(event))
            done += 1
        for at in range(done, consumer.live_count):
            consumer.lives[at - done] = consumer.lives[at]
        consumer.live_count -= done
        return consumer.live_count == 0 or consumer.lives[0].after > consumer.refreshes_out

    cdef void recall(self, uint32_t number, uint64_t last_number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        cdef const Told *told
        cdef uint32_t at
        for at in range(consumer.told_count):
            told = &consumer.told[at]
            if told.number >= last_number:
                self.note_loss(number, told.receipt.first, told.receipt.last, told.receipt.cause)

    cdef void note_loss(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil:
        """Updates did not reach the consumer: it gets a receipt."""
        cdef Receipt *receipt = &self.consumers[number].receipt
        receipt.first = min(first, receipt.first) if receipt.first else first
        receipt.last = max(last, receipt.last)
        receipt.cause = cause

    cdef void lose(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil:
        """It gets a receipt, and all items anew of which it should have had every update."""
        cdef uint32_t at = self.consumers[number].pairs
        cdef const Pair *pair
        cdef const Standing *standing
        self.note_loss(number, first, last, cause)
        self.consumers[number].has_lost_sessions = True
        self._sessions_lost += 1
        while at != NONE:
            pair, standing = &self.pairs.pairs[at], &self.pairs.standings[at]
            if (pair.cls == CRITICAL or pair.program is not NULL) and (
                self.items.items[pair.item].flags & (ITEM_RECORDED | ITEM_WITHDRAWN)
            ):
                self.refresh_later(at, PAIR_REPAIR)
            at = standing.behind

    cdef void repair(self, uint32_t number) noexcept nogil:
        """What was replayed is there: refresh the rest, and only then say what is live."""
        cdef Consumer *consumer = &self.consumers[number]
        cdef uint32_t at = consumer.pairs
        consumer.is_repairing = False
        while at != NONE:
            if self.pairs.pairs[at].flags & PAIR_REPAIR:
                self.refresh_later(at, PAIR_REPAIR)
            at = self.pairs.standings[at].behind
        for at in range(consumer.live_count):
            consumer.lives[at].after = consumer.refreshes_in


cdef void remember(Consumer *consumer, uint64_t number) noexcept nogil:
    """The consumer's receipt is written. Of too many, the two that are oldest become one."""
    cdef uint32_t at
    if consumer.told_count == TOLD_MAX:
        consumer.told[1].receipt.first = min(consumer.told[0].receipt.first, consumer.told[1].receipt.first)
        consumer.told[1].receipt.last = max(consumer.told[0].receipt.last, consumer.told[1].receipt.last)
        for at in range(1, TOLD_MAX):
            consumer.told[at - 1] = consumer.told[at]
        consumer.told_count -= 1
    consumer.told[consumer.told_count] = Told(consumer.receipt, number)
    consumer.told_count += 1


cdef int check_ring(RingWriter ring, uint32_t size) except -1:
    ring.check_open()
    if ring._cursor.event_size_max < size:
        raise LocalProtocolError(
            f"the ring takes events of {ring._cursor.event_size_max} bytes", hint=f"{size} are needed"
        )
    return 0


cdef void set_head(Head *head, uint8_t kind, const Pair *pair, const Item *item) noexcept nogil:
    """An event about an item as it is now, without a body."""
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
