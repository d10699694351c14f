"""A table of the newest packet on each topic, with their order."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memset

from penstock.wire._codec cimport (
    MESSAGE_EXTENSIONS_SIZE_AT,
    MESSAGE_HEADER_SIZE,
    MESSAGE_TOPIC_SIZE_AT,
    PACKET_EXTENSIONS_SIZE_AT,
    PACKET_GROUP_AT,
    PACKET_HEADER_SIZE,
    load_u16,
    load_u32,
)

from penstock.middleware.core.reserved_topics import SESSION_TOPIC

cdef enum:
    CAPACITY_MIN = 64

cdef bytes _session_topic = SESSION_TOPIC.encode()
cdef const char *session_topic = _session_topic
cdef uint16_t session_topic_size = len(_session_topic)

cdef uint64_t FNV_OFFSET = 0xCBF29CE484222325U
cdef uint64_t FNV_PRIME = 0x100000001B3U


cdef void subject_of(const uint8_t *packet, Subject *subject) noexcept nogil:
    cdef const uint8_t *message = packet + PACKET_HEADER_SIZE + load_u16(packet + PACKET_EXTENSIONS_SIZE_AT)
    cdef uint16_t at
    subject.stream = load_u32(packet + PACKET_GROUP_AT)
    subject.topic_size = load_u16(message + MESSAGE_TOPIC_SIZE_AT)
    subject.topic = message + MESSAGE_HEADER_SIZE + load_u16(message + MESSAGE_EXTENSIONS_SIZE_AT)
    subject.hash = FNV_OFFSET ^ subject.stream
    for at in range(subject.topic_size):
        subject.hash = (subject.hash ^ subject.topic[at]) * FNV_PRIME


cdef bint is_about(const uint8_t *packet, const Subject *subject) noexcept nogil:
    cdef Subject other
    subject_of(packet, &other)
    return (
        other.stream == subject.stream
        and other.topic_size == subject.topic_size
        and memcmp(other.topic, subject.topic, subject.topic_size) == 0
    )


cdef bint is_session(const Subject *subject) noexcept nogil:
    """True for session events. The events of all source streams have one topic, so none may replace another."""
    return subject.topic_size == session_topic_size and memcmp(subject.topic, session_topic, session_topic_size) == 0


cdef int newest_put(
    Newest *newest, const uint8_t *history, uint64_t history_size, const Subject *subject, uint64_t place,
    uint32_t size, uint32_t count_max
) noexcept nogil:
    cdef uint32_t at = 0
    cdef Waiting *row
    if newest.capacity and not is_session(subject):
        at = newest.buckets[subject.hash & (newest.capacity - 1)]
    while at:
        row = &newest.rows[at]
        if row.hash == subject.hash and is_about(history + row.place % history_size, subject):
            unlink(newest, at)
            newest.bytes += size - <uint64_t>row.size
            row.place = place
            row.size = size
            append(newest, at)
            return 2
        at = row.chain
    if newest.count >= count_max:
        return 0
    at = new_row(newest)
    if at == 0:
        return 0
    row = &newest.rows[at]
    row.hash = subject.hash
    row.place = place
    row.size = size
    chain(newest, at)
    append(newest, at)
    newest.count += 1
    newest.bytes += size
    return 1


cdef void newest_shift(Newest *newest) noexcept nogil:
    cdef uint32_t at = newest.first
    cdef Waiting *row = &newest.rows[at]
    cdef uint32_t *link = &newest.buckets[row.hash & (newest.capacity - 1)]
    while link[0] != at:
        link = &newest.rows[link[0]].chain
    link[0] = row.chain
    unlink(newest, at)
    newest.count -= 1
    newest.bytes -= row.size
    row.chain = newest.free
    newest.free = at
    if newest.count == 0 and newest.capacity > CAPACITY_MIN:
        newest_free(newest)


cdef void newest_free(Newest *newest) noexcept nogil:
    free(newest.rows)
    free(newest.buckets)
    memset(newest, 0, sizeof(Newest))


cdef uint32_t new_row(Newest *newest) noexcept nogil:
    """Return a row; 0 without memory."""
    cdef uint32_t at = newest.free
    if at:
        newest.free = newest.rows[at].chain
        return at
    if newest.used + 1 >= newest.capacity and not grow(newest):
        return 0
    newest.used += 1
    return newest.used


cdef bint grow(Newest *newest) noexcept nogil:
    cdef uint32_t capacity = max(2 * newest.capacity, <uint32_t>CAPACITY_MIN), at
    cdef uint32_t *buckets
    cdef Waiting *rows = <Waiting *>realloc(newest.rows, capacity * sizeof(Waiting))
    if rows is NULL:
        return False
    newest.rows = rows
    buckets = <uint32_t *>calloc(capacity, sizeof(uint32_t))
    if buckets is NULL:
        return False
    free(newest.buckets)
    newest.buckets = buckets
    newest.capacity = capacity
    at = newest.first
    while at:
        chain(newest, at)
        at = rows[at].after
    return True


cdef inline void chain(Newest *newest, uint32_t at) noexcept nogil:
    cdef uint32_t *bucket = &newest.buckets[newest.rows[at].hash & (newest.capacity - 1)]
    newest.rows[at].chain = bucket[0]
    bucket[0] = at


cdef inline void append(Newest *newest, uint32_t at) noexcept nogil:
    newest.rows[at].before = newest.last
    newest.rows[at].after = 0
    if newest.last:
        newest.rows[newest.last].after = at
    else:
        newest.first = at
    newest.last = at


cdef inline void unlink(Newest *newest, uint32_t at) noexcept nogil:
    cdef Waiting *row = &newest.rows[at]
    if row.before:
        newest.rows[row.before].after = row.after
    else:
        newest.first = row.after
    if row.after:
        newest.rows[row.after].before = row.before
    else:
        newest.last = row.before
