"""The state that a session sender keeps per session; see _session_sender.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.engine.core.kernel._sinks cimport Queue

cpdef enum Framing:
    """How the events of a session are packed."""
    EVENTS_MESSAGE = 1    # an Events message in a frame of a control connection
    WEBSOCKET_MESSAGE = 2 # a binary message of a WebSocket


cdef struct Line:  # the outgoing side of a session's connection
    int fd  # -1: none
    Queue *queue          # events that wait, or NULL
    uint32_t consumer  # the consumer whose events these are
    uint8_t framing
    bint is_blocked  # the socket is full; the kernel reports when it has room
    bint is_waiting  # in the list of sessions with data to send
    bint is_ending  # no data may follow `left`
    bint is_over  # the socket has failed or was shut down
    uint8_t *left  # the unsent rest of a frame, and words
    size_t left_at
    size_t left_size
    size_t left_capacity
    int64_t due_ns  # earliest time of the next send
    int64_t sent_ns       # when events were last sent
    int64_t stuck_ns  # time since when the socket accepts nothing although data waits; 0: it accepts data


cdef class SessionSender:
    cdef Line *_lines
    cdef uint32_t _sessions_max
    cdef list _buffers  # of SessionBuffer or None, by session: the owners of the queues
    cdef uint32_t *_sessions  # session by consumer
    cdef uint32_t _consumers_max
    cdef uint32_t *_waiting  # a ring of sessions, each at most once
    cdef uint32_t _waiting_first
    cdef uint32_t _waiting_count
    cdef int _epoll
    cdef int64_t _gather_ns
    cdef size_t _words_size_max
    cdef readonly uint64_t frames
    cdef readonly uint64_t bytes
    cdef readonly int64_t next_due_ns

    cdef Line *line_of(self, uint32_t session) except NULL
    cdef void let_go(self, uint32_t session) noexcept
    cdef void note(self, uint32_t session, int64_t now_ns) noexcept nogil
    cdef void queue_up(self, uint32_t session) noexcept nogil
    cdef void carry_due(self, int64_t now_ns) noexcept nogil
    cdef void carry(self, uint32_t session, int64_t now_ns) noexcept nogil
    cdef bint send_left(self, uint32_t session, int64_t now_ns) noexcept nogil
    cdef void send_events(self, uint32_t session, int64_t now_ns) noexcept nogil
    cdef void block(self, uint32_t session, int error, int64_t now_ns) noexcept nogil
    cdef void make_room(self, int64_t now_ns) noexcept nogil
