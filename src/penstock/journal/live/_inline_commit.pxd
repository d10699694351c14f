from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.journal.core._log cimport RecordBuffer


cdef class InlineWriter:
    cdef int fd
    cdef uint32_t nonce
    cdef uint64_t at                    # where the next record goes
    cdef uint64_t end                   # none goes beyond
    cdef RecordBuffer batch
    cdef readonly uint64_t next_sequence
    cdef readonly uint64_t count        # records that are on the disk
    cdef readonly uint64_t size         # their bytes
    cdef readonly int failure           # an errno: then nothing more is taken
    cdef readonly bint is_written       # what failed was not the write, but the sync

    cdef bint has_room(self, uint64_t payload_size) noexcept
    # Bring the record to the disk, for which there is room: whether it is there.
    cdef bint store(self, const uint8_t *payload, uint64_t payload_size, int64_t timestamp_ns) except -1
