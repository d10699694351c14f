"""Instruments are found, made and described; _instruments.pxd says how they are known."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from penstock.convert.books._image cimport unit_touch
from penstock.convert.books._units cimport (
    Instrument,
    LIMIT_INSTRUMENTS,
    LOCATE_NONE,
    LocateSlot,
    PRICE_NONE,
    REASON_SIZE,
    STATE_DUPLICATE,
    STATE_OK,
    SYMBOL_SIZE,
    SessionRow,
    StatisticsRow,
    UNIT_SESSION,
    digest_add,
    extended_mix,
    mix_fold,
    position_mix,
    reference_mix,
    session_mix,
    statistics_mix,
    unit_of_instrument,
)

cdef uint8_t[16] NO_SYMBOL
memset(NO_SYMBOL, 0, SYMBOL_SIZE)


cdef inline bint is_named(const uint8_t *symbol) noexcept nogil:
    return memcmp(symbol, NO_SYMBOL, SYMBOL_SIZE) != 0


# Lookups: a slot holds an instrument's number + 1


cdef inline uint64_t symbol_slot(const State *state, const uint8_t *symbol) noexcept nogil:
    cdef uint64_t first, second
    memcpy(&first, symbol, 8)
    memcpy(&second, symbol + 8, 8)
    return mix_fold(first ^ state.seed ^ 0xA0761D6478BD642FULL, second ^ 0xE7037ED1A0B428DBULL) & state.lookup_mask


cdef inline uint64_t locate_slot(const State *state, uint64_t locate) noexcept nogil:
    """Feeds number their instruments from 1 on: sixteen keys that follow each other lie side by side."""
    cdef uint64_t line = mix_fold(locate >> 4 ^ state.seed, 0xE7037ED1A0B428DBULL) << 4
    return (line | locate & 15) & state.lookup_mask


cdef int32_t instrument_by_symbol(const State *state, const uint8_t *symbol) noexcept nogil:
    cdef uint64_t slot = symbol_slot(state, symbol)
    cdef uint32_t number
    if not is_named(symbol):
        return -1
    while state.by_symbol[slot]:
        number = state.by_symbol[slot] - 1
        if memcmp(state.instruments[number].reference.symbol, symbol, SYMBOL_SIZE) == 0:
            return <int32_t>number
        slot = (slot + 1) & state.lookup_mask
    return -1


cdef int32_t instrument_by_locate(const State *state, uint64_t locate) noexcept nogil:
    cdef uint64_t slot = locate_slot(state, locate)
    while state.by_locate[slot].number:
        if state.by_locate[slot].locate == locate:
            return <int32_t>(state.by_locate[slot].number - 1)
        slot = (slot + 1) & state.lookup_mask
    return -1


cdef void symbol_enter(State *state, uint32_t instrument) noexcept nogil:
    cdef uint64_t slot = symbol_slot(state, state.instruments[instrument].reference.symbol)
    while state.by_symbol[slot]:
        slot = (slot + 1) & state.lookup_mask
    state.by_symbol[slot] = instrument + 1


cdef void locate_enter(State *state, uint32_t instrument) noexcept nogil:
    cdef uint64_t locate = state.instruments[instrument].reference.locate
    cdef uint64_t slot = locate_slot(state, locate)
    while state.by_locate[slot].number:
        slot = (slot + 1) & state.lookup_mask
    state.by_locate[slot].locate = locate
    state.by_locate[slot].number = instrument + 1


cdef void locate_leave(State *state, uint32_t instrument) noexcept nogil:
    """Take an instrument out of the lookup by key, and move back what was pushed on by it."""
    cdef uint64_t mask = state.lookup_mask, at, home
    cdef uint64_t hole = locate_slot(state, state.instruments[instrument].reference.locate)
    while state.by_locate[hole].number != instrument + 1:
        hole = (hole + 1) & mask
    at = hole
    while True:
        at = (at + 1) & mask
        if not state.by_locate[at].number:
            break
        home = locate_slot(state, state.by_locate[at].locate)
        if ((at - home) & mask) >= ((at - hole) & mask):
            state.by_locate[hole] = state.by_locate[at]
            hole = at
    state.by_locate[hole].number = 0


# Instruments


cdef int32_t instrument_make(State *state, const uint8_t *symbol, uint64_t locate) noexcept nogil:
    cdef uint32_t number = <uint32_t>state.counts[LIMIT_INSTRUMENTS]
    cdef Instrument *made = &state.instruments[number]
    if state.counts[LIMIT_INSTRUMENTS] >= state.limits.counts[LIMIT_INSTRUMENTS]:
        state.refused[LIMIT_INSTRUMENTS] += 1
        return -1
    memset(made, 0, sizeof(Instrument))
    made.unit.touched = state.images_begun
    made.log_unit.touched = state.images_begun
    made.is_log_ascending = True
    memcpy(made.reference.symbol, symbol, SYMBOL_SIZE)
    made.reference.locate = locate
    made.reference.upper_limit = PRICE_NONE()
    made.reference.lower_limit = PRICE_NONE()
    made.statistics.open = PRICE_NONE()
    made.statistics.high = PRICE_NONE()
    made.statistics.low = PRICE_NONE()
    made.statistics.last = PRICE_NONE()
    made.statistics.previous_close = PRICE_NONE()
    made.extended.high = PRICE_NONE()
    made.extended.low = PRICE_NONE()
    made.extended.last = PRICE_NONE()
    state.counts[LIMIT_INSTRUMENTS] += 1
    instrument_enter(state, number)
    digest_add(
        state, &made.unit,
        reference_mix(number, &made.reference) + statistics_mix(number, &made.statistics)
        + extended_mix(number, &made.extended) + position_mix(number, &made.position),
    )
    return <int32_t>number


cdef Answer instrument_enter(State *state, uint32_t instrument) noexcept nogil:
    cdef ReferenceRow *row = &state.instruments[instrument].reference
    if is_named(row.symbol):
        if instrument_by_symbol(state, row.symbol) >= 0:
            return STATE_DUPLICATE
        symbol_enter(state, instrument)
    if row.locate != LOCATE_NONE():
        if instrument_by_locate(state, row.locate) >= 0:
            return STATE_DUPLICATE
        locate_enter(state, instrument)
    return STATE_OK


cdef int32_t instrument_for_symbol(State *state, const uint8_t *symbol) noexcept nogil:
    cdef int32_t found = instrument_by_symbol(state, symbol)
    if found >= 0 or not is_named(symbol):
        return found
    return instrument_make(state, symbol, LOCATE_NONE())


cdef int32_t instrument_for_locate(State *state, uint64_t locate) noexcept nogil:
    cdef int32_t found = instrument_by_locate(state, locate)
    if found >= 0 or locate == LOCATE_NONE():
        return found
    return instrument_make(state, NO_SYMBOL, locate)


cdef int32_t instrument_for(State *state, const uint8_t *symbol, uint64_t locate) noexcept nogil:
    cdef int32_t number = instrument_by_symbol(state, symbol)
    cdef int32_t owner = instrument_by_locate(state, locate) if locate != LOCATE_NONE() else -1
    if not is_named(symbol):
        return instrument_for_locate(state, locate)
    if number < 0 and owner >= 0 and not is_named(state.instruments[owner].reference.symbol):
        instrument_rename(state, owner, symbol, locate)
        symbol_enter(state, owner)
        return owner
    if number < 0 and state.counts[LIMIT_INSTRUMENTS] >= state.limits.counts[LIMIT_INSTRUMENTS]:
        state.refused[LIMIT_INSTRUMENTS] += 1
        return -1
    if owner >= 0 and owner != number:
        locate_leave(state, owner)
        instrument_rename(state, owner, state.instruments[owner].reference.symbol, LOCATE_NONE())
    if number < 0:
        return instrument_make(state, symbol, locate)
    if locate != LOCATE_NONE() and owner != number:
        if state.instruments[number].reference.locate != LOCATE_NONE():
            locate_leave(state, number)
        instrument_rename(state, number, symbol, locate)
        locate_enter(state, number)
    return number


cdef void instrument_rename(State *state, uint32_t instrument, const uint8_t *symbol, uint64_t locate) noexcept nogil:
    cdef ReferenceRow row = state.instruments[instrument].reference
    memcpy(row.symbol, symbol, SYMBOL_SIZE)
    row.locate = locate
    reference_put(state, instrument, &row)


cdef void reference_put(State *state, uint32_t instrument, const ReferenceRow *row) noexcept nogil:
    cdef Instrument *owner = &state.instruments[instrument]
    cdef uint64_t change
    if memcmp(&owner.reference, row, sizeof(ReferenceRow)) == 0:
        return
    unit_touch(state, &owner.unit, unit_of_instrument(instrument))
    change = reference_mix(instrument, row) - reference_mix(instrument, &owner.reference)
    owner.reference = row[0]
    digest_add(state, &owner.unit, change)


cdef void instrument_refer(State *state, uint32_t instrument, const ReferenceRow *row) noexcept nogil:
    cdef ReferenceRow altered = row[0]
    memcpy(altered.symbol, state.instruments[instrument].reference.symbol, SYMBOL_SIZE)
    altered.locate = state.instruments[instrument].reference.locate
    reference_put(state, instrument, &altered)


cdef void instrument_set_status(
    State *state, uint32_t instrument, uint8_t status, uint8_t restrictions, const uint8_t *reason
) noexcept nogil:
    """The trading state, the rules in force, and the venue's code for why (8 bytes, zero padded)."""
    cdef ReferenceRow row = state.instruments[instrument].reference
    row.status = status
    row.restrictions = restrictions
    memcpy(row.reason, reason, REASON_SIZE)
    reference_put(state, instrument, &row)


cdef void instrument_set_position(
    State *state, uint32_t instrument, int64_t event_ns, uint64_t source_sequence
) noexcept nogil:
    """When, and in which source message, the instrument last changed."""
    cdef Instrument *owner = &state.instruments[instrument]
    cdef uint64_t before = position_mix(instrument, &owner.position)
    unit_touch(state, &owner.unit, unit_of_instrument(instrument))
    owner.position.event_ns = event_ns
    owner.position.source_sequence = source_sequence
    digest_add(state, &owner.unit, position_mix(instrument, &owner.position) - before)


cdef void instruments_forget(State *state) noexcept nogil:
    cdef ReferenceRow row
    cdef uint32_t number
    cdef Instrument *owner
    memset(state.by_locate, 0, (state.lookup_mask + 1) * sizeof(LocateSlot))
    for number in range(<uint32_t>state.counts[LIMIT_INSTRUMENTS]):
        owner = &state.instruments[number]
        row = owner.reference
        row.locate = LOCATE_NONE()
        row.round_lot = 0
        row.price_decimals = 0
        row.quantity_decimals = 0
        row.flags = 0
        row.status = 0
        row.restrictions = 0
        memset(row.reason, 0, REASON_SIZE)
        row.upper_limit = PRICE_NONE()
        row.lower_limit = PRICE_NONE()
        reference_put(state, number, &row)
        if owner.position.event_ns or owner.position.source_sequence:
            instrument_set_position(state, number, 0, 0)


cdef void session_set(State *state, const SessionRow *row) noexcept nogil:
    cdef uint64_t before = session_mix(&state.session)
    unit_touch(state, &state.session_unit, UNIT_SESSION)
    state.session = row[0]
    digest_add(state, &state.session_unit, session_mix(&state.session) - before)
