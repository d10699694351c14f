"""The floor under every look-up in a large table: how fast this machine reads memory at random."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

cdef extern from "penstock/topics/primitives.h" nogil:
    void *allocate(size_t size, bint is_large)

cdef enum:
    LINE_WORDS = 8


cdef class RandomReads:
    """A block of `size` bytes (a power of two of cache lines is taken), read one word per cache line."""

    cdef uint64_t *words
    cdef uint64_t line_mask
    cdef uint64_t state

    def __cinit__(self, size_t size, uint64_t seed):
        cdef size_t lines = 1
        while lines * LINE_WORDS * sizeof(uint64_t) < size:
            lines *= 2
        self.words = <uint64_t *>allocate(lines * LINE_WORDS * sizeof(uint64_t), True)
        if self.words is NULL:
            raise MemoryError
        memset(self.words, 0, lines * LINE_WORDS * sizeof(uint64_t))
        self.line_mask = lines - 1
        self.state = seed | 1

    def __dealloc__(self):
        free(self.words)

    def independent(self, size_t count):
        """Read `count` lines that are known beforehand: the processor overlaps the misses."""
        return self.read(count, 0)

    def dependent(self, size_t count):
        """Read `count` lines, each known only after the one before has arrived."""
        return self.read(count, <uint64_t>-1)

    cdef uint64_t read(self, size_t count, uint64_t dependence) noexcept:
        cdef uint64_t state = self.state
        cdef uint64_t word = 0, total = 0
        cdef const uint64_t *words = self.words
        cdef size_t index
        with nogil:
            for index in range(count):
                # A multiplicative sequence; its upper bits are random enough to defeat every prefetcher.
                state = (state + (word & dependence)) * <uint64_t>6364136223846793005 + <uint64_t>1442695040888963407
                word = words[(state >> 33 & self.line_mask) * LINE_WORDS]
                total += word
        self.state = state
        return total
