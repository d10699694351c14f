"""The compiled interest table for Python; table.py is the public interface, _store and _match the implementation."""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

import numpy

from penstock.base.errors import LocalProtocolError
from penstock.topics._match cimport *
from penstock.topics._store cimport *

cdef enum:
    KEY_SIZE_MAX = 4096


cdef class TableKernel:
    """Interests as nodes and codes, in compiled form.

    A code is a subscriber (at most SUBSCRIBER_MAX), with the bit NEGATIVE for a negative interest. A path is a list of
    (NodeKind, key) steps. Arguments are expected to come from parsed interests; sizes are checked nevertheless.
    """

    def __cinit__(self, bytes seed not None):
        if len(seed) != 16:
            raise ValueError("a table's seed must have 16 bytes")
        cdef const uint8_t *data = seed
        self.scratch = <Scratch *>malloc(sizeof(Scratch))
        if self.scratch is NULL:
            raise MemoryError
        memset(self.scratch, 0, sizeof(Scratch))
        self.store = store_open(load_u64(data), load_u64(data + 8))

    def __dealloc__(self):
        if self.store is not NULL:
            store_close(self.store)
        if self.scratch is not NULL:
            free(self.scratch.items)
            free(self.scratch.items_next)
            free(self.scratch.probes)
            free(self.scratch.hits)
            free(self.scratch)

    @property
    def interest_count(self):
        return self.store.interest_count

    @property
    def memory_bytes(self):
        cdef const Scratch *scratch = self.scratch
        return (
            store_size(self.store) + sizeof(Scratch) + scratch.probes_capacity * sizeof(Probe)
            + (scratch.items_capacity + scratch.items_next_capacity) * sizeof(Item)
            + scratch.hits_capacity * sizeof(Hit)
        )

    @property
    def node_count(self):
        """Number of nodes in use, including the root."""
        return self.store.node_count_made - self.store.node_count_free

    @property
    def lookup_count(self):
        """Number of nodes reached and children looked up in all matches: the cost of matching."""
        return self.scratch.lookup_count

    @property
    def malformed_count(self):
        """Number of malformed topics so far, which matched nothing."""
        return self.scratch.malformed_count

    def reserve_subscriber(self, uint32_t code):
        """Allow this subscriber's code among the `codes` of a match."""
        subscriber_reserve(self.store, code & ~<uint32_t>NEGATIVE)

    # Adding and removing

    def add_key(self, uint8_t kind, bytes key not None, uint32_t code):
        """Add a code to an exact topic, a tag or the text of a ranged pattern; return whether it is new."""
        return self.add_path([(kind, key)], code)

    def remove_key(self, uint8_t kind, bytes key not None, uint32_t code):
        return self.remove_path([(kind, key)], code)

    def add_path(self, list path not None, uint32_t code):
        """Add a code at the end of the path; return whether it is new."""
        cdef uint32_t node = ROOT
        try:
            for kind, key in path:
                check_step(node_at(self.store, node), kind, key)
                node = child_make(self.store, node, kind, <const uint8_t *><const char *>key, len(key))
            return bool(code_add(self.store, node, code))
        except BaseException:
            node_release(self.store, node)
            raise

    def remove_path(self, list path not None, uint32_t code):
        """Remove a code; return whether it existed."""
        cdef uint32_t node = ROOT
        for kind, key in path:
            check_step(node_at(self.store, node), kind, key)
            node = child_get(self.store, node, kind, <const uint8_t *><const char *>key, len(key))
            if node == ROOT:
                return False
        cdef bint was_there = code_remove(self.store, node, code)
        node_release(self.store, node)
        return was_there

    def add_topics(self, list texts not None, const uint32_t[::1] codes not None, size_t start, uint64_t interests_max):
        """Add texts that are plain ASCII topics, from `start` up to the first other text or the limit.

        Return the position where it stopped and the number of new codes.
        """
        cdef uint8_t ends[DEPTH_MAX]
        cdef const char *data
        cdef Py_ssize_t size
        cdef uint32_t node
        cdef size_t position = start
        cdef size_t added = 0
        cdef size_t count = min(<size_t>len(texts), <size_t>codes.shape[0])
        while position < count and self.store.interest_count < interests_max:
            text = texts[position]
            if not isinstance(text, str) or not text.isascii():
                break
            data = PyUnicode_AsUTF8AndSize(text, &size)
            if not topic_scan(<const uint8_t *>data, size, ends):
                break
            node = child_make(self.store, ROOT, NODE_TOPIC, <const uint8_t *>data, size)
            try:
                added += code_add(self.store, node, codes[position])
            except BaseException:
                node_release(self.store, node)
                raise
            position += 1
        return position, added

    def remove_subscriber(self, uint32_t subscriber):
        """Remove a subscriber's codes, except those of ranged patterns, which are returned as (canonical text, is
        negative).
        """
        return subscriber_remove(self.store, subscriber)

    # Matching

    def match(self, bytes topic not None, list tags not None, const uint32_t[::1] codes = None):
        """Return the subscribers of one topic as an array; `codes` found by regular expressions are included."""
        cdef Batch batch
        cdef Output output
        cdef uint32_t offset = 0
        cdef uint16_t size = <uint16_t>min(len(topic), <Py_ssize_t>SIZE_MAX + 1)
        cdef uint64_t[2] tag_offsets = [0, 0], code_offsets = [0, 0], result_offsets
        cdef Span *tag_spans = <Span *>malloc(max(1, len(tags)) * sizeof(Span))
        cdef int status
        if tag_spans is NULL:
            raise MemoryError
        memset(&batch, 0, sizeof(Batch))
        memset(&output, 0, sizeof(Output))
        batch.data, batch.offsets, batch.sizes, batch.count = topic, &offset, &size, 1
        batch.tags, batch.tag_offsets = tag_spans, tag_offsets
        try:
            for tag in tags:
                tag_spans[tag_offsets[1]].data = <const uint8_t *><const char *>tag
                tag_spans[tag_offsets[1]].size = len(tag)
                tag_offsets[1] += 1
            if codes is not None and codes.shape[0]:
                self.check_codes(codes)
                code_offsets[1] = codes.shape[0]
                batch.codes, batch.code_offsets = &codes[0], code_offsets
            with nogil:
                status = match_batch(self.store, self.scratch, &batch, result_offsets, &output)
            if status:
                raise MemoryError
            return as_array(&output)
        finally:
            free(tag_spans)
            free(output.subscribers)

    def match_batch(
        self,
        const uint8_t[::1] data not None,
        const uint32_t[::1] offsets not None,
        const uint16_t[::1] sizes not None,
        const uint64_t[::1] code_offsets = None,
        const uint32_t[::1] codes = None,
    ):
        """Return (result offsets, subscribers) for topics that are ranges of `data`; codes[code_offsets[i]:] are added
        to topic i.
        """
        cdef size_t count = offsets.shape[0]
        cdef Output output
        cdef Batch batch
        cdef int status
        if <size_t>sizes.shape[0] != count:
            raise LocalProtocolError(f"a batch has {count} offsets and {sizes.shape[0]} sizes")
        results = numpy.zeros(count + 1, dtype=numpy.uint64)
        cdef uint64_t[::1] result_offsets = results
        memset(&output, 0, sizeof(Output))
        memset(&batch, 0, sizeof(Batch))
        if count == 0:
            return results, as_array(&output)
        batch.data = &data[0] if data.shape[0] else NULL
        batch.offsets = &offsets[0]
        batch.sizes = &sizes[0]
        batch.count = count
        check_ranges(offsets, sizes, data.shape[0])
        if codes is not None and codes.shape[0]:
            self.check_codes(codes)
            check_code_offsets(code_offsets, count, codes.shape[0])
            batch.codes = &codes[0]
            batch.code_offsets = &code_offsets[0]
        try:
            with nogil:
                status = match_batch(self.store, self.scratch, &batch, &result_offsets[0], &output)
            if status:
                raise MemoryError
            return results, as_array(&output)
        finally:
            free(output.subscribers)

    cdef int check_codes(self, const uint32_t[::1] codes) except -1:
        for index in range(codes.shape[0]):
            if (codes[index] & ~<uint32_t>NEGATIVE) >= self.store.subscriber_capacity:
                raise LocalProtocolError(f"subscriber {codes[index] & ~<uint32_t>NEGATIVE} has not been reserved")
        return 0


cdef int check_step(const Node *parent, uint8_t kind, bytes key) except -1:
    cdef size_t size = len(key)
    cdef bint is_whole = kind == NODE_TOPIC or kind == NODE_TAG or kind == NODE_RANGED
    if is_whole:
        if parent.kind == NODE_ROOT and 0 < size <= KEY_SIZE_MAX:
            return 0
    elif is_step(parent.kind) and parent.kind != NODE_REST:
        if kind == NODE_LITERAL and 0 < size <= SIZE_MAX or kind == NODE_PREFIX and 0 < size <= LENGTH_MAX:
            return 0
        if kind == NODE_BLOCK and size == BLOCK_KEY_SIZE and key[0] < 64:
            return 0
        if (kind == NODE_STAR or kind == NODE_REST) and size == 0:
            return 0
    raise LocalProtocolError(f"invalid interest step: kind {kind} with a key of {size} bytes below kind {parent.kind}")


cdef int check_ranges(const uint32_t[::1] offsets, const uint16_t[::1] sizes, size_t data_size) except -1:
    cdef size_t index
    for index in range(<size_t>offsets.shape[0]):
        if <uint64_t>offsets[index] + sizes[index] > data_size:
            raise LocalProtocolError(
                f"topic {index} of the batch ends at byte {<uint64_t>offsets[index] + sizes[index]} of {data_size}"
            )
    return 0


cdef int check_code_offsets(const uint64_t[::1] code_offsets, size_t count, size_t code_count) except -1:
    cdef size_t index
    if code_offsets is None or <size_t>code_offsets.shape[0] != count + 1 or code_offsets[count] > code_count:
        raise LocalProtocolError(f"a batch of {count} topics needs {count + 1} code offsets up to {code_count}")
    for index in range(count):
        if code_offsets[index] > code_offsets[index + 1]:
            raise LocalProtocolError(f"the code offsets of a batch decrease at topic {index}")
    return 0


cdef object as_array(const Output *output):
    array = numpy.empty(output.count, dtype=numpy.uint32)
    cdef uint32_t[::1] view = array
    if output.count:
        memcpy(&view[0], output.subscribers, output.count * sizeof(uint32_t))
    return array
