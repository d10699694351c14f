"""Endpoints and messages of which the other router of a pair has copies, and messages that are held back for it."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._tables cimport MESSAGE_SENT, STATE_CONSUMED_THERE, Entry, Message, Tables

# A hash of an endpoint. The sum over all matching endpoints is sent instead of their numbers, so that the other router
# can compare its own matches.
cdef inline uint32_t endpoint_mark(uint32_t number) noexcept:
    cdef uint64_t mixed = (number + 1) * <uint64_t>0x9E3779B97F4A7C15
    return <uint32_t>((mixed ^ mixed >> 29) * <uint64_t>0xBF58476D1CE4E5B9 >> 32)


# True if the other router gets the messages of this endpoint.
cdef bint is_mirrored(Tables tables, uint32_t endpoint) noexcept

# True if some endpoint has the message of this id and the other router does not have that endpoint.
cdef bint is_at_absent(Tables tables, uint64_t id) noexcept

# The endpoint under which the other router has, or will have, this entry, usually its own; 0: none, because the
# endpoint is not mirrored or the message was consumed there.
cdef uint32_t copied_to(Tables tables, uint32_t entry) noexcept

# The current target of a rejected message with this former dead-letter endpoint, which may be deleted by now.
cdef uint32_t target_now(Tables tables, uint32_t endpoint, uint32_t target) noexcept

# Hold back a message of a transaction, and all later messages of its endpoints, until the other router has it, because
# a switch could undo the transaction. release_held() ends this.
cdef int hold_back(Tables tables, uint32_t message) except -1
cdef int release_held(Tables tables, uint64_t through_id) except -1
cdef void forget_held(Tables tables) noexcept


# The other router has or will have the message, and is sent its changes; or it does not have the message.
cdef inline void mark_sent(Message *message) noexcept:
    message.flags |= MESSAGE_SENT


cdef inline void mark_unsent(Message *message) noexcept:
    message.flags &= ~<uint8_t>MESSAGE_SENT


# The other router knows that a transaction has consumed this entry.
cdef inline void mark_consumed_there(Entry *entry) noexcept:
    entry.state = STATE_CONSUMED_THERE
