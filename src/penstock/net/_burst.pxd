"""Natural batching: a lone message is sent at once, and the messages of a burst share packets."""

from libc.stdint cimport int64_t, uint32_t

cdef extern from "penstock/net/burst.h" nogil:
    const int64_t NEVER_NS  # later than any time


cdef class Turn:
    cdef uint32_t _state

    cdef void take(self) noexcept           # with the GIL, which is released while the caller waits
    cdef void take_nogil(self) noexcept nogil
    cdef void give(self) noexcept nogil


cdef class Burst:
    cdef readonly int64_t linger_ns
    cdef int64_t _returned_ns  # when the last call returned
    cdef int _back_to_back     # calls that came back to back

    # True if the message of a call at `now_ns` may wait for further messages.
    cdef bint joins(self, int64_t now_ns) noexcept nogil

    # The call returns.
    cdef void end_call(self, int64_t now_ns) noexcept nogil

    # True if a message that waits since `oldest_ns` is sent by a call at `now_ns`, before the flusher does.
    cdef bint is_due(self, int64_t oldest_ns, int64_t now_ns) noexcept nogil

    # The time of the flusher's next look when the oldest message waits since `oldest_ns` (NEVER_NS: none waits).
    # NEVER_NS when the burst is over.
    cdef int64_t look_ns(self, int64_t oldest_ns, int64_t now_ns) noexcept nogil


cdef class Flushable:
    cdef readonly Turn turn
    cdef readonly Burst burst

    # With the turn taken: send the messages that have waited for linger_ns, and return burst.look_ns().
    cdef int64_t flush_due(self, int64_t now_ns) noexcept nogil


cdef class Flusher:
    cdef Flushable _target
    cdef object _thread
    cdef uint32_t _bell
    cdef bint _is_stopped
    cdef bint _is_awake

    # With the turn and the GIL: a message waits.
    cdef int wake(self) except -1

    cdef void follow_burst(self) noexcept nogil
