"""Shared memory mappings, and atomic operations on them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "penstock/shm/memory.h" nogil:
    uint64_t load_acquire(const uint8_t *at)
    uint64_t load_relaxed(const uint8_t *at)
    void store_release(uint8_t *at, uint64_t value)
    void store_relaxed(uint8_t *at, uint64_t value)
    void fence_acquire()
    void fence_release()
    void spin_pause()
    void fetch_ahead(const uint8_t *at, uint64_t size)
    int64_t monotonic_ns()
    int64_t wall_ns()
    void sleep_ns(int64_t duration_ns)
    void doorbell_arm(uint32_t *bell)
    void doorbell_wait(uint32_t *bell, int64_t timeout_ns)
    void doorbell_ring(uint32_t *bell)
    void fence_full()
    void doorbell_wake(uint32_t *bell)


cdef class Mapping:
    cdef uint8_t *start
    cdef readonly size_t size
