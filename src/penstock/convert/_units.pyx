"""The layout of the conversion state, and opening and closing one; _units.pxd describes it."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

assert sizeof(SessionRow) == SESSION_SIZE and sizeof(OrderRow) == ORDER_SIZE and sizeof(LevelRow) == LEVEL_SIZE
assert sizeof(TradeRow) == TRADE_SIZE and sizeof(ReferenceRow) == REFERENCE_SIZE
assert sizeof(StatisticsRow) == STATISTICS_SIZE and sizeof(PositionRow) == POSITION_SIZE


cdef State *state_open(const Limits *limits, uint64_t seed) except NULL:
    """An empty state; close it with state_close(). Room for all instruments is reserved at once, so they never move."""
    cdef State *state = <State *>calloc(1, sizeof(State))
    cdef uint64_t slots = 64
    if state is NULL:
        raise MemoryError
    while slots < 2 * limits.counts[LIMIT_INSTRUMENTS]:
        slots *= 2
    state.limits = limits[0]
    state.seed = seed
    state.lookup_mask = slots - 1
    state.instruments = <Instrument *>calloc(limits.counts[LIMIT_INSTRUMENTS], sizeof(Instrument))
    state.by_symbol = <uint32_t *>calloc(slots, sizeof(uint32_t))
    state.by_locate = <uint32_t *>calloc(slots, sizeof(uint32_t))
    if state.instruments is NULL or state.by_symbol is NULL or state.by_locate is NULL:
        state_close(state)
        raise MemoryError
    state.session_unit.digest = session_mix(&state.session)
    state.digest = state.session_unit.digest
    return state


cdef void state_empty(State *state) noexcept nogil:
    """Give back everything but the state itself; images must have been closed before."""
    cdef uint64_t index
    for index in range(state.counts[LIMIT_INSTRUMENTS]):
        free(state.instruments[index].sides[SIDE_BID].levels)
        free(state.instruments[index].sides[SIDE_ASK].levels)
        free(state.instruments[index].trades)
    for index in range(SHARDS):
        free(state.shards[index].slots)
    free(state.instruments)
    free(state.by_symbol)
    free(state.by_locate)


cdef void state_close(State *state) noexcept nogil:
    state_empty(state)
    free(state)


cdef Unit *unit_at(State *state, uint32_t number) noexcept nogil:
    """Any unit by its number, which must be below unit_count()."""
    cdef uint32_t index
    if number == UNIT_SESSION:
        return &state.session_unit
    if number < UNIT_INSTRUMENTS:
        return &state.shards[number - UNIT_SHARDS].unit
    index = (number - UNIT_INSTRUMENTS) >> 1
    return &state.instruments[index].log_unit if (number - UNIT_INSTRUMENTS) & 1 else &state.instruments[index].unit
