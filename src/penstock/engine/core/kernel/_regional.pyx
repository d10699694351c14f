"""The adaptive class's records in shared memory: each consumer's regions, a place for every item, and notices.

A reader of a region conflates by its own pace: what a record stands for is carried on until the reader's mark says that
it was read.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport realloc

from penstock.base._crc32c cimport crc32c_initialise
from penstock.engine.core.kernel._conflate cimport SpanStore
from penstock.engine.core.kernel._consumers cimport Consumer, Consumers, Outlet, set_head
from penstock.engine.core.kernel._event cimport ADAPTIVE, DEFINE, EVENT_HEAD_SIZE, Head, NOTICE, event_size, write_event
from penstock.engine.core.kernel._items cimport ITEM_RECORDED, Item, NONE
from penstock.engine.core.kernel._pairs cimport Pair, Standing
from penstock.engine.core.kernel._regions cimport RegionSink
from penstock.shm._ring cimport RingWriter, push

from penstock.base.errors import LocalProtocolError

crc32c_initialise()


cdef class Regional(Consumers):
    """Consumers with regions; with `is_common`, an item has one slot in all of them."""

    def __cinit__(self, *, bint is_common = True, **_):
        self._is_common = is_common
        self._regions = {}
        self._requests = set()

    def detach(self, uint32_t number) -> None:
        Consumers.detach(self, number)
        self._requests = {each for each in self._requests if each[0] != number}
        for each in [each for each in self._regions if each[0] == number]:
            del self._regions[each]

    def take_requests(self) -> list:
        """Consumers and models whose records need a region, or a larger one, since it was last asked."""
        found = sorted(self._requests)
        self._requests.clear()
        return found

    def slots_needed(self, uint32_t number, uint16_t model_id) -> int:
        """How many records the consumer's region of a model must have at least."""
        cdef uint32_t at = self.consumer(number).pairs, count = 0
        if self._is_common:
            return self.items.rank_count(model_id)
        while at != NONE:
            count += self.items.items[self.pairs.pairs[at].item].model_id == model_id
            at = self.pairs.standings[at].behind
        return count

    def open_region(self, uint32_t number, uint16_t model_id, RegionSink sink not None) -> None:
        """The consumer's records of the model are there from now on, and written there anew."""
        cdef Consumer *consumer = self.consumer(number)
        cdef uint32_t at = consumer.pairs
        cdef Pair *pair
        cdef Standing *standing
        cdef Outlet *outlet = NULL
        if consumer.notices is NULL:
            raise LocalProtocolError(f"consumer {number} takes no records in regions")
        if sink.users and not sink.is_shared:
            raise LocalProtocolError("the region is another consumer's")
        if sink.is_shared and not self._is_common:
            raise LocalProtocolError("regions are shared where all consumers have the same offsets")
        for index in range(consumer.outlet_count):
            if consumer.outlets[index].model_id == model_id:
                outlet = &consumer.outlets[index]
        if outlet is NULL:
            outlet = new_outlet(consumer)
        sink.users += 1
        self._regions[number, model_id] = sink
        outlet.sink = <PyObject *>sink
        outlet.model_id = model_id
        while at != NONE:
            pair, standing = &self.pairs.pairs[at], &self.pairs.standings[at]
            if self.items.items[pair.item].model_id == model_id:
                standing.slot = NONE # also of one that is not adaptive now: its slot was in the region before
                standing.written = 0
                standing.notice_era = 0
                if self.is_regional(pair):
                    self.take_slot(pair)
                if self.items.items[pair.item].flags & ITEM_RECORDED and pair.cls == ADAPTIVE:
                    self.refresh_later(at, 0)
            at = standing.behind
        self.wake(number)

    def notify_anew(self, uint32_t number) -> None:
        """The ring of notices was overrun: it begins anew, and names all records."""
        cdef Consumer *consumer = self.consumer(number)
        cdef uint32_t at = consumer.pairs
        if consumer.notices is NULL:
            raise LocalProtocolError(f"consumer {number} has no ring of notices")
        (<RingWriter>self._sinks[number][2]).restart()
        consumer.notice_era += 1
        consumer.overruns += 1
        while at != NONE:
            if self.is_regional(&self.pairs.pairs[at]) and self.pairs.standings[at].written:
                self.refresh_later(at, 0)
            at = self.pairs.standings[at].behind
        self.wake(number)

    cdef int take_slot(self, Pair *pair) except -1:
        cdef const Item *item = &self.items.items[pair.item]
        cdef Standing *standing = self.pairs.standing(pair)
        cdef void *found = self.find_outlet(pair)
        cdef RegionSink sink
        if found is not NULL:
            sink = <RegionSink>found
            if self._is_common:
                standing.slot = item.rank if item.rank < sink.record_count else NONE
            else:
                standing.slot = sink.take_slot()
        if standing.slot == NONE:
            self._requests.add((pair.consumer, item.model_id))
        return 0

    cdef void *find_outlet(self, const Pair *pair) noexcept nogil:
        cdef const Consumer *consumer = &self.consumers[pair.consumer]
        cdef uint16_t model_id = self.items.items[pair.item].model_id
        cdef uint32_t index
        for index in range(consumer.outlet_count):
            if consumer.outlets[index].model_id == model_id:
                return consumer.outlets[index].sink
        return NULL

    cdef bint is_regional(self, const Pair *pair) noexcept nogil:
        return self.consumers[pair.consumer].notices is not NULL and (pair.cls == ADAPTIVE or pair.program is not NULL)

    cdef void let_go(self, Pair *pair) noexcept nogil:
        pair.merged = 0
        if pair.span:
            (<SpanStore>self.items.items[pair.item].spans).release(&pair.span)

    cdef uint32_t write_region(self, uint32_t at, RegionSink sink) noexcept nogil:
        cdef Pair *pair = &self.pairs.pairs[at]
        cdef Standing *standing = &self.pairs.standings[at]
        cdef Consumer *consumer = &self.consumers[pair.consumer]
        cdef Item *item = &self.items.items[pair.item]
        cdef const uint8_t *record = item.record
        cdef uint32_t size = item.record_size if item.flags & ITEM_RECORDED else 0
        if not sink.is_shared or sink._numbers[standing.slot] != item.number:
            if pair.span:
                record, size = (<SpanStore>item.spans).record(pair.span), (<SpanStore>item.spans).at(pair.span).size
            standing.written = sink.write(
                standing.slot, record, size, item.started_ns, pair.merged, not item.flags & ITEM_RECORDED
            )
            if sink.is_shared:
                sink._numbers[standing.slot] = item.number
        else:
            standing.written = 1
        self.give_notice(pair, item)
        consumer.tallies[<int>ADAPTIVE].sent += 1
        consumer.tallies[<int>ADAPTIVE].bytes += item.record_size
        standing.version = item.version
        if sink._marks is NULL:
            self.let_go(pair)
        return item.record_size + EVENT_HEAD_SIZE

    cdef void give_notice(self, Pair *pair, const Item *item) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[pair.consumer]
        cdef Standing *standing = self.pairs.standing(pair)
        cdef uint8_t[EVENT_HEAD_SIZE + 256] event
        cdef Head head
        if standing.notice_era != consumer.notice_era:
            set_head(&head, DEFINE, pair, item)
            head.cls = ADAPTIVE
            head.slot = standing.slot
            head.body_size = item.topic_size
            write_event(event, &head, item.topic)
            push(consumer.notices, event, event_size(head.body_size))
            standing.notice_era = consumer.notice_era
        set_head(&head, NOTICE, pair, item)
        head.cls = ADAPTIVE
        head.slot = standing.slot
        head.merged = pair.merged
        push(consumer.notices, <const uint8_t *>&head, EVENT_HEAD_SIZE)
        self.touch(pair.consumer)


cdef Outlet *new_outlet(Consumer *consumer) except NULL:
    cdef void *bigger = realloc(consumer.outlets, (consumer.outlet_count + 1) * sizeof(Outlet))
    if bigger is NULL:
        raise MemoryError
    consumer.outlets = <Outlet *>bigger
    consumer.outlet_count += 1
    return &consumer.outlets[consumer.outlet_count - 1]
