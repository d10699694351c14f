"""The metering engine: which pairs of a consumer and an item may be sent an update now, and when the others may.

A pair's life: begin() (subscribed; what comes is in the refresh that it waits for) → live() → offer() for each update.
An offered pair is *withheld* until its interval is over, then it waits in its consumer's queue until next_pair() gives
it out: to be written, then sent(); or refused(), if there is no room, which stops its consumer until resume(). The
caller keeps what the record will be. Consumers with something to send take turns, one pair each.

Rates are kept by spacing (a leaky bucket for each pair, each consumer and the node): what is sent late does not put off
what follows, up to half an interval. So the mean rate is exact, and k intervals hold at most k + 1 updates.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.engine.core.kernel._pairs cimport Pairs
from penstock.engine.core.kernel._wheel cimport TimingWheel

cpdef enum MeterState:
    """Where a pair is."""
    METER_NONE = 0      # it is not metered
    METER_PENDING = 1   # its refresh has not been sent
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

    # An update came. Whether it is owed: False while the pair is pending, and if it is not metered.
    cdef bint offer(self, uint32_t pair, int64_t now_ns) noexcept nogil

    # Put those into their queues whose time has come, at most so many; how many.
    cdef uint32_t advance(self, int64_t now_ns, uint32_t count_max) noexcept nogil
    # Whose turn it is: False if it is nobody's. To be followed by sent() or refused().
    cdef bint next_pair(self, int64_t now_ns, uint32_t *pair) noexcept nogil
    # Which pairs next_pair() is likely to give out, one of each consumer: how many.
    cdef uint32_t look_ahead(self, uint32_t *pairs, uint32_t count_max) noexcept nogil
    cdef void sent(self, uint32_t pair, int64_t now_ns) noexcept nogil
    cdef void refused(self, uint32_t pair) noexcept nogil
    cdef void resume(self, uint32_t consumer, int64_t now_ns) noexcept nogil

    # When there is something to do; -1: when something is offered.
    cdef int64_t next_due(self, int64_t now_ns) noexcept nogil
