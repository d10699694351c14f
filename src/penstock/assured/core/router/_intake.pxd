"""What is published: a frame's messages, and how one of them is kept."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._records cimport MessageHead
from penstock.assured.core.router._tables cimport Tables

# Log the message with the destinations in tables.destinations, give it its place and its entries, and put it into the
# cache; 0 if it has no destinations. `head` has everything but sizes and counts.
cdef uint32_t keep_message(
    Tables tables, MessageHead *head, const uint8_t *topic, const uint8_t *payload
) except? 0


# Who wants a message, and what else is known of it before it is accepted.
cdef struct Wanted:
    const uint32_t *subscribers     # by topic and content
    uint64_t count
    const uint32_t *endpoints       # by subscriber: whose it is
    bint is_entitled                # its publisher may publish it
    uint8_t by_topic                # the treatment that its topic asks for


# Take a message of a PUBLISH frame that was checked, and whose publisher is known: it is logged, or acknowledged at once by
# what stands in its way, which is returned; 0: nothing. In a group nothing is acknowledged.
cdef uint8_t accept_one(
    Tables tables, uint32_t handle, uint64_t number, const uint8_t *topic, const Wanted *wanted
) except 255

cpdef int stored(Tables tables, uint64_t through) except -1
cpdef int replicated(Tables tables, uint64_t through_id, uint8_t outcome) except -1
