"""The newest packet on each topic that waits for a conflating link, in the order of their places.

A packet on a topic with a waiting packet replaces it, and goes to the end of the order: the sent packets of a stream
are
in order, whichever were omitted. Session events (`penstock.session`) are never replaced.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef struct Waiting:
    uint64_t hash
    uint64_t place
    uint32_t size
    uint32_t chain  # the next in the bucket, from 1; 0: none. In a free row: the next free one
    uint32_t before  # in the order, from 1
    uint32_t after


cdef struct Newest:
    Waiting *rows  # from 1
    uint32_t *buckets
    uint32_t capacity  # of rows and buckets: a power of two, or 0
    uint32_t used  # rows that have ever been used
    uint32_t free  # the first free one among them
    uint32_t first  # in the order
    uint32_t last
    uint32_t count
    uint64_t bytes


cdef struct Subject:  # the topic of a packet
    const uint8_t *topic
    uint16_t topic_size
    uint32_t stream
    uint64_t hash


# Drop all of them, and free the memory.
cdef void newest_free(Newest *newest) noexcept nogil

# 1: added; 2: replaced an older one; 0: no room among `count_max`, or no memory.
cdef int newest_put(
    Newest *newest, const uint8_t *history, uint64_t history_size, const Subject *subject, uint64_t place,
    uint32_t size, uint32_t count_max
) noexcept nogil

# Remove the first one.
cdef void newest_shift(Newest *newest) noexcept nogil

# Get the topic of this one-message packet.
cdef void subject_of(const uint8_t *packet, Subject *subject) noexcept nogil
