from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef class DatagramBatch:
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t count
    cdef uint64_t generation    # of the contents: invalidates references to earlier contents
    cdef Py_ssize_t stride
    cdef uint8_t *data          # datagram n begins at n * stride
    cdef uint32_t *sizes
    cdef uint64_t *sources      # see source()
    cdef uint8_t *sockets       # see socket()
    cdef int64_t *arrivals_ns
    cdef bint is_from_ring      # the datagrams came through shared memory, not a socket
    cdef object _array          # owns data
    cdef object _view
    cdef list _names
    cdef dict _keys
    cdef dict _addresses
    cdef uint64_t _random_state

    cdef int put(self, const uint8_t *content, Py_ssize_t size, uint64_t source) except -1
    cdef void move(self, Py_ssize_t to, Py_ssize_t index) noexcept nogil
    cdef uint64_t key_of(self, source) except 0
    cdef int check(self, Py_ssize_t index) except -1
