"""The day's trades of an instrument, and their statistics: open, high, low, last, volume, turnover, count.

A broken or corrected trade is removed exactly: all values are recomputed from the day's log. A trade in extended hours
(TRADE_EXTENDED_HOURS) counts only in the extended values. Other flags in `conditions` exclude a trade from some values
of its hours.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.convert.books._units cimport Answer, ExtendedRow, State, StatisticsRow, TradeRow

cdef Answer trade_add(
    State *state, uint32_t instrument, uint64_t trade_id, int64_t price, uint64_t size, int64_t event_ns,
    uint32_t conditions
) noexcept nogil
# `was`, if not NULL, receives the trade as it was before.
cdef Answer trade_break(State *state, uint32_t instrument, uint64_t trade_id, TradeRow *was) noexcept nogil
cdef Answer trade_correct(
    State *state, uint32_t instrument, uint64_t trade_id, int64_t price, uint64_t size, uint32_t conditions,
    TradeRow *was
) noexcept nogil
# Return the newest trade with this id that was not broken, or NULL; valid until the next change.
cdef const TradeRow *trade_find(const State *state, uint32_t instrument, uint64_t trade_id) noexcept nogil
# Compute the statistics of trades from `from_ns` to before `until_ns` (a bar); exact after breaks as well. Reads the
# log backwards to the first trade before `from_ns`.
cdef void trades_between(
    const State *state, uint32_t instrument, int64_t from_ns, int64_t until_ns, StatisticsRow *result
) noexcept nogil
# Return a turnover with this number of decimals (0 to 8), saturated to 64 bits; sizes have `size_decimals` (0 to 8).
cdef int64_t turnover_scaled(uint64_t low, uint64_t high, uint32_t size_decimals, uint32_t decimals) noexcept nogil
# Begin a session: `last` becomes `previous_close`, unless the trading date is the same; other statistics and the log
# are cleared. Invalidates open images.
cdef void trades_roll_over(State *state, bint is_same_day) noexcept nogil
