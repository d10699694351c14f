from libc.stdint cimport int64_t, uint8_t

cdef enum:
    RECEIVED_MAX = 65_536


# True if data, or the end of the stream, can be read.
cdef bint has_something(int fd) noexcept nogil


cdef class Receiver:
    cdef int64_t spin_ns
    cdef int back_off_waits

    # Return the number of bytes; 0: the connection has ended; negative: timeout, bell or signal.
    cdef ssize_t take(self, int fd, uint8_t *room, int64_t timeout_ns, int bell) noexcept nogil
    cdef ssize_t spin(self, int fd, uint8_t *room, int64_t began) noexcept nogil
