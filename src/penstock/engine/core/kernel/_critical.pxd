from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.engine.core.kernel._event cimport Head
from penstock.engine.core.kernel._items cimport Item
from penstock.engine.core.kernel._pairs cimport Pair
from penstock.engine.core.kernel._withheld cimport Withholding
from penstock.wire._packets cimport PacketStore


cdef class Critical(Withholding):
    cdef PacketStore _log                   # critical events, the newest; its numbers are positions
    cdef uint64_t _served                   # the position of the first event that was not fanned out yet
    cdef uint64_t _served_number            # the number of the event before it

    # An event about the item's update, at the log's end.
    cdef void log(self, uint32_t number, const Item *item) noexcept nogil
    # Give the log's events to their consumers, until about so many bytes have been written; how many were.
    cdef int64_t fan_out(self, int64_t bytes_max) noexcept nogil
    cdef void log_session(self, const uint8_t *body, uint32_t body_size) noexcept nogil
    cdef int64_t fan_out_session(self, uint64_t position, const uint8_t *event, uint32_t size) noexcept nogil
    cdef void fall_behind(self, uint32_t number, uint64_t position, const Head *head) noexcept nogil
    cdef uint8_t class_of_event(self, uint32_t at, const Head *head) noexcept nogil
    cdef bint write_session(self, uint32_t number, const uint8_t *body, uint32_t body_size) noexcept nogil
    cdef bint replay_session(self, uint32_t number, const uint8_t *event, uint32_t size) noexcept nogil
    cdef int64_t fan_out_event(self, uint64_t position, const uint8_t *event, uint32_t size) noexcept nogil
    cdef bint deliver(
        self, uint32_t number, Pair *pair, const uint8_t *event, uint32_t size, bint is_summed, uint32_t checksum
    ) noexcept nogil
    cdef bint catch_up(self, uint32_t number, int64_t now_ns) noexcept nogil
    cdef bint replay(self, uint32_t number) noexcept nogil
    cdef bint mark_repairs(self, uint32_t number, uint64_t *last_number) noexcept nogil
    cdef void attend(self, uint32_t number, int64_t now_ns) noexcept nogil
    cdef void attend_all(self, int64_t now_ns) noexcept nogil
    cdef void lose_unserved(self) noexcept nogil
    cdef bint has_all_after(self, uint64_t number) noexcept nogil
    cdef uint64_t position_after(self, uint64_t number) noexcept nogil
