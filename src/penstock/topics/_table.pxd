from libc.stdint cimport uint32_t, uint64_t

from penstock.topics._match cimport Scratch
from penstock.topics._store cimport Store


# Compiled code matches with match_batch(kernel.store, kernel.scratch, ...) of _match.pxd.
cdef class TableKernel:
    cdef Store *store
    cdef Scratch *scratch
    cdef public uint64_t regex_count # interests that only the Python part of the table can match, see InterestTable

    cdef int check_codes(self, const uint32_t[::1] codes) except -1
