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
    """The state of a pair."""
    METER_NONE = 0  # not metered
    METER_PENDING = 1  # its refresh has not been sent yet
    METER_QUIET = 2  # no value is pending
    METER_WITHHELD = 3  # a value is pending, but not due
    METER_READY = 4  # in its consumer's queue
    METER_TAKEN = 5  # being written


cdef struct Bucket:
    int64_t due_ns  # time of the next send
    int64_t interval_ns  # 0: no limit


cdef struct Turn:  # of a consumer
    Bucket bucket
    uint32_t first  # of its queue: pair plus one; 0: none
    uint32_t last
    uint32_t next  # next consumer in the round, plus one
    uint32_t previous
    bint is_due  # in the round
    bint is_stopped  # there was no room


cdef class Metering:
    cdef readonly Pairs pairs  # a pair's bucket and links are in its record
    cdef readonly uint32_t consumers_max
    cdef readonly uint32_t metered  # number of metered pairs
    cdef readonly uint32_t ready  # number of pairs in queues
    cdef TimingWheel wheel  # withheld pairs
    cdef TimingWheel spent  # consumers whose rate is used up
    cdef Turn *turns
    cdef Bucket node
    cdef uint32_t first  # of the round: consumer plus one
    cdef uint32_t last

    cdef void begin(self, uint32_t pair, int64_t interval_ns) noexcept nogil
    # The refresh was sent, and no value is pending.
    cdef void live(self, uint32_t pair, int64_t now_ns) noexcept nogil
    cdef void change(self, uint32_t pair, int64_t interval_ns, int64_t now_ns) noexcept nogil
    cdef void end(self, uint32_t pair) noexcept nogil

    cdef inline uint8_t state_of(self, uint32_t pair) noexcept nogil:
        return self.pairs.pairs[pair].metered

    cdef inline bint is_metered(self, uint32_t pair) noexcept nogil:
        return self.state_of(pair) != METER_NONE

    # The item was updated. True if the pair has a pending value now: not while its refresh is pending, nor if it is not
    # metered.
    cdef bint offer(self, uint32_t pair, int64_t now_ns) noexcept nogil

    # Move due pairs into their consumers' queues, at most `count_max`. Return their number.
    cdef uint32_t advance(self, int64_t now_ns, uint32_t count_max) noexcept nogil
    # The next pair to write; False if there is none. The caller then calls sent() or refused().
    cdef bint next_pair(self, int64_t now_ns, uint32_t *pair) noexcept nogil
    # The pairs that next_pair() is likely to return, one for each consumer. Return their number.
    cdef uint32_t look_ahead(self, uint32_t *pairs, uint32_t count_max) noexcept nogil
    cdef void sent(self, uint32_t pair, int64_t now_ns) noexcept nogil
    # True if the rate of the consumer or of the node is used up. Whoever writes besides next_pair() calls spend().
    cdef bint is_early(self, uint32_t consumer, int64_t now_ns) noexcept nogil
    cdef void spend(self, uint32_t consumer, int64_t now_ns) noexcept nogil
    cdef void refused(self, uint32_t pair) noexcept nogil
    cdef void resume(self, uint32_t consumer, int64_t now_ns) noexcept nogil

    # Time of the next due pair; -1: none.
    cdef int64_t next_due(self, int64_t now_ns) noexcept nogil
