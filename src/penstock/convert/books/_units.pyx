"""The layout of the conversion state, and opening and closing one; _units.pxd describes it."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

assert sizeof(SessionRow) == SESSION_SIZE and sizeof(OrderRow) == ORDER_SIZE and sizeof(LevelRow) == LEVEL_SIZE
assert sizeof(TradeRow) == TRADE_SIZE and sizeof(ReferenceRow) == REFERENCE_SIZE
assert sizeof(StatisticsRow) == STATISTICS_SIZE and sizeof(PositionRow) == POSITION_SIZE
assert sizeof(ExtendedRow) == EXTENDED_SIZE and sizeof(Instrument) == 320


cdef State *state_open(const Limits *limits, uint64_t seed, Pool *pool) except NULL:
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
    state.pool = pool if pool is not NULL else <Pool *>calloc(1, sizeof(Pool))
    state.instruments = <Instrument *>pool_map(limits.counts[LIMIT_INSTRUMENTS] * sizeof(Instrument))
    state.by_symbol = <uint32_t *>calloc(slots, sizeof(uint32_t))
    state.by_locate = <LocateSlot *>calloc(slots, sizeof(LocateSlot))
    if state.pool is NULL or state.instruments is NULL or state.by_symbol is NULL or state.by_locate is NULL:
        state_close(state, pool is not NULL)
        raise MemoryError
    state.session_unit.digest = session_mix(&state.session)
    state.digest = state.session_unit.digest
    return state


cdef void state_empty(State *state) noexcept nogil:
    """Give back everything but the state itself and its pool; images must have been closed or moved before."""
    cdef Instrument *instrument
    cdef Shard *shard
    cdef uint64_t index, side
    for index in range(state.counts[LIMIT_INSTRUMENTS]):
        instrument = &state.instruments[index]
        for side in range(2):
            pool_give(state.pool, instrument.sides[side].levels, instrument.sides[side].room * sizeof(LevelRow))
        pool_give(state.pool, instrument.trades, instrument.trade_room * sizeof(TradeRow))
    for index in range(SHARDS):
        shard = &state.shards[index]
        pool_give(state.pool, shard.slots, (<uint64_t>shard.mask + 1) * sizeof(OrderRow))
    pool_unmap(state.instruments, state.limits.counts[LIMIT_INSTRUMENTS] * sizeof(Instrument))
    free(state.by_symbol)
    free(state.by_locate)


cdef void state_close(State *state, bint is_pool_shared) noexcept nogil:
    if state.pool is not NULL:
        state_empty(state)
        if not is_pool_shared:
            pool_close(state.pool)
            free(state.pool)
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
