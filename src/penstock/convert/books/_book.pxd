"""Price levels of an instrument: both sides sorted with the best level last, so that frequent changes move few rows.

`depth` in an answer is the number of levels better than the changed one: `depth == 0` means that the best bid or offer
changed, `depth < 10` that a book of ten levels did. DEPTH_NONE means that no level changed.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.convert.books._units cimport Answer, Instrument, Ladder, LevelRow, SIDE_ASK, State


cdef enum:
    DEPTH_NONE = 0xFFFFFFFF


# For feeds with whole levels: size 0 removes the level; an unknown level is not an error.
cdef Answer level_set(
    State *state, uint32_t instrument, uint8_t side, int64_t price, uint64_t size, uint32_t count, uint32_t *depth
) noexcept nogil

# For orders: add `size` and one order at a price; remove `size` and `orders` (0 or 1).
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
    """Return a level by its depth, 0 for the best; NULL beyond the book's depth."""
    cdef const Ladder *ladder = &state.instruments[instrument].sides[side]
    return &ladder.levels[ladder.count - 1 - depth] if depth < ladder.count else NULL


cdef inline uint32_t book_depth(const State *state, uint32_t instrument, uint8_t side) noexcept nogil:
    return state.instruments[instrument].sides[side].count
