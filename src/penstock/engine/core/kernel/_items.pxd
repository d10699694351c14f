from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum ItemFlag:
    ITEM_USED = 1
    ITEM_NONCONFLATABLE = 2
    ITEM_RECORDED = 4       # it has a current record
    ITEM_LOGGED = 8         # its updates are kept even if nobody gets them as critical
    ITEM_WITHDRAWN = 16     # it had a record, which was withdrawn
    ITEM_SOURCED = 32       # `feed`, `stream` and `session_tag` say where its last record came from


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
    uint32_t merged         # updates that the last one stands for, at the node above
    uint32_t kind           # by which its class is chosen, as the caller counts; 0: it was not found out yet
    uint16_t topic_size
    uint16_t model_id
    uint16_t model_version
    uint16_t feed           # the caller's number of the feed that its last record came from
    uint32_t stream         # the source stream of that feed
    uint16_t session_tag    # the tag of the stream's session (wire/term.py); 0: none
    uint8_t flags
    uint32_t session_id     # of feed, stream and tag together (core/session_events.py), also at nodes below; 0: unknown


cdef uint32_t NONE


cdef class Items:
    cdef Item *items
    cdef readonly uint32_t count        # numbers given out, also those that are free again
    cdef readonly uint32_t used
    cdef readonly uint32_t items_max
    cdef readonly uint64_t number       # updates that the engine has taken: the number of the last one
    cdef uint32_t _capacity
    cdef uint32_t *_slots               # open addressing; NONE is free
    cdef uint64_t _mask
    cdef uint64_t _seed
    cdef list _free
    cdef set _stores                    # keeps what the items' spans are in
    cdef dict _ranks                    # by model: ranks given out so far, and those that are free again

    cdef inline uint64_t next_number(self) noexcept nogil:
        self.number += 1
        return self.number

    cdef uint32_t find(self, const uint8_t *topic, uint16_t size, uint16_t model_id) noexcept nogil
    cdef uint32_t hash_of(self, const uint8_t *topic, uint16_t size) noexcept nogil
    cdef int keep(self, Item *item, const uint8_t *record, uint32_t size) noexcept nogil
    cdef int allot(self, uint64_t slots) except -1
    cdef Item *item(self, uint32_t number) except NULL
    cdef uint32_t grown(self) except? 0xFFFFFFFF
    cdef void insert(self, uint32_t number) noexcept
