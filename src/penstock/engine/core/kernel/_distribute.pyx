"""The compiled part of an engine: takes updates, and serves consumers in their classes.

_items.pyx has the current records. _critical.pyx has the log of updates that are all sent, _withheld.pyx updates that
may wait, _refreshes.pyx events for one consumer; _consumers.pyx and _regions.pyx write into the sinks. The Distributor
owns these parts, passes updates to them, and shares the output between the classes.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.base._prefetch cimport prefetch, prefetch_span
from penstock.engine.core.kernel._adaptive cimport AdaptiveClass
from penstock.engine.core.kernel._classify cimport ClassProgram
from penstock.engine.core.kernel._conflate cimport SpanStore
from penstock.engine.core.kernel._consumers cimport Consumer, Consumers, renew_allowance
from penstock.engine.core.kernel._critical cimport CriticalClass
from penstock.engine.core.kernel._event cimport ADAPTIVE, CRITICAL, METERED, OVERRUN, UPSTREAM
from penstock.engine.core.kernel._items cimport (
    ITEM_LOGGED,
    ITEM_RECORDED,
    ITEM_SOURCED,
    ITEM_USED,
    ITEM_WITHDRAWN,
    Item,
    Items,
    NONE,
)
from penstock.engine.core.kernel._metered cimport MeteredClass
from penstock.engine.core.kernel._metering cimport Metering
from penstock.engine.core.kernel._pairs cimport (
    Delivery,
    PAIR_GONE,
    PAIR_PENDING,
    PAIR_REFRESH,
    PAIR_REMOVE,
    PAIR_REPAIR,
    Pair,
    Pairs,
)
from penstock.engine.core.kernel._pending cimport discard
from penstock.engine.core.kernel._refreshes cimport Refreshes
from penstock.engine.core.kernel._region_sink cimport RegionSink
from penstock.engine.core.kernel._regions cimport Regions
from penstock.engine.core.kernel._sinks cimport SessionBuffer
from penstock.engine.core.kernel._withheld cimport Withheld, class_of
from penstock.shm._ring cimport RingWriter
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
from penstock.engine.core.kernel._event import SESSION_SIZE_MAX
from penstock.wire.term import SESSION_TAG_SHIFT

crc32c_initialise()

cdef uint32_t record_size_max = RECORD_SIZE_MAX
cdef int session_tag_shift = SESSION_TAG_SHIFT

cdef enum:
    CLASS_COUNT = 3
    QUANTUM = 1_024          # bytes for a weight of 1
    PAIRS_AHEAD = 32         # pairs of an item that are prefetched before they are needed
    SPANS_AHEAD = 16         # the same for the spans of pairs
    RECORDS_AHEAD = 8        # the same for the records of spans
    LIST_AHEAD = 128         # the same for the item's interest list

cdef enum Trouble:
    TROUBLE_NONE = 0
    TROUBLE_UNKNOWN = 1  # the message's item does not exist
    TROUBLE_MEMORY = 2


@cython.final
cdef class Distributor:
    """Used by one thread at a time. With `metering` None, the metered class is not served.

    `admit(topic, model_id, model_version)` decides on an item that does not exist: it returns a number or None.
    """

    def __cinit__(
        self, *, uint32_t consumers_max, Items items not None, Pairs pairs not None, uint64_t history_bytes,
        int64_t budget_bytes, weights not None, Metering metering, bint is_common, bint serves_all_pending, bint drops,
        admit not None,
    ):
        cdef int cls
        self.items, self.pairs, self.metering = items, pairs, metering
        self.consumers = Consumers(consumers_max, items, pairs)
        self.regions = Regions(self.consumers, is_common)
        self._adaptive = AdaptiveClass(self.regions, serves_all_pending)
        self._metered = MeteredClass(self.consumers, metering, drops)
        self._withheld = Withheld(self._adaptive, self._metered)
        self._refreshes = Refreshes(self._withheld)
        self.critical = CriticalClass(self._refreshes, history_bytes)
        self._programs = {}
        self.budget_bytes = budget_bytes
        self._admit = admit
        self._feed_checksums = []
        for cls, weight in enumerate(weights, start=1):
            if weight < 1:
                raise LocalProtocolError(f"a weight of {weight} would starve its class")
            self._weights[cls] = weight
        self._turn = CRITICAL

    # Consumers

    def detach(self, uint32_t consumer_number) -> None:
        """Drop the consumer and its pairs. The caller owns its sinks."""
        self.consumers.consumer(consumer_number)
        while self.pairs.first_of(consumer_number) != NONE:
            self.drop_pair(self.pairs.first_of(consumer_number))
        self._refreshes.detach(consumer_number)
        self._adaptive.detach(consumer_number)
        self.critical.detach(consumer_number)
        self.regions.detach(consumer_number)
        self.consumers.detach(consumer_number)

    def live(self, uint32_t consumer_number, uint32_t subscription) -> None:
        """All items of the subscription have pairs: report it as live when their refreshes have been written."""
        self.consumers.consumer(consumer_number)
        self._refreshes.add_live(consumer_number, subscription)

    def open_region(self, uint32_t consumer_number, uint16_t model_id, RegionSink sink not None) -> None:
        """Write the consumer's records of the model into this region from now on, beginning with the current ones."""
        cdef uint32_t at
        cdef const Pair *pair
        cdef const Item *item
        self.regions.open(consumer_number, model_id, sink)
        at = self.pairs.first_of(consumer_number)
        while at != NONE:
            pair = &self.pairs.pairs[at]
            item = &self.items.items[pair.item]
            if item.model_id == model_id and item.flags & ITEM_RECORDED and pair.cls == ADAPTIVE:
                self._refreshes.add(at, 0)
            at = self.pairs.next_of(at)
        self.consumers.wake(consumer_number)

    def restart_notices(self, uint32_t consumer_number) -> None:
        """The ring of notices was overrun: restart it, and give notice of all records."""
        cdef uint32_t at
        self.consumers.restart_notices(consumer_number)
        at = self.pairs.first_of(consumer_number)
        while at != NONE:
            if self.regions.takes(&self.pairs.pairs[at]) and self.pairs.deliveries[at].written:
                self._refreshes.add(at, 0)
            at = self.pairs.next_of(at)
        self.consumers.wake(consumer_number)

    def restart(self, uint32_t consumer_number, uint64_t last_number, int64_t now_ns) -> bool:
        """The consumer's ring was overrun after the update `last_number`: restart the ring with what the consumer missed.
        False if the log does not have all of it; then the consumer gets a receipt and refreshes."""
        cdef bint is_kept = self.critical.restart(consumer_number, last_number, now_ns)
        self.catch_up(consumer_number, now_ns)
        self.consumers.ring_bells()
        return is_kept

    def serve_consumer(self, uint32_t consumer_number, int64_t now_ns) -> None:
        """Write the events that wait for one consumer, for example after a subscription."""
        cdef Consumer *consumer = self.consumers.consumer(consumer_number)
        with nogil:
            renew_allowance(consumer, now_ns)
            self.catch_up(consumer_number, now_ns)
            self.consumers.ring_bells()

    def refresh_withdrawn(self, uint32_t consumer_number) -> None:
        """The consumer may have records that have been withdrawn: report each withdrawal."""
        cdef uint32_t at
        self.consumers.consumer(consumer_number)
        at = self.pairs.first_of(consumer_number)
        while at != NONE:
            if self.items.items[self.pairs.pairs[at].item].flags & ITEM_WITHDRAWN:
                self._refreshes.add(at, PAIR_REPAIR)
            at = self.pairs.next_of(at)

    def counts(self, uint32_t consumer_number) -> dict:
        """Counters of the consumer, by name."""
        cdef const Consumer *consumer = self.consumers.consumer(consumer_number)
        counts = {
            "items": self.pairs.count_of(consumer_number),
            "overruns": consumer.overruns,
            "receipts": self._refreshes.receipts(consumer_number),
            "waiting": self._refreshes.waiting(consumer_number),
            "pending": self._adaptive.pending_count(consumer_number),
            "is_behind": self.critical.is_behind(consumer_number),
        }
        for cls, name in ((1, "critical"), (2, "adaptive"), (3, "metered")):
            counts[name] = {
                "sent": consumer.counts[cls].sent, "bytes": consumer.counts[cls].bytes,
                "conflated": consumer.counts[cls].conflated, "congested": consumer.counts[cls].congested,
            }
        return counts

    # Pairs

    def subscribe(
        self, uint32_t consumer_number, const uint32_t[::1] items not None, uint8_t cls, uint8_t served,
        ClassProgram program, int64_t interval_ns, int64_t now_ns, replayed_after = None,
    ) -> list:
        """Add items to a new subscription of the consumer. Return the items that another subscription already has;
        the others wait for their refresh. They are sent in the class `cls`, unless a `program` selects the class of
        each record, which is mapped by `served` (two bits per class). `interval_ns` is that of the metered class, 0
        for none. With `replayed_after`, see begin_replay(), items need no refresh if the log has all their updates
        since. After a LimitError nothing has changed."""
        cdef Selection selection = make_selection(cls, served, program, interval_ns)
        cdef int64_t after = -1 if replayed_after is None else replayed_after
        cdef uint32_t fresh = 0, at
        cdef Py_ssize_t row
        self.consumers.consumer(consumer_number)
        for row in range(len(items)):
            self.items.item(items[row])
            fresh += self.pairs.find(consumer_number, items[row]) == NONE
        self.pairs.check_room(fresh)
        had = []
        for row in range(len(items)):
            at = self.pairs.find(consumer_number, items[row])
            if at == NONE:
                self.add_pair(consumer_number, items[row], &selection, program, now_ns, after)
            else:
                self.pairs.deliveries[at].uses += 1
                had.append(items[row])
        return had

    def unsubscribe(self, uint32_t consumer_number, uint32_t item, bint is_told = False) -> int:
        """Remove the item from one subscription. Return the number of subscriptions that still have it. If it is 0,
        the consumer is notified unless it knows."""
        cdef uint32_t at
        self.consumers.consumer(consumer_number)
        at = self.pairs.find(consumer_number, item)
        if at == NONE:
            return 0
        self.pairs.deliveries[at].uses -= 1
        if self.pairs.deliveries[at].uses:
            return self.pairs.deliveries[at].uses
        if not is_told:
            self.pairs.pairs[at].flags |= PAIR_REMOVE
        self.drop_pair(at)
        return 0

    def change_class(
        self, uint32_t consumer_number, const uint32_t[::1] items not None, uint8_t cls, uint8_t served,
        ClassProgram program, int64_t interval_ns, int64_t now_ns, bint is_sole = False,
    ) -> list:
        """Send items in another class, see subscribe(). Values that the metered class withholds stay withheld if the
        items stay metered; otherwise a refresh replaces pending values of the former class. With `is_sole`, items of
        several subscriptions are returned unchanged. Items that the consumer does not get are skipped."""
        cdef Selection selection = make_selection(cls, served, program, interval_ns)
        cdef uint32_t at
        cdef Py_ssize_t row
        self.consumers.consumer(consumer_number)
        left = []
        for row in range(len(items)):
            at = self.pairs.find(consumer_number, items[row])
            if at == NONE:
                continue
            if is_sole and self.pairs.deliveries[at].uses > 1:
                left.append(items[row])
            else:
                self.change_pair(at, &selection, program, now_ns)
        return left

    cdef int add_pair(
        self, uint32_t consumer_number, uint32_t item, const Selection *selection, ClassProgram program,
        int64_t now_ns, int64_t replayed_after,
    ) except -1:
        cdef Item *entry = &self.items.items[item]
        cdef uint32_t at = self.pairs.add(entry, consumer_number, item)
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Delivery *delivery = &self.pairs.deliveries[at]
        delivery.uses = 1
        delivery.after = self.items.number
        self.set_class(at, selection, program)
        if replayed_after >= 0 and pair.cls == CRITICAL and program is None and entry.unlogged <= <uint64_t>replayed_after:
            delivery.after = max(<uint64_t>replayed_after, entry.born)
        elif entry.flags & ITEM_RECORDED:
            self._refreshes.add(at, 0)
            if replayed_after >= 0 and entry.number > <uint64_t>replayed_after and (
                pair.cls == CRITICAL or program is not None
            ):
                self._refreshes.note_loss(consumer_number, replayed_after + 1, entry.number, OVERRUN)
        elif entry.flags & ITEM_WITHDRAWN and replayed_after >= 0:
            self._refreshes.add(at, PAIR_REPAIR)  # the consumer may have the withdrawn record
        elif selection.interval_ns:
            self.metering.live(at, now_ns - selection.interval_ns)
        delivery.begun = delivery.since = delivery.after
        return 0

    cdef int change_pair(
        self, uint32_t at, const Selection *selection, ClassProgram program, int64_t now_ns
    ) except -1:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef uint32_t consumer_number = pair.consumer
        cdef bint is_owed, is_moved
        cdef PyObject *chosen = NULL if program is None else <PyObject *>program
        if pair.cls == selection.cls and pair.served == selection.served and pair.program == chosen and (
            (selection.interval_ns != 0) == (self.metering is not None and self.metering.is_metered(at))
        ):
            if selection.interval_ns:
                self.metering.change(at, selection.interval_ns, now_ns)
            return 0
        is_moved = pair.cls != ADAPTIVE and selection.cls == ADAPTIVE and (
            self.consumers.consumers[consumer_number].notices is not NULL
        )
        if not pair.flags & PAIR_REFRESH and not self.critical.is_behind(consumer_number):
            if selection.interval_ns and not is_moved and not pair.flags & PAIR_PENDING and self._metered.is_withheld(at):
                self.critical.served_ns = now_ns
                self.metering.change(at, selection.interval_ns, now_ns)  # the value stays withheld: its rate holds
                self.set_class(at, selection, program)
                return 0
            if pair.span:
                self._withheld.flush(at, now_ns)
        self.critical.served_ns = now_ns
        is_owed = pair.flags & PAIR_PENDING or self.critical.is_behind(consumer_number) or self._metered.is_withheld(at)
        self._metered.end(at)
        pair.flags &= ~PAIR_PENDING
        if is_moved:
            self.pairs.deliveries[at].written = 0  # the region's record is older than the last one sent
        if is_owed or is_moved and self.items.items[pair.item].flags & ITEM_RECORDED:
            discard(pair, &self.items.items[pair.item])
            self._refreshes.add(at, 0)
            self.consumers.wake(consumer_number)
        self.set_class(at, selection, program)
        if selection.interval_ns and not pair.flags & PAIR_REFRESH:
            self.metering.live(at, now_ns)
        return 0

    cdef int set_class(self, uint32_t at, const Selection *selection, ClassProgram program) except -1:
        cdef Pair *pair = &self.pairs.pairs[at]
        pair.cls = selection.cls
        pair.served = selection.served
        pair.program = NULL if program is None else <PyObject *>program
        if program is not None:
            self._programs[at] = program
        else:
            self._programs.pop(at, None)
        if selection.interval_ns and not self.metering.is_metered(at):
            self.metering.begin(at, selection.interval_ns)
        if self.regions.takes(pair) and self.pairs.deliveries[at].slot == NONE:
            self.regions.take_slot(pair)
        return 0

    cdef void drop_pair(self, uint32_t at) noexcept nogil:
        """The consumer no longer gets the item. A pair that is still queued is released when it leaves the queues."""
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Item *item = &self.items.items[pair.item]
        self.regions.free_slot(pair)
        discard(pair, item)
        self._metered.end(at)
        self.pairs.remove(item, at)
        if pair.flags & PAIR_REMOVE:
            self._refreshes.add(at, 0)
            self.consumers.begin_remove(pair.consumer)
            self.consumers.wake(pair.consumer)
        pair.flags |= PAIR_GONE
        self.pairs.leave_queue(at, 0)

    # Updates

    def publish(
        self, bytes topic not None, uint16_t model_id, uint16_t model_version, record not None,
        int64_t started_ns, uint64_t version, int64_t now_ns, uint32_t merged = 1, source = None,
        uint32_t session_id = 0,
    ) -> bool:
        """Take one update, which represents `merged` updates, and serve the consumers of its item. Version 0: one
        more than before. `source` is the feed's number, the source stream and the tag of its session, if known;
        `session_id` replaces it in an update of an upstream node. False if the item is not admitted."""
        cdef Py_buffer content
        cdef Update update
        cdef uint32_t item_number
        PyObject_GetBuffer(record, &content, PyBUF_SIMPLE)
        try:
            item_number = self.number_of(topic, model_id, model_version, content.len)
            if item_number == NONE:
                return False
            update = Update(
                <const uint8_t *>content.buf, version, started_ns, <uint32_t>content.len, max(merged, 1), model_version,
                NULL,
            )
            if source is not None:
                self.choose_feed(source[0])
                self.note_source(&self.items.items[item_number], source[1], source[2])
            elif session_id or not self.items.items[item_number].flags & ITEM_SOURCED:
                self.items.items[item_number].session_id = session_id
            if self.take(item_number, &update, now_ns):
                raise MemoryError
        finally:
            PyBuffer_Release(&content)
        self.serve_due(now_ns)
        return True

    def image(
        self, bytes topic not None, uint16_t model_id, uint16_t model_version, bytes record not None,
        int64_t started_ns, uint64_t version, bint is_repair, int64_t now_ns, uint32_t session_id = 0,
    ) -> bool:
        """The upstream node has sent the item's record and the session of the record: refresh all consumers of it.
        False if the item is not admitted."""
        cdef uint32_t item_number = self.number_of(topic, model_id, model_version, len(record)), at, consumer
        cdef Item *item
        cdef Pair *pair
        cdef Delivery *delivery
        cdef bint is_there
        if item_number == NONE:
            return False
        item = &self.items.items[item_number]
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
        item.number, item.version = self.items.next_number(), version
        item.started_ns, item.model_version = started_ns, model_version
        if not is_there:
            item.unlogged = self.items.number
        with nogil:
            for at in range(item.pair_count):
                pair, delivery = &self.pairs.pairs[item.pairs[at]], &self.pairs.deliveries[item.pairs[at]]
                consumer = pair.consumer
                if is_there and (pair.cls != CRITICAL and pair.program is NULL or delivery.version != version):
                    continue  # the consumer has the record, or its pending refresh or value covers it
                if not is_there:  # even with the same version: another plant may have counted it
                    delivery.written = 0
                    delivery.since = item.number  # earlier updates do not lead to this record
                    if delivery.version == 0:
                        delivery.begun = item.number
                discard(pair, item)
                self._refreshes.add(item.pairs[at], PAIR_REPAIR if is_repair else 0)
                renew_allowance(&self.consumers.consumers[consumer], now_ns)
                self.catch_up(consumer, now_ns)
            self.consumers.ring_bells()
        return True

    def name_feed(self, uint16_t feed, uint32_t checksum) -> None:
        """The CRC32C of the name of a feed, for the session ids of its records; 0 is that of a feed without a name."""
        self._feed_checksums.extend([0] * (feed + 1 - len(self._feed_checksums)))
        self._feed_checksums[feed] = checksum

    def lose_upstream(self, int64_t now_ns) -> None:
        """An unknown number of updates was lost upstream; they count as one."""
        cdef uint32_t consumer_number
        self._lost_number = self.items.next_number()
        for consumer_number in range(self.consumers.consumers_max):
            if self.consumers.consumers[consumer_number].is_used and self.pairs.count_of(consumer_number):
                self._refreshes.note_loss(consumer_number, self.items.number, self.items.number, UPSTREAM)
                self.catch_up(consumer_number, now_ns)
        self.consumers.ring_bells()

    def withdraw(self, bytes topic not None, uint16_t model_id, uint64_t version, int64_t now_ns) -> bool:
        """The upstream node has withdrawn the item's record: withdraw it here. False if there was none."""
        cdef uint32_t item_number = NONE
        if len(topic) <= TOPIC_SIZE_MAX:
            item_number = self.items.find(<const uint8_t *>topic, <uint16_t>len(topic), model_id)
        if item_number == NONE or not self.items.items[item_number].flags & ITEM_RECORDED:
            return False
        with nogil:
            self.withdraw_item(item_number, version, now_ns)
            self.serve_due(now_ns)
        return True

    def withdraw_items(self, numbers not None, int64_t now_ns) -> int:
        """Withdraw the records of these items. Return the number of withdrawn records."""
        cdef uint32_t item_number
        cdef int count = 0
        for item_number in numbers:
            if self.items.is_known(item_number) and self.items.items[item_number].flags & ITEM_RECORDED:
                self.withdraw_item(item_number, 0, now_ns)
                count += 1
        with nogil:
            self.serve_due(now_ns)
        return count

    def withdraw_stream(
        self, uint16_t feed, uint32_t stream, uint16_t session_tag, bint is_begun, int64_t now_ns
    ) -> int:
        """Withdraw records of a source stream. If this session `is_begun`, withdraw the records of other sessions;
        otherwise those of this session, which has ended; without a tag, those of all sessions. Return their number."""
        cdef uint32_t item_number
        cdef const Item *item
        cdef int count = 0
        with nogil:
            for item_number in range(self.items.count):
                item = &self.items.items[item_number]
                if item.flags & (ITEM_USED | ITEM_RECORDED | ITEM_SOURCED) != (ITEM_USED | ITEM_RECORDED | ITEM_SOURCED):
                    continue
                if item.feed != feed or item.stream != stream:
                    continue
                if session_tag == 0 or (item.session_tag != session_tag) == is_begun:
                    self.withdraw_item(item_number, 0, now_ns)
                    count += 1
            self.serve_due(now_ns)
        return count

    def withdraw_sessions(self, ended not None, running not None, int64_t now_ns) -> int:
        """The upstream node reports that sessions have `ended`: withdraw their records, and among records from
        before the last loss those of sessions that are not `running`. Both are collections of session ids. Return
        the number of records."""
        cdef uint32_t item_number, session_id
        cdef const Item *item
        cdef int count = 0
        for item_number in range(self.items.count):
            item = &self.items.items[item_number]
            session_id = item.session_id
            if session_id == 0 or item.flags & (ITEM_USED | ITEM_RECORDED) != (ITEM_USED | ITEM_RECORDED):
                continue
            if session_id in ended or item.number < self._lost_number and session_id not in running:
                self.withdraw_item(item_number, 0, now_ns)
                count += 1
        with nogil:
            self.serve_due(now_ns)
        return count

    def send_session(self, bytes body not None, int64_t now_ns) -> None:
        """Send a SESSION event to all consumers, in order with the updates of the critical class."""
        if not 1 <= len(body) <= SESSION_SIZE_MAX:
            raise LocalProtocolError(f"the session event has {len(body)} bytes, the limit is {SESSION_SIZE_MAX}")
        self.items.next_number()
        self.critical.append_session(<const uint8_t *>body, <uint32_t>len(body))
        with nogil:
            self.serve_due(now_ns)

    def send_session_to(self, uint32_t consumer_number, bytes body not None) -> bool:
        """Send a SESSION event to one consumer, before its waiting refreshes. False if there is no room, or if older
        events wait for the consumer in the log."""
        self.consumers.consumer(consumer_number)
        if self.critical.is_behind(consumer_number):
            return False
        if not 1 <= len(body) <= SESSION_SIZE_MAX:
            raise LocalProtocolError(f"the session event has {len(body)} bytes, the limit is {SESSION_SIZE_MAX}")
        return self.critical.write_session(consumer_number, <const uint8_t *>body, <uint32_t>len(body))

    def distribute(self, MessageBatch messages not None, int64_t now_ns, int64_t started_ns, uint16_t feed = 0) -> int:
        """Take all messages of a batch as updates, and serve the consumers of their items. Return the number of
        messages taken. `feed` is the caller's number of the messages' feed."""
        cdef Py_ssize_t done = 0
        cdef int trouble
        cdef const MessageView *message
        cdef const uint8_t *data = messages._datagrams.data
        cdef uint64_t before = self.items.number - self._untaken
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
            self.serve_due(now_ns)
        return self.items.number - self._untaken - before

    def serve(self, int64_t now_ns, int64_t budget_bytes = -1) -> int:
        """Write waiting events, at most about `budget_bytes`. Return the number of bytes without refreshes and
        replays, which are paced separately."""
        cdef int64_t written
        with nogil:
            self.catch_up_waiting(now_ns)
            written = self.serve_classes(budget_bytes, now_ns)
            self.consumers.ring_bells()
        return written

    @property
    def has_backlog(self) -> bool:
        """True if critical or adaptive updates wait for serve() and can be written. Metering has its own deadline."""
        return self.is_backlogged(CRITICAL) or self.is_backlogged(ADAPTIVE)

    cdef int choose_feed(self, uint16_t feed) except -1:
        """Set the feed of the following updates."""
        self._feed = feed
        self._feed_checksum = self._feed_checksums[feed] if feed < len(self._feed_checksums) else 0
        return 0

    cdef void note_source(self, Item *item, uint32_t stream, uint16_t session_tag) noexcept nogil:
        """The item's next record comes from this stream of the current feed, in this session."""
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

    cdef uint32_t number_of(self, bytes topic, uint16_t model_id, uint16_t model_version, Py_ssize_t size) except? 0xFFFFFFFF:
        """The number of an item, possibly a new one; NONE if it is not admitted."""
        cdef uint32_t item_number = NONE
        if size > record_size_max:
            raise LocalProtocolError(f"the record has {size} bytes, the limit is {record_size_max}")
        if len(topic) <= TOPIC_SIZE_MAX:
            item_number = self.items.find(<const uint8_t *>topic, <uint16_t>len(topic), model_id)
        if item_number != NONE:
            return item_number
        admitted = self._admit(topic, model_id, model_version)
        return NONE if admitted is None else admitted

    cdef bint note_missed(self, const Item *item) noexcept nogil:
        """Updates of the item were lost upstream: note a loss for the consumers that have its record, unless they
        know already. True if there are any; they are served when the item has its new record."""
        cdef uint32_t at
        cdef const Pair *pair
        cdef const Delivery *delivery
        cdef bint is_told = item.number < self._lost_number, is_any = False
        for at in range(item.pair_count):
            pair, delivery = &self.pairs.pairs[item.pairs[at]], &self.pairs.deliveries[item.pairs[at]]
            if delivery.version and not (is_told and delivery.refreshed < self._lost_number):
                self._refreshes.note_loss(pair.consumer, item.number + 1, self.items.number + 1, UPSTREAM)
                is_any = True
        return is_any

    cdef int take(self, uint32_t item_number, const Update *update, int64_t now_ns) noexcept nogil:
        cdef Item *item = &self.items.items[item_number]
        cdef bint is_critical = item.flags & ITEM_LOGGED
        cdef const Pair *pair
        cdef uint32_t index, at
        cdef uint8_t cls
        cdef bint is_missed = False
        self.prefetch_first(item)
        if item.number < self._lost_number and item.flags & ITEM_RECORDED:
            is_missed = self.note_missed(item)
        if self.items.keep(item, update.record, update.size):
            return -1
        item.number = self.items.next_number()
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
            self.prefetch_ahead(item, index)
            at = item.pairs[index]
            pair = &self.pairs.pairs[at]
            cls = CRITICAL if self.consumers.is_ordered(pair) else class_of(pair, item.record, item.record_size)
            if cls == CRITICAL:
                is_critical = True
            elif cls and (
                not pair.flags & PAIR_REFRESH
                or self.pairs.deliveries[at].version and self.regions.takes(pair)  # count the update as merged
            ):
                self._withheld.add(at, item, cls, now_ns)
        if is_critical:
            self.critical.append(item_number, item)
        else:
            item.unlogged = self.items.number
        if is_missed:
            for index in range(item.pair_count):
                self.catch_up(self.pairs.pairs[item.pairs[index]].consumer, now_ns)
        return 0

    cdef void withdraw_item(self, uint32_t item_number, uint64_t version, int64_t now_ns) noexcept nogil:
        """Handle a withdrawal like an update after which the item has no record."""
        cdef Item *item = &self.items.items[item_number]
        cdef bint is_critical = item.flags & ITEM_LOGGED
        cdef uint32_t index
        item.flags = item.flags & ~<uint8_t>ITEM_RECORDED | ITEM_WITHDRAWN
        item.record_size = 0
        item.number = self.items.next_number()
        item.version = version if version else item.version + 1
        item.started_ns = 0
        item.merged = 1
        for index in range(item.pair_count):
            is_critical |= self._withheld.withdraw(item.pairs[index], item, now_ns)
        if is_critical:
            self.critical.append(item_number, item)
        else:
            item.unlogged = self.items.number

    cdef void lose_update(self, uint32_t item_number, int64_t now_ns) noexcept nogil:
        """An update of the item cannot be taken: all consumers of the item get a receipt."""
        cdef Item *item = &self.items.items[item_number]
        cdef uint32_t index, consumer
        self.items.next_number()
        self._untaken += 1
        item.unlogged = self.items.number
        for index in range(item.pair_count):
            consumer = self.pairs.pairs[item.pairs[index]].consumer
            self._refreshes.note_loss(consumer, self.items.number, self.items.number, UPSTREAM)
            self.catch_up(consumer, now_ns)

    cdef int take_messages(
        self, const uint8_t *data, const MessageView *messages, Py_ssize_t count, int64_t now_ns, int64_t started_ns,
        Py_ssize_t *done
    ) noexcept nogil:
        cdef const MessageView *message
        cdef Update update
        cdef uint32_t item_number
        cdef bint is_part
        cdef const uint8_t *origin
        while done[0] < count:
            message = messages + done[0]
            is_part = message.flags & (MESSAGE_MORE | MESSAGE_CONTINUATION) != 0
            if message.flags & MESSAGE_DIRECT:
                done[0] += 1
                continue
            item_number = self.items.find(data + message.topic_offset, message.topic_size, message.model_id)
            if item_number == NONE:
                return TROUBLE_UNKNOWN
            if is_part or message.payload_size > record_size_max:
                self.fragments += is_part
                self.oversized += not is_part
                if not message.flags & MESSAGE_CONTINUATION:
                    self.lose_update(item_number, now_ns)
            else:
                origin = NULL
                if not find_origin(data + message.extensions_offset, message.extensions_size, &origin):
                    origin = NULL
                update = Update(
                    data + message.payload_offset, 0, started_ns, message.payload_size, 1, message.model_version, origin
                )
                if self.take(item_number, &update, now_ns):
                    return TROUBLE_MEMORY
                if self.budget_bytes < 0:
                    self.serve_classes(-1, now_ns)
            done[0] += 1
        return TROUBLE_NONE

    cdef void prefetch_first(self, const Item *item) noexcept nogil:
        """Prefetch the first memory that an update of the item needs; the hardware prefetches the interest list."""
        cdef uint32_t index
        prefetch_span(<const uint8_t *>item.pairs, min(item.pair_count, <uint32_t>LIST_AHEAD) * sizeof(uint32_t))
        prefetch_span(item.record, item.record_size)
        for index in range(min(item.pair_count, <uint32_t>PAIRS_AHEAD)):
            prefetch(&self.pairs.pairs[item.pairs[index]])

    cdef void prefetch_ahead(self, const Item *item, uint32_t index) noexcept nogil:
        """Prefetch the pairs that follow this one, which are scattered over the memory, and their values."""
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

    # Output

    cdef void catch_up_waiting(self, int64_t now_ns) noexcept nogil:
        """Serve consumers whose buffers have room again, and those whose rings may be written again."""
        cdef uint32_t at, consumer_number = self.consumers.take_drained()
        while consumer_number != NONE:
            self.catch_up(consumer_number, now_ns)
            consumer_number = self.consumers.take_drained()
        for at in range(self.consumers.take_paced_count()):
            self.catch_up(self.consumers.take_paced(at, now_ns), now_ns)

    cdef void catch_up(self, uint32_t consumer_number, int64_t now_ns) noexcept nogil:
        """Write the consumer's waiting events, in order: refreshes, updates of the log, then withheld values."""
        self.critical.served_ns = now_ns
        if self._refreshes.write(consumer_number, now_ns) and self.replay(consumer_number, now_ns):
            self._withheld.resume(consumer_number, now_ns)
        else:
            self.consumers.wait(consumer_number)

    cdef bint replay(self, uint32_t consumer_number, int64_t now_ns) noexcept nogil:
        """Bring a consumer that is behind to the current position. False if there was no room."""
        if self.critical.is_behind(consumer_number) and not self.critical.replay(consumer_number, now_ns):
            return False
        if self._refreshes.is_repairing(consumer_number):
            self._refreshes.end_repair(consumer_number)
        return self._refreshes.write(consumer_number, now_ns)

    cdef void serve_due(self, int64_t now_ns) noexcept nogil:
        """Write waiting events within the budget of one call, and wake their consumers."""
        self.serve_classes(self.budget_bytes, now_ns)
        self.consumers.ring_bells()

    cdef int64_t serve_classes(self, int64_t budget_bytes, int64_t now_ns) noexcept nogil:
        """Deficit round-robin: in its turn, a class with a backlog may write bytes in proportion to its weight; an
        excess is deducted from its next turn."""
        cdef int64_t left = budget_bytes, written
        cdef int idle = 0
        self.critical.served_ns = now_ns
        if budget_bytes < 0:
            return self.critical.fan_out(-1, now_ns) + self._adaptive.serve(-1) + self._metered.serve(-1, now_ns)
        self.critical.check_overwritten()
        self._metered.advance(now_ns)
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
                        break  # its turn continues at the next call
            self._turn = self._turn % CLASS_COUNT + 1
        return budget_bytes - left

    cdef bint is_backlogged(self, int cls) noexcept nogil:
        if cls == CRITICAL:
            return self.critical.has_backlog()
        return self._adaptive.has_backlog() if cls == ADAPTIVE else self._metered.has_backlog()

    cdef int64_t serve_class(self, int cls, int64_t bytes_max, int64_t now_ns) noexcept nogil:
        if cls == CRITICAL:
            return self.critical.fan_out(bytes_max, now_ns)
        return self._adaptive.serve(bytes_max) if cls == ADAPTIVE else self._metered.serve(bytes_max, now_ns)


cdef Selection make_selection(uint8_t cls, uint8_t served, ClassProgram program, int64_t interval_ns) noexcept:
    if cls == METERED and program is None and interval_ns == 0:
        cls = CRITICAL  # without a rate, every update is sent
    return Selection(cls, served, interval_ns)
