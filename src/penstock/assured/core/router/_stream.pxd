"""What happens to messages that the other router has, or is to have, in the order in which it happens."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._tables cimport Tables

cdef enum:
    ITEM_MESSAGE = 1        # id; number and party are its publisher's (its handle), 0 if they are not known
    ITEM_REMOVED = 2        # id, which the endpoint `party` has no more; `number`: moved_to(), or 0
    ITEM_BEGIN = 3          # a transaction: id and number are its publisher's id and its own number
    ITEM_END = 4            # of it: number is its id, id that of its record in the journal, party its treatment
    ITEM_OWNER = 5          # id is a publisher's, number stands for its client

    ITEMS_MAX = 1 << 22     # beyond that the stream is given up, and begun anew when the other router keeps up again


cdef struct Item:
    uint64_t id
    uint64_t number
    uint32_t party
    uint32_t what


cdef void stream_push(Tables tables, uint64_t id, uint64_t number, uint32_t party, uint32_t what) noexcept

# Of what was given up: the endpoint that it went to, and why (above 32 bits).
cdef inline uint64_t moved_to(uint32_t target, uint8_t why) noexcept:
    return <uint64_t>why << 32 | target

# What stands for an endpoint; the sum over all that want a message is sent instead of them, so that the other router sees
# whether it found the same.
cdef inline uint32_t endpoint_mark(uint32_t number) noexcept:
    cdef uint64_t mixed = (number + 1) * <uint64_t>0x9E3779B97F4A7C15
    return <uint32_t>((mixed ^ mixed >> 29) * <uint64_t>0xBF58476D1CE4E5B9 >> 32)


# Whether the other router gets the messages of this endpoint.
cdef bint is_mirrored(Tables tables, uint32_t endpoint) noexcept

# Whether some endpoint has the message of this id that the other router has not got.
cdef bint is_at_absent(Tables tables, uint64_t id) noexcept

# The endpoint under which the other router has, or is to have, this entry, mostly its own; 0: it has not, as the endpoint
# is not mirrored, or it was consumed there.
cdef uint32_t copied_to(Tables tables, uint32_t entry) noexcept

# Where an endpoint's message goes that was rejected when this was its dead-message queue; that may be gone by now.
cdef uint32_t target_now(Tables tables, uint32_t endpoint, uint32_t target) noexcept

# A message of a transaction is not delivered, nor is what its endpoints got after it, before the other router has it: a
# switch could undo the transaction. Until release_held() is told of it.
cdef int hold_back(Tables tables, uint32_t message) except -1
cdef int release_held(Tables tables, uint64_t through_id) except -1
cdef void forget_held(Tables tables) noexcept
