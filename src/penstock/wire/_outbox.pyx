"""Packets on their way out, each for one of many consumers, in memory that is used again and again. Behind each packet
there is room for an authentication trailer."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t

from penstock.wire._codec cimport TRAILER_SIZE

import numpy

from penstock.base.errors import LocalProtocolError
from penstock.base.limits import PACKET_SIZE_MAX

cdef enum:
    CACHE_LINE = 64
    PER_PACKET = CACHE_LINE + TRAILER_SIZE # bytes that a packet may take beside its own
    ROWS_MIN = 4_096
    BYTES_SPARE = 1 << 20


cdef inline uint64_t whole_lines(uint64_t size) noexcept nogil:
    return (size + (CACHE_LINE - 1)) & ~<uint64_t>(CACHE_LINE - 1)


cdef class Outbox:
    """Room for `rows_max` packets of `bytes_max` bytes together. Consumers are small numbers of the caller's choice.

    Memory is taken from the operating system only as it is used.
    """

    def __cinit__(self, uint64_t rows_max, uint64_t bytes_max):
        if not 1 <= rows_max <= UINT32_MAX or not PACKET_SIZE_MAX + PER_PACKET <= bytes_max < <uint64_t>1 << 48:
            raise LocalProtocolError(f"an outbox cannot have room for {rows_max} packets of {bytes_max} bytes")
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self._data = numpy.empty(bytes_max, numpy.uint8)
        self._rows = numpy.empty(rows_max * sizeof(OutboxRow), numpy.uint8)
        cdef uint8_t[::1] memory = self._data
        self.data = &memory[0]
        memory = self._rows
        self.rows = <OutboxRow *>&memory[0]

    @staticmethod
    def for_consumers(consumers_max: int) -> Outbox:
        """One that has room for the largest packet for each of so many consumers, and for some more."""
        packet_size_max = whole_lines(PACKET_SIZE_MAX + TRAILER_SIZE)
        return Outbox(max(2 * consumers_max, ROWS_MIN), consumers_max * packet_size_max + packet_size_max + BYTES_SPARE)

    def __len__(self) -> int:
        return self.count

    def packets(self) -> list:
        """(consumer, packet) in the order they are to be sent."""
        cdef uint64_t index
        return [
            (
                self.rows[index].consumer,
                PyBytes_FromStringAndSize(<const char *>self.data + self.rows[index].offset, self.rows[index].size),
            )
            for index in range(self.count)
        ]

    def clear(self) -> None:
        """They were sent."""
        self.reset()

    cdef void reset(self) noexcept nogil:
        self.count = 0
        self.used = 0

    cdef bint has_room(self, uint64_t packets, uint64_t size) noexcept nogil:
        """For so many packets of so many bytes together."""
        return self.count + packets <= self.rows_max and self.used + size + packets * PER_PACKET <= self.bytes_max

    cdef uint8_t *reserve(self, uint32_t size) noexcept nogil:
        return self.data + self.used if self.has_room(1, size) else NULL

    cdef void commit(self, uint32_t consumer, uint32_t size) noexcept nogil:
        cdef OutboxRow *row = &self.rows[self.count]
        row.offset = self.used
        row.size = size
        row.consumer = consumer
        self.count += 1
        self.used += whole_lines(size + TRAILER_SIZE)
