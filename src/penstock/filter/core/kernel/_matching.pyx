"""Matcher: matches all topics and tags of many packets at once, through the interest table's kernel."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

import numpy

from penstock.filter.core.kernel._account cimport grow
from penstock.topics._match cimport Batch, Span, match_batch
from penstock.wire._codec cimport EXTENSION_TAGS, MESSAGE_DIRECT, MessageView
from penstock.wire._extensions cimport find_extension


cdef class Matcher:
    """Working memory of one thread that matches; another thread may change the table meanwhile."""

    def __cinit__(self, table not None):
        self.table = table
        self.kernel = table.kernel

    def __dealloc__(self):
        free(self.offsets)
        free(self.sizes)
        free(self.tags)
        free(self.tag_offsets)
        free(self.results)
        free(self.found.subscribers)

    cdef int match(self, const uint8_t *data, view, const MessageView *messages, uint64_t count) except -1 nogil:
        cdef Batch batch
        memset(&batch, 0, sizeof(Batch))
        if self.gather(data, messages, count):
            with gil:
                raise MemoryError
        batch.data = data
        batch.offsets = self.offsets
        batch.sizes = self.sizes
        batch.count = self.count
        if self.tag_count:
            batch.tags = self.tags
            batch.tag_offsets = self.tag_offsets
        if self.kernel.regex_count and self.count:
            with gil:
                self.find_codes(view, &batch)
        self.found.count = 0
        if match_batch(self.kernel.store, self.kernel.scratch, &batch, self.results, &self.found):
            with gil:
                raise MemoryError
        return 0

    cdef int gather(self, const uint8_t *data, const MessageView *messages, uint64_t count) noexcept nogil:
        """Return 0, or -1 without memory."""
        cdef const MessageView *message
        cdef const uint8_t *tags
        cdef uint16_t size
        cdef uint64_t index, topic = 0
        self.tag_count = 0
        if (
            grow(<void **>&self.offsets, &self.offsets_capacity, count + 1, sizeof(uint32_t))
            or grow(<void **>&self.sizes, &self.sizes_capacity, count + 1, sizeof(uint16_t))
            or grow(<void **>&self.results, &self.results_capacity, count + 1, sizeof(uint64_t))
            or grow(<void **>&self.tag_offsets, &self.tag_offsets_capacity, count + 1, sizeof(uint64_t))
        ):
            return -1
        for index in range(count):
            message = messages + index
            if message.flags & MESSAGE_DIRECT:
                continue
            self.offsets[topic] = message.topic_offset
            self.sizes[topic] = message.topic_size
            self.tag_offsets[topic] = self.tag_count
            topic += 1
            if message.extensions_size:
                tags = find_extension(
                    data + message.extensions_offset, message.extensions_size, EXTENSION_TAGS, &size
                )
                if tags is not NULL and self.gather_tags(tags, size):
                    return -1
        self.tag_offsets[topic] = self.tag_count
        self.count = topic
        self.has_direct = topic != count
        return 0

    cdef int gather_tags(self, const uint8_t *tags, uint32_t size) noexcept nogil:
        """Collect tags, which are separated by NULs."""
        cdef uint32_t start = 0, end
        while start < size:
            end = start
            while end < size and tags[end] != 0:
                end += 1
            if grow(<void **>&self.tags, &self.tags_capacity, self.tag_count + 1, sizeof(Span)):
                return -1
            self.tags[self.tag_count].data = tags + start
            self.tags[self.tag_count].size = end - start
            self.tag_count += 1
            start = end + 1
        return 0

    cdef int find_codes(self, view, Batch *batch) except -1:
        """Call the table's Python part, which has the regular expressions."""
        cdef const uint64_t[::1] code_offsets
        cdef const uint32_t[::1] codes
        self._code_offsets, self._codes = self.table.regex_codes(
            view, numpy.asarray(<uint32_t[:self.count]>self.offsets), numpy.asarray(<uint16_t[:self.count]>self.sizes)
        )
        code_offsets, codes = self._code_offsets, self._codes
        if codes.shape[0]:
            batch.code_offsets = &code_offsets[0]
            batch.codes = &codes[0]
        return 0
