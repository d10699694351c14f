from libc.stdint cimport int64_t, uint8_t

cdef enum:
    RECEIVED_MAX = 65_536


# Whether there is something to read, or an end.
cdef bint has_something(int fd) noexcept nogil


cdef class Receiver:
    cdef int64_t spin_ns
    cdef int back_off_waits

    # So many bytes; 0: the connection has ended; below 0: nothing came in time, the bell was rung, or a signal came.
    cdef ssize_t take(self, int fd, uint8_t *room, int64_t timeout_ns, int bell) noexcept nogil
    cdef ssize_t spin(self, int fd, uint8_t *room, int64_t began) noexcept nogil
