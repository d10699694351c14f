from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.shm._memory cimport Mapping
from penstock.shm._region cimport Geometry


cdef class RegionSink:
    cdef readonly object region
    cdef readonly object marks
    cdef readonly bint is_shared
    cdef readonly uint32_t record_count
    cdef readonly uint32_t users  # number of attached consumers
    cdef Mapping _mapping
    cdef Mapping _marks_mapping
    cdef Geometry *geometry
    cdef const uint8_t *_marks  # NULL: none
    cdef uint64_t *_numbers  # by slot, if shared: number of the last written update
    cdef uint8_t *_payload  # a padded record that is shorter than the region's
    cdef uint32_t _taken  # assigned slots
    cdef uint32_t *_free  # released slots
    cdef uint32_t _free_count

    # Overwrite a record, and return its generation. Unchanged parts at the beginning and the end are not written.
    cdef uint64_t write(
        self, uint32_t slot, const uint8_t *record, uint32_t size, int64_t started_ns, uint32_t merged,
        bint is_withdrawn,
    ) noexcept nogil

    # True if the reader has marked this generation of the record as read, or there are no marks.
    cdef bint is_read(self, uint32_t slot, uint64_t generation) noexcept nogil

    # A free slot, or NONE if there is none left.
    cdef uint32_t take_slot(self) noexcept nogil
    cdef void free_slot(self, uint32_t slot) noexcept nogil
