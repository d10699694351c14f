from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.journal.core._log cimport RecordBuffer


cdef class InlineWriter:
    cdef int fd
    cdef uint32_t nonce
    cdef uint64_t at                    # offset of the next record
    cdef uint64_t end                   # records must end before this offset
    cdef RecordBuffer batch
    cdef readonly uint64_t next_sequence
    cdef readonly uint64_t count        # records on disk
    cdef readonly uint64_t size         # their size in bytes
    cdef readonly int failure           # an errno, after which no record is accepted
    cdef readonly bint is_written       # the sync failed, not the write

    cdef bint has_room(self, uint64_t payload_size) noexcept
    # Write and sync the record, for which there must be room; true if it is on disk.
    cdef bint store(self, const uint8_t *payload, uint64_t payload_size, int64_t timestamp_ns) except -1
