"""The critical class: every update, from the log to whoever is to have each one.

The log has the newest critical events. It is at once the queue of those that were not fanned out yet and the history
that overrun and slow consumers are served from: each of these has a position of its own in it, and nobody waits for it.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise, crc32c_joins
from penstock.engine._consumers cimport PACE_NS, Consumer, renew_allowance
from penstock.engine._event cimport (
    ADAPTIVE,
    CRITICAL,
    EVENT_HEAD_SIZE,
    Head,
    NONCONFLATABLE,
    OVERRUN,
    ITEM_ALL,
    REPLAYED,
    SATURATED,
    SESSION,
    SLOW,
    UPDATE,
    WITHDRAW,
    event_size,
    write_event,
)
from penstock.engine._items cimport ITEM_NONCONFLATABLE, ITEM_RECORDED, ITEM_WITHDRAWN, Item, NONE
from penstock.engine._pairs cimport PAIR_REFRESH, PAIR_REPAIR, PAIR_SWALLOWED, Pair, Standing
from penstock.engine._withheld cimport Withholding
from penstock.shm._ring cimport RingWriter, push
from penstock.wire._packets cimport PacketStore, Place

from penstock.base.errors import LocalProtocolError

crc32c_initialise()

cdef enum:
    POSITION_FIRST = 1


cdef inline void swallow(Pair *pair, const Standing *standing, const Head *head) noexcept nogil:
    """The refresh that the pair waits for will have the update; it is a loss to who should have had each one."""
    if pair.flags & PAIR_REFRESH and standing.version and pair.cls == CRITICAL and head.number > standing.after and (
        head.kind == UPDATE
    ):
        pair.flags |= PAIR_SWALLOWED


cdef inline bint is_needless(const Head *head, const Standing *standing) noexcept nogil:
    """A withdrawal for a consumer that never had a record of the item."""
    return head.kind == WITHDRAW and standing.version == 0


cdef class Critical(Withholding):
    """`history_bytes` is the size of the log."""

    def __cinit__(self, *, uint64_t history_bytes, **_):
        self._log = PacketStore(history_bytes // EVENT_HEAD_SIZE, history_bytes, first_sequence=POSITION_FIRST)
        self._served = self._log.next_sequence

    def next_pace_ns(self) -> int | None:
        """When a ring that waits may be written again."""
        cdef uint32_t at
        if self._paced_count == 0:
            return None
        return min([self.consumers[self._paced[at]].paced_ns for at in range(self._paced_count)]) + PACE_NS

    @property
    def backlog(self) -> int:
        """Critical events that were not fanned out yet."""
        return self._log.next_sequence - self._served

    def attend_to(self, uint32_t number, int64_t now_ns) -> None:
        """Write what waits for one consumer, as after a subscription."""
        cdef Consumer *consumer = self.consumer(number)
        with nogil:
            renew_allowance(consumer, now_ns)
            self.attend(number, now_ns)
            self.ring_bells()

    def begin_replay(self, uint32_t number, uint64_t last_number) -> bool:
        """The consumer had updates up to `last_number` before, and is about to want items again: they are replayed
        instead of refreshed where want() is told so. False if the log has not all of that: then there is a receipt."""
        cdef Consumer *consumer = self.consumer(number)
        cdef uint32_t at
        last_number = min(last_number, self._served_number)
        if consumer.is_behind or not self.has_all_after(last_number):
            self.note_loss(number, last_number + 1, self._served_number, OVERRUN)
            return False
        at = consumer.pairs
        while at != NONE: # those that it has already got have nothing to be replayed
            self.pairs.standings[at].after = max(self.pairs.standings[at].after, self._served_number)
            at = self.pairs.standings[at].behind
        consumer.position = self.position_after(last_number)
        consumer.replay_end = self._served
        consumer.passed = last_number
        consumer.is_behind = consumer.position < self._served
        return True

    def restart(self, uint32_t number, uint64_t last_number, int64_t now_ns) -> bool:
        """The consumer's ring was overrun after the update `last_number`: begin it anew with what it missed. False if
        the log does not have all of that; then it gets a receipt and refreshes."""
        cdef Consumer *consumer = self.consumer(number)
        cdef uint64_t read_number
        cdef uint32_t at
        cdef Pair *pair
        if consumer.ring is NULL:
            raise LocalProtocolError(f"consumer {number} has no ring")
        (<RingWriter>self._sinks[number][0]).restart()
        consumer.era += 1
        consumer.overruns += 1
        renew_allowance(consumer, now_ns)
        last_number = min(last_number, self._served_number)
        read_number = last_number
        self.recall(number, last_number) # receipts may be among what was lost
        is_kept = self.mark_repairs(number, &last_number)
        if last_number > read_number: # SESSION events between are not replayed
            consumer.has_lost_sessions = True
            self._sessions_lost += 1
        if not is_kept:
            self.lose(number, last_number + 1, self._served_number, OVERRUN)
        consumer.position = self.position_after(last_number)
        consumer.replay_end = self._served
        consumer.passed = last_number
        consumer.is_behind = is_kept and consumer.position < self._served
        consumer.is_repairing = True
        self.attend(number, now_ns)
        self.ring_bells()
        return is_kept

    cdef bint mark_repairs(self, uint32_t number, uint64_t *last_number) noexcept nogil:
        """Pairs whose events may be lost are to be replayed, and refreshed if that brings nothing. Whether the log has
        all since `last_number`, which is put forward to where the first of them was owed something."""
        cdef uint32_t at = self.consumers[number].pairs
        cdef uint64_t first = self._served_number, last = last_number[0]
        cdef Pair *pair
        cdef Standing *standing
        cdef const Item *item
        while at != NONE:
            pair, standing = &self.pairs.pairs[at], &self.pairs.standings[at]
            item = &self.items.items[pair.item]
            if item.flags & (ITEM_RECORDED | ITEM_WITHDRAWN) and not (
                pair.cls == ADAPTIVE and self.consumers[number].notices is not NULL
            ):
                if pair.cls == CRITICAL:
                    first = min(first, standing.since)
                if pair.merged and self.is_ordered(pair): # what waits is newer than what is replayed first
                    self.note_loss(number, min(last, standing.after) + 1, max(last + 1, self._served_number), OVERRUN)
                    self.settle(at)
                if standing.refreshed >= last or pair.cls != CRITICAL or pair.program is not NULL:
                    pair.flags |= PAIR_REPAIR
                if pair.cls != CRITICAL or pair.program is not NULL or item.unlogged > max(last, standing.since) or (
                    pair.flags & PAIR_REFRESH and standing.version
                ):
                    self.note_loss(number, last + 1, max(last + 1, self._served_number), OVERRUN)
                else:
                    standing.after = standing.since # also what came before a refresh may be lost
                    if standing.begun < standing.since and last < standing.since:
                        self.note_loss(number, last + 1, standing.since, OVERRUN)
            at = standing.behind
        last_number[0] = max(last, first)
        return self.has_all_after(last_number[0])

    cdef void log(self, uint32_t number, const Item *item) noexcept nogil:
        cdef uint32_t size = event_size(item.record_size)
        cdef uint8_t kind = UPDATE if item.flags & ITEM_RECORDED else WITHDRAW
        cdef Head head = Head(
            number, kind, CRITICAL, NONCONFLATABLE if item.flags & ITEM_NONCONFLATABLE else 0, item.number,
            item.version, item.started_ns, item.merged, item.model_id, item.model_version, item.record_size,
            item.session_id if kind == UPDATE else 0,
        )
        write_event(self._log.reserve(size), &head, item.record)
        self._log.commit(size)

    cdef void log_session(self, const uint8_t *body, uint32_t body_size) noexcept nogil:
        cdef uint32_t size = event_size(body_size)
        cdef Head head = Head(<uint32_t>ITEM_ALL, SESSION, 0, 0, self.number, 0, 0, 0, 0, 0, body_size, 0)
        write_event(self._log.reserve(size), &head, body)
        self._log.commit(size)

    cdef bint write_session(self, uint32_t number, const uint8_t *body, uint32_t body_size) noexcept nogil:
        """A SESSION event to one consumer, of number 0 because it is not in the log: whether there was room."""
        cdef Consumer *consumer = &self.consumers[number]
        cdef uint32_t size = event_size(body_size)
        cdef Head head = Head(<uint32_t>ITEM_ALL, SESSION, 0, 0, 0, 0, 0, 0, 0, 0, body_size, 0)
        write_event(self._scratch, &head, body)
        if not self.has_room(consumer, size) or not self.put(number, self._scratch, size):
            return False
        consumer.allowance -= size
        if consumer.notices is not NULL:
            push(consumer.notices, self._scratch, size)
            consumer.notice_allowance -= size
        return True

    cdef int64_t fan_out(self, int64_t bytes_max) noexcept nogil:
        cdef int64_t written = 0
        cdef const Place *place
        if self._served < self._log.next_sequence - self._log.count:
            self.lose_unserved()
        while self._served < self._log.next_sequence and (bytes_max < 0 or written < bytes_max):
            place = self._log.place(self._served)
            self._served += 1 # consumers that fall behind here are behind it
            if (<const Head *>(self._log.data + place.offset)).kind == SESSION:
                written += self.fan_out_session(self._served - 1, self._log.data + place.offset, place.size)
            else:
                written += self.fan_out_event(self._served - 1, self._log.data + place.offset, place.size)
        return written

    cdef int64_t fan_out_event(self, uint64_t position, const uint8_t *event, uint32_t size) noexcept nogil:
        cdef const Head *head = <const Head *>event
        cdef const Item *item = &self.items.items[head.item]
        cdef int64_t written = 0
        cdef uint32_t index, at
        cdef Pair *pair
        cdef Standing *standing
        cdef Consumer *consumer
        cdef uint8_t cls
        cdef bint is_summed = item.pair_count > 1 and crc32c_joins(size)
        cdef uint32_t checksum = crc32c_extend(0, event, size) if is_summed else 0
        self._served_number = head.number
        for index in range(item.pair_count):
            at = item.pairs[index]
            pair, standing = &self.pairs.pairs[at], &self.pairs.standings[at]
            if pair.cls != CRITICAL and pair.program is NULL:
                continue # of these, no more than one cache line is looked at
            if head.number <= standing.after or pair.flags & PAIR_REFRESH:
                swallow(pair, standing, head)
                continue
            consumer = &self.consumers[pair.consumer]
            if consumer.is_behind or is_needless(head, standing):
                continue
            cls = self.class_of_event(at, head)
            if cls != CRITICAL:
                if self.is_ordered(pair):
                    self.withhold_event(at, head, cls)
                continue
            if self.deliver(pair.consumer, pair, event, size, is_summed, checksum):
                written += size
            else:
                self.fall_behind(pair.consumer, position, head)
        return written

    cdef int64_t fan_out_session(self, uint64_t position, const uint8_t *event, uint32_t size) noexcept nogil:
        """To everybody: whoever wants nothing of the source stream can tell by the event."""
        cdef const Head *head = <const Head *>event
        cdef int64_t written = 0
        cdef uint32_t number
        cdef Consumer *consumer
        self._served_number = head.number
        for number in range(self.consumers_max):
            consumer = &self.consumers[number]
            if not consumer.is_used or head.number <= consumer.sessions_after:
                continue
            if consumer.notices is not NULL:
                push(consumer.notices, event, size)
                self.touch(number)
            if consumer.is_behind:
                continue
            if self.put(number, event, size):
                written += size
            else:
                self.fall_behind(number, position, head)
        return written

    cdef void fall_behind(self, uint32_t number, uint64_t position, const Head *head) noexcept nogil:
        """The consumer has no room for the event at this position of the log."""
        cdef Consumer *consumer = &self.consumers[number]
        consumer.is_behind = True
        consumer.position = position
        consumer.replay_end = position
        consumer.passed = head.number - 1
        consumer.tallies[<int>CRITICAL].congested += 1
        self.wait(number)

    cdef uint8_t class_of_event(self, uint32_t at, const Head *head) noexcept nogil:
        """The class in which the pair gets an event of the log; a withdrawal is never held back."""
        if head.kind == WITHDRAW:
            return CRITICAL
        return self.class_of(at, <const uint8_t *>head + EVENT_HEAD_SIZE, head.body_size)

    cdef bint deliver(
        self, uint32_t number, Pair *pair, const uint8_t *event, uint32_t size, bint is_summed, uint32_t checksum
    ) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        cdef const Head *head = <const Head *>event
        cdef uint32_t define_size = self.define_size(pair)
        cdef bint is_owed = pair.merged and self.is_ordered(pair)
        if define_size and consumer.removes:
            return False # what its number meant before is to be removed first
        if define_size or is_owed:
            if consumer.queue is not NULL and not self.has_room(consumer, define_size + size):
                return False
            self.define(number, pair)
        if is_owed and head.kind == UPDATE: # of a withdrawn record, nothing is owed any more
            event = self.with_owed(pair, event)
            is_summed = False
        if not (self.put_summed(number, event, size, checksum) if is_summed else self.put(number, event, size)):
            return False
        if is_owed:
            self.settle(<uint32_t>(pair - self.pairs.pairs))
        consumer.tallies[<int>CRITICAL].sent += 1
        consumer.tallies[<int>CRITICAL].bytes += size
        self.pairs.standing(pair).version = head.version
        return True

    cdef void attend_all(self, int64_t now_ns) noexcept nogil:
        """Those whose buffers have room again, and those whose rings may be written again."""
        cdef uint32_t at, number, count = self._paced_count
        cdef Consumer *consumer
        while self._drained.drain.count:
            self._drained.drain.count -= 1
            number = self._drained.drain.consumers[self._drained.drain.count]
            self.consumers[number].queue.is_drained = False
            self.attend(number, now_ns)
        self._paced_count = 0
        for at in range(count): # attend() puts those behind the read ones back
            consumer = &self.consumers[self._paced[at]]
            consumer.is_paced = False
            renew_allowance(consumer, now_ns)
            self.attend(self._paced[at], now_ns)

    cdef void attend(self, uint32_t number, int64_t now_ns) noexcept nogil:
        """What waits for this consumer, in its order."""
        self._now_ns = now_ns
        if self.write_refreshes(number, now_ns) and self.catch_up(number, now_ns):
            self.resume(number, now_ns)
        else:
            self.wait(number)

    cdef bint catch_up(self, uint32_t number, int64_t now_ns) noexcept nogil:
        """Bring a consumer that is behind to where the others are: whether it is."""
        if self.consumers[number].is_behind and not self.replay(number):
            return False
        if self.consumers[number].is_repairing:
            self.repair(number)
        return self.write_refreshes(number, now_ns)

    cdef bint replay(self, uint32_t number) noexcept nogil:
        """Serve it from its position in the log: whether it was served all that there is."""
        cdef Consumer *consumer = &self.consumers[number]
        cdef const Place *place
        cdef uint8_t *event
        cdef Head *head
        cdef uint32_t at
        cdef Pair *pair
        cdef Standing *standing
        cdef uint8_t cls
        if consumer.position < self._log.next_sequence - self._log.count:
            self.lose(number, consumer.passed + 1, self._served_number, SLOW if consumer.ring is NULL else OVERRUN)
            consumer.is_behind = False
            return True
        while consumer.position < self._served:
            place = self._log.place(consumer.position)
            head = <Head *>(self._log.data + place.offset)
            if head.kind == SESSION and not self.replay_session(number, <const uint8_t *>head, place.size):
                return False
            at = NONE if head.kind == SESSION else self.pairs.find(number, head.item)
            if at != NONE:
                pair, standing = &self.pairs.pairs[at], &self.pairs.standings[at]
                cls = 0
                swallow(pair, standing, head)
                if head.number > standing.after and not pair.flags & PAIR_REFRESH and not is_needless(head, standing):
                    cls = self.class_of_event(at, head)
                if cls and cls != CRITICAL and self.is_ordered(pair):
                    self.withhold_event(at, head, cls)
                elif cls == CRITICAL:
                    if not self.has_room(consumer, self.define_size(pair) + place.size):
                        return False
                    event = self._log.data + place.offset
                    if consumer.position < consumer.replay_end:
                        memcpy(self._scratch, event, place.size)
                        event = self._scratch
                        (<Head *>event).flags |= REPLAYED
                    if not self.deliver(number, pair, event, place.size, False, 0):
                        return False
                    consumer.allowance -= place.size
                    if pair.program is NULL:
                        pair.flags &= ~PAIR_REPAIR
            consumer.position += 1
            consumer.passed = head.number
        consumer.is_behind = False
        return True

    cdef bint replay_session(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil:
        """A SESSION event out of the log: whether there was room, or it is older than what the consumer was told."""
        cdef Consumer *consumer = &self.consumers[number]
        if (<const Head *>event).number <= consumer.sessions_after:
            return True
        if consumer.position < consumer.replay_end:
            memcpy(self._scratch, event, size)
            event = self._scratch
            (<Head *>event).flags |= REPLAYED
        if not self.has_room(consumer, size) or not self.put(number, event, size):
            return False
        consumer.allowance -= size
        return True

    cdef void lose_unserved(self) noexcept nogil:
        """The log was filled faster than it was served."""
        cdef uint64_t oldest = self._log.next_sequence - self._log.count
        cdef uint64_t first = self._served_number + 1, last = self.number
        cdef uint32_t number
        if self._log.count:
            last = (<const Head *>(self._log.data + self._log.place(oldest).offset)).number - 1
        self._served = oldest
        self._served_number = last
        for number in range(self.consumers_max):
            if self.consumers[number].is_used and self.consumers[number].pair_count:
                self.consumers[number].is_behind = False
                self.lose(number, first, last, SATURATED)
                self.wake(number)

    cdef bint has_all_after(self, uint64_t number) noexcept nogil:
        """Whether the log has every event with a larger number that there was."""
        cdef uint64_t oldest = self._log.next_sequence - self._log.count
        return oldest == POSITION_FIRST or (
            self._log.count and (<const Head *>(self._log.data + self._log.place(oldest).offset)).number <= number + 1
        )

    cdef uint64_t position_after(self, uint64_t number) noexcept nogil:
        """The position of the log's first event with a larger number, or its end."""
        cdef uint64_t low = self._log.next_sequence - self._log.count, high = self._log.next_sequence, middle
        while low < high:
            middle = (low + high) // 2
            if (<const Head *>(self._log.data + self._log.place(middle).offset)).number <= number:
                low = middle + 1
            else:
                high = middle
        return low
