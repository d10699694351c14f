"""Splits datagrams and files into source messages, without copying."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.convert.kernel._source cimport SourceBatch

from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError, PacketError

cdef uint64_t SEQUENCE_MAX = (<uint64_t>1 << 63) - 1

CAUSES = {TRUNCATED: Cause.TRUNCATED, LENGTH: Cause.LENGTH, FOREIGN: Cause.FOREIGN, VERSION: Cause.VERSION}
WORDS = {
    TRUNCATED: "it ends before its last message",
    LENGTH: "its sizes are contradictory",
    FOREIGN: "it has another format",
    VERSION: "it has another version",
}


cdef inline uint64_t big_u64(const uint8_t *at) noexcept nogil:
    cdef uint64_t value = 0
    cdef int index
    for index in range(8):
        value = value << 8 | at[index]
    return value


cdef inline uint64_t little_u64(const uint8_t *at) noexcept nogil:
    cdef uint64_t value = 0
    cdef int index
    for index in range(8):
        value |= <uint64_t>at[index] << (8 * index)
    return value


cdef Fault walk(int kind, const uint8_t *data, Py_ssize_t size, const Segment *segment) noexcept nogil:
    """True if the messages fill the datagram exactly."""
    cdef Py_ssize_t at = segment.offset
    cdef uint32_t index
    for index in range(segment.count):
        if at + SIZE_SIZE > size:
            return TRUNCATED
        at += SIZE_SIZE + block_size(kind, data + at)
    return SOUND if at == size else (TRUNCATED if at > size else LENGTH)


cdef Fault open_mold(const uint8_t *data, Py_ssize_t size, Segment *segment) noexcept nogil:
    cdef int index
    if size < MOLD_HEADER_SIZE:
        return TRUNCATED
    for index in range(MOLD_SESSION_SIZE):
        if data[index] < 32 and data[index] != 0 or data[index] > 126:
            return FOREIGN
    memset(segment.session, 0, sizeof(segment.session))
    memcpy(segment.session, data, MOLD_SESSION_SIZE)
    segment.first_sequence = big_u64(data + MOLD_SEQUENCE_AT)
    segment.count = big_u16(data + MOLD_COUNT_AT)
    segment.offset = MOLD_HEADER_SIZE
    segment.is_end = segment.count == MOLD_COUNT_END
    if segment.is_end:
        segment.count = 0
    return SOUND


cdef Fault open_iextp(const uint8_t *data, Py_ssize_t size, Segment *segment) noexcept nogil:
    if size < IEXTP_HEADER_SIZE:
        return TRUNCATED
    if data[IEXTP_VERSION_AT] != IEXTP_VERSION:
        return VERSION
    memset(segment.session, 0, sizeof(segment.session))
    memcpy(segment.session, data + IEXTP_PROTOCOL_AT, IEXTP_PAYLOAD_SIZE_AT - IEXTP_PROTOCOL_AT)
    segment.first_sequence = little_u64(data + IEXTP_SEQUENCE_AT)
    segment.count = little_u16(data + IEXTP_COUNT_AT)
    segment.offset = IEXTP_HEADER_SIZE
    segment.is_end = False
    cdef Py_ssize_t payload = little_u16(data + IEXTP_PAYLOAD_SIZE_AT)
    if payload != size - IEXTP_HEADER_SIZE:
        return TRUNCATED if payload > size - IEXTP_HEADER_SIZE else LENGTH
    return SOUND


cdef Fault open_datagram(int kind, const uint8_t *data, Py_ssize_t size, Segment *segment) noexcept nogil:
    cdef Fault fault = open_iextp(data, size, segment) if kind == IEXTP else open_mold(data, size, segment)
    if fault == SOUND:
        fault = walk(kind, data, size, segment)
    if fault == SOUND and segment.first_sequence > SEQUENCE_MAX:
        fault = LENGTH
    return fault


def decode_datagram(int kind, const uint8_t[::1] data not None) -> tuple:
    """Return (session, first sequence, messages, True if the session ends). Raise PacketError for an invalid
    datagram."""
    cdef Segment segment
    cdef const uint8_t *start = &data[0] if data.shape[0] else NULL
    cdef Fault fault = open_datagram(kind, start, data.shape[0], &segment)
    if fault != SOUND:
        raise PacketError(WORDS[fault], cause=CAUSES[fault])
    messages = []
    cdef Py_ssize_t at = segment.offset
    cdef uint32_t index, size
    for index in range(segment.count):
        size = block_size(kind, start + at)
        at += SIZE_SIZE
        messages.append(bytes(data[at : at + size]))
        at += size
    return segment.session[:16], segment.first_sequence, messages, bool(segment.is_end)


def cut(const uint8_t[::1] blocks not None, Py_ssize_t size_max) -> list:
    """Cut messages with big-endian sizes before them into pieces of at most `size_max` bytes (or one message):
    [(offset, size, count)]. An incomplete message at the end is dropped."""
    cdef Py_ssize_t size = blocks.shape[0]
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t next_at
    cdef Py_ssize_t count = 0
    pieces = []
    while at + SIZE_SIZE <= size:
        next_at = at + SIZE_SIZE + big_u16(&blocks[at])
        if next_at > size:
            break
        if count and (next_at - start > size_max or count == MOLD_COUNT_END - 1):
            pieces.append((start, at - start, count))
            start = at
            count = 0
        count += 1
        at = next_at
    if count:
        pieces.append((start, at - start, count))
    return pieces


def skip(const uint8_t[::1] blocks not None, Py_ssize_t count) -> int:
    """Return the offset after the first `count` messages, or the end."""
    cdef Py_ssize_t at = 0
    while count > 0 and at + SIZE_SIZE <= blocks.shape[0]:
        at += SIZE_SIZE + big_u16(&blocks[at])
        count -= 1
    return min(at, blocks.shape[0])


cdef Py_ssize_t split(SourceBatch batch, const uint8_t *data, Py_ssize_t size, uint64_t sequence, int64_t receive_ns,
                      Py_ssize_t count_max) except -1 nogil:
    """Add a row for every complete message. Return the end of the last one."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t next_at
    while at + SIZE_SIZE <= size and batch.count < count_max:
        next_at = at + SIZE_SIZE + big_u16(data + at)
        if next_at > size:
            break
        batch.append_row(sequence, receive_ns, at + SIZE_SIZE, next_at - at - SIZE_SIZE)
        sequence += 1
        at = next_at
    return at


cdef class Blocks:
    """Messages with their sizes (two bytes, big-endian) before them, as rows of a reused SourceBatch."""

    def __cinit__(self):
        self._batch = SourceBatch()

    def batch(self, data not None, first_sequence: int, int64_t receive_ns = 0, Py_ssize_t count_max = 1 << 30):
        """Return the complete messages in `data`; `consumed` is their size in bytes. Valid until the next call."""
        cdef SourceBatch batch = self._batch
        cdef uint64_t sequence = first_sequence
        batch.point_at(data)
        with nogil:
            self.consumed = split(batch, batch.data, <Py_ssize_t>batch.data_size, sequence, receive_ns, count_max)
        return batch


def count_types(SourceBatch batch not None) -> dict:
    """Count the messages by type, which is the first byte; empty messages count as type 0."""
    cdef uint64_t counts[256]
    cdef Py_ssize_t index
    memset(counts, 0, sizeof(counts))
    for index in range(batch.count):
        counts[batch.data[batch.row[index].offset] if batch.row[index].size else 0] += 1
    return {index: counts[index] for index in range(256) if counts[index]}


def count_sizes(SourceBatch batch not None, const uint16_t[::1] sizes not None) -> tuple:
    """Return the number of messages with the size of their type, the number with another size, and the index of the
    first of those.

    `sizes` has the size of each type, 0 for types without one, whose messages are not counted.
    """
    cdef uint64_t right = 0, wrong = 0
    cdef Py_ssize_t index, first = -1
    cdef uint16_t expected
    if sizes.shape[0] != 256:
        raise LocalProtocolError(f"expected the sizes of 256 types, got {sizes.shape[0]}")
    for index in range(batch.count):
        expected = sizes[batch.data[batch.row[index].offset]] if batch.row[index].size else 0
        if expected == 0:
            continue
        if batch.row[index].size == expected:
            right += 1
            continue
        wrong += 1
        if first < 0:
            first = index
    return right, wrong, first


cdef class SoupData:
    """The sequenced data of SoupBinTCP packets, as rows of a reused SourceBatch."""

    def __cinit__(self):
        self._batch = SourceBatch()

    def batch(self, data not None, Py_ssize_t start, first_sequence: int, int64_t receive_ns = 0) -> SourceBatch:
        """Return the packets of type S from `start` on, up to the first one of another type or incomplete one, which
        begins at `end`. Valid until the next call."""
        cdef SourceBatch batch = self._batch
        cdef uint64_t sequence = first_sequence
        cdef Py_ssize_t at = start
        cdef Py_ssize_t size, length
        batch.point_at(data)
        size = <Py_ssize_t>batch.data_size
        with nogil:
            while at + SOUP_HEADER_SIZE <= size and batch.data[at + SIZE_SIZE] == c'S':
                length = big_u16(batch.data + at)
                if length == 0 or at + SIZE_SIZE + length > size:
                    break
                batch.append_row(sequence, receive_ns, at + SOUP_HEADER_SIZE, length - 1)
                sequence += 1
                at += SIZE_SIZE + length
        self.end = at
        return batch


def soup_data(const uint8_t[::1] blocks not None) -> bytes:
    """Encode messages with their sizes before them as SoupBinTCP packets of sequenced data; an incomplete message at
    the end is dropped."""
    cdef Py_ssize_t size = blocks.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t next_at
    cdef uint8_t *to
    while at + SIZE_SIZE <= size:
        next_at = at + SIZE_SIZE + big_u16(&blocks[at])
        if next_at > size or next_at - at > 0xFFFF:
            break
        at = next_at
        count += 1
    packets = bytearray(at + count)
    if count == 0:
        return b""
    cdef uint8_t[::1] view = packets
    to = &view[0]
    at = 0
    while count > 0:
        next_at = at + SIZE_SIZE + big_u16(&blocks[at])
        to[0] = <uint8_t>((next_at - at - SIZE_SIZE + 1) >> 8)
        to[1] = <uint8_t>(next_at - at - SIZE_SIZE + 1)
        to[2] = c'S'
        memcpy(to + SOUP_HEADER_SIZE, &blocks[at] + SIZE_SIZE, next_at - at - SIZE_SIZE)
        to += next_at - at + 1
        at = next_at
        count -= 1
    return bytes(packets)
