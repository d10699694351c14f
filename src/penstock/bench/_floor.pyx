"""The lower bound of every lookup in a large table: the machine's rate of random memory reads."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

cdef extern from "penstock/topics/primitives.h" nogil:
    void *allocate(size_t size, bint is_large)

cdef enum:
    LINE_WORDS = 8


cdef class RandomReads:
    """A block of `size` bytes (rounded to a power of two of cache lines), read one word per cache line."""

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
        """Read `count` lines with known addresses: the processor overlaps the misses."""
        return self.read(count, 0)

    def dependent(self, size_t count):
        """Read `count` lines, each with an address that depends on the previous one."""
        return self.read(count, 1)

    cdef uint64_t read(self, size_t count, bint is_dependent) noexcept:
        cdef const uint64_t *words = self.words
        cdef uint64_t mask = self.line_mask, state = self.state, word = 0, total = 0
        cdef size_t index
        with nogil:
            if is_dependent:
                for index in range(count):
                    state = random_next(state + word)
                    word = words[(state >> 33 & mask) * LINE_WORDS]
                    total += word
            else:
                for index in range(count):
                    state = random_next(state)
                    total += words[(state >> 33 & mask) * LINE_WORDS]
        self.state = state
        return total


cdef inline uint64_t random_next(uint64_t state) noexcept nogil:
    """A multiplicative sequence; its upper bits are random enough to defeat every prefetcher."""
    return state * <uint64_t>6364136223846793005 + <uint64_t>1442695040888963407
