"""Instruments by number, found by symbol or by the feed's own key, and what is said of them.

Numbers are dense and given in the order in which instruments are first seen; a number never moves. -1 stands for no
instrument. Symbols are 16 bytes, zero padded; all zero is an instrument whose symbol is not known yet.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from penstock.convert.books._units cimport Answer, PositionRow, ReferenceRow, SessionRow, State

cdef int32_t instrument_by_symbol(const State *state, const uint8_t *symbol) noexcept nogil
cdef int32_t instrument_by_locate(const State *state, uint64_t locate) noexcept nogil
# Found or made; -1 when there is no room for one more.
cdef int32_t instrument_for_symbol(State *state, const uint8_t *symbol) noexcept nogil
cdef int32_t instrument_for_locate(State *state, uint64_t locate) noexcept nogil
# As a directory message has it: found by symbol, else by key if that one has no symbol yet, else made; the key is
# taken from whoever had it before. LOCATE_NONE leaves the key alone.
cdef int32_t instrument_for(State *state, const uint8_t *symbol, uint64_t locate) noexcept nogil

# Read the row at state.instruments[n].reference, alter a copy, put it back. Symbol and locate stay as they are: they
# are changed by instrument_for() only.
cdef void instrument_refer(State *state, uint32_t instrument, const ReferenceRow *row) noexcept nogil
cdef void instrument_set_status(
    State *state, uint32_t instrument, uint8_t status, uint8_t restrictions, const uint8_t *reason
) noexcept nogil
cdef void instrument_set_position(
    State *state, uint32_t instrument, int64_t event_ns, uint64_t source_sequence
) noexcept nogil

# A new session: keys belong to no instrument until the feed says so again, and round lots, decimals, flags, trading
# states, restrictions, price limits and positions are not known. Symbols, venues and numbers stay.
cdef void instruments_forget(State *state) noexcept nogil
# Read the row at state.session, alter a copy, put it back.
cdef void session_set(State *state, const SessionRow *row) noexcept nogil
# For images: the row is new, and is found by what it says; STATE_DUPLICATE when its symbol or key is taken.
cdef Answer instrument_enter(State *state, uint32_t instrument) noexcept nogil
