"""The arrays of _parts.pxd."""

from libc.stdint cimport uint16_t, uint32_t

import numpy


cdef class MessageParts:
    """Checked messages: the positions of their parts in `data`, as arrays."""

    def __len__(self):
        return self._topic_offsets.shape[0]

    cdef int allot(self, uint32_t count) except -1:
        self.topic_offsets = self._topic_offsets = numpy.empty(count, numpy.uint32)
        self.topic_sizes = self._topic_sizes = numpy.empty(count, numpy.uint16)
        self.payload_offsets = self._payload_offsets = numpy.empty(count, numpy.uint32)
        self.payload_sizes = self._payload_sizes = numpy.empty(count, numpy.uint32)
        self.model_ids = self._model_ids = numpy.empty(count, numpy.uint16)
        self.model_versions = self._model_versions = numpy.empty(count, numpy.uint16)
        return 0

    cdef void place(
        self, uint32_t index, uint32_t topic_at, uint16_t topic_size, uint32_t payload_size, uint16_t model_id,
        uint16_t model_version,
    ) noexcept:
        self._topic_offsets[index] = topic_at
        self._topic_sizes[index] = topic_size
        self._payload_offsets[index] = topic_at + topic_size
        self._payload_sizes[index] = payload_size
        self._model_ids[index] = model_id
        self._model_versions[index] = model_version
