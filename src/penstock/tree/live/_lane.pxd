from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.tree.core.kernel._fanout cimport Fanout


cdef class Lane:
    cdef readonly Fanout fanout
    cdef int _epoll
    cdef int _bell
    cdef bint _is_rung
    cdef uint64_t _notes_told   # by returning from run()
    cdef uint64_t _ready_told
    cdef uint8_t *_buffer

    cdef int loop(self, int64_t deadline_ns) except -1 nogil
    cdef bint has_news(self, int64_t now_ns) noexcept nogil
    cdef int64_t untold_in_ns(self, int64_t now_ns) noexcept nogil
    cdef void rest(self) noexcept nogil
    cdef int wait(self, int64_t timeout_ns) except -1 nogil
    cdef int look(self, uint64_t key, uint32_t events) except -1 nogil
    cdef int read(self, uint32_t slot) except -1 nogil
    cdef void send_some(self, uint32_t turns) noexcept nogil
    cdef void send_to(self, uint32_t slot) noexcept nogil
    cdef bint send_left(self, uint32_t slot) noexcept nogil
    cdef bint send_frames(self, uint32_t slot) noexcept nogil
    cdef void fail(self, uint32_t slot, int error) noexcept nogil
    cdef void arm(self, uint32_t slot) noexcept nogil
