"""Application messages as they come out of a converter: rows over one piece of memory, ready to be packed."""

from libc.stdint cimport uint8_t, uint64_t

import numpy

from penstock.convert.kernel._directory cimport Directory
from penstock.convert.kernel._frame cimport Frame
from penstock.wire._codec cimport EXTENSION_HEADER_SIZE, MessageView

from penstock.wire import MESSAGE_DTYPE, decode_origin

cdef enum:
    PAYLOADS_ROOM = 65_536
    ROWS_ROOM = 256


cdef class Converted:
    """What PublishBatch takes: `topic_data`, `payloads` and `rows`.

    Each row's ORIGIN extension lies in `payloads` just before its record. It is good until the converter is called
    again: then the same memory is used for other messages.
    """

    def __cinit__(self, Directory directory not None):
        self._directory = directory
        self._payloads = numpy.empty(PAYLOADS_ROOM, numpy.uint8)
        self._rows = numpy.zeros(ROWS_ROOM, MESSAGE_DTYPE)
        self.payloads_room = PAYLOADS_ROOM
        self.rows_room = ROWS_ROOM

    @property
    def topic_data(self):
        """What topic_offset of a row counts from."""
        return self._directory.data

    @property
    def payloads(self):
        """What payload_offset and extensions_offset of a row count from."""
        return self._payloads[: self.payloads_size]

    @property
    def rows(self):
        """One row of MESSAGE_DTYPE per message."""
        return self._rows[: self.count]

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        """(topic, Origin, model id, record) of each message, to keep."""
        topics = bytes(self.topic_data)
        payloads = bytes(self.payloads)
        for row in self.rows.tolist():
            _, topic_at, payload_at, payload_size, origin_at, topic_size, origin_size, _, model_id, _, _ = row
            origin = decode_origin(payloads[origin_at + EXTENSION_HEADER_SIZE : origin_at + origin_size])
            topic = topics[topic_at : topic_at + topic_size].decode()
            yield topic, origin, model_id, payloads[payload_at : payload_at + payload_size]

    cdef int lend(self, Frame *frame) except -1:
        """From now on the frame's outputs come here, in place of what was here."""
        cdef uint8_t[::1] payloads = self._payloads
        cdef MessageView[::1] rows = self._rows
        frame.payloads = &payloads[0]
        frame.payloads_used = 0
        frame.rows = &rows[0]
        frame.row_count = 0
        self.count = 0
        self.payloads_size = 0
        return 0

    cdef int grow(self, Frame *frame, uint64_t payloads_more, uint64_t rows_more) except -1:
        """Whoever still reads the memory that there was keeps it."""
        cdef uint64_t used = frame.payloads_used
        cdef uint64_t count = frame.row_count
        payloads = numpy.empty(max(2 * self.payloads_room, used + payloads_more), numpy.uint8)
        payloads[:used] = self._payloads[:used]
        rows = numpy.zeros(max(2 * self.rows_room, count + rows_more), MESSAGE_DTYPE)
        rows[:count] = self._rows[:count]
        self._payloads = payloads
        self._rows = rows
        self.payloads_room = <uint64_t>len(payloads)
        self.rows_room = <uint64_t>len(rows)
        self.lend(frame)
        frame.payloads_used = used
        frame.row_count = count
        return 0

    cdef void take_back(self, const Frame *frame) noexcept nogil:
        self.count = frame.row_count
        self.payloads_size = frame.payloads_used
