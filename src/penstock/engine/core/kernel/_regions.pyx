"""Records of the adaptive class in shared memory: each consumer's regions, a slot for every item, and notices.

The reader of a region conflates at its own pace: a record accumulates updates until the reader's mark confirms a
read.
"""

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, realloc

from penstock.base._crc32c cimport crc32c_initialise
from penstock.engine.core.kernel._conflate cimport SpanStore
from penstock.engine.core.kernel._consumers cimport Consumer, Consumers, set_head
from penstock.engine.core.kernel._event cimport ADAPTIVE, DEFINE, EVENT_HEAD_SIZE, Head, NOTICE, event_size, write_event
from penstock.engine.core.kernel._items cimport ITEM_RECORDED, Item, NONE
from penstock.engine.core.kernel._pairs cimport Delivery, Pair
from penstock.engine.core.kernel._pending cimport discard
from penstock.engine.core.kernel._region_sink cimport RegionSink

from penstock.base.errors import LocalProtocolError

crc32c_initialise()


@cython.final
cdef class Regions:
    """The regions of all consumers. With `is_common`, an item has the same slot in all regions of its model."""

    def __cinit__(self, Consumers consumers not None, bint is_common):
        self.items, self.pairs, self.consumers = consumers.items, consumers.pairs, consumers
        self._is_common = is_common
        self._sinks = {}
        self._requests = set()
        self._by_consumer = <ConsumerRegions *>calloc(<size_t>consumers.consumers_max + 1, sizeof(ConsumerRegions))
        if self._by_consumer is NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t number
        if self._by_consumer is not NULL:
            for number in range(self.consumers.consumers_max):
                free(self._by_consumer[number].regions)
        free(self._by_consumer)

    def take_requests(self) -> list:
        """Consumers and models that need a region, or a larger one, each listed once."""
        found = sorted(self._requests)
        self._requests.clear()
        return found

    def slots_needed(self, uint32_t number, uint16_t model_id) -> int:
        """The minimum number of records in the consumer's region of a model."""
        cdef uint32_t at, count = 0
        self.consumers.consumer(number)
        if self._is_common:
            return self.items.rank_count(model_id)
        at = self.pairs.first_of(number)
        while at != NONE:
            count += self.items.items[self.pairs.pairs[at].item].model_id == model_id
            at = self.pairs.next_of(at)
        return count

    cdef int open(self, uint32_t number, uint16_t model_id, RegionSink sink) except -1:
        cdef ModelRegion *region
        cdef uint32_t at
        cdef Pair *pair
        cdef Delivery *delivery
        if self.consumers.consumer(number).notices is NULL:
            raise LocalProtocolError(f"consumer {number} takes no records in regions")
        if sink.users and not sink.is_shared:
            raise LocalProtocolError("the region belongs to another consumer")
        if sink.is_shared and not self._is_common:
            raise LocalProtocolError("sharing regions needs equal offsets for all consumers")
        region = find_region(&self._by_consumer[number], model_id)
        if region is NULL:
            region = new_region(&self._by_consumer[number])
        sink.users += 1
        self._sinks[number, model_id] = sink
        region.sink = <PyObject *>sink
        region.model_id = model_id
        at = self.pairs.first_of(number)
        while at != NONE:
            pair, delivery = &self.pairs.pairs[at], &self.pairs.deliveries[at]
            if self.items.items[pair.item].model_id == model_id:
                delivery.slot = NONE  # also for a pair that is not adaptive now: its slot was in the former region
                delivery.written = 0
                delivery.notice_era = 0
                if self.takes(pair):
                    self.take_slot(pair)
            at = delivery.next
        return 0

    cdef int detach(self, uint32_t number) except -1:
        self._requests = {each for each in self._requests if each[0] != number}
        for each in [each for each in self._sinks if each[0] == number]:
            del self._sinks[each]
        free(self._by_consumer[number].regions)
        self._by_consumer[number] = ConsumerRegions(NULL, 0)
        return 0

    cdef int take_slot(self, Pair *pair) except -1:
        cdef const Item *item = &self.items.items[pair.item]
        cdef Delivery *delivery = self.pairs.delivery(pair)
        cdef void *found = self.find_sink(pair)
        cdef RegionSink sink
        if found is not NULL:
            sink = <RegionSink>found
            if self._is_common:
                delivery.slot = item.rank if item.rank < sink.record_count else NONE
            else:
                delivery.slot = sink.take_slot()
        if delivery.slot == NONE:
            self._requests.add((pair.consumer, item.model_id))
        return 0

    cdef void free_slot(self, const Pair *pair) noexcept nogil:
        cdef const Delivery *delivery = self.pairs.delivery(pair)
        cdef void *sink = self.find_sink(pair)
        if delivery.slot != NONE and sink is not NULL and not self._is_common:
            (<RegionSink>sink).free_slot(delivery.slot)

    cdef void *find_sink(self, const Pair *pair) noexcept nogil:
        cdef const ModelRegion *region = find_region(
            &self._by_consumer[pair.consumer], self.items.items[pair.item].model_id
        )
        return NULL if region is NULL else region.sink

    cdef uint32_t write(self, uint32_t at, RegionSink sink) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Delivery *delivery = &self.pairs.deliveries[at]
        cdef Consumer *consumer = &self.consumers.consumers[pair.consumer]
        cdef Item *item = &self.items.items[pair.item]
        cdef const uint8_t *record = item.record
        cdef uint32_t size = item.record_size if item.flags & ITEM_RECORDED else 0
        if not sink.is_shared or sink._numbers[delivery.slot] != item.number:
            if pair.span:
                record, size = (<SpanStore>item.spans).record(pair.span), (<SpanStore>item.spans).at(pair.span).size
            delivery.written = sink.write(
                delivery.slot, record, size, item.started_ns, pair.merged, not item.flags & ITEM_RECORDED
            )
            if sink.is_shared:
                sink._numbers[delivery.slot] = item.number
        else:
            delivery.written = 1
        self.write_notice(pair, item)
        consumer.counts[<int>ADAPTIVE].sent += 1
        consumer.counts[<int>ADAPTIVE].bytes += item.record_size
        delivery.version = item.version
        if sink._marks is NULL:
            discard(pair, item)
        return item.record_size + EVENT_HEAD_SIZE

    cdef bint write_refresh(self, uint32_t at) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Delivery *delivery = &self.pairs.deliveries[at]
        cdef Consumer *consumer = &self.consumers.consumers[pair.consumer]
        cdef const Item *item = &self.items.items[pair.item]
        cdef void *sink = self.find_sink(pair)
        if sink is NULL or delivery.slot == NONE or not (item.flags & ITEM_RECORDED or delivery.written):
            return True  # without a region: notified when it is opened
        if consumer.notice_allowance <= 0:
            return False
        consumer.notice_allowance -= event_size(item.topic_size) + EVENT_HEAD_SIZE
        if delivery.written and delivery.version == item.version:
            self.write_notice(pair, item)
        else:
            self.write(at, <RegionSink>sink)
        delivery.after = item.number
        delivery.refreshed = self.items.number # earlier updates may be missing in this record
        return True

    cdef void write_notice(self, Pair *pair, const Item *item) noexcept nogil:
        """Notify the consumer that the item's record was written, with its slot if the consumer does not know it."""
        cdef const Consumer *consumer = &self.consumers.consumers[pair.consumer]
        cdef Delivery *delivery = self.pairs.delivery(pair)
        cdef uint8_t[EVENT_HEAD_SIZE + 256] event
        cdef Head head
        if delivery.notice_era != consumer.notice_era:
            set_head(&head, DEFINE, pair, item)
            head.cls = ADAPTIVE
            head.slot = delivery.slot
            head.body_size = item.topic_size
            write_event(event, &head, item.topic)
            self.consumers.put_notice(pair.consumer, event, event_size(head.body_size))
            delivery.notice_era = consumer.notice_era
        set_head(&head, NOTICE, pair, item)
        head.cls = ADAPTIVE
        head.slot = delivery.slot
        head.merged = pair.merged
        self.consumers.put_notice(pair.consumer, <const uint8_t *>&head, EVENT_HEAD_SIZE)


cdef inline ModelRegion *find_region(const ConsumerRegions *regions, uint16_t model_id) noexcept nogil:
    cdef uint32_t index
    for index in range(regions.count):
        if regions.regions[index].model_id == model_id:
            return &regions.regions[index]
    return NULL


cdef ModelRegion *new_region(ConsumerRegions *regions) except NULL:
    cdef void *bigger = realloc(regions.regions, (regions.count + 1) * sizeof(ModelRegion))
    if bigger is NULL:
        raise MemoryError
    regions.regions = <ModelRegion *>bigger
    regions.count += 1
    return &regions.regions[regions.count - 1]
