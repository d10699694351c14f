from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum ItemFlag:
    ITEM_USED = 1
    ITEM_NONCONFLATABLE = 2
    ITEM_RECORDED = 4       # it has a current record
    ITEM_LOGGED = 8         # its updates are kept even if nobody gets them as critical


cdef struct Item:
    uint8_t *topic
    uint8_t *record
    uint32_t *pairs         # the interest list: who gets it
    PyObject *spans         # the SpanStore of its model; NULL: the newest record is what updates conflate to
    uint64_t version        # updates that there have been, as the plant counts them
    uint64_t number         # of the last update
    uint64_t unlogged       # of the last update that is not in the log
    uint64_t born           # the engine's number when it was added: earlier events of its number are of another item
    int64_t started_ns      # of the last update
    uint32_t record_size
    uint32_t record_capacity
    uint32_t pair_count
    uint32_t pair_capacity
    uint32_t hash
    uint32_t rank           # among the items of its model
    uint16_t topic_size
    uint16_t model_id
    uint16_t model_version
    uint8_t flags


cdef struct Pair:           # a consumer and an item that it gets
    uint64_t after          # the number up to which a refresh, or the subscription's beginning, covers all
    uint64_t begun          # the number from which on each update of a critical one was owed
    uint64_t since          # and none was left out for a refresh
    uint64_t refreshed      # the engine's number when the last refresh was written
    uint64_t version        # of the last event written
    uint64_t written        # the generation of the record in the consumer's region
    PyObject *program       # the ClassProgram that says the class of each record; NULL: it is always `cls`
    uint32_t consumer
    uint32_t item
    uint32_t place          # in the item's interest list
    uint32_t before         # in the consumer's list; NONE
    uint32_t behind
    uint32_t next_refresh   # in the consumer's queues; NONE
    uint32_t next_pending
    uint32_t slot           # in the consumer's region
    uint32_t era            # the consumer's when the item was defined to it
    uint32_t notice_era
    uint32_t span           # of the item's spans: what waits, or was not read yet
    uint32_t merged         # updates since the last event written
    uint16_t uses           # subscriptions that want it
    uint8_t cls
    uint8_t served          # two bits for each class: what is served instead
    uint8_t flags


cdef enum PairFlag:
    PAIR_USED = 1
    PAIR_REFRESH = 2        # in the queue of refreshes
    PAIR_QUEUED = 4         # in the queue of the adaptive class
    PAIR_PENDING = 8        # the adaptive class owes its value
    PAIR_GONE = 16          # nobody wants it any more; a queue still has it
    PAIR_REMOVE = 32        # and its consumer is to be told so
    PAIR_REPAIR = 64        # the refresh it waits for repairs a loss
    PAIR_SWALLOWED = 128    # updates came while it waits to be refreshed, and the consumer has had earlier ones


cdef uint32_t NONE


cdef class Items:
    cdef Item *items
    cdef readonly uint32_t count        # numbers given out, also those that are free again
    cdef readonly uint32_t used
    cdef readonly uint32_t items_max
    cdef uint32_t _capacity
    cdef uint32_t *_slots               # open addressing; NONE is free
    cdef uint64_t _mask
    cdef uint64_t _seed
    cdef list _free
    cdef set _stores                    # keeps what the items' spans are in
    cdef dict _ranks                    # by model: ranks given out so far, and those that are free again

    cdef uint32_t find(self, const uint8_t *topic, uint16_t size, uint16_t model_id) noexcept nogil
    cdef uint32_t hash_of(self, const uint8_t *topic, uint16_t size) noexcept nogil
    cdef int keep(self, Item *item, const uint8_t *record, uint32_t size) noexcept nogil
    cdef int allot(self, uint64_t slots) except -1
    cdef Item *item(self, uint32_t number) except NULL
    cdef uint32_t grown(self) except? 0xFFFFFFFF
    cdef void insert(self, uint32_t number) noexcept


cdef class Pairs:
    cdef Pair *pairs
    cdef readonly uint32_t used
    cdef readonly uint32_t pairs_max
    cdef uint32_t _count
    cdef uint32_t _capacity
    cdef uint32_t _free                 # the first free one; they are linked by `next_refresh`
    cdef uint32_t *_slots
    cdef uint64_t _mask
    cdef uint64_t _seed

    cdef uint32_t find(self, uint32_t consumer, uint32_t item) noexcept nogil
    cdef uint32_t add(self, Item *entry, uint32_t consumer, uint32_t item) except? 0xFFFFFFFF
    cdef void remove(self, Item *entry, uint32_t number) noexcept nogil
    cdef void release(self, uint32_t number) noexcept nogil
    cdef uint64_t slot_of(self, uint32_t consumer, uint32_t item) noexcept nogil
    cdef int allot(self, uint64_t slots) except -1
    cdef uint32_t fresh(self) except? 0xFFFFFFFF
    cdef void close_hole(self, uint64_t hole) noexcept nogil
