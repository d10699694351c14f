"""The publishers of a router: the numbers of each in the log, and the acknowledgements to send to each."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._containers cimport Map, Numbers
from penstock.assured.core.router._records cimport WINDOW_WORDS

cdef enum:
    OUTCOME_COUNT = 64


cdef struct AckRun:
    uint64_t first
    uint64_t last
    uint8_t outcome
    uint8_t limit                   # as in an acknowledgement
    uint32_t endpoint


cdef struct Publisher:
    uint64_t id                     # 0: the place is free
    uint64_t link                   # 0: it is not connected
    uint64_t owner                  # hash of the client's name; 0: unknown
    uint64_t highest
    uint64_t had[WINDOW_WORDS]      # known numbers, up to the highest in the log
    uint64_t pending[WINDOW_WORDS]  # of these, the ones without an acknowledgement
    uint64_t mark_sequence          # of the record with all of this; 0: none
    int64_t away_since_ns
    uint32_t transaction            # the last committed one
    uint8_t treatment               # of that transaction
    bint is_at_one                  # some of that transaction may be at the other router only
    uint64_t first_id               # of the messages that the transaction published
    uint64_t last_id                # 0: unknown; first_id - 1 if it published nothing
    bint is_dirty                   # has acknowledgements to send
    AckRun *runs
    uint32_t run_count
    uint32_t run_capacity


cdef class PublisherTable:
    cdef Map _ids
    cdef Publisher **_publishers        # by handle
    cdef uint32_t _capacity
    cdef Numbers _dirty                 # publishers with acknowledgements to send
    cdef uint64_t _outcomes[OUTCOME_COUNT]      # number of messages by acknowledged outcome
    cdef readonly uint32_t end          # of the handles
    cdef readonly uint64_t count
    cdef readonly uint64_t count_max

    cdef Publisher *at(self, uint32_t handle) noexcept          # NULL: a free handle, below `end`
    cdef Publisher *on_link(self, uint32_t handle, uint64_t link) noexcept      # NULL: none on this link
    cdef uint32_t handle_of(self, uint64_t id) noexcept         # 0: unknown publisher
    cdef uint32_t add(self, uint64_t id, uint32_t handle, int64_t wall_ns) except 0
    cdef uint32_t forget_oldest(self) except 0
    cdef int acknowledge(
        self, uint32_t handle, uint64_t number, uint8_t outcome, uint32_t endpoint, uint8_t limit
    ) except -1
    cdef bytes take_only(self, uint64_t link)


cdef inline bint bit_of(const uint64_t *words, uint64_t number) noexcept:
    return words[(number >> 6) & (WINDOW_WORDS - 1)] >> (number & 63) & 1


cdef inline void set_bit(uint64_t *words, uint64_t number) noexcept:
    words[(number >> 6) & (WINDOW_WORDS - 1)] |= <uint64_t>1 << (number & 63)


cdef inline void clear_bit(uint64_t *words, uint64_t number) noexcept:
    words[(number >> 6) & (WINDOW_WORDS - 1)] &= ~(<uint64_t>1 << (number & 63))
