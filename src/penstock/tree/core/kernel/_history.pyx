"""The ring of packets that an agent keeps, for use by Fanout without Python."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.base.limits import PACKET_SIZE_MAX

cdef enum:
    KEPT_MIN = 64  # initial number of rows per stream
    SPREAD = 0x9E3779B1  # spreads consecutive numbers over the index

HISTORY_SIZE_MIN = 16 * PACKET_SIZE_MAX
"""Minimum size of a history."""


cdef class History:
    """Up to `size` bytes of packets, of up to `streams_max` streams."""

    def __cinit__(self, uint64_t size, uint32_t streams_max):
        cdef uint32_t index_size = 64
        if size < HISTORY_SIZE_MIN:
            raise LocalProtocolError(f"a history of {size} bytes is too short", hint=f"at least {HISTORY_SIZE_MIN}")
        while index_size < 4 * <uint64_t>streams_max:
            index_size *= 2
        self.size = size // 8 * 8
        self.streams_max = streams_max
        self._index_mask = index_size - 1
        self.data = <uint8_t *>malloc(self.size)  # the system gives the memory as it is used
        self.streams = <Stream *>calloc(max(1, streams_max), sizeof(Stream))
        self._index = <uint32_t *>calloc(index_size, sizeof(uint32_t))
        if self.data is NULL or self.streams is NULL or self._index is NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t position
        if self.streams is not NULL:
            for position in range(self.streams_max):
                free(self.streams[position].kept)
        free(self.streams)
        free(self._index)
        free(self.data)

    # Streams by number

    cdef Stream *find(self, uint32_t number) noexcept nogil:
        cdef uint32_t at = (number * SPREAD) & self._index_mask
        while self._index[at]:
            if self.streams[self._index[at] - 1].number == number:
                return &self.streams[self._index[at] - 1]
            at = (at + 1) & self._index_mask
        return NULL

    cdef int add(self, uint32_t number) except -1:
        cdef uint32_t position
        if self.find(number) is not NULL:
            raise LocalProtocolError(f"stream {number} is open already")
        for position in range(self.streams_max):
            if not self.streams[position].is_open:
                memset(&self.streams[position], 0, sizeof(Stream))
                self.streams[position].number = number
                self.streams[position].is_open = True
                self.stream_count += 1
                self.enter(position)
                return 0
        raise LimitError(f"{self.streams_max} streams are open already", hint="raise streams_max")

    cdef int remove(self, uint32_t number) except -1:
        cdef Stream *stream = self.find(number)
        if stream is NULL:
            raise LocalProtocolError(f"stream {number} is not open")
        free(stream.kept)
        memset(stream, 0, sizeof(Stream))
        self.stream_count -= 1
        self.enter_all()
        return 0

    cdef void enter(self, uint32_t position) noexcept nogil:
        cdef uint32_t at = (self.streams[position].number * SPREAD) & self._index_mask
        while self._index[at]:
            at = (at + 1) & self._index_mask
        self._index[at] = position + 1

    cdef void enter_all(self) noexcept nogil:
        cdef uint32_t position
        memset(self._index, 0, (<size_t>self._index_mask + 1) * sizeof(uint32_t))
        for position in range(self.streams_max):
            if self.streams[position].is_open:
                self.enter(position)

    # Packets

    cdef uint64_t keep(self, Stream *stream, uint64_t sequence, const uint8_t *packet, uint32_t size) noexcept nogil:
        cdef uint64_t place = next_place(self, size)
        cdef Kept *row
        if place // self.size != self.end // self.size:
            self.end = place
            self.trim_all()
        self.end = place + size
        memcpy(self.data + place % self.size, packet, size)
        if make_room(self, stream):
            row = &stream.kept[stream.kept_end & (stream.kept_capacity - 1)]
            row.sequence = sequence
            row.place = place
            stream.kept_end += 1
        else:  # without memory, nothing before the next packet can be read any more
            stream.kept_begin = stream.kept_end
            stream.kept_after = sequence
        return place

    cdef void trim(self, Stream *stream) noexcept nogil:
        cdef const Kept *row
        while stream.kept_begin < stream.kept_end:
            row = &stream.kept[stream.kept_begin & (stream.kept_capacity - 1)]
            if is_kept(self, row.place):
                return
            stream.kept_after = row.sequence
            stream.kept_begin += 1

    cdef void trim_all(self) noexcept nogil:
        """Once per round of the ring, so that inactive streams do not keep their rows."""
        cdef uint32_t position
        cdef Stream *stream
        for position in range(self.streams_max):
            stream = &self.streams[position]
            if stream.kept_capacity:
                self.trim(stream)
                if stream.kept_begin == stream.kept_end:
                    free(stream.kept)
                    stream.kept = NULL
                    stream.kept_capacity = stream.kept_begin = stream.kept_end = 0

    cdef void cut(self, Stream *stream, uint64_t last) noexcept nogil:
        self.trim(stream)
        stream.kept_end = self.first_after(stream, last)
        if stream.kept_after > last:
            stream.kept_after = last

    cdef uint64_t first_after(self, const Stream *stream, uint64_t sequence) noexcept nogil:
        cdef uint64_t low = stream.kept_begin, high = stream.kept_end, middle
        while low < high:
            middle = (low + high) // 2
            if stream.kept[middle & (stream.kept_capacity - 1)].sequence > sequence:
                high = middle
            else:
                low = middle + 1
        return low


cdef bint make_room(History history, Stream *stream) noexcept nogil:
    """Make room for one more row; False without memory."""
    cdef uint64_t capacity, position
    cdef Kept *rows
    if stream.kept_end - stream.kept_begin < stream.kept_capacity:
        return True
    history.trim(stream)
    if stream.kept_end - stream.kept_begin <= stream.kept_capacity // 2 and stream.kept_capacity:
        return True
    capacity = max(2 * stream.kept_capacity, <uint64_t>KEPT_MIN)
    rows = <Kept *>malloc(capacity * sizeof(Kept))
    if rows is NULL:
        return False
    for position in range(stream.kept_begin, stream.kept_end):
        rows[position & (capacity - 1)] = stream.kept[position & (stream.kept_capacity - 1)]
    free(stream.kept)
    stream.kept = rows
    stream.kept_capacity = capacity
    return True
