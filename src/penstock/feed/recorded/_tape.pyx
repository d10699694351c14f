"""Tapes: recorded source messages that can be read again from any entry on.

A tape stores the messages of a capture or a text for many readers; _tape.pxd has the layout, tape.py the entries other
than messages.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy

from penstock.convert.kernel._source cimport SourceBatch, SourceRow

from penstock.base.errors import LocalProtocolError, RemoteProtocolError

cdef enum:
    SIZE_SIZE = 2
    MESSAGE_SIZE_MAX = 0xFFFF
    BODY_SIZE_MAX = 1 << 30


cdef inline uint32_t big_u16(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 8 | at[1]


def encode_messages(SourceBatch batch not None) -> bytes:
    """Encode the batch as entries of a tape: one for each run of consecutive numbers with the same receive time."""
    cdef Py_ssize_t index, size = 0
    for index in range(batch.count):
        if batch.row[index].size > MESSAGE_SIZE_MAX:
            raise LocalProtocolError(f"the message has {batch.row[index].size} bytes, the limit is {MESSAGE_SIZE_MAX}")
        size += SIZE_SIZE + batch.row[index].size + (TAPE_HEADER_SIZE if is_first(batch, index) else 0)
    if size > BODY_SIZE_MAX:
        raise LocalProtocolError(f"the batch has {size} bytes, the limit is {BODY_SIZE_MAX}")
    data = PyBytes_FromStringAndSize(NULL, size)
    if size:
        write_entries(batch, <uint8_t *>PyBytes_AS_STRING(data))
    return data


cdef inline bint is_first(SourceBatch batch, Py_ssize_t index) noexcept nogil:
    """True if an entry begins with this message."""
    cdef const SourceRow *row = &batch.row[index]
    if index == 0:
        return True
    return row.receive_ns != (row - 1).receive_ns or row.sequence != (row - 1).sequence + 1


cdef void write_entries(SourceBatch batch, uint8_t *out) noexcept nogil:
    cdef uint8_t *head = out
    cdef const SourceRow *row
    cdef uint32_t size
    cdef Py_ssize_t index
    for index in range(batch.count):
        row = &batch.row[index]
        if is_first(batch, index):
            head = out
            memset(head, 0, TAPE_HEADER_SIZE)
            head[TAPE_KIND_AT] = TAPE_MESSAGES
            memcpy(head + TAPE_SEQUENCE_AT, &row.sequence, 8)
            memcpy(head + TAPE_NUMBER_AT, &row.receive_ns, 8)
            out += TAPE_HEADER_SIZE
        out[0] = <uint8_t>(row.size >> 8)
        out[1] = <uint8_t>row.size
        memcpy(out + SIZE_SIZE, batch.data + row.offset, row.size)
        out += SIZE_SIZE + row.size
        size = <uint32_t>(out - head - TAPE_HEADER_SIZE)
        memcpy(head + TAPE_SIZE_AT, &size, 4)


cdef class TapeRows:
    """The messages of a tape as rows of a reused SourceBatch."""

    cdef SourceBatch _batch
    cdef readonly Py_ssize_t end

    def __cinit__(self):
        self._batch = SourceBatch()

    def batch(self, data not None, Py_ssize_t start, Py_ssize_t size_max):
        """Return the messages from `start` on, up to the first other entry, or about `size_max` bytes; the next
        entry begins at `end`. Valid until the next call."""
        cdef SourceBatch batch = self._batch
        cdef Py_ssize_t at = start, body, limit = start + size_max
        cdef bint is_sound = True
        batch.point_at(data)
        cdef Py_ssize_t size = <Py_ssize_t>batch.data_size
        if not 0 <= start <= size:
            raise LocalProtocolError(f"offset {start} is outside a tape of {size} bytes")
        with nogil:
            while at < size and at < limit and is_sound:
                if size - at < TAPE_HEADER_SIZE:
                    is_sound = False
                    break
                if batch.data[at + TAPE_KIND_AT] != TAPE_MESSAGES:
                    break
                body = body_size(batch.data + at)
                if body > size - at - TAPE_HEADER_SIZE:
                    is_sound = False
                    break
                is_sound = add_blocks(batch, at, body)
                at += TAPE_HEADER_SIZE + body
        if not is_sound:
            raise RemoteProtocolError("an entry of the tape is damaged", where=f"offset {at}")
        self.end = at
        return batch


cdef inline Py_ssize_t body_size(const uint8_t *head) noexcept nogil:
    cdef uint32_t size
    memcpy(&size, head + TAPE_SIZE_AT, 4)
    return size


cdef bint add_blocks(SourceBatch batch, Py_ssize_t at, Py_ssize_t body) except -1 nogil:
    """Add rows for one entry. True if its blocks fill it exactly."""
    cdef const uint8_t *head = batch.data + at
    cdef uint64_t sequence
    cdef int64_t receive_ns
    cdef Py_ssize_t end, size
    memcpy(&sequence, head + TAPE_SEQUENCE_AT, 8)
    memcpy(&receive_ns, head + TAPE_NUMBER_AT, 8)
    at += TAPE_HEADER_SIZE
    end = at + body
    while at < end:
        if end - at < SIZE_SIZE:
            return False
        size = big_u16(batch.data + at)
        at += SIZE_SIZE
        if size > end - at:
            return False
        batch.append_row(sequence, receive_ns, at, size)
        sequence += 1
        at += size
    return True


def scan_blocks(const uint8_t[::1] data not None, Py_ssize_t start, Py_ssize_t until) -> tuple:
    """Scan complete messages with big-endian sizes before them, from `start` to the first that begins at `until` or
    later. Return its offset and the number of messages before it. The offset is below `until` only if the last
    message is incomplete."""
    cdef Py_ssize_t size = data.shape[0], at = start, count = 0, after
    cdef const uint8_t *place
    if not 0 <= start <= size:
        raise LocalProtocolError(f"offset {start} is outside {size} bytes")
    if size == 0:
        return 0, 0
    place = &data[0]
    with nogil:
        while at < until and at + SIZE_SIZE <= size:
            after = at + SIZE_SIZE + big_u16(place + at)
            if after > size:
                break
            count += 1
            at = after
    return at, count


def gather(SourceBatch batch not None) -> tuple:
    """Return (numbers, times, offsets, data) of the messages: `data` has their concatenated bytes, `offsets`, one
    more than messages, their limits."""
    cdef Py_ssize_t index, count = batch.count
    cdef uint64_t size = 0
    for index in range(count):
        size += batch.row[index].size
    if size > BODY_SIZE_MAX:
        raise LocalProtocolError(f"the batch has {size} bytes, the limit is {BODY_SIZE_MAX}")
    numbers, times = numpy.empty(count, numpy.uint64), numpy.empty(count, numpy.int64)
    offsets, data = numpy.zeros(count + 1, numpy.int32), numpy.empty(size, numpy.uint8)
    cdef uint64_t[::1] number = numbers
    cdef int64_t[::1] time = times
    cdef int32_t[::1] offset = offsets
    cdef uint8_t[::1] out = data
    cdef const SourceRow *row
    cdef int32_t at = 0
    with nogil:
        for index in range(count):
            row = &batch.row[index]
            number[index] = row.sequence
            time[index] = row.receive_ns
            if row.size:
                memcpy(&out[at], batch.data + row.offset, row.size)
            at += <int32_t>row.size
            offset[index + 1] = at
    return numbers, times, offsets, data
