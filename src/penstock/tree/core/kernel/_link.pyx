"""Links, as functions on a struct."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from penstock.tree.core.kernel._frame cimport FRAME_LENGTH_SIZE, FRAME_SIZE_MAX
from penstock.tree.core.kernel._queue cimport queue_free
from penstock.wire._codec cimport load_u32


cdef void free_link(Link *link) noexcept nogil:
    queue_free(&link.queue)
    free(link.left)
    free(link.partial)
    memset(link, 0, sizeof(Link))


cdef uint32_t without(uint32_t *slots, uint32_t count, uint32_t slot) noexcept nogil:
    cdef uint32_t position, kept = 0
    for position in range(count):
        if slots[position] != slot:
            slots[kept] = slots[position]
            kept += 1
    return kept


cdef uint64_t missing_size(const Link *link) noexcept nogil:
    cdef uint64_t length
    if link.partial_size < FRAME_LENGTH_SIZE:
        return FRAME_LENGTH_SIZE - link.partial_size
    length = load_u32(link.partial)
    if length == 0 or length > FRAME_SIZE_MAX - FRAME_LENGTH_SIZE:
        return 0
    return FRAME_LENGTH_SIZE + length - link.partial_size


cdef bint keep_partial(Link *link, const uint8_t *data, uint64_t size) noexcept nogil:
    cdef uint64_t capacity
    cdef void *bigger
    if link.partial_size + size > link.partial_capacity:
        capacity = max(link.partial_size + size, 2 * link.partial_capacity)
        bigger = realloc(link.partial, capacity)
        if bigger is NULL:
            return False
        link.partial = <uint8_t *>bigger
        link.partial_capacity = capacity
    memcpy(link.partial + link.partial_size, data, size)
    link.partial_size += size
    return True
