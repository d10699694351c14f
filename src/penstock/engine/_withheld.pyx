"""What may wait: the adaptive class, which sends the newest record when there is room, and the metered class.

Adaptive: a consumer has a queue of pairs that are owed their value, without duplicates; consumers take turns. What is
written is the value at that moment: into the consumer's region (_regional.pyx), or as an event. Metered: _metering.pyx says whose turn it is.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.base._crc32c cimport crc32c_initialise
from penstock.base._prefetch cimport CACHE_LINE, prefetch, prefetch_span
from penstock.engine._classify cimport ClassProgram
from penstock.engine._conflate cimport Span, SpanStore
from penstock.engine._consumers cimport Consumer, Consumers, Tally, set_head
from penstock.engine._event cimport (
    ADAPTIVE,
    CRITICAL,
    EVENT_HEAD_SIZE,
    Head,
    METERED,
    OVERRUN,
    UPDATE,
    WITHDRAW,
    event_size,
)
from penstock.engine._items cimport ITEM_RECORDED, ITEM_WITHDRAWN, Item, NONE
from penstock.engine._metering cimport METER_WITHHELD, Metering
from penstock.engine._pairs cimport (
    PAIR_GONE,
    PAIR_PENDING,
    PAIR_QUEUED,
    PAIR_REFRESH,
    PAIR_REPAIR,
    Pair,
    Standing,
)
from penstock.engine._regional cimport Regional
from penstock.engine._regions cimport RegionSink
from penstock.engine._sinks cimport Queue

from penstock.base.errors import LocalProtocolError

crc32c_initialise()

cdef enum:
    QUANTUM = 4_096          # bytes that a consumer may get in its turn
    FRESH_SIZE = 16_384      # bytes that may wait in a session's buffer: more of the newest values would only grow old
    CLASS_BITS = 3
    PAIRS_AHEAD = 32         # pairs of an item whose memory is asked for before it is needed
    SPANS_AHEAD = 16         # what waits for them
    RECORDS_AHEAD = 8        # and its bytes
    ROUND_AHEAD = 16         # consumers whose turn comes soon
    LIST_AHEAD = 128         # and numbers of pairs


cdef class Withholding(Regional):
    """With `metering` None, the metered class is not served."""

    def __cinit__(self, *, Metering metering, bint serves_all_pending = False, bint drops = False, **_):
        if metering is not None and metering.pairs is not self.pairs:
            raise LocalProtocolError("the metering engine is of other pairs")
        self.metering = metering
        self._serves_all = serves_all_pending
        self._drops = drops
        self._round.first = self._round.last = NONE
        self._programs = {}

    def detach(self, uint32_t number) -> None:
        self.consumer(number)
        self.leave_round(number)
        Regional.detach(self, number)

    def want(
        self, uint32_t number, const uint32_t[::1] items not None, uint8_t cls, uint8_t served, ClassProgram program,
        int64_t interval_ns, int64_t now_ns, replayed_after = None,
    ) -> list:
        """One more subscription of the consumer wants the items, which are alike; those that another one wants already.
        The others wait for their refresh. `cls` is their class, unless a `program` says that of each record, to be
        taken through `served` (two bits for each class); `interval_ns` is that of the metered class, 0 for none. With
        `replayed_after`, see begin_replay(), they need no refresh if the log has all their updates since. After a
        LimitError nothing has changed."""
        cdef int64_t after = -1 if replayed_after is None else replayed_after
        cdef uint32_t fresh = 0, at
        cdef Py_ssize_t row
        if cls == METERED and program is None and interval_ns == 0:
            cls = CRITICAL # without a rate every update is sent
        self.consumer(number)
        for row in range(len(items)):
            self.items.item(items[row])
            fresh += self.pairs.find(number, items[row]) == NONE
        self.pairs.check_room(fresh)
        had = []
        for row in range(len(items)):
            at = self.pairs.find(number, items[row])
            if at == NONE:
                self.want_pair(number, items[row], cls, served, program, interval_ns, now_ns, after)
            else:
                self.pairs.standings[at].uses += 1
                had.append(items[row])
        return had

    cdef int want_pair(
        self, uint32_t number, uint32_t item, uint8_t cls, uint8_t served, ClassProgram program, int64_t interval_ns,
        int64_t now_ns, int64_t replayed_after,
    ) except -1:
        cdef Consumer *consumer = &self.consumers[number]
        cdef Item *entry = &self.items.items[item]
        cdef uint32_t at = self.pairs.add(entry, number, item)
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
        standing.uses = 1
        standing.after = self.number
        standing.behind = consumer.pairs
        if consumer.pairs != NONE:
            self.pairs.standings[consumer.pairs].before = at
        consumer.pairs = at
        consumer.pair_count += 1
        self.choose_pair(at, cls, served, program, interval_ns, now_ns)
        if replayed_after >= 0 and pair.cls == CRITICAL and program is None and entry.unlogged <= <uint64_t>replayed_after:
            standing.after = max(<uint64_t>replayed_after, entry.born)
        elif entry.flags & ITEM_RECORDED:
            self.refresh_later(at, 0)
            if replayed_after >= 0 and entry.number > <uint64_t>replayed_after and (
                pair.cls == CRITICAL or program is not None
            ):
                self.note_loss(number, replayed_after + 1, entry.number, OVERRUN)
        elif entry.flags & ITEM_WITHDRAWN and replayed_after >= 0:
            self.refresh_later(at, PAIR_REPAIR) # the consumer may have the record that was withdrawn
        elif interval_ns:
            self.metering.live(at, now_ns - interval_ns)
        standing.begun = standing.since = standing.after
        return 0

    def choose(
        self, uint32_t number, const uint32_t[::1] items not None, uint8_t cls, uint8_t served, ClassProgram program,
        int64_t interval_ns, int64_t now_ns, bint is_sole = False,
    ) -> list:
        """Another class, as in want(). What is owed in the old one is made good by a refresh. If it `is_sole`, items
        that several subscriptions want are left as they are: those. Items that it does not get are left out."""
        cdef uint32_t at
        cdef Py_ssize_t row
        self.consumer(number)
        left = []
        for row in range(len(items)):
            at = self.pairs.find(number, items[row])
            if at == NONE:
                continue
            if is_sole and self.pairs.standings[at].uses > 1:
                left.append(items[row])
            else:
                self.change_pair(at, cls, served, program, interval_ns, now_ns)
        return left

    cdef int change_pair(
        self, uint32_t at, uint8_t cls, uint8_t served, ClassProgram program, int64_t interval_ns, int64_t now_ns
    ) except -1:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef uint32_t number = pair.consumer
        cdef bint is_owed, is_moved
        cdef PyObject *chosen = NULL if program is None else <PyObject *>program
        if cls == METERED and program is None and interval_ns == 0:
            cls = CRITICAL # without a rate every update is sent
        if pair.cls == cls and pair.served == served and pair.program == chosen and (
            (interval_ns != 0) == (self.metering is not None and self.metering.is_metered(at))
        ):
            if interval_ns:
                self.metering.change(at, interval_ns, now_ns)
            return 0
        self._now_ns = now_ns
        self.pay(at)
        is_moved = pair.cls != ADAPTIVE and cls == ADAPTIVE and self.consumers[number].notices is not NULL
        is_owed = pair.flags & PAIR_PENDING or self.consumers[number].is_behind
        if self.metering is not None:
            is_owed |= self.metering.state_of(at) >= METER_WITHHELD
            self.metering.end(at)
        pair.flags &= ~PAIR_PENDING
        if is_moved:
            self.pairs.standings[at].written = 0 # what is in the region is older than what it has been sent
        if is_owed or is_moved and self.items.items[pair.item].flags & ITEM_RECORDED:
            self.let_go(pair)
            self.refresh_later(at, 0)
            self.wake(number)
        self.choose_pair(at, cls, served, program, interval_ns, now_ns)
        if interval_ns and not pair.flags & PAIR_REFRESH:
            self.metering.live(at, now_ns)
        return 0

    cdef void pay(self, uint32_t at) noexcept nogil:
        """Send what was put together for the pair while it waited, as nobody else has that. Without room for it, what
        makes up for it is a refresh."""
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef bint is_withheld = self.metering is not None and self.metering.state_of(at) >= METER_WITHHELD
        if not pair.span or pair.flags & PAIR_REFRESH or self.consumers[pair.consumer].is_behind:
            return
        if is_withheld:
            if self.write_value(at, METERED):
                self.metering.live(at, self._now_ns)
                self.pairs.standings[at].after = max(self.pairs.standings[at].after, self.items.items[pair.item].number)
        elif pair.flags & PAIR_PENDING and self.write_pending(at):
            self.pairs.standings[at].after = max(self.pairs.standings[at].after, self.items.items[pair.item].number)

    cdef int choose_pair(
        self, uint32_t at, uint8_t cls, uint8_t served, ClassProgram program, int64_t interval_ns, int64_t now_ns
    ) except -1:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
        pair.cls = cls
        pair.served = served
        pair.program = NULL if program is None else <PyObject *>program
        if program is not None:
            self._programs[at] = program
        else:
            self._programs.pop(at, None)
        if interval_ns:
            self.metering.begin(at, interval_ns)
        if self.consumers[pair.consumer].notices is not NULL and standing.slot == NONE and (
            pair.cls == ADAPTIVE or program is not None
        ):
            self.take_slot(pair)
        return 0

    cdef void drop_pair(self, uint32_t number) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[number]
        cdef Standing *standing = &self.pairs.standings[number]
        cdef void *sink = self.find_outlet(pair)
        if standing.slot != NONE and sink is not NULL and not self._is_common:
            (<RegionSink>sink).free_slot(standing.slot)
        self.let_go(pair)
        if self.metering is not None:
            self.metering.end(number)
        Consumers.drop_pair(self, number)

    # Updates

    cdef uint8_t class_of(self, uint32_t at, const uint8_t *record, uint32_t size) noexcept nogil:
        """The class in which the pair gets this record."""
        cdef const Pair *pair = &self.pairs.pairs[at]
        cdef uint8_t cls
        if pair.program is NULL:
            return pair.cls
        cls = (<ClassProgram>pair.program).classify(record, size)
        cls = pair.served >> 2 * (cls - 1) & CLASS_BITS
        if cls == METERED and not self.metering.is_metered(at):
            return CRITICAL
        return cls

    cdef void look_at_first(self, const Item *item) noexcept nogil:
        """Have the processor fetch what an update of the item begins with; it goes on with the list by itself."""
        cdef uint32_t index
        prefetch_span(<const uint8_t *>item.pairs, min(item.pair_count, <uint32_t>LIST_AHEAD) * sizeof(uint32_t))
        prefetch_span(item.record, item.record_size)
        for index in range(min(item.pair_count, <uint32_t>PAIRS_AHEAD)):
            prefetch(&self.pairs.pairs[item.pairs[index]])

    cdef void look_ahead(self, const Item *item, uint32_t index) noexcept nogil:
        """Pairs lie all over the memory: have the processor fetch those that come soon after this one, and what waits
        for them."""
        cdef const Pair *pair
        if index + PAIRS_AHEAD < item.pair_count:
            prefetch(&self.pairs.pairs[item.pairs[index + PAIRS_AHEAD]])
        if item.spans is NULL:
            return
        if index + SPANS_AHEAD < item.pair_count:
            pair = &self.pairs.pairs[item.pairs[index + SPANS_AHEAD]]
            if pair.span:
                prefetch((<SpanStore>item.spans).at(pair.span))
        if index + RECORDS_AHEAD < item.pair_count:
            pair = &self.pairs.pairs[item.pairs[index + RECORDS_AHEAD]]
            if pair.span:
                prefetch_span((<SpanStore>item.spans).record(pair.span), item.record_size)

    cdef void withhold(self, uint32_t at, Item *item, uint8_t cls, int64_t now_ns) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
        cdef Consumer *consumer = &self.consumers[pair.consumer]
        cdef void *sink
        if cls == METERED:
            if self.metering.offer(at, now_ns):
                if pair.merged: # a consumer that has nothing to count need not be looked at
                    consumer.tallies[<int>METERED].conflated += 1
                self.owe(pair, item, cls)
            return
        if not pair.flags & PAIR_PENDING:
            sink = self.find_outlet(pair)
            if sink is not NULL and standing.written and (<RegionSink>sink).is_read(standing.slot, standing.written):
                self.let_go(pair)
        consumer.tallies[<int>ADAPTIVE].conflated += pair.merged != 0
        self.owe(pair, item, cls)
        pair.flags |= PAIR_PENDING
        if pair.flags & PAIR_QUEUED:
            return
        pair.flags |= PAIR_QUEUED
        standing.next_pending = NONE
        if consumer.pending.first == NONE:
            consumer.pending.first = at
        else:
            self.pairs.standings[consumer.pending.last].next_pending = at
        consumer.pending.last = at
        consumer.pending_count += 1
        if not consumer.is_stopped:
            self.join_round(pair.consumer)

    cdef void owe(self, Pair *pair, const Item *item, uint8_t cls) noexcept nogil:
        """The item's record is one more that the pair is owed."""
        pair.merged = <uint32_t>min(<uint64_t>pair.merged + item.merged, <uint64_t>0xFFFFFFFF)
        if item.spans is not NULL and item.flags & ITEM_RECORDED and not (self._drops and cls == METERED):
            (<SpanStore>item.spans).hold(
                &pair.span, item.record, item.record_size, item.model_version, item.version, item.started_ns
            )

    cdef bint withdraw_pair(self, uint32_t at, Item *item, int64_t now_ns) noexcept nogil:
        """The item has no record any more: what waits for the pair is dropped, and its consumer is told. True if that
        is to be done by the log."""
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
        cdef void *sink
        if not self.is_ordered(pair): # of one that is, the log has what is before
            self.let_go(pair)
        if pair.flags & PAIR_REFRESH:
            pair.flags &= ~PAIR_PENDING
            return False # the refresh says it
        if self.is_regional(pair):
            pair.flags &= ~PAIR_PENDING
            sink = self.find_outlet(pair)
            if standing.written and sink is not NULL and standing.slot != NONE:
                self.write_region(at, <RegionSink>sink)
            return pair.program is not NULL
        if pair.cls == CRITICAL or pair.program is not NULL:
            return True
        if standing.version == 0: # its consumer never had a record
            pair.flags &= ~PAIR_PENDING
            if pair.cls == METERED:
                self.metering.live(at, now_ns - pair.interval_ns)
            return False
        if pair.cls == METERED:
            pair.merged = 1
            if self.write_value(at, METERED): # no rate holds up that there is nothing
                self.metering.live(at, now_ns)
            else:
                self.metering.offer(at, now_ns)
        else:
            self.withhold(at, item, ADAPTIVE, now_ns)
        return False

    # Classes that depend on the record

    cdef bint is_ordered(self, const Pair *pair) noexcept nogil:
        return pair.program is not NULL and self.consumers[pair.consumer].notices is NULL

    cdef void withhold_event(self, uint32_t at, const Head *head, uint8_t cls) noexcept nogil:
        cdef Item as_it_was = self.items.items[head.item]
        as_it_was.record = <uint8_t *>head + EVENT_HEAD_SIZE
        as_it_was.record_size, as_it_was.model_version = head.body_size, head.model_version
        as_it_was.number, as_it_was.version, as_it_was.started_ns = head.number, head.version, head.started_ns
        as_it_was.merged = head.merged
        as_it_was.flags |= ITEM_RECORDED
        self.withhold(at, &as_it_was, cls, self._now_ns)

    cdef const uint8_t *with_owed(self, Pair *pair, const uint8_t *event) noexcept nogil:
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

    cdef void settle(self, uint32_t at) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        self.let_go(pair)
        pair.flags &= ~PAIR_PENDING
        if self.metering is not None:
            self.metering.live(at, self._now_ns)

    # Serving

    cdef void join_round(self, uint32_t number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        if consumer.is_in_round:
            return
        consumer.is_in_round = True
        consumer.next_in_round = NONE
        if self._round.first == NONE:
            self._round.first = number
        else:
            self.consumers[self._round.last].next_in_round = number
        self._round.last = number

    cdef void leave_round(self, uint32_t number) noexcept nogil:
        cdef uint32_t at = self._round.first, before = NONE
        if not self.consumers[number].is_in_round:
            return
        while at != number:
            before = at
            at = self.consumers[at].next_in_round
        if before == NONE:
            self._round.first = self.consumers[number].next_in_round
        else:
            self.consumers[before].next_in_round = self.consumers[number].next_in_round
        if self._round.last == number:
            self._round.last = before
        self.consumers[number].is_in_round = False

    cdef void resume(self, uint32_t number, int64_t now_ns) noexcept nogil:
        """There is room again."""
        cdef Consumer *consumer = &self.consumers[number]
        consumer.is_stopped = False
        if consumer.pending.first != NONE:
            self.join_round(number)
        if self.metering is not None:
            self.metering.resume(number, now_ns)

    cdef int64_t serve_pending(self, int64_t bytes_max) noexcept nogil:
        cdef int64_t written = 0
        cdef uint32_t number
        cdef Consumer *consumer
        while self._round.first != NONE and (bytes_max < 0 or written < bytes_max):
            number = self._round.first
            consumer = &self.consumers[number]
            self._round.first = consumer.next_in_round
            consumer.is_in_round = False
            written += self.serve_consumer(number, QUANTUM)
            if consumer.pending.first != NONE and not consumer.is_stopped:
                self.join_round(number)
        return written

    cdef int64_t serve_consumer(self, uint32_t number, int64_t bytes_max) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        cdef int64_t written = 0
        cdef uint32_t at, size
        while consumer.pending.first != NONE and written < bytes_max:
            at = consumer.pending.first
            if self.pairs.pairs[at].flags & (PAIR_PENDING | PAIR_GONE | PAIR_REFRESH) == PAIR_PENDING:
                size = self.write_pending(at)
                if size == 0:
                    consumer.is_stopped = True
                    consumer.tallies[<int>ADAPTIVE].congested += 1
                    self.wait(number)
                    break
                written += size
                if self._serves_all:
                    written += self.serve_others(self.pairs.pairs[at].item)
            consumer.pending.first = self.pairs.standings[at].next_pending
            consumer.pending_count -= 1
            self.leave_queue(at, PAIR_QUEUED | PAIR_PENDING)
        return written

    cdef int64_t serve_others(self, uint32_t item) noexcept nogil:
        """The record is at hand: write it for everybody who waits for it and has room."""
        cdef const Item *entry = &self.items.items[item]
        cdef int64_t written = 0
        cdef uint32_t index, at
        for index in range(entry.pair_count):
            at = entry.pairs[index]
            if self.pairs.pairs[at].flags & (PAIR_PENDING | PAIR_REFRESH) == PAIR_PENDING:
                if not self.consumers[self.pairs.pairs[at].consumer].is_stopped:
                    written += self.write_pending(at)
        return written

    cdef int64_t serve_metered(self, int64_t bytes_max, int64_t now_ns) noexcept nogil:
        cdef int64_t written = 0
        cdef uint32_t at = 0, size, looked_at = 0
        if self.metering is None:
            return 0
        self.metering.advance(now_ns, NONE)
        while bytes_max < 0 or written < bytes_max:
            if looked_at == 0:
                self.look_at_round()
                looked_at = ROUND_AHEAD
            if not self.metering.next_pair(now_ns, &at):
                break
            looked_at -= 1
            size = EVENT_HEAD_SIZE if self.pairs.pairs[at].merged == 0 else self.write_value(at, METERED)
            if size:
                self.metering.sent(at, now_ns)
                written += size
            else:
                self.metering.refused(at)
                self.consumers[self.pairs.pairs[at].consumer].tallies[<int>METERED].congested += 1
                self.wait(self.pairs.pairs[at].consumer)
        return written

    cdef void look_at_round(self) noexcept nogil:
        """What is written next for the metered class lies all over the memory, one thing behind the other: have the
        processor fetch it for several consumers at a time."""
        cdef uint32_t[ROUND_AHEAD] ahead
        cdef uint32_t count = self.metering.look_ahead(ahead, ROUND_AHEAD), index
        cdef const Pair *pair
        cdef const Item *item
        cdef const Queue *queue
        for index in range(count):
            pair = &self.pairs.pairs[ahead[index]]
            prefetch_span(<const uint8_t *>&self.pairs.standings[ahead[index]], sizeof(Standing))
            prefetch_span(<const uint8_t *>&self.consumers[pair.consumer], sizeof(Tally[4]) + CACHE_LINE)
            prefetch(&self.items.items[pair.item])
        for index in range(count):
            pair = &self.pairs.pairs[ahead[index]]
            prefetch(self.consumers[pair.consumer].queue)
            if pair.span:
                prefetch((<SpanStore>self.items.items[pair.item].spans).at(pair.span))
        for index in range(count):
            pair = &self.pairs.pairs[ahead[index]]
            item, queue = &self.items.items[pair.item], self.consumers[pair.consumer].queue
            if pair.span:
                prefetch_span((<SpanStore>item.spans).record(pair.span), item.record_size)
            if queue is not NULL:
                prefetch_span(queue.data + queue.end, event_size(item.record_size))

    cdef uint32_t write_pending(self, uint32_t at) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
        cdef void *sink
        cdef uint32_t size
        if self.consumers[pair.consumer].notices is NULL:
            size = self.write_value(at, ADAPTIVE)
        else:
            sink = self.find_outlet(pair)
            if sink is NULL or standing.slot == NONE:
                return 1 # it is written when there is a region
            if self.consumers[pair.consumer].removes and standing.notice_era != self.consumers[pair.consumer].notice_era:
                return 0 # what its number meant before is to be removed first
            size = self.write_region(at, <RegionSink>sink)
        if size:
            pair.flags &= ~PAIR_PENDING
        return size

    cdef uint32_t write_value(self, uint32_t at, uint8_t cls) noexcept nogil:
        """As an event, that stands for all updates since the last one."""
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
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
        if pair.span: # of the log's events: it may not have come to the newest record yet
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
        consumer.tallies[cls].sent += 1
        consumer.tallies[cls].bytes += size
        standing.version = head.version
        self.let_go(pair)
        return size

    cdef bint write_refresh(self, uint32_t number, uint32_t at, int64_t now_ns) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
        cdef const Item *item = &self.items.items[pair.item]
        cdef void *sink
        if pair.cls == ADAPTIVE and self.consumers[number].notices is not NULL:
            sink = self.find_outlet(pair)
            if sink is not NULL and standing.slot != NONE and (item.flags & ITEM_RECORDED or standing.written):
                if self.consumers[number].notice_allowance <= 0:
                    return False
                self.consumers[number].notice_allowance -= event_size(item.topic_size) + EVENT_HEAD_SIZE
                if standing.written and standing.version == item.version:
                    self.give_notice(pair, item)
                else:
                    self.write_region(at, <RegionSink>sink)
                standing.after = item.number
                standing.refreshed = self.number # what it was told before may be missing in this record
            return True # without a region: when there is one
        if not Consumers.write_refresh(self, number, at, now_ns):
            return False
        self._now_ns = now_ns
        self.settle(at)
        return True
