"""Steps: verbs change the conversion state, outputs come out of it.

A step that fails ends its message; what the steps before it did stands. Values that could be wrong were checked
before the first step (_values.pyx), so that is the case only for what contradicts the state, such as an unknown order.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from penstock.convert.books._book cimport DEPTH_NONE, book_level, level_set, levels_clear
from penstock.convert.kernel._emit cimport begin_output, forward, pass_over_output, store, store_text
from penstock.convert.kernel._frame cimport Frame, Text
from penstock.convert.books._instruments cimport (
    instrument_by_locate,
    instrument_for,
    instrument_refer,
    instrument_set_position,
    instrument_set_status,
    session_set,
)
from penstock.convert.books._orders cimport (
    OrderChange,
    order_add,
    order_delete,
    order_replace,
    order_take,
    orders_clear_instrument,
)
from penstock.convert.kernel._program cimport *
from penstock.convert.books._trades cimport trade_add, trade_break, trade_correct, turnover_scaled
from penstock.convert.books._units cimport (
    Answer,
    ExtendedRow,
    HOURS_REGULAR,
    HOURS_UNKNOWN,
    LevelRow,
    ReferenceRow,
    STATE_DUPLICATE,
    STATE_INVALID,
    STATE_OK,
    STATE_REFUSED,
    STATE_SHORT,
    STATE_UNKNOWN,
    SessionRow,
    StatisticsRow,
    TRADE_CLOSING,
    TRADE_EXTENDED_HOURS,
    TRADE_OPENING,
    TradeRow,
)
from penstock.convert.kernel._values cimport run_values, scale_exactly

cdef enum:
    PRICE_DECIMALS = 8     # of the state's prices
    FLAG_QUOTE_PENDING = 1 # of an instrument: the best changed within an event that is not complete yet
    STATE_HALTED = 4 # the same numbers as in `state` and `restrictions` of the status model
    STATE_PAUSED = 5
    STATE_SUSPENDED = 10
    RESTRICTION_OPERATIONAL_HALT = 16


cdef int run_steps(Frame *frame, const Op *ops, uint32_t start, uint32_t end) noexcept nogil:
    """The operations that most messages have stand here; the chain of equalities becomes a jump table."""
    cdef const Op *op = ops + start
    cdef const Op *last = ops + end
    cdef const int64_t *registers = frame.registers
    cdef uint8_t *record = NULL
    cdef int64_t value
    cdef int fault
    while op < last:
        if op.code == CODE_STORE_WORD:
            while op.code == CODE_STORE_WORD: # no message's operations begin with one
                memcpy(record + op.offset, &registers[op.a], 8)
                op += 1
            continue
        elif op.code == CODE_STORE_OPTIONAL:
            value = registers[op.a]
            store(record + op.offset, op.x if value == MISSING() else value, op.size)
        elif op.code == CODE_STORE:
            store(record + op.offset, registers[op.a], op.size)
        elif op.code == CODE_STORE_SYMBOL:
            memcpy(record + op.offset, frame.state.instruments[frame.instrument].reference.symbol, 16)
        elif op.code == CODE_STORE_TEXT:
            store_text(record + op.offset, &frame.texts[op.a], op.size)
        elif op.code == CODE_EMIT:
            if frame.is_unwanted[op.x]:
                record = pass_over_output(frame, <uint32_t>op.x)
                while op + 1 < last and CODE_STORE_WORD <= (op + 1).code <= CODE_STORE_SYMBOL:
                    op += 1
            else:
                fault = begin_output(frame, <uint32_t>op.x)
                if fault:
                    return fault
                record = frame.record
        elif op.code == CODE_UNLESS_BITS:
            if not registers[op.a] & op.x:
                op = ops + op.offset
                continue
        elif op.code == CODE_LOAD_BEST:
            load_levels(frame, 1)
        elif op.code == CODE_NEED_INSTRUMENT:
            if frame.instrument < 0:
                return FAULT_INSTRUMENT
        elif op.code == CODE_POSITION:
            instrument_set_position(frame.state, frame.instrument, registers[op.a], frame.source_sequence)
        else:
            if CODE_UNLESS_EQUAL <= op.code < CODE_UNLESS_BITS:
                if not holds(op.code, registers[op.a], op.x):
                    op = ops + op.offset
                    continue
            else:
                fault = run_values(frame, op, op + 1) if op.code < CODE_INSTRUMENT else run_verb(frame, op)
                if fault:
                    return fault
        op += 1
    return FAULT_NONE


cdef inline bint holds(uint8_t code, int64_t a, int64_t x) noexcept nogil:
    if code == CODE_UNLESS_EQUAL:
        return a == x
    elif code == CODE_UNLESS_UNEQUAL:
        return a != x
    elif code == CODE_UNLESS_LESS:
        return a < x
    elif code == CODE_UNLESS_LESS_EQUAL:
        return a <= x
    elif code == CODE_UNLESS_GREATER:
        return a > x
    return a >= x


cdef inline int64_t argument(const Frame *frame, uint8_t register, int64_t otherwise) noexcept nogil:
    """An argument that a verb can do without."""
    if register == NONE or frame.registers[register] == MISSING():
        return otherwise
    return frame.registers[register]


cdef int run_verb(Frame *frame, const Op *op) noexcept nogil:
    cdef const int64_t *registers = frame.registers
    cdef uint8_t code = op.code
    if CODE_ORDER_ADD <= code <= CODE_ORDER_REPLACE:
        return run_order(frame, op)
    elif code == CODE_INSTRUMENT:
        frame.instrument = instrument_by_locate(frame.state, <uint64_t>registers[op.a])
        if op.b != NONE and (frame.instrument < 0 or op.c == 1):
            return define_instrument(frame, <uint64_t>registers[op.a], &frame.texts[op.b])
        return FAULT_NONE
    elif code == CODE_SCALE:
        return scale_as_instrument(frame, op)
    elif code == CODE_SYMBOL:
        find_symbol(frame, <uint64_t>registers[op.a], &frame.texts[op.to])
    elif code == CODE_LEVEL_SET:
        return set_level(frame, op)
    elif code == CODE_SIDE_SET:
        count_finer(frame, registers[op.b], registers[op.c], op.x)
        return set_side(frame, <uint8_t>registers[op.a], registers[op.b], registers[op.c])
    elif CODE_TRADE <= code <= CODE_TRADE_CORRECT:
        return run_trade(frame, op)
    elif CODE_LOAD_LEVELS <= code <= CODE_LOAD_REFERENCE:
        load_state(frame, code, <uint32_t>op.x)
    elif code == CODE_BOOK_CLEAR:
        levels_clear(frame.state, frame.instrument)
        orders_clear_instrument(frame.state, frame.instrument)
        frame.registers[REGISTER_CHANGED] = 1
    elif code == CODE_PHASE:
        set_phase(frame, <uint64_t>registers[op.a], <uint64_t>argument(frame, op.b, HOURS_UNKNOWN))
    elif code == CODE_FORWARD:
        return forward(frame, op)
    else:
        describe_instrument(frame, op)
    return FAULT_NONE


cdef inline int fault_of(Frame *frame, Answer answer, int unknown) noexcept nogil:
    if answer == STATE_OK:
        return FAULT_NONE
    if answer == STATE_SHORT:
        frame.faults[FAULT_EXCESS] += 1
        return FAULT_NONE
    if answer == STATE_UNKNOWN:
        return unknown
    if answer == STATE_DUPLICATE:
        return FAULT_DUPLICATE_ORDER
    return FAULT_LIMIT if answer == STATE_REFUSED else FAULT_VALUE


cdef void set_phase(Frame *frame, uint64_t code, uint64_t hours) noexcept nogil:
    cdef SessionRow row = frame.state.session
    row.phase = code
    if hours != HOURS_UNKNOWN:
        row.hours = hours
    session_set(frame.state, &row)


# Instruments


cdef int define_instrument(Frame *frame, uint64_t key, const Text *venue_symbol) noexcept with gil:
    """An instrument met for the first time; the directory knows its venue-independent symbol."""
    cdef ReferenceRow row
    cdef bytes symbol
    try:
        symbol, venue, round_lot, price_decimals, quantity_decimals = (<object>frame.directory).describe(
            venue_symbol.at[:venue_symbol.size]
        )
    except ValueError:
        return FAULT_TEXT
    frame.instrument = instrument_for(frame.state, symbol, key)
    if frame.instrument < 0:
        return FAULT_LIMIT
    row = frame.state.instruments[frame.instrument].reference
    memcpy(row.venue, <const uint8_t *><bytes>venue, 4)
    if round_lot:
        row.round_lot = round_lot
    if price_decimals is not None:
        row.price_decimals = <uint8_t>(price_decimals + 1)
    if quantity_decimals is not None:
        row.quantity_decimals = <uint8_t>(quantity_decimals + 1)
    refer_instrument(frame, &row)
    return FAULT_NONE


cdef void refer_instrument(Frame *frame, const ReferenceRow *row) noexcept nogil:
    frame.registers[REGISTER_ALTERED] = (
        memcmp(row, &frame.state.instruments[frame.instrument].reference, sizeof(ReferenceRow)) != 0
    )
    instrument_refer(frame.state, frame.instrument, row)


cdef void find_symbol(Frame *frame, uint64_t key, Text *symbol) noexcept nogil:
    cdef int32_t found = instrument_by_locate(frame.state, key)
    symbol.size = 0
    if found >= 0:
        symbol.at = frame.state.instruments[found].reference.symbol
        while symbol.size < 16 and symbol.at[symbol.size]:
            symbol.size += 1


cdef void describe_instrument(Frame *frame, const Op *op) noexcept nogil:
    cdef ReferenceRow row = frame.state.instruments[frame.instrument].reference
    cdef uint64_t reason
    if op.code == CODE_DEFINE:
        row.round_lot = <uint32_t>argument(frame, op.a, row.round_lot)
        row.price_decimals = <uint8_t>(argument(frame, op.b, row.price_decimals - 1) + 1)
        row.quantity_decimals = <uint8_t>(argument(frame, op.c, row.quantity_decimals - 1) + 1)
    elif op.code == CODE_STATUS:
        row.status = <uint8_t>frame.registers[op.a]
        reason = <uint64_t>argument(frame, op.b, 0)
        memcpy(row.reason, &reason, 8)
    elif op.code == CODE_RESTRICTION:
        row.restrictions &= ~<uint8_t>frame.registers[op.a]
        if frame.registers[op.b]:
            row.restrictions |= <uint8_t>frame.registers[op.a]
    elif op.code == CODE_LIMITS:
        row.upper_limit = argument(frame, op.a, MISSING())
        row.lower_limit = argument(frame, op.b, MISSING())
    refer_instrument(frame, &row)


# Decimals of instruments


cdef int scale_as_instrument(Frame *frame, const Op *op) noexcept nogil:
    cdef const ReferenceRow *row
    cdef uint8_t decimals
    if frame.instrument < 0:
        return FAULT_INSTRUMENT
    row = &frame.state.instruments[frame.instrument].reference
    decimals = row.quantity_decimals if op.b else row.price_decimals
    if decimals == 0:
        return FAULT_INSTRUMENT # the definition of the instrument has not been received
    if frame.registers[op.a] == MISSING():
        frame.registers[op.to] = MISSING()
        return FAULT_NONE
    return scale_exactly(frame.registers[op.a], decimals - 1, <uint32_t>op.x, &frame.registers[op.to])


cdef void count_finer(Frame *frame, int64_t price, int64_t quantity, int64_t known) noexcept nogil:
    """Count a price or a quantity with more decimals than its instrument. The table's quantities have known - 1 decimals;
    known is 0 if the table never learns decimals of instruments."""
    cdef const ReferenceRow *row
    if known == 0:
        return
    row = &frame.state.instruments[frame.instrument].reference
    if is_finer(price, PRICE_DECIMALS, row.price_decimals) or is_finer(quantity, known - 1, row.quantity_decimals):
        frame.faults[FAULT_DECIMALS] += 1


cdef inline bint is_finer(int64_t value, uint32_t decimals, uint8_t known) noexcept nogil:
    cdef int64_t scaled
    if known == 0 or <uint32_t>(known - 1) >= decimals or value == MISSING():
        return False
    return scale_exactly(value, decimals, known - 1, &scaled) != FAULT_NONE


# Orders and levels


cdef int run_order(Frame *frame, const Op *op) noexcept nogil:
    cdef const int64_t *registers = frame.registers
    cdef uint64_t reference = <uint64_t>registers[op.a]
    cdef OrderChange change
    cdef Answer answer
    cdef int fault
    if op.code == CODE_ORDER_ADD:
        answer = order_add(
            frame.state, reference, frame.instrument, <uint8_t>registers[op.b], registers[op.d],
            <uint64_t>registers[op.c], <uint32_t>argument(frame, op.e, 0), &change,
        )
    elif op.code == CODE_ORDER_TAKE:
        answer = order_take(frame.state, reference, <uint64_t>registers[op.b], &change)
    elif op.code == CODE_ORDER_DELETE:
        answer = order_delete(frame.state, reference, &change)
    else:
        answer = order_replace(
            frame.state, reference, <uint64_t>registers[op.b], <uint64_t>registers[op.c], registers[op.d], &change
        )
    fault = fault_of(frame, answer, FAULT_ORDER)
    if fault:
        return fault
    frame.instrument = change.instrument
    if op.code == CODE_ORDER_ADD or op.code == CODE_ORDER_REPLACE:
        count_finer(frame, registers[op.d], registers[op.c], op.x)
    frame.registers[REGISTER_CHANGED] = change.depth == 0
    frame.registers[REGISTER_ORDER_PRICE] = change.price
    frame.registers[REGISTER_ORDER_QUANTITY] = <int64_t>change.remaining
    frame.registers[REGISTER_ORDER_TAKEN] = <int64_t>change.shares
    frame.registers[REGISTER_ORDER_SIDE] = change.side + 1
    frame.registers[REGISTER_ORDER_PARTICIPANT] = change.participant
    return FAULT_NONE


cdef int set_level(Frame *frame, const Op *op) noexcept nogil:
    cdef uint32_t depth = DEPTH_NONE
    cdef bint is_complete = argument(frame, op.e, 1) != 0
    cdef bint is_pending = frame.state.instruments[frame.instrument].reference.flags & FLAG_QUOTE_PENDING
    cdef bint is_changed
    cdef int fault = fault_of(frame, level_set(
        frame.state, frame.instrument, <uint8_t>frame.registers[op.a], frame.registers[op.b],
        <uint64_t>frame.registers[op.c], <uint32_t>argument(frame, op.d, 0), &depth,
    ), FAULT_NONE)
    if fault:
        return fault
    count_finer(frame, frame.registers[op.b], frame.registers[op.c], op.x)
    is_changed = is_pending or depth == 0
    frame.registers[REGISTER_CHANGED] = is_changed and is_complete
    if is_pending != (is_changed and not is_complete):
        mark_pending(frame, not is_pending)
    return FAULT_NONE


cdef void mark_pending(Frame *frame, bint is_pending) noexcept nogil:
    cdef ReferenceRow row = frame.state.instruments[frame.instrument].reference
    row.flags = row.flags | FLAG_QUOTE_PENDING if is_pending else row.flags & ~<uint32_t>FLAG_QUOTE_PENDING
    instrument_refer(frame.state, frame.instrument, &row)


cdef int set_side(Frame *frame, uint8_t side, int64_t price, int64_t quantity) noexcept nogil:
    """For feeds that give the best only: the side has this one level, or none."""
    cdef const LevelRow *best = book_level(frame.state, frame.instrument, side, 0)
    cdef uint32_t depth
    if quantity <= 0:
        price = MISSING()
    while best is not NULL and best.price != price:
        level_set(frame.state, frame.instrument, side, best.price, 0, 0, &depth)
        frame.registers[REGISTER_CHANGED] = 1
        best = book_level(frame.state, frame.instrument, side, 0)
    if price == MISSING():
        return FAULT_NONE
    depth = DEPTH_NONE
    cdef int fault = fault_of(
        frame, level_set(frame.state, frame.instrument, side, price, <uint64_t>quantity, 0, &depth), FAULT_NONE
    )
    if depth == 0:
        frame.registers[REGISTER_CHANGED] = 1
    return fault


# Trades


cdef int run_trade(Frame *frame, const Op *op) noexcept nogil:
    """a: trade id, b: price, c: quantity, d: conditions, e: event time, f: whether hours tell the condition."""
    cdef const int64_t *registers = frame.registers
    cdef uint64_t trade_id = <uint64_t>registers[op.a]
    cdef TradeRow was
    cdef Answer answer
    cdef int fault
    memset(&was, 0, sizeof(was))
    if op.code == CODE_TRADE:
        was.price = registers[op.b]
        was.size = <uint64_t>registers[op.c]
        was.conditions = <uint32_t>argument(frame, op.d, 0)
        if argument(frame, op.f, 0) and is_extended(frame, was.conditions, registers[op.e]):
            was.conditions |= TRADE_EXTENDED_HOURS
        answer = trade_add(
            frame.state, frame.instrument, trade_id, was.price, was.size, registers[op.e], was.conditions
        )
        give_trade(frame, &was)
        fault = fault_of(frame, answer, FAULT_TRADE)
        if not fault:
            count_finer(frame, was.price, registers[op.c], op.x)
        return fault
    if op.code == CODE_TRADE_BREAK:
        answer = trade_break(frame.state, frame.instrument, trade_id, &was)
    else:
        answer = trade_correct(
            frame.state, frame.instrument, trade_id, registers[op.b], <uint64_t>registers[op.c],
            <uint32_t>argument(frame, op.d, 0), &was,
        )
    fault = fault_of(frame, answer, FAULT_TRADE)
    if op.code == CODE_TRADE_CORRECT and not fault:
        count_finer(frame, registers[op.b], registers[op.c], op.x)
    give_trade(frame, &was)
    return fault


cdef inline void give_trade(Frame *frame, const TradeRow *trade) noexcept nogil:
    frame.registers[REGISTER_TRADE_PRICE] = trade.price
    frame.registers[REGISTER_TRADE_QUANTITY] = <int64_t>trade.size
    frame.registers[REGISTER_TRADE_CONDITIONS] = trade.conditions


cdef bint is_extended(const Frame *frame, uint32_t conditions, int64_t event_ns) noexcept nogil:
    """Whether a trade is outside the regular session: as the feed says, else by the calendar. Opening and closing
    crosses belong to the regular session, whenever they are printed."""
    cdef const SessionRow *session = &frame.state.session
    if conditions & (TRADE_OPENING | TRADE_CLOSING):
        return False
    if session.hours != HOURS_UNKNOWN:
        return session.hours != HOURS_REGULAR
    return session.close_ns != 0 and not session.open_ns <= event_ns < session.close_ns


# Values of the state


cdef void load_state(Frame *frame, uint8_t code, uint32_t quantity_decimals) noexcept nogil:
    if code == CODE_LOAD_LEVELS:
        load_levels(frame, LEVELS)
    elif code == CODE_LOAD_DAY:
        load_day(frame, quantity_decimals)
    else:
        load_reference(frame)


cdef inline void load_levels(Frame *frame, uint32_t count) noexcept nogil:
    cdef int64_t *to
    cdef const LevelRow *level
    cdef uint32_t depth
    cdef uint8_t side
    for side in range(2):
        to = &frame.registers[REGISTER_BOOK + side * LEVELS * 3]
        for depth in range(count):
            level = book_level(frame.state, frame.instrument, side, depth)
            to[0] = MISSING() if level is NULL else level.price
            to[1] = 0 if level is NULL else <int64_t>level.size
            to[2] = MISSING() if level is NULL or level.count == 0 else level.count
            to += 3


cdef void load_day(Frame *frame, uint32_t quantity_decimals) noexcept nogil:
    cdef const StatisticsRow *day = &frame.state.instruments[frame.instrument].statistics
    cdef const ExtendedRow *extended = &frame.state.instruments[frame.instrument].extended
    frame.registers[REGISTER_DAY_OPEN] = day.open
    frame.registers[REGISTER_DAY_HIGH] = day.high
    frame.registers[REGISTER_DAY_LOW] = day.low
    frame.registers[REGISTER_DAY_LAST] = day.last
    frame.registers[REGISTER_DAY_PREVIOUS_CLOSE] = day.previous_close
    frame.registers[REGISTER_DAY_VOLUME] = <int64_t>day.volume
    frame.registers[REGISTER_DAY_TURNOVER] = turnover_scaled(day.turnover_low, day.turnover_high, quantity_decimals, 4)
    frame.registers[REGISTER_DAY_TRADE_COUNT] = <int64_t>min(day.trade_count, <uint64_t>0xFFFFFFFE)
    frame.registers[REGISTER_EXTENDED_HIGH] = extended.high
    frame.registers[REGISTER_EXTENDED_LOW] = extended.low
    frame.registers[REGISTER_EXTENDED_LAST] = extended.last
    frame.registers[REGISTER_EXTENDED_VOLUME] = <int64_t>extended.volume
    frame.registers[REGISTER_EXTENDED_TURNOVER] = turnover_scaled(
        extended.turnover_low, extended.turnover_high, quantity_decimals, 4
    )
    frame.registers[REGISTER_EXTENDED_TRADE_COUNT] = <int64_t>min(extended.trade_count, <uint64_t>0xFFFFFFFE)


cdef void load_reference(Frame *frame) noexcept nogil:
    cdef const ReferenceRow *row = &frame.state.instruments[frame.instrument].reference
    frame.registers[REGISTER_ROUND_LOT] = row.round_lot
    frame.registers[REGISTER_PRICE_DECIMALS] = row.price_decimals - 1 if row.price_decimals else MISSING()
    frame.registers[REGISTER_QUANTITY_DECIMALS] = row.quantity_decimals - 1 if row.quantity_decimals else MISSING()
    if row.restrictions & RESTRICTION_OPERATIONAL_HALT and row.status != STATE_HALTED and row.status != STATE_PAUSED:
        # the venue's own halt and the regulatory state are kept apart: neither's end ends the other
        frame.registers[REGISTER_STATE] = STATE_SUSPENDED
        frame.registers[REGISTER_REASON] = 0
    else:
        frame.registers[REGISTER_STATE] = row.status
        memcpy(&frame.registers[REGISTER_REASON], row.reason, 8)
    frame.registers[REGISTER_RESTRICTIONS] = row.restrictions
    frame.registers[REGISTER_UPPER_LIMIT] = row.upper_limit
    frame.registers[REGISTER_LOWER_LIMIT] = row.lower_limit
    frame.registers[REGISTER_EVENT_TIME] = frame.state.instruments[frame.instrument].position.event_ns
    frame.registers[REGISTER_PHASE] = <int64_t>frame.state.session.phase
