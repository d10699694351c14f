from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.shm._memory cimport Mapping
from penstock.shm._region cimport Geometry


cdef class RegionSink:
    cdef readonly object region
    cdef readonly object marks
    cdef readonly bint is_shared
    cdef readonly uint32_t record_count
    cdef readonly uint32_t users        # consumers that it is attached to
    cdef Mapping _mapping
    cdef Mapping _marks_mapping
    cdef Geometry *geometry
    cdef const uint8_t *_marks          # NULL: it has none
    cdef uint64_t *_numbers             # by slot, if shared: the engine's number of the update that stands there
    cdef uint8_t *_payload              # of a record that is not as long as the region's
    cdef uint32_t _taken                # slots given out so far
    cdef uint32_t *_free                # slots that were given back
    cdef uint32_t _free_count

    # Overwrite a record; its generation from then on. Parts at the beginning and the end that do not change stay.
    cdef uint64_t write(
        self, uint32_t slot, const uint8_t *record, uint32_t size, int64_t started_ns, uint32_t merged,
        bint is_withdrawn,
    ) noexcept nogil

    # Whether the reader has read what was written with this generation, as far as it says so.
    cdef bint is_read(self, uint32_t slot, uint64_t generation) noexcept nogil

    # A slot for an item of the one consumer, or NONE if there is none left.
    cdef uint32_t take_slot(self) noexcept nogil
    cdef void free_slot(self, uint32_t slot) noexcept nogil
