from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.engine.core.kernel._consumers cimport Consumers
from penstock.engine.core.kernel._event cimport Head
from penstock.engine.core.kernel._items cimport Item, Items
from penstock.engine.core.kernel._pairs cimport Pair, Pairs
from penstock.engine.core.kernel._refreshes cimport Refreshes
from penstock.engine.core.kernel._withheld cimport Withheld
from penstock.wire._packets cimport PacketStore


cdef struct LogCursor:  # of one consumer
    bint is_behind           # the consumer is served from its own position in the log
    bint has_lost_sessions   # SESSION events may be among the events that it lost
    uint64_t position        # if behind
    uint64_t replay_end      # events before this position had been written before
    uint64_t passed          # the number of the last event of the log that the consumer got or did not need
    uint64_t sessions_after  # the consumer was sent the running sessions after the event of this number


cdef class CriticalClass:
    cdef Items items
    cdef Pairs pairs
    cdef Consumers consumers
    cdef Refreshes refreshes
    cdef Withheld withheld
    cdef PacketStore _log                   # the newest critical events; its sequence numbers are positions
    cdef uint64_t _served                   # the position of the first event that was not fanned out yet
    cdef uint64_t _served_number            # the number of the event before it
    cdef LogCursor *_cursors  # by consumer
    cdef uint64_t _sessions_lost
    cdef int64_t served_ns                  # when the engine last served consumers; restart() begins intervals there
    cdef uint8_t *_scratch  # an event of the log, adapted for one consumer

    # Append an event for the item's update.
    cdef void append(self, uint32_t number, const Item *item) noexcept nogil
    cdef void append_session(self, const uint8_t *body, uint32_t body_size) noexcept nogil
    # Write events of the log to their consumers, at most about `bytes_max` (-1: all). Return the number of bytes.
    cdef int64_t fan_out(self, int64_t bytes_max, int64_t now_ns) noexcept nogil
    # If the log was filled faster than it was fanned out, report the overwritten events as lost.
    cdef void check_overwritten(self) noexcept nogil
    # Serve a consumer that is behind from its position in the log. False if events remain.
    cdef bint replay(self, uint32_t number, int64_t now_ns) noexcept nogil
    cdef bint restart(self, uint32_t number, uint64_t last_number, int64_t now_ns) except -1
    # Write a SESSION event to one consumer only. False if there was no room.
    cdef bint write_session(self, uint32_t number, const uint8_t *body, uint32_t body_size) noexcept nogil
    cdef void detach(self, uint32_t number) noexcept nogil

    cdef inline bint has_backlog(self) noexcept nogil:
        return self._served < self._log.next_sequence

    cdef inline bint is_behind(self, uint32_t number) noexcept nogil:
        return self._cursors[number].is_behind

    cdef int64_t fan_out_event(
        self, uint64_t position, const uint8_t *event, uint32_t size, int64_t now_ns
    ) noexcept nogil
    cdef int64_t fan_out_session(self, uint64_t position, const uint8_t *event, uint32_t size) noexcept nogil
    cdef void fall_behind(self, uint32_t number, uint64_t position, const Head *head) noexcept nogil
    cdef bint deliver(
        self, Pair *pair, const uint8_t *event, uint32_t size, bint is_summed, uint32_t checksum, int64_t now_ns
    ) noexcept nogil
    cdef const uint8_t *with_pending(self, Pair *pair, const uint8_t *event) noexcept nogil
    cdef bint replay_event(self, uint32_t number, uint32_t at, uint8_t *event, uint32_t size, int64_t now_ns) noexcept nogil
    cdef bint replay_session(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil
    cdef const uint8_t *marked_replayed(self, const LogCursor *cursor, const uint8_t *event, uint32_t size) noexcept nogil
    cdef bint mark_repairs(self, uint32_t number, uint64_t *last_number) noexcept nogil
    cdef void lose(self, uint32_t number, uint64_t first, uint64_t last, uint8_t cause) noexcept nogil
    cdef bint has_all_after(self, uint64_t number) noexcept nogil
    cdef uint64_t position_after(self, uint64_t number) noexcept nogil

    cdef inline const Head *head_at(self, uint64_t position) noexcept nogil:
        return <const Head *>(self._log.data + self._log.place(position).offset)
