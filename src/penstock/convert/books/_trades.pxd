"""The day's trades of an instrument, and what follows from them: open, high, low, last, volume, turnover, count.

A trade that is broken or corrected is taken back exactly: all values are computed again from the day's log, as if it
had never been. A trade of extended hours (TRADE_EXTENDED_HOURS) counts in the extended values only. Other marks in
`conditions` say which of the values of its hours a trade leaves alone.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.convert.books._units cimport Answer, ExtendedRow, State, StatisticsRow, TradeRow

cdef Answer trade_add(
    State *state, uint32_t instrument, uint64_t trade_id, int64_t price, uint64_t size, int64_t event_ns,
    uint32_t conditions
) noexcept nogil
# `was`, when not NULL, is given the trade as it was before.
cdef Answer trade_break(State *state, uint32_t instrument, uint64_t trade_id, TradeRow *was) noexcept nogil
cdef Answer trade_correct(
    State *state, uint32_t instrument, uint64_t trade_id, int64_t price, uint64_t size, uint32_t conditions,
    TradeRow *was
) noexcept nogil
# The newest trade of this id that was not broken, or NULL; valid until the next change.
cdef const TradeRow *trade_find(const State *state, uint32_t instrument, uint64_t trade_id) noexcept nogil
# What trades from `from_ns` to before `until_ns` come to (a bar); exact after breaks as well. The log is read from
# its end back to the first trade before `from_ns`.
cdef void trades_between(
    const State *state, uint32_t instrument, int64_t from_ns, int64_t until_ns, StatisticsRow *result
) noexcept nogil
# A turnover with so many decimals (0 to 8), or the nearest number of 64 bits; sizes have `size_decimals` (0 to 8).
cdef int64_t turnover_scaled(uint64_t low, uint64_t high, uint32_t size_decimals, uint32_t decimals) noexcept nogil
# A new session: `last` becomes `previous_close`, unless it is of the same trading date; everything else of the statistics
# and the log begins anew. Ends the images under way.
cdef void trades_roll_over(State *state, bint is_same_day) noexcept nogil
