"""Trades are counted, taken back and corrected; _trades.pxd describes them."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from penstock.convert.books._image cimport images_end, unit_touch
from penstock.convert.books._units cimport (
    Instrument,
    LIMIT_INSTRUMENTS,
    LIMIT_TRADES,
    PRICE_NONE,
    STATE_INVALID,
    STATE_OK,
    STATE_REFUSED,
    STATE_UNKNOWN,
    TRADE_BROKEN,
    TRADE_EXTENDED_HOURS,
    TRADE_NOT_HIGH_LOW,
    TRADE_NOT_LAST,
    TRADE_NOT_VOLUME,
    digest_add,
    extended_mix,
    is_size,
    pool_give,
    pool_grow,
    statistics_mix,
    trade_mix,
    unit_of_instrument,
    unit_of_log,
    wide_add,
    wide_divide,
)

cdef enum:
    ROOM_FIRST = 16
    DECIMALS = 8


# Statistics


cdef void statistics_begin(StatisticsRow *row, int64_t previous_close) noexcept nogil:
    memset(row, 0, sizeof(StatisticsRow))
    row.open = PRICE_NONE()
    row.high = PRICE_NONE()
    row.low = PRICE_NONE()
    row.last = PRICE_NONE()
    row.previous_close = previous_close


cdef void extended_begin(ExtendedRow *row) noexcept nogil:
    memset(row, 0, sizeof(ExtendedRow))
    row.high = PRICE_NONE()
    row.low = PRICE_NONE()
    row.last = PRICE_NONE()


cdef inline void range_count(int64_t *high, int64_t *low, int64_t price) noexcept nogil:
    if high[0] == PRICE_NONE() or price > high[0]:
        high[0] = price
    if low[0] == PRICE_NONE() or price < low[0]:
        low[0] = price


cdef void statistics_count(StatisticsRow *row, const TradeRow *trade) noexcept nogil:
    """Let a trade count that came after all others."""
    if trade.conditions & TRADE_BROKEN:
        return
    if not trade.conditions & TRADE_NOT_LAST:
        if row.open == PRICE_NONE():
            row.open = trade.price
        row.last = trade.price
        row.last_size = trade.size
    if not trade.conditions & TRADE_NOT_HIGH_LOW:
        range_count(&row.high, &row.low, trade.price)
    if not trade.conditions & TRADE_NOT_VOLUME:
        row.volume += trade.size
        row.trade_count += 1
        wide_add(&row.turnover_low, &row.turnover_high, trade.price, trade.size)


cdef void extended_count(ExtendedRow *row, const TradeRow *trade) noexcept nogil:
    """The same for a trade of extended hours."""
    if trade.conditions & TRADE_BROKEN:
        return
    if not trade.conditions & TRADE_NOT_LAST:
        row.last = trade.price
    if not trade.conditions & TRADE_NOT_HIGH_LOW:
        range_count(&row.high, &row.low, trade.price)
    if not trade.conditions & TRADE_NOT_VOLUME:
        row.volume += trade.size
        row.trade_count += 1
        wide_add(&row.turnover_low, &row.turnover_high, trade.price, trade.size)


cdef inline uint64_t values_mix(uint32_t instrument, const Instrument *owner) noexcept nogil:
    return statistics_mix(instrument, &owner.statistics) + extended_mix(instrument, &owner.extended)


cdef void statistics_again(State *state, uint32_t instrument) noexcept nogil:
    """Compute the day's values from the log; the caller has touched the unit."""
    cdef Instrument *owner = &state.instruments[instrument]
    cdef uint64_t before = values_mix(instrument, owner)
    cdef uint32_t ordinal
    statistics_begin(&owner.statistics, owner.statistics.previous_close)
    extended_begin(&owner.extended)
    for ordinal in range(owner.trade_count):
        if owner.trades[ordinal].conditions & TRADE_EXTENDED_HOURS:
            extended_count(&owner.extended, &owner.trades[ordinal])
        else:
            statistics_count(&owner.statistics, &owner.trades[ordinal])
    digest_add(state, &owner.unit, values_mix(instrument, owner) - before)


cdef int64_t turnover_scaled(uint64_t low, uint64_t high, uint32_t size_decimals, uint32_t decimals) noexcept nogil:
    cdef int64_t divisor = 1
    while decimals < DECIMALS + size_decimals:
        divisor *= 10
        decimals += 1
    return wide_divide(low, high, divisor)


# The log


cdef bint log_make_room(State *state, Instrument *owner) noexcept nogil:
    cdef uint32_t room = 2 * owner.trade_room if owner.trade_room else ROOM_FIRST
    cdef TradeRow *trades
    if owner.trade_count < owner.trade_room:
        return True
    if owner.trade_room >> 30:
        return False
    trades = <TradeRow *>pool_grow(
        state.pool, owner.trades, owner.trade_room * sizeof(TradeRow), owner.trade_count * sizeof(TradeRow),
        room * sizeof(TradeRow),
    )
    if trades is NULL:
        return False
    owner.trades = trades
    owner.trade_room = room
    return True


cdef Answer trade_add(
    State *state, uint32_t instrument, uint64_t trade_id, int64_t price, uint64_t size, int64_t event_ns,
    uint32_t conditions
) noexcept nogil:
    cdef Instrument *owner = &state.instruments[instrument]
    cdef TradeRow *trade
    cdef uint64_t before
    if not is_size(size) or price == PRICE_NONE() or conditions & TRADE_BROKEN:
        return STATE_INVALID
    if not is_size(owner.statistics.volume + owner.extended.volume + size):
        return STATE_INVALID # both are below 2^62: the sum is right, and the turnover stays below 2^125
    if state.counts[LIMIT_TRADES] >= state.limits.counts[LIMIT_TRADES] or not log_make_room(state, owner):
        state.refused[LIMIT_TRADES] += 1
        return STATE_REFUSED
    # the log is not touched: an image knows how long it was, and what was in it stays
    unit_touch(state, &owner.unit, unit_of_instrument(instrument))
    if owner.trade_count and owner.trades[owner.trade_count - 1].trade_id >= trade_id:
        owner.is_log_ascending = False
    trade = &owner.trades[owner.trade_count]
    trade.trade_id = trade_id
    trade.price = price
    trade.size = size
    trade.event_ns = event_ns
    trade.conditions = conditions
    trade.reserved = 0
    digest_add(state, &owner.log_unit, trade_mix(instrument, owner.trade_count, trade))
    owner.trade_count += 1
    state.counts[LIMIT_TRADES] += 1
    if conditions & TRADE_EXTENDED_HOURS:
        before = extended_mix(instrument, &owner.extended)
        extended_count(&owner.extended, trade)
        digest_add(state, &owner.unit, extended_mix(instrument, &owner.extended) - before)
        return STATE_OK
    before = statistics_mix(instrument, &owner.statistics)
    statistics_count(&owner.statistics, trade)
    digest_add(state, &owner.unit, statistics_mix(instrument, &owner.statistics) - before)
    return STATE_OK


cdef TradeRow *log_find(const Instrument *owner, uint64_t trade_id) noexcept nogil:
    """The newest trade of this id that counts."""
    cdef uint32_t lower = 0, upper = owner.trade_count, middle
    cdef TradeRow *trade
    if owner.is_log_ascending:
        while lower < upper:
            middle = (lower + upper) >> 1
            if owner.trades[middle].trade_id < trade_id:
                lower = middle + 1
            else:
                upper = middle
        upper = min(lower + 1, owner.trade_count)
    while upper > lower:
        upper -= 1
        trade = &owner.trades[upper]
        if trade.trade_id == trade_id and not trade.conditions & TRADE_BROKEN:
            return trade
    return NULL


cdef const TradeRow *trade_find(const State *state, uint32_t instrument, uint64_t trade_id) noexcept nogil:
    return log_find(&state.instruments[instrument], trade_id)


cdef void trade_alter(State *state, uint32_t instrument, TradeRow *trade, const TradeRow *altered) noexcept nogil:
    cdef Instrument *owner = &state.instruments[instrument]
    cdef uint32_t ordinal = <uint32_t>(trade - owner.trades)
    cdef uint64_t before = trade_mix(instrument, ordinal, trade)
    unit_touch(state, &owner.unit, unit_of_instrument(instrument))
    unit_touch(state, &owner.log_unit, unit_of_log(instrument))
    trade[0] = altered[0]
    digest_add(state, &owner.log_unit, trade_mix(instrument, ordinal, trade) - before)
    statistics_again(state, instrument)


cdef Answer trade_break(State *state, uint32_t instrument, uint64_t trade_id, TradeRow *was) noexcept nogil:
    cdef TradeRow *trade = log_find(&state.instruments[instrument], trade_id)
    cdef TradeRow altered
    if trade is NULL:
        return STATE_UNKNOWN
    if was is not NULL:
        was[0] = trade[0]
    altered = trade[0]
    altered.conditions |= TRADE_BROKEN
    trade_alter(state, instrument, trade, &altered)
    return STATE_OK


cdef Answer trade_correct(
    State *state, uint32_t instrument, uint64_t trade_id, int64_t price, uint64_t size, uint32_t conditions,
    TradeRow *was
) noexcept nogil:
    """A trade keeps its hours, whenever its correction is printed."""
    cdef TradeRow *trade = log_find(&state.instruments[instrument], trade_id)
    cdef TradeRow altered
    if trade is NULL:
        return STATE_UNKNOWN
    if not is_size(size) or price == PRICE_NONE() or conditions & TRADE_BROKEN:
        return STATE_INVALID
    if not is_size(
        state.instruments[instrument].statistics.volume + state.instruments[instrument].extended.volume + size
    ):
        return STATE_INVALID
    if was is not NULL:
        was[0] = trade[0]
    altered = trade[0]
    altered.price = price
    altered.size = size
    altered.conditions = (conditions & ~TRADE_EXTENDED_HOURS) | (trade.conditions & TRADE_EXTENDED_HOURS)
    trade_alter(state, instrument, trade, &altered)
    return STATE_OK


cdef void trades_between(
    const State *state, uint32_t instrument, int64_t from_ns, int64_t until_ns, StatisticsRow *result
) noexcept nogil:
    cdef const Instrument *owner = &state.instruments[instrument]
    cdef uint32_t ordinal = owner.trade_count
    statistics_begin(result, PRICE_NONE())
    while ordinal and owner.trades[ordinal - 1].event_ns >= from_ns:
        ordinal -= 1
    while ordinal < owner.trade_count:
        if owner.trades[ordinal].event_ns < until_ns:
            statistics_count(result, &owner.trades[ordinal])
        ordinal += 1


cdef void trades_roll_over(State *state, bint is_same_day) noexcept nogil:
    cdef Instrument *owner
    cdef uint64_t before
    cdef int64_t close
    cdef uint32_t instrument
    images_end(state)
    for instrument in range(<uint32_t>state.counts[LIMIT_INSTRUMENTS]):
        owner = &state.instruments[instrument]
        pool_give(state.pool, owner.trades, owner.trade_room * sizeof(TradeRow))
        owner.trades = NULL
        owner.trade_count = 0
        owner.trade_room = 0
        owner.is_log_ascending = True
        state.digest -= owner.log_unit.digest
        owner.log_unit.digest = 0
        before = values_mix(instrument, owner)
        close = owner.statistics.previous_close
        if not is_same_day and owner.statistics.last != PRICE_NONE():
            close = owner.statistics.last
        statistics_begin(&owner.statistics, close)
        extended_begin(&owner.extended)
        digest_add(state, &owner.unit, values_mix(instrument, owner) - before)
    state.counts[LIMIT_TRADES] = 0
