"""Positions of messages' parts in a buffer, for matching."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef class MessageParts:
    cdef readonly object data
    cdef readonly object topic_offsets
    cdef readonly object topic_sizes
    cdef readonly object payload_offsets
    cdef readonly object payload_sizes
    cdef readonly object model_ids
    cdef readonly object model_versions
    cdef const uint8_t[::1] view
    cdef uint32_t[::1] _topic_offsets
    cdef uint16_t[::1] _topic_sizes
    cdef uint32_t[::1] _payload_offsets
    cdef uint32_t[::1] _payload_sizes
    cdef uint16_t[::1] _model_ids
    cdef uint16_t[::1] _model_versions

    # Reserve for this number of messages.
    cdef int allot(self, uint32_t count) except -1
    # The payload follows the topic.
    cdef void place(
        self, uint32_t index, uint32_t topic_at, uint16_t topic_size, uint32_t payload_size, uint16_t model_id,
        uint16_t model_version,
    ) noexcept
