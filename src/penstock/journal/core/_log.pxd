"""The journal's layout on disk, and the kernels that read and write it; docs/reference/protocol/journal.md draws it.

This is the only place where the layout is written down as numbers. Compiled code cimports it, Python imports the same
names from penstock.journal.core._log.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cpdef enum:
    JOURNAL_VERSION = 1

    SEGMENT_MAGIC_AT = 0
    SEGMENT_VERSION_AT = 8
    SEGMENT_NONCE_AT = 12
    SEGMENT_JOURNAL_ID_AT = 16
    SEGMENT_FIRST_AT = 32
    SEGMENT_PREVIOUS_AT = 40
    SEGMENT_CREATED_AT = 48
    SEGMENT_RESERVED_AT = 56
    SEGMENT_CHECKSUM_AT = 60
    SEGMENT_HEADER_SIZE = 64

    RECORD_SIZE_AT = 0
    RECORD_CHECKSUM_AT = 4
    RECORD_SEQUENCE_AT = 8
    RECORD_TIMESTAMP_AT = 16
    RECORD_DURABLE_AT = 24
    RECORD_HEADER_SIZE = 32
    RECORD_ALIGNMENT = 8

    MARK_MAGIC_AT = 0
    MARK_VERSION_AT = 8
    MARK_RESERVED_AT = 12
    MARK_JOURNAL_ID_AT = 16
    MARK_BOOT_ID_AT = 32
    MARK_DURABLE_AT = 48
    MARK_RESERVED_TOO_AT = 56
    MARK_CHECKSUM_AT = 60
    MARK_SIZE = 64


cpdef enum:
    """Why a scan stopped."""
    STOP_ROWS = 0    # no room for a further row
    STOP_SHORT = 1   # the bytes end before the next record does
    STOP_INVALID = 2 # what follows is not the next record of this segment


# A record as found in a buffer, checked; the offset is its payload's, from the buffer's start. This is the row of
# RECORD_DTYPE, so scans write straight into numpy arrays.
cdef struct RecordRow:
    uint64_t sequence
    int64_t timestamp_ns
    uint64_t durable
    uint32_t offset
    uint32_t size


cdef inline uint64_t record_space(uint64_t payload_size) noexcept nogil:
    """The bytes a record takes in a segment."""
    return (RECORD_HEADER_SIZE + payload_size + (RECORD_ALIGNMENT - 1)) & ~<uint64_t>(RECORD_ALIGNMENT - 1)


# The checksum of the record of `space` bytes: of everything but itself, padding included, beginning with the nonce.
cdef uint32_t record_checksum(const uint8_t *record, uint64_t space, uint32_t nonce) noexcept nogil

# Check the record at data + at; STOP_ROWS means that it is good and that `row` is filled in.
cdef int parse_record(
    const uint8_t *data, uint64_t data_size, uint64_t at, uint32_t nonce, RecordRow *row
) noexcept nogil


cdef class RecordBuffer:
    cdef uint8_t *_data
    cdef size_t _capacity
    cdef readonly size_t size
    cdef readonly uint64_t first_sequence
    cdef readonly uint64_t next_sequence
    cdef readonly int64_t last_timestamp_ns
    cdef int _exports

    cpdef clear(self, uint64_t first_sequence)
    cpdef seal(self, uint32_t nonce, uint64_t durable)
    cdef int _check_unshared(self) except -1
    cdef int _reserve(self, Py_ssize_t payload_size) except -1
    cdef int _grow(self, uint64_t space) except -1
    cdef void _put(self, const uint8_t *payload, uint64_t payload_size, int64_t timestamp_ns) noexcept nogil
