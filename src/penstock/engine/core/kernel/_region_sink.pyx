"""The shared-memory region into which a consumer's records of one model are written."""

from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from penstock.base._crc32c cimport crc32c_initialise
from penstock.engine.core.kernel._items cimport NONE
from penstock.shm._memory cimport load_acquire, load_relaxed, wall_ns
from penstock.shm._region cimport (
    MARK_SIZE,
    PART_TRAILER_SIZE,
    RECORD_HEADER_SIZE,
    RECORD_MERGED_MAX,
    RECORD_WITHDRAWN,
    Head,
    RegionMarks,
    RegionWriter,
    put_parts,
)

from penstock.base.errors import LocalProtocolError

crc32c_initialise()


cdef class RegionSink:
    """A region and its read marks. The caller owns both, and closes them after the sink.

    A sink that `is_shared` serves several consumers with the same items in the same slots: each record is written
    once for all of them, and there are no marks.
    """

    def __cinit__(self, RegionWriter region not None, RegionMarks marks = None, *, bint is_shared = False):
        self._mapping = region.mapping()
        self.geometry = &region._geometry
        if self.geometry.record_count >= UINT32_MAX - 1:
            raise LocalProtocolError(f"a region of {self.geometry.record_count} records is too large")
        self.record_count = <uint32_t>self.geometry.record_count
        if marks is not None:
            if is_shared or marks.record_count != self.record_count or marks._mapping is None:
                raise LocalProtocolError("these marks belong to another region")
            self._marks_mapping = marks._mapping
            self._marks = marks._mapping.start
        self.region, self.marks, self.is_shared = region, marks, is_shared
        self._free = <uint32_t *>malloc(self.record_count * sizeof(uint32_t))
        self._payload = <uint8_t *>malloc(self.geometry.payload_size)
        self._numbers = <uint64_t *>calloc(self.record_count, sizeof(uint64_t)) if is_shared else NULL
        if self._free is NULL or self._payload is NULL or (is_shared and self._numbers is NULL):
            raise MemoryError

    def __dealloc__(self):
        free(self._free)
        free(self._payload)
        free(self._numbers)

    cdef uint64_t write(
        self, uint32_t slot, const uint8_t *record, uint32_t size, int64_t started_ns, uint32_t merged,
        bint is_withdrawn,
    ) noexcept nogil:
        cdef const uint8_t *at = self.geometry.records + slot * self.geometry.stride
        cdef const uint8_t *behind
        cdef uint32_t first = 0, end = self.geometry.part_count, part, part_size
        cdef Head head
        if size < self.geometry.payload_size:
            if size:
                memcpy(self._payload, record, size)
            memset(self._payload + size, 0, self.geometry.payload_size - size)
            record = self._payload
        if load_relaxed(at):
            behind = at + RECORD_HEADER_SIZE + self.geometry.payload_size + end * PART_TRAILER_SIZE
            at += RECORD_HEADER_SIZE
            while first + 1 < end and memcmp(at, record, self.geometry.part_sizes[first]) == 0:
                at += self.geometry.part_sizes[first] + PART_TRAILER_SIZE
                record += self.geometry.part_sizes[first]
                first += 1
            size = 0
            for part in range(first, end):
                size += self.geometry.part_sizes[part]
            while end > first + 1:
                part_size = self.geometry.part_sizes[end - 1]
                behind -= part_size + PART_TRAILER_SIZE
                if memcmp(behind, record + size - part_size, part_size):
                    break
                size -= part_size
                end -= 1
        head.started_ns = started_ns
        head.finished_ns = head.issued_ns = wall_ns()
        head.merged = min(merged, <uint32_t>RECORD_MERGED_MAX) | (<uint32_t>RECORD_WITHDRAWN if is_withdrawn else 0)
        put_parts(self.geometry, slot, first, end, record, &head)
        return head.generation

    cdef bint is_read(self, uint32_t slot, uint64_t generation) noexcept nogil:
        return self._marks is NULL or load_acquire(<uint8_t *>self._marks + slot * <uint64_t>MARK_SIZE) >= generation

    cdef uint32_t take_slot(self) noexcept nogil:
        if self._free_count:
            self._free_count -= 1
            return self._free[self._free_count]
        if self._taken == self.record_count:
            return NONE
        self._taken += 1
        return self._taken - 1

    cdef void free_slot(self, uint32_t slot) noexcept nogil:
        self._free[self._free_count] = slot
        self._free_count += 1
