from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.wire._authentication cimport Key
from penstock.wire._codec cimport MessageView, PacketView


cdef struct Place:
    uint64_t offset
    uint32_t size


cdef class PacketStore:
    cdef readonly uint64_t next_sequence
    cdef readonly uint64_t bytes_kept
    cdef uint64_t count
    cdef uint64_t packets_max
    cdef uint64_t bytes_max
    cdef uint64_t data_size
    cdef uint64_t write_at
    cdef readonly uint32_t trailer_size # bytes of the authentication trailer after every packet, or 0
    cdef Key key
    cdef uint8_t *data
    cdef Place *places       # packet n at n % packets_max
    cdef object _data
    cdef object _places

    cdef const Place *place(self, uint64_t sequence) noexcept nogil
    cdef uint64_t space(self, uint32_t size) noexcept nogil
    cdef uint8_t *reserve(self, uint32_t size) noexcept nogil
    cdef void commit(self, uint32_t size) noexcept nogil
    cdef void place_next(self, uint32_t size) noexcept nogil
    cdef void keep_packet(self, uint64_t sequence, const uint8_t *packet, uint32_t size) noexcept nogil

    # Pack messages that were checked, and store the packets; return their number. `packet` gives the stream and the
    # common flags.
    cdef uint64_t pack_rows(
        self, const uint8_t *topics, const uint8_t *payloads, const MessageView *rows, Py_ssize_t count,
        PacketView *packet, uint32_t size_max, uint64_t keep_alive_every,
    ) noexcept nogil
