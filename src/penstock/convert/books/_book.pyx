"""Price levels come, change and go; _book.pxd describes them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memmove

from penstock.convert.books._image cimport unit_touch
from penstock.convert.books._units cimport (
    LIMIT_LEVELS,
    PRICE_NONE,
    SIDE_ASK,
    SIDE_BID,
    SIZE_LIMIT_BITS,
    STATE_INVALID,
    STATE_OK,
    STATE_REFUSED,
    STATE_UNKNOWN,
    digest_add,
    is_size,
    level_mix,
    pool_grow,
    unit_of_instrument,
)

cdef enum:
    ROOM_FIRST = 8
    NEAR = 8 # levels from the best that are compared before halving


cdef inline int64_t rank(uint8_t side, int64_t price) noexcept nogil:
    """A number that is higher the better the price is."""
    return price ^ -<int64_t>(side == SIDE_ASK)


cdef uint32_t ladder_find(const Ladder *ladder, uint8_t side, int64_t price) noexcept nogil:
    """Where the level of this price is, or would have to be put.

    The levels near the best are all compared, without a branch on any of them: which of them it is, nobody can guess.
    """
    cdef int64_t wanted = rank(side, price)
    cdef uint32_t lower = 0, middle, upper = ladder.count, index, reached = 0
    cdef uint32_t near = min(upper, <uint32_t>NEAR)
    cdef const LevelRow *level = ladder.levels + (upper - near)
    for index in range(near):
        reached += rank(side, level[index].price) >= wanted
    upper -= reached
    if reached < near or upper == 0:
        return upper
    while lower < upper:
        middle = (lower + upper) >> 1
        if rank(side, ladder.levels[middle].price) < wanted:
            lower = middle + 1
        else:
            upper = middle
    return lower


cdef inline bint is_at(const Ladder *ladder, uint32_t index, int64_t price) noexcept nogil:
    return index < ladder.count and ladder.levels[index].price == price


cdef Answer ladder_insert(State *state, Ladder *ladder, uint32_t index, int64_t price) noexcept nogil:
    """Make an empty level; the caller has touched the unit."""
    cdef LevelRow *levels
    cdef uint32_t room
    if state.counts[LIMIT_LEVELS] >= state.limits.counts[LIMIT_LEVELS]:
        state.refused[LIMIT_LEVELS] += 1
        return STATE_REFUSED
    if ladder.count == ladder.room:
        room = 2 * ladder.room if ladder.room else ROOM_FIRST
        levels = <LevelRow *>pool_grow(
            state.pool, ladder.levels, ladder.room * sizeof(LevelRow), ladder.count * sizeof(LevelRow),
            room * sizeof(LevelRow),
        )
        if levels is NULL:
            state.refused[LIMIT_LEVELS] += 1
            return STATE_REFUSED
        ladder.levels = levels
        ladder.room = room
    if index < ladder.count:
        memmove(&ladder.levels[index + 1], &ladder.levels[index], (ladder.count - index) * sizeof(LevelRow))
    ladder.levels[index].price = price
    ladder.levels[index].size = 0
    ladder.levels[index].count = 0
    ladder.levels[index].reserved = 0
    ladder.count += 1
    state.counts[LIMIT_LEVELS] += 1
    return STATE_OK


cdef void ladder_remove(State *state, Ladder *ladder, uint32_t index) noexcept nogil:
    ladder.count -= 1
    state.counts[LIMIT_LEVELS] -= 1
    if index < ladder.count:
        memmove(&ladder.levels[index], &ladder.levels[index + 1], (ladder.count - index) * sizeof(LevelRow))


cdef Answer level_add(
    State *state, uint32_t instrument, uint8_t side, int64_t price, uint64_t size, uint32_t *depth
) noexcept nogil:
    cdef Instrument *owner = &state.instruments[instrument]
    cdef Ladder *ladder = &owner.sides[side]
    cdef uint32_t index = ladder_find(ladder, side, price)
    cdef LevelRow *level
    cdef uint64_t change = 0
    if is_at(ladder, index, price) and not is_size(ladder.levels[index].size + size):
        depth[0] = DEPTH_NONE
        return STATE_INVALID
    unit_touch(state, &owner.unit, unit_of_instrument(instrument))
    if is_at(ladder, index, price):
        change = 0 - level_mix(instrument, side, &ladder.levels[index])
    elif ladder_insert(state, ladder, index, price) != STATE_OK:
        depth[0] = DEPTH_NONE
        return STATE_REFUSED
    level = &ladder.levels[index]
    level.size += size
    level.count += 1
    digest_add(state, &owner.unit, change + level_mix(instrument, side, level))
    depth[0] = ladder.count - 1 - index
    return STATE_OK


cdef void level_take(
    State *state, uint32_t instrument, uint8_t side, int64_t price, uint64_t size, uint32_t orders, uint32_t *depth
) noexcept nogil:
    cdef Instrument *owner = &state.instruments[instrument]
    cdef Ladder *ladder = &owner.sides[side]
    cdef uint32_t index = ladder_find(ladder, side, price)
    cdef LevelRow *level
    cdef uint64_t change
    depth[0] = DEPTH_NONE
    if not is_at(ladder, index, price):
        return # only where whole levels are set as well, or an image did not fit together
    unit_touch(state, &owner.unit, unit_of_instrument(instrument))
    depth[0] = ladder.count - 1 - index
    level = &ladder.levels[index]
    change = 0 - level_mix(instrument, side, level)
    if level.count <= orders or level.size <= size:
        ladder_remove(state, ladder, index)
    else:
        level.count -= orders
        level.size -= size
        change += level_mix(instrument, side, level)
    digest_add(state, &owner.unit, change)


cdef Answer level_set(
    State *state, uint32_t instrument, uint8_t side, int64_t price, uint64_t size, uint32_t count, uint32_t *depth
) noexcept nogil:
    cdef Instrument *owner = &state.instruments[instrument]
    cdef Ladder *ladder = &owner.sides[side]
    cdef uint32_t index = ladder_find(ladder, side, price)
    cdef LevelRow *level
    cdef uint64_t change = 0
    depth[0] = DEPTH_NONE
    if price == PRICE_NONE() or size >> SIZE_LIMIT_BITS:
        return STATE_INVALID
    if is_at(ladder, index, price):
        level = &ladder.levels[index]
        if level.size == size and level.count == count:
            return STATE_OK
        unit_touch(state, &owner.unit, unit_of_instrument(instrument))
        change = 0 - level_mix(instrument, side, level)
    elif size == 0:
        return STATE_UNKNOWN
    else:
        unit_touch(state, &owner.unit, unit_of_instrument(instrument))
        if ladder_insert(state, ladder, index, price) != STATE_OK:
            return STATE_REFUSED
    depth[0] = ladder.count - 1 - index
    if size == 0:
        ladder_remove(state, ladder, index)
    else:
        level = &ladder.levels[index]
        level.size = size
        level.count = count
        change += level_mix(instrument, side, level)
    digest_add(state, &owner.unit, change)
    return STATE_OK


cdef void levels_clear(State *state, uint32_t instrument) noexcept nogil:
    """Take all levels of both sides away; orders that stand for them are the caller's matter."""
    cdef Instrument *owner = &state.instruments[instrument]
    cdef Ladder *ladder
    cdef uint64_t change = 0
    cdef uint32_t index
    cdef uint8_t side
    unit_touch(state, &owner.unit, unit_of_instrument(instrument))
    for side in range(2):
        ladder = &owner.sides[side]
        for index in range(ladder.count):
            change -= level_mix(instrument, side, &ladder.levels[index])
        state.counts[LIMIT_LEVELS] -= ladder.count
        ladder.count = 0
    digest_add(state, &owner.unit, change)
