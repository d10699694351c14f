"""Prefetch memory, for kernels that walk through megabytes in an order that the processor does not predict."""

from libc.stdint cimport uint8_t, uint64_t

cdef extern from * nogil:
    void prefetch "__builtin_prefetch"(const void *at)

cdef enum:
    CACHE_LINE = 64


cdef inline void prefetch_span(const uint8_t *at, uint64_t size) noexcept nogil:
    cdef uint64_t offset = 0
    while offset < size:
        prefetch(at + offset)
        offset += CACHE_LINE
