from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


# One source message: `size` bytes at data + offset.
cdef struct SourceRow:
    uint64_t sequence
    int64_t receive_ns
    uint32_t offset
    uint32_t size


cdef class SourceBatch:
    cdef const uint8_t *data    # what offsets count from; NULL before the first point_at()
    cdef uint64_t data_size
    cdef SourceRow *row
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t _capacity
    cdef const uint8_t[::1] _view
    cdef object _owner          # keeps alive what point_at_memory() was given

    # The rows that come next count their offsets from `data`, which `owner` keeps alive; there are no rows yet.
    cdef int point_at_memory(self, const uint8_t *data, uint64_t size, object owner) except -1

    # Add a row; one that is not within the data is LocalProtocolError. Grows as needed, and keeps what it has grown to.
    cdef int append_row(self, uint64_t sequence, int64_t receive_ns, uint64_t offset, uint64_t size) except -1 nogil
