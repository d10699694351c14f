"""Published messages: checking a frame's messages and storing them."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._records cimport MessageHead
from penstock.assured.core.router._tables cimport Tables

# Log the message with the destinations in tables.destinations, assign its place and entries, and put it into the cache;
# 0 if it has no destinations. `head` is complete except for sizes and counts.
cdef uint32_t keep_message(
    Tables tables, MessageHead *head, const uint8_t *topic, const uint8_t *payload
) except? 0


# The matches of a message, and other facts that are known before it is accepted.
cdef struct Wanted:
    const uint32_t *subscribers  # by topic and content
    uint64_t count
    const uint32_t *endpoints  # by subscriber: its endpoint
    bint is_entitled  # its publisher may publish it
    uint8_t by_topic  # the treatment of its topic


# Accept a message of a checked PUBLISH frame with a known publisher: log it, or acknowledge it at once with the
# obstacle, which is returned; 0: none. In a group nothing is acknowledged.
cdef uint8_t accept_one(
    Tables tables, uint32_t handle, uint64_t number, const uint8_t *topic, const Wanted *wanted
) except 255

cpdef int stored(Tables tables, uint64_t through) except -1
cpdef int replicated(Tables tables, uint64_t through_id, uint8_t outcome) except -1
