from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.topics._match cimport Batch, Output, Span
from penstock.topics._table cimport TableKernel
from penstock.wire._codec cimport MessageView


cdef class Matcher:
    cdef readonly object table
    cdef TableKernel kernel
    # input: the topics of all messages except those addressed to one application
    cdef uint32_t *offsets
    cdef uint16_t *sizes
    cdef Span *tags
    cdef uint64_t *tag_offsets
    cdef uint64_t count, tag_count
    cdef bint has_direct  # there are messages addressed to one application
    cdef uint64_t offsets_capacity, sizes_capacity, tags_capacity, tag_offsets_capacity, results_capacity
    cdef object _codes
    cdef object _code_offsets
    # output: topic i matches found.subscribers[results[i]] up to results[i + 1]
    cdef uint64_t *results
    cdef Output found

    # Match the topics of these messages at `data`; `view` is its Python view. Call without the GIL.
    cdef int match(self, const uint8_t *data, view, const MessageView *messages, uint64_t count) except -1 nogil
    cdef int gather(self, const uint8_t *data, const MessageView *messages, uint64_t count) noexcept nogil
    cdef int gather_tags(self, const uint8_t *tags, uint32_t size) noexcept nogil
    cdef int find_codes(self, view, Batch *batch) except -1
