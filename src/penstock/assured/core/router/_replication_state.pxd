"""The state that an active router keeps for the standby: the stream of events, acknowledgements that wait for the
standby, and transactions that may be at only one of the two.

The stream has an item for each event of a message that the standby has, or will get, in order.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._containers cimport Bytes, Queue, Waiting

cdef enum:
    ITEM_MESSAGE = 1        # id; number and party are its publisher's (its handle), 0 if they are not known
    ITEM_REMOVED = 2  # id, which the endpoint `party` no longer has; `number`: moved_to(), or 0
    ITEM_BEGIN = 3          # a transaction: id and number are its publisher's id and its own number
    ITEM_END = 4  # its end: number is its id, id that of its journal record, party its treatment
    ITEM_OWNER = 5          # id is a publisher's, number stands for its client

    ITEMS_MAX = 1 << 22  # a longer stream is broken, and begun anew when the standby keeps up again


cdef struct Item:
    uint64_t id
    uint64_t number
    uint32_t party
    uint32_t what


# For a moved message: the target endpoint, and the reason (above 32 bits).
cdef inline uint64_t moved_to(uint32_t target, uint8_t why) noexcept:
    return <uint64_t>why << 32 | target


cdef class ReplicationState:
    cdef Bytes _stream                          # Item after Item
    cdef uint64_t _stream_first  # begin of the unsent part
    cdef Queue _unreplicated  # on the disk, waiting for the standby
    cdef readonly bint has_secondary  # messages go to a standby, too
    cdef readonly bint is_streaming
    cdef readonly bint is_stream_broken  # it grew too long: it must be begun anew
    cdef readonly bint is_stream_awaited  # a publisher waits for an item
    cdef readonly uint64_t match_from  # from this id on, the standby matches messages itself; 0: never
    cdef readonly uint32_t absent_count  # number of endpoints that the standby lacks
    cdef readonly bint waits_for_absent  # synchronous messages wait until the standby has all their endpoints
    cdef readonly bint has_met_absent  # a message of such endpoints should have been synchronous
    cdef readonly list consumed  # (transaction's id, endpoint, ids, settlements, targets): see _groups.pyx
    cdef readonly list undone  # (first id, last id) of messages that a successor never had: see _receiving.undo

    # The stream; positions are bytes, valid until the next push
    cdef void push(self, uint64_t id, uint64_t number, uint32_t party, uint32_t what) noexcept
    cdef int push_front(self, const uint64_t *ids, uint64_t count) except -1
    cdef void undo_transaction(self) noexcept
    cdef void note_awaited(self) noexcept
    cdef void begin_stream(self) noexcept
    cdef uint64_t first(self) noexcept
    cdef uint64_t end(self) noexcept
    cdef const Item *item_at(self, uint64_t position) noexcept
    cdef void advance(self, uint64_t position) noexcept

    # Acknowledgements
    cdef int await_copy(self, const Waiting *waiting) except -1
    cdef uint64_t unreplicated_end(self) noexcept
    cdef bint take_unreplicated(self, uint64_t end, uint64_t through_id, Waiting *taken) noexcept
    cdef void forget_publisher(self, uint32_t handle) noexcept
    cdef void forget_unreplicated(self) noexcept

    # Endpoints that the standby lacks
    cdef void set_absent_count(self, uint32_t count) noexcept
    cpdef void note_absent_met(self) noexcept

    # Transactions
    cdef int forget_consumed(self, uint32_t endpoint, uint64_t id) except -1
