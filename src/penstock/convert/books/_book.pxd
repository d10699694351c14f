"""Price levels of an instrument: both sides sorted, the best level last, so that what changes most moves least.

`depth` in an answer is how many better levels the changed one has: 0 is the best, so `depth == 0` says that the best
bid or offer changed, `depth < 10` that a book of ten levels did. DEPTH_NONE says that nothing changed.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.convert.books._units cimport Answer, Instrument, Ladder, LevelRow, SIDE_ASK, State


cdef enum:
    DEPTH_NONE = 0xFFFFFFFF


# For table feeds that give whole levels (a size of 0 takes the level away; an unknown level is no mistake then).
cdef Answer level_set(
    State *state, uint32_t instrument, uint8_t side, int64_t price, uint64_t size, uint32_t count, uint32_t *depth
) noexcept nogil

# Used by orders: `size` and one order more at a price, `size` and `orders` (0 or 1) less.
cdef Answer level_add(
    State *state, uint32_t instrument, uint8_t side, int64_t price, uint64_t size, uint32_t *depth
) noexcept nogil
cdef void level_take(
    State *state, uint32_t instrument, uint8_t side, int64_t price, uint64_t size, uint32_t orders, uint32_t *depth
) noexcept nogil

cdef void levels_clear(State *state, uint32_t instrument) noexcept nogil


cdef inline const LevelRow *book_level(
    const State *state, uint32_t instrument, uint8_t side, uint32_t depth
) noexcept nogil:
    """A level by its depth, 0 is the best; NULL when the book is not that deep."""
    cdef const Ladder *ladder = &state.instruments[instrument].sides[side]
    return &ladder.levels[ladder.count - 1 - depth] if depth < ladder.count else NULL


cdef inline uint32_t book_depth(const State *state, uint32_t instrument, uint8_t side) noexcept nogil:
    return state.instruments[instrument].sides[side].count
