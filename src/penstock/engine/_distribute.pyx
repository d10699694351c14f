"""What an engine does with an update: into the cache and the log, and from there to whoever wants it.

The log has the newest critical events. It is at once the queue of those that were not fanned out yet and the history
that overrun and slow consumers are served from: each of these has a position of its own in it, and nobody waits for it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise, crc32c_joins
from penstock.engine._consumers cimport PACE_NS, Consumer, renew_allowance
from penstock.engine._event cimport (
    ADAPTIVE,
    CRITICAL,
    EVENT_HEAD_SIZE,
    Head,
    NONCONFLATABLE,
    OVERRUN,
    REPLAYED,
    SATURATED,
    SLOW,
    UPDATE,
    UPSTREAM,
    event_size,
    write_event,
)
from penstock.engine._items cimport (
    ITEM_LOGGED,
    ITEM_NONCONFLATABLE,
    ITEM_RECORDED,
    Item,
    NONE,
    PAIR_REFRESH,
    PAIR_REPAIR,
    PAIR_SWALLOWED,
    Pair,
)
from penstock.engine._withheld cimport Withholding
from penstock.shm._ring cimport RingWriter
from penstock.wire._codec cimport MESSAGE_CONTINUATION, MESSAGE_DIRECT, MESSAGE_MORE, MessageView
from penstock.wire._messages cimport MessageBatch
from penstock.wire._packets cimport PacketStore, Place

from penstock.base.errors import LocalProtocolError
from penstock.base.limits import RECORD_SIZE_MAX, TOPIC_SIZE_MAX

crc32c_initialise()

cdef uint32_t record_size_max = RECORD_SIZE_MAX

cdef enum:
    POSITION_FIRST = 1
    CLASS_COUNT = 3
    QUANTUM = 1_024          # bytes for a weight of 1

cdef enum Trouble:
    TROUBLE_NONE = 0
    TROUBLE_UNKNOWN = 1      # a message of an item that there is not
    TROUBLE_MEMORY = 2


cdef inline void swallow(Pair *pair, const Head *head) noexcept nogil:
    """The refresh that the pair waits for will have the update; it is a loss to who should have had each one."""
    if pair.flags & PAIR_REFRESH and pair.version and pair.cls == CRITICAL and head.number > pair.after:
        pair.flags |= PAIR_SWALLOWED


cdef class Distributor(Withholding):
    """The compiled part of an engine, used by one thread at a time.

    `admit(topic, model_id, model_version)` is asked about an item that is not there yet: its number, or None.
    """

    def __cinit__(self, *, uint64_t history_bytes, int64_t budget_bytes, weights not None, admit not None, **_):
        cdef int cls
        self._log = PacketStore(history_bytes // EVENT_HEAD_SIZE, history_bytes, first_sequence=POSITION_FIRST)
        self._served = self._log.next_sequence
        self.budget_bytes = budget_bytes
        self._admit = admit
        for cls, weight in enumerate(weights, start=1):
            if weight < 1:
                raise LocalProtocolError(f"a weight of {weight} would starve its class")
            self._weights[cls] = weight
        self._turn = CRITICAL

    def publish(
        self, bytes topic not None, uint16_t model_id, uint16_t model_version, record not None,
        int64_t started_ns, uint64_t version, int64_t now_ns,
    ) -> bool:
        """Take one update and serve whom it concerns; version 0 is one more than before. False if the item is not admitted."""
        cdef Py_buffer content
        cdef Update update
        cdef uint32_t number
        PyObject_GetBuffer(record, &content, PyBUF_SIMPLE)
        try:
            number = self.number_of(topic, model_id, model_version, content.len)
            if number == NONE:
                return False
            update = Update(
                <const uint8_t *>content.buf, version, started_ns, <uint32_t>content.len, model_version
            )
            if self.take(number, &update, now_ns):
                raise MemoryError
        finally:
            PyBuffer_Release(&content)
        self.serve_classes(self.budget_bytes, now_ns)
        self.ring_bells()
        return True

    def image(
        self, bytes topic not None, uint16_t model_id, uint16_t model_version, bytes record not None,
        int64_t started_ns, uint64_t version, bint is_repair, int64_t now_ns,
    ) -> bool:
        """The node above says what the record is: refresh all that want it. False if the item is not admitted."""
        cdef uint32_t number = self.number_of(topic, model_id, model_version, len(record)), at, consumer
        cdef Item *item
        if number == NONE:
            return False
        item = &self.items.items[number]
        is_other = item.record_size != len(record) or item.version != version or memcmp(
            item.record, <const uint8_t *>record, len(record)
        ) != 0
        if item.flags & ITEM_RECORDED and is_other:
            self.note_missed(item)
        if self.items.keep(item, <const uint8_t *>record, <uint32_t>len(record)):
            raise MemoryError
        self.number += 1
        item.number, item.version = self.number, version
        item.started_ns, item.model_version = started_ns, model_version
        with nogil:
            for at in range(item.pair_count):
                consumer = self.pairs.pairs[item.pairs[at]].consumer
                self.let_go(&self.pairs.pairs[item.pairs[at]])
                self.refresh_later(item.pairs[at], PAIR_REPAIR if is_repair else 0)
                renew_allowance(&self.consumers[consumer], now_ns)
                self.attend(consumer, now_ns)
            self.ring_bells()
        return True

    def lose_upstream(self, int64_t now_ns) -> None:
        """Updates never came to this node; nobody knows how many: they count as one."""
        cdef uint32_t number
        self.number += 1
        self._lost_number = self.number
        for number in range(self.consumers_max):
            if self.consumers[number].is_used and self.consumers[number].pair_count:
                self.note_loss(number, self.number, self.number, UPSTREAM)
                self.attend(number, now_ns)
        self.ring_bells()

    def distribute(self, MessageBatch messages not None, int64_t now_ns, int64_t started_ns) -> int:
        """Take all messages of a batch as updates and serve whom they concern; returns how many were taken."""
        cdef Py_ssize_t done = 0
        cdef int trouble
        cdef const MessageView *message
        cdef const uint8_t *data = messages._datagrams.data
        cdef uint64_t before = self.number
        messages.check_current()
        while done < messages.message_count_:
            with nogil:
                trouble = self.take_messages(
                    data, messages.message, messages.message_count_, now_ns, started_ns, &done
                )
            if trouble == TROUBLE_MEMORY:
                raise MemoryError
            if trouble == TROUBLE_UNKNOWN:
                message = messages.message + done
                topic = data[message.topic_offset:message.topic_offset + message.topic_size]
                if self._admit(topic, message.model_id, message.model_version) is None:
                    done += 1
        with nogil:
            self.serve_classes(self.budget_bytes, now_ns)
            self.ring_bells()
        return self.number - before

    def serve(self, int64_t now_ns, int64_t budget_bytes = -1) -> int:
        """Write what waits, at most about `budget_bytes`; returns how many bytes that were, without refreshes and
        replays, which have their own pace."""
        cdef int64_t written
        with nogil:
            self.attend_all(now_ns)
            written = self.serve_classes(budget_bytes, now_ns)
            self.ring_bells()
        return written

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
            self.pairs.pairs[at].after = max(self.pairs.pairs[at].after, self._served_number)
            at = self.pairs.pairs[at].behind
        consumer.position = self.position_after(last_number)
        consumer.replay_end = self._served
        consumer.passed = last_number
        consumer.is_behind = consumer.position < self._served
        return True

    def restart(self, uint32_t number, uint64_t last_number, int64_t now_ns) -> bool:
        """The consumer's ring was overrun after the update `last_number`: begin it anew with what it missed. False if
        the log does not have all of that; then it gets a receipt and refreshes."""
        cdef Consumer *consumer = self.consumer(number)
        cdef uint32_t at
        cdef Pair *pair
        if consumer.ring is NULL:
            raise LocalProtocolError(f"consumer {number} has no ring")
        (<RingWriter>self._sinks[number][0]).restart()
        consumer.era += 1
        consumer.overruns += 1
        renew_allowance(consumer, now_ns)
        last_number = min(last_number, self._served_number)
        if consumer.told.first and consumer.told_number >= last_number: # the receipt may be among what was lost
            self.note_loss(number, consumer.told.first, consumer.told.last, consumer.told.cause)
        is_kept = self.mark_repairs(number, &last_number)
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
        cdef const Item *item
        while at != NONE:
            pair = &self.pairs.pairs[at]
            item = &self.items.items[pair.item]
            if item.flags & ITEM_RECORDED and not (pair.cls == ADAPTIVE and self.consumers[number].notices is not NULL):
                if pair.cls == CRITICAL:
                    first = min(first, pair.since)
                if pair.refreshed >= last or pair.cls != CRITICAL or pair.program is not NULL:
                    pair.flags |= PAIR_REPAIR
                if pair.cls != CRITICAL or pair.program is not NULL or item.unlogged > max(last, pair.since) or (
                    pair.flags & PAIR_REFRESH and pair.version
                ):
                    self.note_loss(number, last + 1, max(last + 1, self._served_number), OVERRUN)
                else:
                    pair.after = pair.since # also what came before a refresh may be lost
                    if pair.begun < pair.since and last < pair.since:
                        self.note_loss(number, last + 1, pair.since, OVERRUN)
            at = pair.behind
        last_number[0] = max(last, first)
        return self.has_all_after(last_number[0])

    def next_pace_ns(self) -> int | None:
        """When a ring that waits may be written again."""
        cdef uint32_t at
        if self._paced_count == 0:
            return None
        return min([self.consumers[self._paced[at]].paced_ns for at in range(self._paced_count)]) + PACE_NS

    cdef uint32_t number_of(self, bytes topic, uint16_t model_id, uint16_t model_version, Py_ssize_t size) except? 0xFFFFFFFF:
        """Of an item that may be new, or NONE: it is not admitted."""
        cdef uint32_t number = NONE
        if size > record_size_max:
            raise LocalProtocolError(f"a record has at most {record_size_max} bytes, not {size}")
        if len(topic) <= TOPIC_SIZE_MAX:
            number = self.items.find(<const uint8_t *>topic, <uint16_t>len(topic), model_id)
        if number != NONE:
            return number
        admitted = self._admit(topic, model_id, model_version)
        return NONE if admitted is None else admitted

    # Taking updates

    cdef bint note_missed(self, const Item *item) noexcept nogil:
        """Updates of the item never came: a receipt to those that have its record and were not told, or got it after
        they were told. Whether there are any; they are to be attended to when the item has its new record."""
        cdef uint32_t at
        cdef const Pair *pair
        cdef bint is_told = item.number < self._lost_number, is_any = False
        for at in range(item.pair_count):
            pair = &self.pairs.pairs[item.pairs[at]]
            if pair.version and not (is_told and pair.refreshed < self._lost_number):
                self.note_loss(pair.consumer, item.number + 1, self.number + 1, UPSTREAM)
                is_any = True
        return is_any

    cdef int take(self, uint32_t number, const Update *update, int64_t now_ns) noexcept nogil:
        cdef Item *item = &self.items.items[number]
        cdef bint is_critical = item.flags & ITEM_LOGGED
        cdef uint32_t index, at
        cdef uint8_t cls
        cdef bint is_missed = False
        if item.number < self._lost_number and item.flags & ITEM_RECORDED:
            is_missed = self.note_missed(item)
        if self.items.keep(item, update.record, update.size):
            return -1
        self.number += 1
        item.number = self.number
        item.version = update.version if update.version else item.version + 1
        item.started_ns = update.started_ns
        item.model_version = update.model_version
        for index in range(item.pair_count):
            self.look_ahead(item, index)
            at = item.pairs[index]
            cls = CRITICAL if self.is_ordered(&self.pairs.pairs[at]) else self.class_of(at, item.record, item.record_size)
            if cls == CRITICAL:
                is_critical = True
            elif cls and (
                not self.pairs.pairs[at].flags & PAIR_REFRESH
                or self.pairs.pairs[at].version and self.is_regional(&self.pairs.pairs[at]) # for what it stands for
            ):
                self.withhold(at, item, cls, now_ns)
        if is_critical:
            self.log(number, item)
        else:
            item.unlogged = self.number
        if is_missed:
            for index in range(item.pair_count):
                self.attend(self.pairs.pairs[item.pairs[index]].consumer, now_ns)
        return 0

    cdef void log(self, uint32_t number, const Item *item) noexcept nogil:
        cdef uint32_t size = event_size(item.record_size)
        cdef Head head = Head(
            number, UPDATE, CRITICAL, NONCONFLATABLE if item.flags & ITEM_NONCONFLATABLE else 0, item.number,
            item.version, item.started_ns, 1, item.model_id, item.model_version, item.record_size, 0,
        )
        write_event(self._log.reserve(size), &head, item.record)
        self._log.commit(size)

    cdef int take_messages(
        self, const uint8_t *data, const MessageView *messages, Py_ssize_t count, int64_t now_ns, int64_t started_ns,
        Py_ssize_t *done
    ) noexcept nogil:
        cdef const MessageView *message
        cdef Update update
        cdef uint32_t number
        while done[0] < count:
            message = messages + done[0]
            if message.flags & (MESSAGE_MORE | MESSAGE_CONTINUATION | MESSAGE_DIRECT):
                self.fragments += not message.flags & MESSAGE_DIRECT
            elif message.payload_size > record_size_max:
                self.oversized += 1
            else:
                number = self.items.find(data + message.topic_offset, message.topic_size, message.model_id)
                if number == NONE:
                    return TROUBLE_UNKNOWN
                update = Update(
                    data + message.payload_offset, 0, started_ns, message.payload_size, message.model_version
                )
                if self.take(number, &update, now_ns):
                    return TROUBLE_MEMORY
                if self.budget_bytes < 0:
                    self.serve_classes(-1, now_ns)
            done[0] += 1
        return TROUBLE_NONE

    # Serving

    cdef int64_t serve_classes(self, int64_t budget_bytes, int64_t now_ns) noexcept nogil:
        """Weighted deficit round robin: each class that has something to write may write its weight's worth in its turn,
        and what it overdraws is taken off its next turn."""
        cdef int64_t left = budget_bytes, written
        cdef int idle = 0
        self._now_ns = now_ns
        if budget_bytes < 0:
            return self.fan_out(-1) + self.serve_pending(-1) + self.serve_metered(-1, now_ns)
        if self._served < self._log.next_sequence - self._log.count:
            self.lose_unserved()
        if self.metering is not None:
            self.metering.advance(now_ns, NONE)
        while left > 0 and idle < CLASS_COUNT:
            if not self.has_backlog(self._turn):
                self._deficits[self._turn] = 0
                idle += 1
            else:
                if self._deficits[self._turn] <= 0:
                    self._deficits[self._turn] += self._weights[self._turn] * QUANTUM
                if self._deficits[self._turn] > 0:
                    written = self.serve_class(self._turn, min(left, self._deficits[self._turn]), now_ns)
                    self._deficits[self._turn] -= written
                    left -= written
                    idle = 0 if written else idle + 1
                    if left <= 0 and self._deficits[self._turn] > 0:
                        break # its turn goes on next time
            self._turn = self._turn % CLASS_COUNT + 1
        return budget_bytes - left

    cdef bint has_backlog(self, int cls) noexcept nogil:
        if cls == CRITICAL:
            return self._served < self._log.next_sequence
        return self._round.first != NONE if cls == ADAPTIVE else self.metering is not None and self.metering.first != 0

    cdef int64_t serve_class(self, int cls, int64_t bytes_max, int64_t now_ns) noexcept nogil:
        if cls == CRITICAL:
            return self.fan_out(bytes_max)
        return self.serve_pending(bytes_max) if cls == ADAPTIVE else self.serve_metered(bytes_max, now_ns)

    cdef int64_t fan_out(self, int64_t bytes_max) noexcept nogil:
        """Give the log's events to their consumers, until about so many bytes have been written; how many were."""
        cdef int64_t written = 0
        cdef const Place *place
        if self._served < self._log.next_sequence - self._log.count:
            self.lose_unserved()
        while self._served < self._log.next_sequence and (bytes_max < 0 or written < bytes_max):
            place = self._log.place(self._served)
            self._served += 1 # consumers that fall behind here are behind it
            written += self.fan_out_event(self._served - 1, self._log.data + place.offset, place.size)
        return written

    cdef int64_t fan_out_event(self, uint64_t position, const uint8_t *event, uint32_t size) noexcept nogil:
        cdef const Head *head = <const Head *>event
        cdef const Item *item = &self.items.items[head.item]
        cdef int64_t written = 0
        cdef uint32_t index, at
        cdef Pair *pair
        cdef Consumer *consumer
        cdef uint8_t cls
        cdef bint is_summed = item.pair_count > 1 and crc32c_joins(size)
        cdef uint32_t checksum = crc32c_extend(0, event, size) if is_summed else 0
        self._served_number = head.number
        for index in range(item.pair_count):
            at = item.pairs[index]
            pair = &self.pairs.pairs[at]
            if head.number <= pair.after or pair.flags & PAIR_REFRESH:
                swallow(pair, head)
                continue
            consumer = &self.consumers[pair.consumer]
            if consumer.is_behind:
                continue
            cls = self.class_of(at, event + EVENT_HEAD_SIZE, head.body_size)
            if cls != CRITICAL:
                if self.is_ordered(pair):
                    self.withhold_event(at, head, cls)
                continue
            if self.deliver(pair.consumer, pair, event, size, is_summed, checksum):
                written += size
            else:
                consumer.is_behind = True
                consumer.position = position
                consumer.replay_end = position
                consumer.passed = head.number - 1
                consumer.tallies[<int>CRITICAL].congested += 1
                self.wait(pair.consumer)
        return written

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
        if is_owed:
            event = self.with_owed(pair, event)
            is_summed = False
        if not (self.put_summed(number, event, size, checksum) if is_summed else self.put(number, event, size)):
            return False
        if is_owed:
            self.settle(<uint32_t>(pair - self.pairs.pairs))
        consumer.tallies[<int>CRITICAL].sent += 1
        consumer.tallies[<int>CRITICAL].bytes += size
        pair.version = head.version
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
        cdef uint8_t cls
        if consumer.position < self._log.next_sequence - self._log.count:
            self.lose(number, consumer.passed + 1, self._served_number, SLOW if consumer.ring is NULL else OVERRUN)
            consumer.is_behind = False
            return True
        while consumer.position < self._served:
            place = self._log.place(consumer.position)
            head = <Head *>(self._log.data + place.offset)
            at = self.pairs.find(number, head.item)
            if at != NONE:
                pair = &self.pairs.pairs[at]
                cls = 0
                swallow(pair, head)
                if head.number > pair.after and not pair.flags & PAIR_REFRESH:
                    cls = self.class_of(at, self._log.data + place.offset + EVENT_HEAD_SIZE, head.body_size)
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
