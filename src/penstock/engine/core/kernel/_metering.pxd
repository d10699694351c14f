"""The metering engine decides which pairs of a consumer and an item may be sent an update now, and when others may.

The life of a pair: begin() (subscribed; its refresh covers updates until then) → live() → offer() for each update. An
offered pair is *withheld* until its interval is over. Then it waits in its consumer's queue until next_pair() returns
it. The caller writes its value and calls sent(), or, if there is no room, refused(), which stops the consumer until
resume(). The caller keeps the value. Consumers with pairs to send take turns, one pair each.

A leaky bucket for each pair, each consumer and the node keeps the rates. An update that is late by up to half an interval
does not delay the next one, so the mean rate is exact, and k intervals have at most k + 1 updates.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.engine.core.kernel._pairs cimport Pairs
from penstock.engine.core.kernel._wheel cimport TimingWheel

cpdef enum MeterState:
    """Where a pair is."""
    METER_NONE = 0      # it is not metered
    METER_PENDING = 1   # its refresh has not been sent yet
    METER_QUIET = 2     # nothing is owed
    METER_WITHHELD = 3  # something is owed, and its time has not come
    METER_READY = 4     # it waits in its consumer's queue
    METER_TAKEN = 5     # it is being written


cdef struct Bucket:
    int64_t due_ns      # when the next may be sent
    int64_t interval_ns # 0: at any time


cdef struct Turn:       # of a consumer
    Bucket bucket
    uint32_t first      # of its queue: pairs plus one; 0: none
    uint32_t last
    uint32_t next       # in the round of consumers, plus one
    uint32_t previous
    bint is_due         # in the round
    bint is_stopped     # there was no room


cdef class Metering:
    cdef readonly Pairs pairs           # a pair's bucket and links are in its record
    cdef readonly uint32_t consumers_max
    cdef readonly uint32_t metered      # pairs
    cdef readonly uint32_t ready        # pairs in queues
    cdef TimingWheel wheel              # pairs that are withheld
    cdef TimingWheel spent              # consumers whose rate is used up
    cdef Turn *turns
    cdef Bucket node
    cdef uint32_t first                 # of the round: consumers plus one
    cdef uint32_t last

    cdef void begin(self, uint32_t pair, int64_t interval_ns) noexcept nogil
    # The refresh was sent, and nothing is owed.
    cdef void live(self, uint32_t pair, int64_t now_ns) noexcept nogil
    cdef void change(self, uint32_t pair, int64_t interval_ns, int64_t now_ns) noexcept nogil
    cdef void end(self, uint32_t pair) noexcept nogil

    cdef inline uint8_t state_of(self, uint32_t pair) noexcept nogil:
        return self.pairs.pairs[pair].metered

    cdef inline bint is_metered(self, uint32_t pair) noexcept nogil:
        return self.state_of(pair) != METER_NONE

    # The item was updated. True if the pair is owed its value: not while its refresh is pending, nor if it is not metered.
    cdef bint offer(self, uint32_t pair, int64_t now_ns) noexcept nogil

    # Move pairs that are due into their consumers' queues, at most so many: how many.
    cdef uint32_t advance(self, int64_t now_ns, uint32_t count_max) noexcept nogil
    # The next pair to be written; False if there is none. The caller then calls sent() or refused().
    cdef bint next_pair(self, int64_t now_ns, uint32_t *pair) noexcept nogil
    # The pairs that next_pair() is likely to return, one for each consumer: how many.
    cdef uint32_t look_ahead(self, uint32_t *pairs, uint32_t count_max) noexcept nogil
    cdef void sent(self, uint32_t pair, int64_t now_ns) noexcept nogil
    cdef void refused(self, uint32_t pair) noexcept nogil
    cdef void resume(self, uint32_t consumer, int64_t now_ns) noexcept nogil

    # When the next pair is due; -1: none is.
    cdef int64_t next_due(self, int64_t now_ns) noexcept nogil
