"""Which endpoints and messages the other router of a pair has copies of, and what is held back for it."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._tables cimport MESSAGE_SENT, STATE_CONSUMED_THERE, Entry, Message, Tables

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

# The current target of a rejected message with this former dead-letter endpoint, which may be deleted by now.
cdef uint32_t target_now(Tables tables, uint32_t endpoint, uint32_t target) noexcept

# A message of a transaction is not delivered, nor is what its endpoints got after it, before the other router has it: a
# switch could undo the transaction. Until release_held() is told of it.
cdef int hold_back(Tables tables, uint32_t message) except -1
cdef int release_held(Tables tables, uint64_t through_id) except -1
cdef void forget_held(Tables tables) noexcept


# The other router has the message, or is about to have it, and is told what becomes of it; or it has not.
cdef inline void mark_sent(Message *message) noexcept:
    message.flags |= MESSAGE_SENT


cdef inline void mark_unsent(Message *message) noexcept:
    message.flags &= ~<uint8_t>MESSAGE_SENT


# The other router knows that a transaction has consumed this.
cdef inline void mark_consumed_there(Entry *entry) noexcept:
    entry.state = STATE_CONSUMED_THERE
