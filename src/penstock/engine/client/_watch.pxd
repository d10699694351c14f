"""The changes of a store's records that have to be reported to the application."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.engine.client._fields cimport MASK_WORDS, Move
from penstock.engine.client._store cimport RecordState, RecordStore
from penstock.shm._region cimport Head

cdef enum:
    MOVES_MAX = 64
    NOWHERE = 0xFFFFFFFF


cdef struct Slot:
    int64_t told_ns
    uint64_t seen  # the generation that was last checked
    uint32_t before  # links in the order of reports
    uint32_t after
    bint is_ours
    bint is_changed  # not checked since
    bint is_queued
    bint is_told  # and therefore in that list


cdef class Watch:
    cdef readonly RecordStore store
    cdef Slot *_slots
    cdef uint8_t *_told  # payloads at the last report
    cdef uint32_t *_queue  # changed slots, without duplicates
    cdef uint64_t _queue_head
    cdef uint64_t _queue_count
    cdef uint32_t _first  # reported longest ago
    cdef uint32_t _last
    cdef uint32_t _resting  # the first slot that was reported too recently to be reported again
    cdef uint64_t[MASK_WORDS] _fields
    cdef bint _has_fields
    cdef bint _can_pass
    cdef Move[MOVES_MAX] _moves
    cdef uint32_t _move_count
    cdef int64_t _interval_ns
    cdef int64_t _every_ns
    cdef int64_t _open_ns
    cdef int64_t _close_ns
    cdef readonly uint64_t withheld
    cdef readonly uint64_t unavailable

    cdef void touch(self, uint32_t slot) noexcept
    cdef void push(self, uint32_t slot) noexcept
    cdef uint32_t pop(self) noexcept
    cdef void link(self, uint32_t slot) noexcept
    cdef void unlink(self, uint32_t slot) noexcept
    cdef void wake(self, int64_t now_ns) noexcept
    cdef bint is_resting(self, uint32_t slot, int64_t now_ns) noexcept
    cdef bint passes(self, const uint8_t *before, const uint8_t *after) noexcept
    cdef RecordState tell(self, uint32_t slot, int64_t now_ns, bint is_due)
