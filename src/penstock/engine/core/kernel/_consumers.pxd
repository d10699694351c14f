from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.engine.core.kernel._event cimport Head
from penstock.engine.core.kernel._items cimport Item, Items
from penstock.engine.core.kernel._pairs cimport Pair, Pairs
from penstock.engine.core.kernel._sinks cimport DrainList, Queue
from penstock.shm._ring cimport Cursor

cdef enum:
    SHARE = 4  # refreshes and replays may fill a quarter of a ring
    PACE_NS = 20_000_000     # in this time


cdef struct ClassCounts:
    uint64_t sent  # number of events
    uint64_t bytes
    uint64_t conflated       # updates that were merged into a later event
    uint64_t congested       # times that there was no room


cdef struct Consumer:
    Queue *queue             # the fields that every written event uses come first
    Cursor *ring             # NULL: the consumer has a queue
    uint32_t era             # incremented by every restart, after which all items are defined again
    uint32_t removes         # REMOVE events that wait to be written; until then no item may be defined
    bint is_touched  # its doorbells must be rung
    bint is_ready            # its session has bytes to send, and take_ready() has not named it yet
    ClassCounts[4] counts    # by class
    uint32_t *bell
    Cursor *notices          # NULL: the consumer has no regions
    uint32_t *notices_bell
    bint is_used
    bint is_paced            # it waits for its ring's reader to catch up
    uint32_t notice_era
    int64_t allowance  # bytes of refreshes and replays that its ring may still take
    int64_t notice_allowance # the same for definitions and notices of refreshed records
    int64_t paced_ns  # time when the allowance was last renewed
    uint64_t overruns


cdef class Consumers:
    cdef readonly Items items
    cdef readonly Pairs pairs
    cdef Consumer *consumers
    cdef readonly uint32_t consumers_max
    cdef DrainList _drained
    cdef uint32_t *_touched                 # consumers
    cdef uint32_t _touched_count
    cdef uint32_t *_paced
    cdef uint32_t _paced_count
    cdef uint32_t *_ready
    cdef uint32_t _ready_count
    cdef dict _sinks  # by consumer: keeps the objects that the structs point into
    cdef uint8_t *_composed  # buffer for composing a ring event

    cdef Consumer *consumer(self, uint32_t number) except NULL
    cdef int detach(self, uint32_t number) except -1
    # Empty a ring that was overrun. Items are defined again in it.
    cdef int restart_ring(self, uint32_t number) except -1
    cdef int restart_notices(self, uint32_t number) except -1

    # True if the class of the pair's updates depends on the record and events of all classes share one sink: then updates
    # are classified as the log is fanned out, so that they stay in order.
    cdef inline bint is_ordered(self, const Pair *pair) noexcept nogil:
        return pair.program is not NULL and self.consumers[pair.consumer].notices is NULL

    # True if a refresh or a replayed event of this size may be written now.
    cdef inline bint has_room(self, const Consumer *consumer, uint32_t size) noexcept nogil:
        if consumer.ring is not NULL:
            return consumer.allowance > 0
        return consumer.queue.capacity_max - (consumer.queue.end - consumer.queue.begin) >= size

    cdef inline void touch(self, uint32_t number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        if not consumer.is_touched:
            consumer.is_touched = True
            self._touched[self._touched_count] = number
            self._touched_count += 1

    cdef inline void count_conflated(self, uint32_t number, uint8_t cls) noexcept nogil:
        self.consumers[number].counts[cls].conflated += 1

    cdef inline void count_congested(self, uint32_t number, uint8_t cls) noexcept nogil:
        self.consumers[number].counts[cls].congested += 1

    # A REMOVE event for the consumer waits to be written, or is written: no item is defined in between.
    cdef inline void begin_remove(self, uint32_t number) noexcept nogil:
        self.consumers[number].removes += 1

    cdef inline void end_remove(self, uint32_t number) noexcept nogil:
        self.consumers[number].removes -= 1

    # Write an event: as it is, in two parts, or with a checksum that was computed once for several consumers. False if
    # there was no room.
    cdef bint put(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil
    cdef bint write(self, uint32_t number, const Head *head, const void *body) noexcept nogil
    cdef bint put_summed(self, uint32_t number, const uint8_t *event, uint32_t size, uint32_t checksum) noexcept nogil
    cdef void put_notice(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil
    # The size of the DEFINE event that the pair still needs, and the event itself.
    cdef uint32_t define_size(self, const Pair *pair) noexcept nogil
    cdef void define(self, uint32_t number, Pair *pair) noexcept nogil
    # Write the value that the pair is owed as one event: its size, or 0 if there was no room.
    cdef uint32_t write_value(self, uint32_t at, uint8_t cls) noexcept nogil

    # Serve the consumer again: when there is room, or at the next opportunity.
    cdef void wait(self, uint32_t number) noexcept nogil
    cdef void wake(self, uint32_t number) noexcept nogil
    # Consumers to serve again. NONE: no buffer has been drained.
    cdef uint32_t take_drained(self) noexcept nogil
    cdef uint32_t take_paced_count(self) noexcept nogil
    cdef uint32_t take_paced(self, uint32_t at, int64_t now_ns) noexcept nogil
    cdef void ring_bells(self) noexcept nogil


cdef inline void renew_allowance(Consumer *consumer, int64_t now_ns) noexcept nogil:
    """Let the ring take its share of refreshes again, if PACE_NS have passed."""
    if consumer.ring is not NULL and (consumer.paced_ns == 0 or now_ns - consumer.paced_ns >= PACE_NS):
        consumer.allowance = consumer.ring.capacity // SHARE
        consumer.notice_allowance = consumer.notices.capacity // SHARE if consumer.notices is not NULL else 0
        consumer.paced_ns = now_ns


cdef void set_head(Head *head, uint8_t kind, const Pair *pair, const Item *item) noexcept nogil
