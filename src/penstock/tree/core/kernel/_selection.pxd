from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.filter.core.kernel._matching cimport Matcher
from penstock.wire._codec cimport MessageView

cdef enum:
    ROWS_MAX = 512  # packets matched at a time


cdef class Selection:
    cdef Matcher _matcher
    cdef list _conditions  # by want
    cdef MessageView _rows[ROWS_MAX]
    cdef uint32_t _starts[ROWS_MAX]
    cdef uint32_t _sizes[ROWS_MAX]
    cdef uint64_t _sequences[ROWS_MAX]

    # Copy the matching packets to `out`, at most `size_max` bytes unless the first is larger. Return their size.
    # `through` is the sequence of the last packet examined.
    cdef uint64_t choose(
        self, const uint8_t *data, uint32_t size, uint64_t size_max, uint8_t *out, uint64_t *through
    ) except? 1
    cdef uint32_t gather(self, const uint8_t *data, uint32_t size, uint32_t *at) except? 1
    cdef bint is_wanted(self, uint32_t row, const uint8_t *data)
