"""The compiled metering engine; _metering.pxd describes its use, metering_limits.py the rates."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from penstock.base._prefetch cimport prefetch
from penstock.engine.core.kernel._pairs cimport Pair, Pairs
from penstock.engine.core.kernel._wheel cimport SLOT_NS, TimingWheel

from penstock.base.errors import LocalProtocolError

cdef enum:
    EXPIRED_MAX = 256


cdef class Metering:
    """Meters `pairs` of consumers below `consumers_max`; intervals are in nanoseconds, 0 for none.

    `node_interval_ns` is the minimum time between any two updates. Time is an argument of each call.
    """

    def __cinit__(self, Pairs pairs not None, uint32_t consumers_max, int64_t node_interval_ns=0):
        self.pairs = pairs
        self.consumers_max = consumers_max
        self.node.interval_ns = node_interval_ns
        self.spent = TimingWheel(consumers_max)
        self.wheel = TimingWheel(0)
        self.wheel.lay_over(<uint8_t **>&pairs.pairs, sizeof(Pair), pairs.pairs_max)
        self.turns = <Turn *>calloc(<size_t>consumers_max + 1, sizeof(Turn))
        if self.turns is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.turns)

    def limit(self, uint32_t consumer, int64_t interval_ns, int64_t now_ns) -> None:
        """Set the minimum interval between any two updates to this consumer. A new consumer has room."""
        _check_consumer(self, consumer)
        self.turns[consumer].bucket = Bucket(0, interval_ns)
        self.spent.drop(consumer)
        self.turns[consumer].is_stopped = False
        if self.turns[consumer].first:
            _call(self, consumer, now_ns)

    def subscribe(self, uint32_t pair, uint32_t consumer, int64_t interval_ns) -> None:
        """Start metering the pair; its refresh is pending."""
        _check_consumer(self, consumer)
        if self.state(pair) != METER_NONE:
            raise LocalProtocolError(f"pair {pair} is metered already")
        if interval_ns <= 0:
            raise LocalProtocolError(f"invalid interval of {interval_ns} ns")
        self.pairs.reserve(pair + 1)
        self.pairs.pairs[pair].consumer = consumer
        self.begin(pair, interval_ns)

    def refreshed(self, uint32_t pair, int64_t now_ns) -> None:
        """The refresh was sent; updates follow."""
        if self.state(pair) != METER_PENDING:
            raise LocalProtocolError(f"pair {pair} does not wait for a refresh")
        self.live(pair, now_ns)

    def unsubscribe(self, uint32_t pair) -> None:
        """Stop metering the pair. No effect if it is not metered."""
        if self.state(pair) != METER_NONE:
            self.end(pair)

    def state(self, uint32_t pair) -> MeterState:
        if pair >= self.pairs.pairs_max:
            raise LocalProtocolError(f"pair {pair} is out of range (below {self.pairs.pairs_max})")
        return MeterState(self.state_of(pair) if pair < self.pairs.room else METER_NONE)

    def owe(self, uint32_t pair, int64_t now_ns) -> bool:
        """An update of the pair arrived. True if it will be sent."""
        return self.state(pair) != METER_NONE and bool(self.offer(pair, now_ns))

    def take(self, int64_t now_ns) -> int | None:
        """Return the pair whose turn it is; the caller passes it to give_back()."""
        cdef uint32_t pair
        self.advance(now_ns, 0xFFFFFFFF)
        return pair if self.next_pair(now_ns, &pair) else None

    def give_back(self, uint32_t pair, int64_t now_ns, bint is_sent) -> None:
        """The taken pair was sent; or there was no room, and its consumer is stopped until go_on()."""
        if self.state(pair) != METER_TAKEN:
            raise LocalProtocolError(f"pair {pair} was not taken")
        if is_sent:
            self.sent(pair, now_ns)
        else:
            self.refused(pair)

    def go_on(self, uint32_t consumer, int64_t now_ns) -> None:
        """The consumer has room again."""
        _check_consumer(self, consumer)
        self.resume(consumer, now_ns)

    def next_due_ns(self, int64_t now_ns) -> int | None:
        cdef int64_t due_ns = self.next_due(now_ns)
        return None if due_ns < 0 else due_ns

    cdef void begin(self, uint32_t pair, int64_t interval_ns) noexcept nogil:
        self.pairs.pairs[pair].entry.due_ns = 0
        self.pairs.pairs[pair].interval_ns = interval_ns
        self.pairs.pairs[pair].metered = METER_PENDING
        self.metered += 1

    cdef void live(self, uint32_t pair, int64_t now_ns) noexcept nogil:
        if self.is_metered(pair):
            _leave(self, pair)
            self.pairs.pairs[pair].metered = METER_QUIET
            self.pairs.pairs[pair].entry.due_ns = now_ns + self.pairs.pairs[pair].interval_ns

    cdef void change(self, uint32_t pair, int64_t interval_ns, int64_t now_ns) noexcept nogil:
        cdef Pair *meter = &self.pairs.pairs[pair]
        cdef int64_t due_ns = meter.entry.due_ns + interval_ns - meter.interval_ns
        meter.interval_ns = interval_ns
        if meter.metered == METER_WITHHELD:
            self.wheel.put(pair, due_ns, now_ns)
        else:
            meter.entry.due_ns = due_ns

    cdef void end(self, uint32_t pair) noexcept nogil:
        if self.is_metered(pair):
            _leave(self, pair)
            self.pairs.pairs[pair].metered = METER_NONE
            self.metered -= 1

    cdef bint offer(self, uint32_t pair, int64_t now_ns) noexcept nogil:
        cdef Pair *meter = &self.pairs.pairs[pair]
        if meter.metered < METER_QUIET:
            return False
        if meter.metered == METER_QUIET:
            if meter.entry.due_ns <= now_ns:
                meter.entry.due_ns = now_ns
                _join_queue(self, pair, now_ns)
            else:
                meter.metered = METER_WITHHELD
                self.wheel.put(pair, meter.entry.due_ns, now_ns)
        return True

    cdef uint32_t advance(self, int64_t now_ns, uint32_t count_max) noexcept nogil:
        cdef uint32_t[EXPIRED_MAX] expired
        cdef uint32_t index, found = EXPIRED_MAX, count = 0
        while found == EXPIRED_MAX:
            found = self.spent.take_due(now_ns, expired, EXPIRED_MAX)
            for index in range(found):
                _join_round(self, expired[index])
        while count < count_max:
            found = self.wheel.take_due(now_ns, expired, min(<uint32_t>EXPIRED_MAX, count_max - count))
            for index in range(found):
                _join_queue(self, expired[index], now_ns)
            count += found
            if found < EXPIRED_MAX:
                break
        return count

    cdef bint next_pair(self, int64_t now_ns, uint32_t *pair) noexcept nogil:
        cdef uint32_t consumer
        cdef Turn *turn
        if self.first == 0 or _is_early(&self.node, now_ns):
            return False
        while self.first:
            consumer = self.first - 1
            turn = &self.turns[consumer]
            if not _is_early(&turn.bucket, now_ns):
                pair[0] = turn.first - 1
                _leave_round(self, consumer)
                _leave_queue(self, pair[0])
                self.pairs.pairs[pair[0]].metered = METER_TAKEN
                if turn.first:
                    _join_round(self, consumer)
                return True
            _leave_round(self, consumer)
            self.spent.put(consumer, turn.bucket.due_ns, now_ns)
        return False

    cdef uint32_t look_ahead(self, uint32_t *pairs, uint32_t count_max) noexcept nogil:
        cdef uint32_t count = 0, consumer = self.first
        while consumer and count < count_max:
            pairs[count] = self.turns[consumer - 1].first - 1
            prefetch(&self.pairs.pairs[pairs[count]])
            consumer = self.turns[consumer - 1].next
            count += 1
        return count

    cdef void sent(self, uint32_t pair, int64_t now_ns) noexcept nogil:
        cdef Pair *meter = &self.pairs.pairs[pair]
        meter.metered = METER_QUIET
        _spend(&meter.entry.due_ns, meter.interval_ns, now_ns)
        self.spend(meter.consumer, now_ns)

    cdef bint is_early(self, uint32_t consumer, int64_t now_ns) noexcept nogil:
        return _is_early(&self.node, now_ns) or _is_early(&self.turns[consumer].bucket, now_ns)

    cdef void spend(self, uint32_t consumer, int64_t now_ns) noexcept nogil:
        _spend(&self.turns[consumer].bucket.due_ns, self.turns[consumer].bucket.interval_ns, now_ns)
        _spend(&self.node.due_ns, self.node.interval_ns, now_ns)

    cdef void refused(self, uint32_t pair) noexcept nogil:
        _stop(self, self.pairs.pairs[pair].consumer)
        _link_first(self, pair)

    cdef void resume(self, uint32_t consumer, int64_t now_ns) noexcept nogil:
        cdef Turn *turn = &self.turns[consumer]
        if turn.is_stopped:
            turn.is_stopped = False
            if turn.first:
                _call(self, consumer, now_ns)

    cdef int64_t next_due(self, int64_t now_ns) noexcept nogil:
        cdef int64_t due_ns = _earlier(self.wheel.next_due(), self.spent.next_due())
        return _earlier(due_ns, max(now_ns, self.node.due_ns)) if self.first else due_ns


cdef int _check_consumer(Metering metering, uint32_t consumer) except -1:
    if consumer >= metering.consumers_max:
        raise LocalProtocolError(f"consumer {consumer} is not below {metering.consumers_max}")
    return 0


cdef inline int64_t _earlier(int64_t first_ns, int64_t second_ns) noexcept nogil:
    """The earlier of two times; -1 means none."""
    if first_ns < 0 or second_ns < 0:
        return max(first_ns, second_ns)
    return min(first_ns, second_ns)


cdef inline bint _is_early(const Bucket *bucket, int64_t now_ns) noexcept nogil:
    return bucket.interval_ns != 0 and now_ns < bucket.due_ns


cdef inline void _spend(int64_t *due_ns, int64_t interval_ns, int64_t now_ns) noexcept nogil:
    """Count a send, which may be late: the next one is not delayed if the send was late by at most half an interval.
    A rate finer than the wheel's slots may be late by a slot."""
    cdef bint is_in_time = now_ns - due_ns[0] <= max(interval_ns // 2, <int64_t>SLOT_NS)
    due_ns[0] = (due_ns[0] if is_in_time else now_ns) + interval_ns


cdef inline void _call(Metering metering, uint32_t consumer, int64_t now_ns) noexcept nogil:
    """The consumer has pairs to send: add it to the round when its rate allows."""
    cdef Turn *turn = &metering.turns[consumer]
    if turn.is_stopped or turn.is_due:
        return
    if _is_early(&turn.bucket, now_ns):
        metering.spent.put(consumer, turn.bucket.due_ns, now_ns)
    else:
        metering.spent.drop(consumer)  # if its slot has not ended yet
        _join_round(metering, consumer)


cdef inline void _stop(Metering metering, uint32_t consumer) noexcept nogil:
    if metering.turns[consumer].is_due:
        _leave_round(metering, consumer)
    metering.spent.drop(consumer)
    metering.turns[consumer].is_stopped = True


cdef inline void _leave(Metering metering, uint32_t pair) noexcept nogil:
    """Remove the pair from the queue or wheel that it is in."""
    if metering.pairs.pairs[pair].metered == METER_WITHHELD:
        metering.wheel.drop(pair)
    elif metering.pairs.pairs[pair].metered == METER_READY:
        _leave_queue(metering, pair)


cdef inline void _join_queue(Metering metering, uint32_t pair, int64_t now_ns) noexcept nogil:
    cdef Pair *meter = &metering.pairs.pairs[pair]
    cdef Turn *turn = &metering.turns[meter.consumer]
    meter.metered = METER_READY
    meter.entry.next = 0
    meter.entry.previous = turn.last
    if turn.last:
        metering.pairs.pairs[turn.last - 1].entry.next = pair + 1
    else:
        turn.first = pair + 1
    turn.last = pair + 1
    metering.ready += 1
    _call(metering, meter.consumer, now_ns)


cdef inline void _link_first(Metering metering, uint32_t pair) noexcept nogil:
    cdef Pair *meter = &metering.pairs.pairs[pair]
    cdef Turn *turn = &metering.turns[meter.consumer]
    meter.metered = METER_READY
    meter.entry.previous = 0
    meter.entry.next = turn.first
    if turn.first:
        metering.pairs.pairs[turn.first - 1].entry.previous = pair + 1
    else:
        turn.last = pair + 1
    turn.first = pair + 1
    metering.ready += 1


cdef inline void _leave_queue(Metering metering, uint32_t pair) noexcept nogil:
    cdef Pair *meter = &metering.pairs.pairs[pair]
    cdef Turn *turn = &metering.turns[meter.consumer]
    if meter.entry.previous:
        metering.pairs.pairs[meter.entry.previous - 1].entry.next = meter.entry.next
    else:
        turn.first = meter.entry.next
    if meter.entry.next:
        metering.pairs.pairs[meter.entry.next - 1].entry.previous = meter.entry.previous
    else:
        turn.last = meter.entry.previous
    metering.ready -= 1
    if turn.first == 0:
        if turn.is_due:
            _leave_round(metering, meter.consumer)
        metering.spent.drop(meter.consumer)


cdef inline void _join_round(Metering metering, uint32_t consumer) noexcept nogil:
    cdef Turn *turn = &metering.turns[consumer]
    turn.is_due = True
    turn.next = 0
    turn.previous = metering.last
    if metering.last:
        metering.turns[metering.last - 1].next = consumer + 1
    else:
        metering.first = consumer + 1
    metering.last = consumer + 1


cdef inline void _leave_round(Metering metering, uint32_t consumer) noexcept nogil:
    cdef Turn *turn = &metering.turns[consumer]
    if turn.previous:
        metering.turns[turn.previous - 1].next = turn.next
    else:
        metering.first = turn.next
    if turn.next:
        metering.turns[turn.next - 1].previous = turn.previous
    else:
        metering.last = turn.previous
    turn.is_due = False
