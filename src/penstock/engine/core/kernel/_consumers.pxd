from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.engine.core.kernel._event cimport Head
from penstock.engine.core.kernel._items cimport Item, Items
from penstock.engine.core.kernel._pairs cimport Pair, Pairs
from penstock.engine.core.kernel._sinks cimport Drained, Queue
from penstock.shm._ring cimport Cursor

cdef enum:
    SHARE = 4                # a ring takes a fourth of itself in refreshes and replays
    PACE_NS = 20_000_000     # in this time
    TOLD_MAX = 8             # receipts that are kept in case they are lost in an overrun


cdef struct Tally:           # of one class
    uint64_t sent            # events
    uint64_t bytes
    uint64_t conflated       # updates that were merged into a later event
    uint64_t congested       # times that there was no room


cdef struct Fifo:            # of pairs
    uint32_t first
    uint32_t last


cdef struct LiveMark:
    uint64_t after           # refreshes that are to be written before it
    uint32_t subscription


cdef struct Receipt:
    uint64_t first           # 0: there is none to be written
    uint64_t last
    uint8_t cause


cdef struct Told:            # a receipt that was written
    Receipt receipt
    uint64_t number          # the engine's then


cdef struct Outlet:          # where records of a model go
    PyObject *sink           # a RegionSink
    uint16_t model_id


cdef struct Consumer:
    Queue *queue             # what an event that is written looks at comes first
    Cursor *ring             # NULL: it has a queue
    uint32_t era             # goes up with every restart: what was defined before has to be again
    uint32_t removes         # in the queue of refreshes
    bint is_touched          # its bells are to be rung
    bint is_ready            # its session has something to send, and has been told
    Tally[4] tallies         # by class
    uint32_t *bell
    Cursor *notices          # NULL: it has no regions
    uint32_t *notices_bell
    Outlet *outlets
    uint32_t outlet_count
    bint is_used
    bint is_behind           # it is served from its own position in the log
    bint is_repairing        # after the replay, what that did not bring is refreshed
    bint is_paced            # it waits for its ring's reader to catch up
    bint is_in_round         # the adaptive class has something for it
    bint is_stopped          # and there was no room
    uint32_t next_in_round
    uint32_t notice_era
    uint64_t position        # in the log, if behind
    uint64_t replay_end      # before this position the events had been written before
    uint64_t passed          # the number of the log's last event that it got or did not want
    bint has_lost_sessions   # SESSION events may be among what it lost
    uint64_t sessions_after  # it was told which sessions ran after the event of this number
    int64_t allowance        # bytes of refreshes and replays that its ring still takes
    int64_t notice_allowance # and bytes of definitions and notices of refreshed records
    int64_t paced_ns         # when it had a full allowance last
    Receipt receipt
    Told[8] told             # receipts that were written last
    uint32_t told_count
    Fifo refreshes
    Fifo pending             # of the adaptive class
    uint32_t pending_count
    uint64_t refreshes_in
    uint64_t refreshes_out
    LiveMark *lives
    uint32_t live_count
    uint32_t live_capacity
    uint32_t pairs           # the first of its pairs
    uint32_t pair_count
    uint64_t overruns
    uint64_t receipts


cdef inline void renew_allowance(Consumer *consumer, int64_t now_ns) noexcept nogil:
    """When its time has come, a ring takes a share of itself again."""
    if consumer.ring is not NULL and (consumer.paced_ns == 0 or now_ns - consumer.paced_ns >= PACE_NS):
        consumer.allowance = consumer.ring.capacity // SHARE
        consumer.notice_allowance = consumer.notices.capacity // SHARE if consumer.notices is not NULL else 0
        consumer.paced_ns = now_ns


cdef class Consumers:
    cdef readonly Items items
    cdef Pairs pairs
    cdef Consumer *consumers
    cdef readonly uint32_t consumers_max
    cdef readonly uint64_t number           # updates taken so far; that of the last one
    cdef Drained _drained
    cdef uint32_t *_touched                 # consumers
    cdef uint32_t _touched_count
    cdef uint32_t *_paced
    cdef uint32_t _paced_count
    cdef dict _sinks                        # by consumer: keeps what the structs point to
    cdef uint32_t *_ready                   # those whose sessions have something to send
    cdef uint32_t _ready_count
    cdef uint8_t *_scratch                  # an event of the log, changed for one consumer
    cdef uint8_t *_composed                 # an event for a ring, before it is written there

    cdef Consumer *consumer(self, uint32_t number) except NULL
    cdef void forget(self, uint32_t *numbers, uint32_t *count, uint32_t number) noexcept
    cdef void touch(self, uint32_t number) noexcept nogil
    cdef bint has_room(self, const Consumer *consumer, uint32_t size) noexcept nogil
    cdef bint put(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil
    cdef bint write(self, uint32_t number, const Head *head, const void *body) noexcept nogil
    cdef bint put_summed(self, uint32_t number, const uint8_t *event, uint32_t size, uint32_t checksum) noexcept nogil
    cdef uint32_t define_size(self, const Pair *pair) noexcept nogil
    cdef void define(self, uint32_t number, Pair *pair) noexcept nogil
    cdef void wait(self, uint32_t number) noexcept nogil
    cdef void wake(self, uint32_t number) noexcept nogil
    cdef void refresh_later(self, uint32_t pair, uint8_t flags) noexcept nogil
    cdef bint write_refreshes(self, uint32_t number, int64_t now_ns) noexcept nogil
    cdef bint write_refresh(self, uint32_t number, uint32_t at, int64_t now_ns) noexcept nogil
    cdef bint write_receipt(self, uint32_t number) noexcept nogil
    cdef bint write_lives(self, uint32_t number) noexcept nogil
    cdef bint write_remove(self, uint32_t number, const Pair *pair) noexcept nogil
    # Of receipts that it may not have read, as its last update was this one: they are to be written again.
    cdef void recall(self, uint32_t number, uint64_t last_number) noexcept nogil
    cdef void note_loss(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil
    cdef uint64_t _sessions_lost
    cdef void lose(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil
    cdef void repair(self, uint32_t number) noexcept nogil
    cdef void drop_pair(self, uint32_t number) noexcept nogil
    cdef void leave_queue(self, uint32_t number, uint8_t flag) noexcept nogil
    cdef void ring_bells(self) noexcept nogil


cdef void set_head(Head *head, uint8_t kind, const Pair *pair, const Item *item) noexcept nogil
