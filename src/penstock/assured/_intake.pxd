"""What is published: a frame's messages, and how one of them is kept."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured._records cimport MessageHead
from penstock.assured._tables cimport Tables

# Log the message with the destinations in tables.destinations, give it its place and its entries, and put it into the
# cache; 0 if it has no destinations. `head` has everything but sizes and counts.
cdef uint32_t keep_message(
    Tables tables, MessageHead *head, const uint8_t *topic, const uint8_t *payload
) except? 0
