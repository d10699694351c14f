from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.filter.core.kernel._matching cimport Matcher
from penstock.wire._codec cimport MessageView

cdef enum:
    ROWS_MAX = 512      # packets that are matched at a time


cdef class Selection:
    cdef Matcher _matcher
    cdef list _conditions       # by want
    cdef MessageView _rows[ROWS_MAX]
    cdef uint32_t _starts[ROWS_MAX]
    cdef uint32_t _sizes[ROWS_MAX]
    cdef uint64_t _sequences[ROWS_MAX]

    # Copy to `out` what is wanted of these packets, of at most `size_max` bytes if the first is not larger; returns its
    # size. `through` is the sequence of the last packet that was looked at.
    cdef uint64_t choose(
        self, const uint8_t *data, uint32_t size, uint64_t size_max, uint8_t *out, uint64_t *through
    ) except? 1
    cdef uint32_t gather(self, const uint8_t *data, uint32_t size, uint32_t *at) except? 1
    cdef bint is_wanted(self, uint32_t row, const uint8_t *data)
