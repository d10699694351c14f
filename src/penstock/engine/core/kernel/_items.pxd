from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum ItemFlag:
    ITEM_USED = 1
    ITEM_NONCONFLATABLE = 2
    ITEM_RECORDED = 4  # the item has a current record
    ITEM_LOGGED = 8  # updates are logged even if no consumer gets them as critical
    ITEM_WITHDRAWN = 16  # the item's record was withdrawn
    ITEM_SOURCED = 32  # `feed`, `stream` and `session_tag` have the origin of its last record


cdef struct Item:
    uint8_t *topic
    uint8_t *record
    uint32_t *pairs  # the interest list: its pairs
    PyObject *spans  # the SpanStore of its model; NULL: the newest record is the result of conflation
    uint64_t version  # number of updates, counted by the plant
    uint64_t number  # of the last update
    uint64_t unlogged  # of the last update that is not in the log
    uint64_t born  # the engine's number when the item was added: earlier events of its number belong to another item
    int64_t started_ns  # of the last update
    uint32_t record_size
    uint32_t record_capacity
    uint32_t pair_count
    uint32_t pair_capacity
    uint32_t hash
    uint32_t rank  # index among the items of its model
    uint32_t merged  # updates that the last one represents, at the upstream node
    uint32_t kind  # kind for class selection, counted by the caller; 0: unknown
    uint16_t topic_size
    uint16_t model_id
    uint16_t model_version
    uint16_t feed  # the caller's number of the last record's feed
    uint32_t stream  # source stream of that feed
    uint16_t session_tag  # tag of the stream's session (wire/term.py); 0: none
    uint8_t flags
    uint32_t session_id  # combines feed, stream and tag (core/session_events.py), also at downstream nodes; 0: unknown


cdef uint32_t NONE


cdef class Items:
    cdef Item *items
    cdef readonly uint32_t count  # assigned numbers, including free ones
    cdef readonly uint32_t used
    cdef readonly uint32_t items_max
    cdef readonly uint64_t number  # number of the last update that the engine has taken
    cdef uint32_t _capacity
    cdef uint32_t *_slots  # open addressing; NONE: free
    cdef uint64_t _mask
    cdef uint64_t _seed
    cdef list _free
    cdef set _stores  # keeps the stores of the items' spans
    cdef dict _ranks  # by model: assigned ranks, and free ones

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
