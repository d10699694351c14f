"""The newest log records in memory: a ring of bytes, each record in one piece."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class RecordCache:
    cdef uint8_t *_data
    cdef uint64_t _end                  # total number of bytes ever written
    cdef readonly uint64_t size

    cdef const uint8_t *get(self, uint64_t at) noexcept     # NULL: the record is in the journal only
    cdef uint64_t put(self, const uint8_t *record, uint32_t size) noexcept      # where; `size` is at most the cache's
    cdef int grow(self, uint64_t size) except -1
