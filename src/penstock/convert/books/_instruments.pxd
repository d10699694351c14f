"""Instruments by number, found by symbol or by the feed's own key, and their reference data.

Numbers are dense, assigned in the order in which instruments are first seen, and never change. -1 means no instrument.
Symbols are 16 bytes, zero padded; all zeros means that the instrument's symbol is not known yet.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from penstock.convert.books._units cimport Answer, PositionRow, ReferenceRow, SessionRow, State

cdef int32_t instrument_by_symbol(const State *state, const uint8_t *symbol) noexcept nogil
cdef int32_t instrument_by_locate(const State *state, uint64_t locate) noexcept nogil
# Find or create an instrument; -1 when there is no room for another.
cdef int32_t instrument_for_symbol(State *state, const uint8_t *symbol) noexcept nogil
cdef int32_t instrument_for_locate(State *state, uint64_t locate) noexcept nogil
# For directory messages: find an instrument by symbol, else by key if the instrument with that key has no symbol yet,
# else create one. The key is taken from its previous instrument. LOCATE_NONE leaves the key unchanged.
cdef int32_t instrument_for(State *state, const uint8_t *symbol, uint64_t locate) noexcept nogil

# Update protocol: read the row at state.instruments[n].reference, change a copy, store the copy. Only instrument_for()
# changes symbol and locate.
cdef void instrument_refer(State *state, uint32_t instrument, const ReferenceRow *row) noexcept nogil
cdef void instrument_set_status(
    State *state, uint32_t instrument, uint8_t status, uint8_t restrictions, const uint8_t *reason
) noexcept nogil
cdef void instrument_set_position(
    State *state, uint32_t instrument, int64_t event_ns, uint64_t source_sequence
) noexcept nogil

# Begin a session: keys belong to no instrument until the feed assigns them again, and round lots, decimals, flags,
# trading states, restrictions, price limits and positions become unknown. Symbols, venues and numbers stay.
cdef void instruments_forget(State *state) noexcept nogil
# Update protocol: read the row at state.session, change a copy, store the copy.
cdef void session_set(State *state, const SessionRow *row) noexcept nogil
# For images: enter a new row into the lookups; STATE_DUPLICATE when its symbol or key is taken.
cdef Answer instrument_enter(State *state, uint32_t instrument) noexcept nogil
