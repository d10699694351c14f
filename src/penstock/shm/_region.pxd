"""The record region's layout, and the kernels that write and read it; docs/reference/protocol/shared-memory.md draws it.

This is the only place where the layout is written down as numbers. Compiled code cimports it, Python imports the same
names from penstock.shm._region.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.shm._memory cimport Mapping

cpdef enum:
    REGION_MAGIC = 0x4E525350 # the bytes "PSRN"
    REGION_VERSION = 2

    REGION_MAGIC_AT = 0
    REGION_VERSION_AT = 4
    REGION_PART_COUNT_AT = 6
    REGION_RECORD_COUNT_AT = 8
    REGION_PART_SIZES_AT = 16
    REGION_CHECKSUM_AT = 80
    REGION_HEADER_SIZE = 128

    RECORD_GENERATION_AT = 0
    RECORD_STARTED_AT = 8
    RECORD_FINISHED_AT = 16
    RECORD_ISSUED_AT = 24
    RECORD_CHECKSUM_AT = 32
    RECORD_MERGED_AT = 36
    RECORD_HEADER_SIZE = 40
    RECORD_MERGED_MAX = 0x7FFFFFFF
    RECORD_WITHDRAWN = 0x80000000 # with the merged count: there is no current record
    RECORD_ALIGNMENT = 64

    # behind each part's payload
    PART_GENERATION_AT = 0
    PART_CHECKSUM_AT = 8
    PART_TRAILER_SIZE = 16
    PART_ALIGNMENT = 8

    PARTS_MAX = 16

    MARK_SIZE = 8


cdef enum State:
    STATE_COHERENT
    STATE_NEVER_WRITTEN
    STATE_WRITING
    STATE_CHECKSUM


# A region as both sides see it.
cdef struct Geometry:
    uint8_t *records
    uint64_t record_count
    uint64_t stride
    uint32_t payload_size
    uint32_t part_count
    uint32_t[PARTS_MAX] part_sizes


# A record's header, and each part's trailer, as they stand in the region.
cdef struct Head:
    uint64_t generation
    int64_t started_ns
    int64_t finished_ns
    int64_t issued_ns
    uint32_t checksum
    uint32_t merged         # updates that the record stands for, 0: the producer does not say; and RECORD_WITHDRAWN


cdef struct Trailer:
    uint64_t generation
    uint32_t checksum
    uint32_t reserved


# Overwrite the parts from `first_part` up to and without `end_part`; the head's times and count are the caller's.
cdef void put_parts(
    const Geometry *geometry, uint64_t index, uint32_t first_part, uint32_t end_part, const uint8_t *payload, Head *head
) noexcept nogil

# Copy the record out and verify the copy; only after STATE_COHERENT it means anything.
cdef State take_record(
    const Geometry *geometry, uint64_t index, uint8_t *payload, Head *head, uint64_t *part_generations
) noexcept nogil

# take_record(), again while somebody writes it, within a bound.
cdef State take_soon(
    const Geometry *geometry, uint64_t index, uint8_t *payload, Head *head, uint64_t *part_generations
) noexcept nogil


cdef class Region:
    cdef Mapping _mapping
    cdef Geometry _geometry

    cdef Mapping mapping(self)
    cdef uint64_t place(self, index) except? 0


cdef class RegionWriter(Region):
    cdef readonly object segment

    cdef uint32_t end_of(self, first_part, Py_ssize_t size) except? 0


cdef class RegionMarks:
    cdef Mapping _mapping
    cdef readonly uint64_t record_count
    cdef readonly object segment


cdef class RegionReader(Region):
    cdef object _model
    cdef object _lifeline

    cdef bint take(self, index, timeout_ns, uint8_t *payload, Head *head, uint64_t *part_generations) except -1
