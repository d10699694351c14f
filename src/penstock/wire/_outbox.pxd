from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef struct OutboxRow:
    uint64_t offset
    uint32_t size
    uint32_t consumer


cdef class Outbox:
    cdef readonly uint64_t rows_max
    cdef readonly uint64_t bytes_max
    cdef uint64_t count
    cdef uint64_t used
    cdef uint8_t *data     # row n's packet is rows[n].size bytes at rows[n].offset
    cdef OutboxRow *rows
    cdef object _data
    cdef object _rows

    cdef void reset(self) noexcept nogil
    cdef bint has_room(self, uint64_t packets, uint64_t size) noexcept nogil

    # Return the location for the next packet; NULL unless has_room() was true.
    cdef uint8_t *reserve(self, uint32_t size) noexcept nogil

    # Queue the written data as a packet for the consumer.
    cdef void commit(self, uint32_t consumer, uint32_t size) noexcept nogil
