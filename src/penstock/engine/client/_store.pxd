"""The records of one region as one application last read them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.engine.client._fields cimport MASK_WORDS, FieldTable
from penstock.shm._memory cimport Mapping
from penstock.shm._region cimport Geometry, Head, RegionReader


cdef class RecordState:
    cdef readonly bytes payload
    cdef readonly uint64_t update_count
    cdef readonly uint64_t since_count
    cdef readonly uint32_t merged
    cdef readonly bint is_withdrawn
    cdef readonly int64_t started_ns
    cdef readonly int64_t finished_ns
    cdef readonly int64_t issued_ns
    cdef readonly object model
    cdef FieldTable _table
    cdef uint64_t[MASK_WORDS] _mask


cdef class RecordStore:
    cdef RegionReader _region
    cdef Mapping _memory
    cdef Mapping _marks
    cdef const Geometry *geometry
    cdef readonly FieldTable table
    cdef object _read_model
    cdef bint _is_converting
    cdef bytes _blank  # the content of a withdrawn record: without values
    cdef uint8_t *_last  # payloads at the last read
    cdef uint64_t *_generations  # and their generations; 0: never read
    cdef readonly uint64_t read_count

    cdef uint64_t place(self, slot) except? 0
    # Store a read payload as the application's last one.
    cdef RecordState absorb(self, uint64_t slot, bytes payload, const Head *head)
    cdef const uint8_t *last(self, uint64_t slot) noexcept
    # Return the blank payload of a withdrawn record.
    cdef void empty(self, uint8_t *payload, const Head *head) noexcept
