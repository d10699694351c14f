"""What an engine does with an update: into the cache, the log and the queues, and from there to whoever wants it.

_critical.pyx has the log, _withheld.pyx what may wait.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.engine._consumers cimport renew_allowance
from penstock.engine._critical cimport Critical
from penstock.engine._event cimport ADAPTIVE, CRITICAL, UPSTREAM
from penstock.engine._items cimport ITEM_LOGGED, ITEM_RECORDED, ITEM_SOURCED, ITEM_USED, ITEM_WITHDRAWN, Item, NONE
from penstock.engine._pairs cimport PAIR_REFRESH, PAIR_REPAIR, Pair, Standing
from penstock.wire._codec cimport (
    MESSAGE_CONTINUATION,
    MESSAGE_DIRECT,
    MESSAGE_MORE,
    MessageView,
    ORIGIN_FLAGS_AT,
    ORIGIN_STREAM_ID_AT,
    load_u16,
    load_u32,
    store_u16,
    store_u32,
)
from penstock.wire._messages cimport MessageBatch
from penstock.wire._origin cimport find_origin

from penstock.base.errors import LocalProtocolError
from penstock.base.limits import RECORD_SIZE_MAX, TOPIC_SIZE_MAX
from penstock.engine._event import SESSION_SIZE_MAX
from penstock.wire.term import SESSION_TAG_SHIFT

crc32c_initialise()

cdef uint32_t record_size_max = RECORD_SIZE_MAX
cdef int session_tag_shift = SESSION_TAG_SHIFT

cdef enum:
    CLASS_COUNT = 3
    QUANTUM = 1_024          # bytes for a weight of 1

cdef enum Trouble:
    TROUBLE_NONE = 0
    TROUBLE_UNKNOWN = 1      # a message of an item that there is not
    TROUBLE_MEMORY = 2


cdef class Distributor(Critical):
    """The compiled part of an engine, used by one thread at a time.

    `admit(topic, model_id, model_version)` is asked about an item that is not there yet: its number, or None.
    """

    def __cinit__(self, *, int64_t budget_bytes, weights not None, admit not None, **_):
        cdef int cls
        self.budget_bytes = budget_bytes
        self._admit = admit
        self._feed_checksums = []
        for cls, weight in enumerate(weights, start=1):
            if weight < 1:
                raise LocalProtocolError(f"a weight of {weight} would starve its class")
            self._weights[cls] = weight
        self._turn = CRITICAL

    def publish(
        self, bytes topic not None, uint16_t model_id, uint16_t model_version, record not None,
        int64_t started_ns, uint64_t version, int64_t now_ns, uint32_t merged = 1, source = None,
        uint32_t session_id = 0,
    ) -> bool:
        """Take one update, which stands for so many, and serve whom it concerns; version 0 is one more than before.
        `source` is its feed, as the caller counts feeds, its source stream and the tag of the session, if known;
        `session_id` replaces it in an update that comes from a node above. False if the item is not admitted."""
        cdef Py_buffer content
        cdef Update update
        cdef uint32_t number
        PyObject_GetBuffer(record, &content, PyBUF_SIMPLE)
        try:
            number = self.number_of(topic, model_id, model_version, content.len)
            if number == NONE:
                return False
            update = Update(
                <const uint8_t *>content.buf, version, started_ns, <uint32_t>content.len, max(merged, 1), model_version,
                NULL,
            )
            if source is not None:
                self.choose_feed(source[0])
                self.note_source(&self.items.items[number], source[1], source[2])
            elif session_id or not self.items.items[number].flags & ITEM_SOURCED:
                self.items.items[number].session_id = session_id
            if self.take(number, &update, now_ns):
                raise MemoryError
        finally:
            PyBuffer_Release(&content)
        self.serve_classes(self.budget_bytes, now_ns)
        self.ring_bells()
        return True

    def image(
        self, bytes topic not None, uint16_t model_id, uint16_t model_version, bytes record not None,
        int64_t started_ns, uint64_t version, bint is_repair, int64_t now_ns, uint32_t session_id = 0,
    ) -> bool:
        """The node above says what the record is, and of which session: refresh all that want it. False if the item is
        not admitted."""
        cdef uint32_t number = self.number_of(topic, model_id, model_version, len(record)), at, consumer
        cdef Item *item
        cdef Pair *pair
        cdef Standing *standing
        cdef bint is_there
        if number == NONE:
            return False
        item = &self.items.items[number]
        item.session_id = session_id
        is_other = item.record_size != len(record) or item.version != version or memcmp(
            item.record, <const uint8_t *>record, len(record)
        ) != 0
        is_there = item.flags & ITEM_RECORDED and not is_other
        if is_there and not is_repair:
            return True
        if item.flags & ITEM_RECORDED and is_other:
            self.note_missed(item)
        if self.items.keep(item, <const uint8_t *>record, <uint32_t>len(record)):
            raise MemoryError
        self.number += 1
        item.number, item.version = self.number, version
        item.started_ns, item.model_version = started_ns, model_version
        if not is_there:
            item.unlogged = self.number
        with nogil:
            for at in range(item.pair_count):
                pair, standing = &self.pairs.pairs[item.pairs[at]], &self.pairs.standings[item.pairs[at]]
                consumer = pair.consumer
                if is_there and (pair.cls != CRITICAL and pair.program is NULL or standing.version != version):
                    continue # it has it, or what waits for it has it, with all that is before
                if not is_there: # even if it has the same version: another plant may have counted it
                    standing.written = 0
                    standing.since = item.number # no update before it leads to it
                    if standing.version == 0:
                        standing.begun = item.number
                self.let_go(pair)
                self.refresh_later(item.pairs[at], PAIR_REPAIR if is_repair else 0)
                renew_allowance(&self.consumers[consumer], now_ns)
                self.attend(consumer, now_ns)
            self.ring_bells()
        return True

    def name_feed(self, uint16_t feed, uint32_t checksum) -> None:
        """The CRC32C of the name of a feed, for the session ids of its records; 0 is that of a feed without a name."""
        self._feed_checksums.extend([0] * (feed + 1 - len(self._feed_checksums)))
        self._feed_checksums[feed] = checksum

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

    def withdraw(self, bytes topic not None, uint16_t model_id, uint64_t version, int64_t now_ns) -> bool:
        """The node above says that an item has no record any more: so do we. False if it had none."""
        cdef uint32_t number = NONE
        if len(topic) <= TOPIC_SIZE_MAX:
            number = self.items.find(<const uint8_t *>topic, <uint16_t>len(topic), model_id)
        if number == NONE or not self.items.items[number].flags & ITEM_RECORDED:
            return False
        with nogil:
            self.withdraw_item(number, version, now_ns)
            self.serve_classes(self.budget_bytes, now_ns)
            self.ring_bells()
        return True

    def withdraw_items(self, numbers not None, int64_t now_ns) -> int:
        """These items have no record any more; returns how many had one."""
        cdef uint32_t number
        cdef int count = 0
        for number in numbers:
            if self.items.is_known(number) and self.items.items[number].flags & ITEM_RECORDED:
                self.withdraw_item(number, 0, now_ns)
                count += 1
        with nogil:
            self.serve_classes(self.budget_bytes, now_ns)
            self.ring_bells()
        return count

    def withdraw_stream(
        self, uint16_t feed, uint32_t stream, uint16_t session_tag, bint is_begun, int64_t now_ns
    ) -> int:
        """Withdraw the records that came from a source stream in another session than this one, which `is_begun`, or
        else in this one, which is over; without a tag in every session. Returns how many items had one."""
        cdef uint32_t number
        cdef const Item *item
        cdef int count = 0
        with nogil:
            for number in range(self.items.count):
                item = &self.items.items[number]
                if item.flags & (ITEM_USED | ITEM_RECORDED | ITEM_SOURCED) != (ITEM_USED | ITEM_RECORDED | ITEM_SOURCED):
                    continue
                if item.feed != feed or item.stream != stream:
                    continue
                if session_tag == 0 or (item.session_tag != session_tag) == is_begun:
                    self.withdraw_item(number, 0, now_ns)
                    count += 1
            self.serve_classes(self.budget_bytes, now_ns)
            self.ring_bells()
        return count

    def withdraw_sessions(self, ended not None, running not None, int64_t now_ns) -> int:
        """The node above says that sessions `ended`: withdraw their records, and of the records from before the last
        loss those of sessions that are not `running`. Both are collections of session ids. Returns how many records
        there were."""
        cdef uint32_t number, session_id
        cdef const Item *item
        cdef int count = 0
        for number in range(self.items.count):
            item = &self.items.items[number]
            session_id = item.session_id
            if session_id == 0 or item.flags & (ITEM_USED | ITEM_RECORDED) != (ITEM_USED | ITEM_RECORDED):
                continue
            if session_id in ended or item.number < self._lost_number and session_id not in running:
                self.withdraw_item(number, 0, now_ns)
                count += 1
        with nogil:
            self.serve_classes(self.budget_bytes, now_ns)
            self.ring_bells()
        return count

    def remind(self, uint32_t number) -> None:
        """The consumer may have records that were withdrawn since: say so of each."""
        cdef uint32_t at = self.consumer(number).pairs
        while at != NONE:
            if self.items.items[self.pairs.pairs[at].item].flags & ITEM_WITHDRAWN:
                self.refresh_later(at, PAIR_REPAIR)
            at = self.pairs.standings[at].behind

    def tell_session(self, bytes body not None, int64_t now_ns) -> None:
        """A SESSION event to all consumers, behind what they were sent so far in the critical class."""
        if not 1 <= len(body) <= SESSION_SIZE_MAX:
            raise LocalProtocolError(f"a session event has 1 to {SESSION_SIZE_MAX} bytes, not {len(body)}")
        self.number += 1
        self.log_session(<const uint8_t *>body, <uint32_t>len(body))
        with nogil:
            self.serve_classes(self.budget_bytes, now_ns)
            self.ring_bells()

    def tell_session_to(self, uint32_t number, bytes body not None) -> bool:
        """A SESSION event to one consumer, ahead of the refreshes that wait for it: whether there was room, and nothing
        older waits for it in the log."""
        if self.consumer(number).is_behind:
            return False
        if not 1 <= len(body) <= SESSION_SIZE_MAX:
            raise LocalProtocolError(f"a session event has 1 to {SESSION_SIZE_MAX} bytes, not {len(body)}")
        return self.write_session(number, <const uint8_t *>body, <uint32_t>len(body))

    def told_sessions(self, uint32_t number) -> None:
        """The consumer knows which sessions run now: SESSION events of the log so far are not for it any more."""
        self.consumer(number).sessions_after = self.number

    def take_sessions_lost(self) -> list:
        """The consumers that lost events since the last call: SESSION events may be among them."""
        cdef uint32_t number
        cdef list found = []
        if self._sessions_lost == 0:
            return found
        self._sessions_lost = 0
        for number in range(self.consumers_max):
            if self.consumers[number].is_used and self.consumers[number].has_lost_sessions:
                self.consumers[number].has_lost_sessions = False
                found.append(number)
        return found

    def sessions_after(self, uint32_t number) -> int:
        """The number of the last event before the consumer was told which sessions run; 0 if it was not told."""
        return self.consumer(number).sessions_after

    def distribute(self, MessageBatch messages not None, int64_t now_ns, int64_t started_ns, uint16_t feed = 0) -> int:
        """Take all messages of a batch as updates and serve whom they concern; returns how many were taken. `feed` is
        the caller's number of the feed that they came from."""
        cdef Py_ssize_t done = 0
        cdef int trouble
        cdef const MessageView *message
        cdef const uint8_t *data = messages._datagrams.data
        cdef uint64_t before = self.number - self._untaken
        messages.check_current()
        self.choose_feed(feed)
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
        return self.number - self._untaken - before

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
    def has_backlog(self) -> bool:
        """Whether what has no rate waits for serve(), and could be written; the metering knows when the rest may be."""
        return self.is_backlogged(CRITICAL) or self.is_backlogged(ADAPTIVE)

    cdef int choose_feed(self, uint16_t feed) except -1:
        """What is taken next comes from this feed."""
        self._feed = feed
        self._feed_checksum = self._feed_checksums[feed] if feed < len(self._feed_checksums) else 0
        return 0

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

    cdef void note_source(self, Item *item, uint32_t stream, uint16_t session_tag) noexcept nogil:
        """The item's next record comes from this stream of the chosen feed, in this session."""
        cdef uint8_t[6] named
        if item.flags & ITEM_SOURCED and (
            item.feed == self._feed and item.stream == stream and item.session_tag == session_tag
        ):
            return
        item.feed, item.stream, item.session_tag = self._feed, stream, session_tag
        item.flags |= ITEM_SOURCED
        item.session_id = 0
        if session_tag:
            store_u32(named, stream)
            store_u16(named + 4, session_tag)
            item.session_id = crc32c_extend(self._feed_checksum, named, sizeof(named))

    cdef bint note_missed(self, const Item *item) noexcept nogil:
        """Updates of the item never came: a receipt to those that have its record and were not told, or got it after
        they were told. Whether there are any; they are to be attended to when the item has its new record."""
        cdef uint32_t at
        cdef const Pair *pair
        cdef const Standing *standing
        cdef bint is_told = item.number < self._lost_number, is_any = False
        for at in range(item.pair_count):
            pair, standing = &self.pairs.pairs[item.pairs[at]], &self.pairs.standings[item.pairs[at]]
            if standing.version and not (is_told and standing.refreshed < self._lost_number):
                self.note_loss(pair.consumer, item.number + 1, self.number + 1, UPSTREAM)
                is_any = True
        return is_any

    cdef int take(self, uint32_t number, const Update *update, int64_t now_ns) noexcept nogil:
        cdef Item *item = &self.items.items[number]
        cdef bint is_critical = item.flags & ITEM_LOGGED
        cdef uint32_t index, at
        cdef uint8_t cls
        cdef bint is_missed = False
        self.look_at_first(item)
        if item.number < self._lost_number and item.flags & ITEM_RECORDED:
            is_missed = self.note_missed(item)
        if self.items.keep(item, update.record, update.size):
            return -1
        self.number += 1
        item.number = self.number
        item.version = update.version if update.version else item.version + 1
        item.started_ns = update.started_ns
        item.model_version = update.model_version
        item.merged = update.merged
        if update.origin is not NULL:
            self.note_source(
                item, load_u32(update.origin + ORIGIN_STREAM_ID_AT),
                load_u16(update.origin + ORIGIN_FLAGS_AT) >> session_tag_shift,
            )
        for index in range(item.pair_count):
            self.look_ahead(item, index)
            at = item.pairs[index]
            cls = CRITICAL if self.is_ordered(&self.pairs.pairs[at]) else self.class_of(at, item.record, item.record_size)
            if cls == CRITICAL:
                is_critical = True
            elif cls and (
                not self.pairs.pairs[at].flags & PAIR_REFRESH
                or self.pairs.standings[at].version and self.is_regional(&self.pairs.pairs[at]) # for what it stands for
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

    cdef void withdraw_item(self, uint32_t number, uint64_t version, int64_t now_ns) noexcept nogil:
        """Like an update after which there is no record."""
        cdef Item *item = &self.items.items[number]
        cdef bint is_critical = item.flags & ITEM_LOGGED
        cdef uint32_t index
        item.flags = item.flags & ~<uint8_t>ITEM_RECORDED | ITEM_WITHDRAWN
        item.record_size = 0
        self.number += 1
        item.number = self.number
        item.version = version if version else item.version + 1
        item.started_ns = 0
        item.merged = 1
        for index in range(item.pair_count):
            is_critical |= self.withdraw_pair(item.pairs[index], item, now_ns)
        if is_critical:
            self.log(number, item)
        else:
            item.unlogged = self.number

    cdef void lose_update(self, uint32_t number, int64_t now_ns) noexcept nogil:
        """An update of the item came and cannot be taken: a receipt to all that want it."""
        cdef Item *item = &self.items.items[number]
        cdef uint32_t index, consumer
        self.number += 1
        self._untaken += 1
        item.unlogged = self.number
        for index in range(item.pair_count):
            consumer = self.pairs.pairs[item.pairs[index]].consumer
            self.note_loss(consumer, self.number, self.number, UPSTREAM)
            self.attend(consumer, now_ns)

    cdef int take_messages(
        self, const uint8_t *data, const MessageView *messages, Py_ssize_t count, int64_t now_ns, int64_t started_ns,
        Py_ssize_t *done
    ) noexcept nogil:
        cdef const MessageView *message
        cdef Update update
        cdef uint32_t number
        cdef bint is_part
        cdef const uint8_t *origin
        while done[0] < count:
            message = messages + done[0]
            is_part = message.flags & (MESSAGE_MORE | MESSAGE_CONTINUATION) != 0
            if message.flags & MESSAGE_DIRECT:
                done[0] += 1
                continue
            number = self.items.find(data + message.topic_offset, message.topic_size, message.model_id)
            if number == NONE:
                return TROUBLE_UNKNOWN
            if is_part or message.payload_size > record_size_max:
                self.fragments += is_part
                self.oversized += not is_part
                if not message.flags & MESSAGE_CONTINUATION:
                    self.lose_update(number, now_ns)
            else:
                origin = NULL
                if not find_origin(data + message.extensions_offset, message.extensions_size, &origin):
                    origin = NULL
                update = Update(
                    data + message.payload_offset, 0, started_ns, message.payload_size, 1, message.model_version, origin
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
            if not self.is_backlogged(self._turn):
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

    cdef bint is_backlogged(self, int cls) noexcept nogil:
        if cls == CRITICAL:
            return self._served < self._log.next_sequence
        return self._round.first != NONE if cls == ADAPTIVE else self.metering is not None and self.metering.first != 0

    cdef int64_t serve_class(self, int cls, int64_t bytes_max, int64_t now_ns) noexcept nogil:
        if cls == CRITICAL:
            return self.fan_out(bytes_max)
        return self.serve_pending(bytes_max) if cls == ADAPTIVE else self.serve_metered(bytes_max, now_ns)
