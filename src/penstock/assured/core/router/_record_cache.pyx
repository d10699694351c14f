"""A ring of records, for compiled code only."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy


cdef class RecordCache:
    def __cinit__(self, uint64_t size):
        self.size = size // 8 * 8
        self._data = <uint8_t *>malloc(self.size) # the system gives the memory as it is used
        if self._data is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._data)

    cdef const uint8_t *get(self, uint64_t at) noexcept:
        if at > self._end or self._end - at > self.size:
            return NULL
        return self._data + at % self.size

    cdef uint64_t put(self, const uint8_t *record, uint32_t size) noexcept:
        """Add a record, whose size is a multiple of eight; the oldest records make room."""
        cdef uint64_t at = self._end % self.size
        if self.size - at < size:
            self._end += self.size - at
            at = 0
        memcpy(self._data + at, record, size)
        self._end += size
        return self._end - size

    cdef int grow(self, uint64_t size) except -1:
        """Forget all records; `size` is a multiple of eight."""
        cdef uint8_t *larger = <uint8_t *>malloc(size)
        if larger is NULL:
            raise MemoryError
        free(self._data)
        self._data = larger
        self.size = size
        self._end = (self._end // size + 2) * size
        return 0
