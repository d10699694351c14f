"""What an active router keeps for the other router of its pair: the stream of what happens, acknowledgements that wait for
the other router, and transactions that may be at one of the two only.

The stream has an item for each thing that happened to messages that the other router has, or is to have, in that order.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._containers cimport Bytes, Queue, Waiting

cdef enum:
    ITEM_MESSAGE = 1        # id; number and party are its publisher's (its handle), 0 if they are not known
    ITEM_REMOVED = 2        # id, which the endpoint `party` has no more; `number`: moved_to(), or 0
    ITEM_BEGIN = 3          # a transaction: id and number are its publisher's id and its own number
    ITEM_END = 4            # of it: number is its id, id that of its record in the journal, party its treatment
    ITEM_OWNER = 5          # id is a publisher's, number stands for its client

    ITEMS_MAX = 1 << 22     # a longer stream is broken, and begun anew when the other router keeps up again


cdef struct Item:
    uint64_t id
    uint64_t number
    uint32_t party
    uint32_t what


# Of a message that was given up: the endpoint that it went to, and why (above 32 bits).
cdef inline uint64_t moved_to(uint32_t target, uint8_t why) noexcept:
    return <uint64_t>why << 32 | target


cdef class ReplicationState:
    cdef Bytes _stream                          # Item after Item
    cdef uint64_t _stream_first                 # where what is not sent yet begins
    cdef Queue _unreplicated                    # on the disk, waiting for the secondary
    cdef readonly bint has_secondary            # messages go to another router, too
    cdef readonly bint is_streaming
    cdef readonly bint is_stream_broken         # it grew too long: it must be begun anew
    cdef readonly bint is_stream_awaited        # somebody waits for something in it
    cdef readonly uint64_t match_from           # from this id on, the other router matches messages itself; 0: never
    cdef readonly uint32_t absent_count         # endpoints that the other router has not got
    cdef readonly bint waits_for_absent         # synchronous messages wait until the other router has all their endpoints
    cdef readonly bint has_met_absent           # something that such endpoints have was to be synchronous
    cdef readonly list consumed     # (transaction's id, endpoint, ids, what was said, targets): see _groups.pyx
    cdef readonly list undone       # (first id, last id) of what a successor never had: see _receiving.undo

    # The stream; positions are bytes, and good until the next push
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

    # Endpoints that the other router has not got
    cdef void set_absent_count(self, uint32_t count) noexcept
    cpdef void note_absent_met(self) noexcept

    # Transactions
    cdef int forget_consumed(self, uint32_t endpoint, uint64_t id) except -1
