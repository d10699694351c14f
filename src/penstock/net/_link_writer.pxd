from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.net._burst cimport Flushable, Flusher


cdef class LinkWriter(Flushable):
    cdef int _fd
    cdef uint8_t *_data
    cdef size_t _begin     # of the bytes that were not sent
    cdef size_t _end
    cdef size_t _capacity
    cdef size_t _frame_at  # of the last frame, if it may grow; NO_FRAME: none
    cdef int64_t _oldest_ns
    cdef bint _is_blocked  # the socket had no room
    cdef bint _is_closed
    cdef Flusher _flusher

    # With the turn: add a frame that begins with its length in four bytes, or add `body` to the last frame if that has
    # not been sent and keeps within `frame_size_max`. The frame may wait if it comes in a burst.
    cdef int append(
        self, const uint8_t *head, size_t head_size, const uint8_t *body, size_t size, size_t frame_size_max
    ) except -1

    cdef int put(self, const uint8_t *data, size_t size) except -1
    cdef void send_all(self) noexcept nogil
