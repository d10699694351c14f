"""The conversion state as an object: every change one call, units and images as bytes; _state.pxd says more."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

import numpy

from penstock.convert.books._book cimport book_depth, book_level, level_set, levels_clear
from penstock.convert.books._image cimport (
    CHUNK_HEADER_SIZE,
    UNIT_HEADER_SIZE,
    image_close,
    image_fill,
    image_open,
    images_end,
    unit_bytes_size,
    unit_bytes_write,
)
from penstock.convert.books._instruments cimport (
    instrument_by_locate,
    instrument_by_symbol,
    instrument_for,
    instrument_refer,
    instrument_set_position,
    instrument_set_status,
    instruments_forget,
    session_set,
)
from penstock.convert.books._install cimport image_install
from penstock.convert.books._orders cimport (
    OrderChange,
    order_add,
    order_delete,
    order_find,
    order_replace,
    order_take,
    orders_clear,
    orders_clear_instrument,
)
from penstock.convert.books._trades cimport trade_add, trade_break, trade_correct, trades_between, trades_roll_over
from penstock.convert.books._units cimport (
    Answer,
    INSTRUMENT_DECIMALS_MAX,
    Instrument,
    LIMIT_COUNT,
    LIMIT_INSTRUMENTS,
    LIMIT_LEVELS,
    LIMIT_ORDERS,
    LIMIT_TRADES,
    LOCATE_NONE,
    Limits,
    LevelRow,
    OrderRow,
    PRICE_NONE,
    REASON_SIZE,
    ReferenceRow,
    SIDE_ASK,
    STATE_INVALID,
    STATE_OK,
    STATE_UNKNOWN,
    SYMBOL_SIZE,
    ExtendedRow,
    SessionRow,
    StatisticsRow,
    TradeRow,
    VENUE_SIZE,
    state_close,
    state_open,
    unit_at,
    unit_count,
)

from penstock.base.errors import LocalProtocolError, StateImageError
from penstock.convert.books.rows import Level, OrderChanged, Statistics

CHUNK_SIZE_MIN = CHUNK_HEADER_SIZE + UNIT_HEADER_SIZE + 64
"""Bytes of a chunk that brings an image forward in any case."""


cdef void state_new_day(State *state, bint is_same_day) noexcept nogil:
    state_clear_books(state)
    trades_roll_over(state, is_same_day)
    instruments_forget(state)


cdef void state_next_day(State *state, bint is_same_day) noexcept nogil:
    """The next trading day within a session of the venue: definitions stay, the values of the day go."""
    cdef ReferenceRow row
    cdef uint32_t number
    state_clear_books(state)
    trades_roll_over(state, is_same_day)
    for number in range(<uint32_t>state.counts[LIMIT_INSTRUMENTS]):
        row = state.instruments[number].reference
        row.status = 0
        row.restrictions = 0
        memset(row.reason, 0, REASON_SIZE)
        row.upper_limit = PRICE_NONE()
        row.lower_limit = PRICE_NONE()
        instrument_refer(state, number, &row)
        instrument_set_position(state, number, 0, 0)


cdef void state_clear_books(State *state) noexcept nogil:
    cdef uint32_t instrument
    images_end(state)
    orders_clear(state)
    for instrument in range(<uint32_t>state.counts[LIMIT_INSTRUMENTS]):
        levels_clear(state, instrument)


cdef void state_clear_book(State *state, uint64_t instrument) noexcept nogil:
    images_end(state)
    orders_clear_instrument(state, <uint32_t>instrument)
    levels_clear(state, <uint32_t>instrument)


cdef int64_t price_of(object price) except? 0:
    return PRICE_NONE() if price is None else <int64_t>price


cdef uint8_t decimals_of(object decimals) except? 0:
    """As a row has them: 0 if they are not known."""
    if decimals is None:
        return 0
    if not 0 <= decimals <= INSTRUMENT_DECIMALS_MAX:
        raise LocalProtocolError(f"{decimals} decimals: an instrument has 0 to {INSTRUMENT_DECIMALS_MAX}")
    return <uint8_t>(decimals + 1)


cdef object price_or_none(int64_t price):
    return None if price == PRICE_NONE() else price


cdef int padded(str text, uint8_t *out, size_t size) except -1:
    """Write text as zero padded bytes."""
    cdef bytes data = text.encode()
    if <size_t>len(data) > size:
        raise LocalProtocolError(f"{text!r} is longer than {size} bytes")
    memset(out, 0, size)
    memcpy(out, PyBytes_AS_STRING(data), len(data))
    return 0


cdef object changed(Answer answer, const OrderChange *change):
    if answer == STATE_UNKNOWN:
        return OrderChanged(answer)
    return OrderChanged(
        answer, change.instrument, change.side, change.price, change.shares, change.remaining, change.participant,
        None if change.depth == 0xFFFFFFFF else change.depth,
    )


cdef object wide(uint64_t low, uint64_t high):
    return <object>low + (int(<int64_t>high) << 64)


cdef object statistics_of(const StatisticsRow *row, const ExtendedRow *extended):
    cdef tuple regular = (  # typed: Cython does not finish inferring a tuple of const members
        price_or_none(row.open), price_or_none(row.high), price_or_none(row.low), price_or_none(row.last),
        price_or_none(row.previous_close), row.last_size, row.volume, wide(row.turnover_low, row.turnover_high),
        row.trade_count,
    )
    if extended is NULL:
        return Statistics(*regular)
    return Statistics(
        *regular, price_or_none(extended.high), price_or_none(extended.low), price_or_none(extended.last),
        extended.volume, wide(extended.turnover_low, extended.turnover_high), extended.trade_count,
    )


cdef class StateKernel:
    """See penstock.convert.books.state.ConversionState."""

    def __cinit__(self, uint64_t instruments, uint64_t orders, uint64_t levels, uint64_t trades, uint64_t seed):
        cdef Limits limits
        limits.counts[LIMIT_INSTRUMENTS] = instruments
        limits.counts[LIMIT_ORDERS] = orders
        limits.counts[LIMIT_LEVELS] = levels
        limits.counts[LIMIT_TRADES] = trades
        self.state = state_open(&limits, seed, NULL)

    def __dealloc__(self):
        if self.state is not NULL:
            state_close(self.state, False)

    # What there is

    @property
    def digest(self) -> int:
        """The sum of all rows' mixes: equal digests, equal content."""
        return self.state.digest

    @property
    def instrument_count(self) -> int:
        return self.state.counts[LIMIT_INSTRUMENTS]

    @property
    def order_count(self) -> int:
        return self.state.counts[LIMIT_ORDERS]

    @property
    def level_count(self) -> int:
        return self.state.counts[LIMIT_LEVELS]

    @property
    def trade_count(self) -> int:
        return self.state.counts[LIMIT_TRADES]

    @property
    def refused(self) -> tuple:
        """How often a limit refused an instrument, an order, a level, a trade."""
        return tuple([self.state.refused[each] for each in range(LIMIT_COUNT)])

    def unit_digests(self):
        """One number per unit, in the order of their numbers."""
        digests = numpy.empty(unit_count(self.state), dtype=numpy.uint64)
        cdef uint64_t[::1] view = digests
        cdef uint32_t number
        for number in range(<uint32_t>view.shape[0]):
            view[number] = unit_at(self.state, number).digest
        return digests

    def unit_bytes(self, uint32_t number) -> bytes:
        """A unit's rows, as an image has them."""
        if number >= unit_count(self.state):
            raise LocalProtocolError(f"there is no unit {number}")
        data = PyBytes_FromStringAndSize(NULL, unit_bytes_size(self.state, number))
        unit_bytes_write(self.state, number, <uint8_t *>PyBytes_AS_STRING(data))
        return data

    cdef uint32_t checked(self, object instrument) except? 0xFFFFFFFF:
        if not 0 <= instrument < self.instrument_count:
            raise LocalProtocolError(f"there is no instrument {instrument}")
        return <uint32_t>instrument

    # Instruments

    def instrument(self, str symbol = "", locate: int | None = None) -> int:
        """The number of an instrument, found or made; -1 when there is no room for one more."""
        cdef uint8_t[16] name
        padded(symbol, name, SYMBOL_SIZE)
        return instrument_for(self.state, name, LOCATE_NONE() if locate is None else <uint64_t>locate)

    def find(self, str symbol) -> int:
        """The number of an instrument, or -1."""
        cdef uint8_t[16] name
        padded(symbol, name, SYMBOL_SIZE)
        return instrument_by_symbol(self.state, name)

    def find_locate(self, uint64_t locate) -> int:
        return instrument_by_locate(self.state, locate)

    def refer(
        self, instrument: int, *, str venue = "", uint32_t round_lot = 0, uint32_t flags = 0,
        upper_limit: int | None = None, lower_limit: int | None = None, price_decimals: int | None = None,
        quantity_decimals: int | None = None
    ) -> None:
        """Set what the directory says of an instrument."""
        cdef uint32_t number = self.checked(instrument)
        cdef ReferenceRow row = self.state.instruments[number].reference
        padded(venue, row.venue, VENUE_SIZE)
        row.round_lot = round_lot
        row.flags = flags
        row.upper_limit = price_of(upper_limit)
        row.lower_limit = price_of(lower_limit)
        row.price_decimals = decimals_of(price_decimals)
        row.quantity_decimals = decimals_of(quantity_decimals)
        instrument_refer(self.state, number, &row)

    def set_status(self, instrument: int, uint8_t status, uint8_t restrictions = 0, str reason = "") -> None:
        cdef uint8_t[8] code
        padded(reason, code, REASON_SIZE)
        instrument_set_status(self.state, self.checked(instrument), status, restrictions, code)

    def set_position(self, instrument: int, int64_t event_ns, uint64_t source_sequence) -> None:
        instrument_set_position(self.state, self.checked(instrument), event_ns, source_sequence)

    def set_session(
        self, str name, int64_t day_ns = 0, uint64_t phase = 0, int64_t open_ns = 0, int64_t close_ns = 0,
        uint64_t hours = 0
    ) -> None:
        """The session's name, its midnight, the feed's code of where the day is, and the regular session: by the
        calendar, and as the feed says (an Hours)."""
        cdef SessionRow row
        padded(name, row.name, 16)
        row.day_ns = day_ns
        row.phase = phase
        row.open_ns = open_ns
        row.close_ns = close_ns
        row.hours = hours
        session_set(self.state, &row)

    # Orders and levels

    def add_order(
        self, uint64_t reference, instrument: int, uint8_t side, int64_t price, uint64_t shares,
        uint32_t participant = 0
    ):
        cdef OrderChange change
        cdef uint32_t number = self.checked(instrument)
        if side > SIDE_ASK:
            raise LocalProtocolError(f"there is no side {side}")
        return changed(
            order_add(self.state, reference, number, side, price, shares, participant, &change), &change
        )

    def execute_order(self, uint64_t reference, uint64_t shares):
        cdef OrderChange change
        return changed(order_take(self.state, reference, shares, &change), &change)

    def cancel_order(self, uint64_t reference, uint64_t shares):
        return self.execute_order(reference, shares)

    def delete_order(self, uint64_t reference):
        cdef OrderChange change
        return changed(order_delete(self.state, reference, &change), &change)

    def replace_order(self, uint64_t old_reference, uint64_t new_reference, uint64_t shares, int64_t price):
        cdef OrderChange change
        return changed(
            order_replace(self.state, old_reference, new_reference, shares, price, &change), &change
        )

    def order(self, uint64_t reference):
        """An order as it is, or None."""
        cdef const OrderRow *row = order_find(self.state, reference)
        if row is NULL:
            return None
        return OrderChanged(STATE_OK, row.place >> 1, row.place & 1, row.price, 0, row.shares, row.participant)

    def set_level(self, instrument: int, uint8_t side, int64_t price, uint64_t size, uint32_t count = 0) -> tuple:
        """(answer, depth of the change or None)."""
        cdef uint32_t depth
        cdef uint32_t number = self.checked(instrument)
        if side > SIDE_ASK:
            raise LocalProtocolError(f"there is no side {side}")
        answer = level_set(self.state, number, side, price, size, count, &depth)
        return answer, None if depth == 0xFFFFFFFF else depth

    def levels(self, instrument: int, uint8_t side, uint32_t depth_max) -> list:
        """The best levels of one side, best first."""
        cdef uint32_t number = self.checked(instrument)
        cdef const LevelRow *level
        cdef uint32_t depth
        found = []
        for depth in range(min(depth_max, book_depth(self.state, number, side & 1))):
            level = book_level(self.state, number, side & 1, depth)
            found.append(Level(level.price, level.size, level.count))
        return found

    def clear_book(self, instrument: int | None = None) -> None:
        """Take away the orders and levels of one instrument, or of all."""
        if instrument is None:
            state_clear_books(self.state)
        else:
            state_clear_book(self.state, self.checked(instrument))

    # Trades

    def add_trade(
        self, instrument: int, uint64_t trade_id, int64_t price, uint64_t size, int64_t event_ns = 0,
        uint32_t conditions = 0
    ) -> int:
        return trade_add(self.state, self.checked(instrument), trade_id, price, size, event_ns, conditions)

    def break_trade(self, instrument: int, uint64_t trade_id) -> int:
        return trade_break(self.state, self.checked(instrument), trade_id, NULL)

    def correct_trade(
        self, instrument: int, uint64_t trade_id, int64_t price, uint64_t size, uint32_t conditions = 0
    ) -> int:
        return trade_correct(self.state, self.checked(instrument), trade_id, price, size, conditions, NULL)

    def day_statistics(self, instrument: int):
        cdef const Instrument *owner = &self.state.instruments[self.checked(instrument)]
        return statistics_of(&owner.statistics, &owner.extended)

    def statistics_between(self, instrument: int, int64_t from_ns, int64_t until_ns):
        """What the trades of a span of time come to, those of regular and of extended hours alike."""
        cdef StatisticsRow row
        trades_between(self.state, self.checked(instrument), from_ns, until_ns, &row)
        return statistics_of(&row, NULL)

    def new_day(self, *, bint is_same_day = False, bint keeps_definitions = False) -> None:
        """Begin a session: see state_new_day() in _state.pxd. With `keeps_definitions`, the venue's session goes on
        and only the trading day changes: venue keys, round lots and flags stay."""
        if keeps_definitions:
            state_next_day(self.state, is_same_day)
        else:
            state_new_day(self.state, is_same_day)

    # Images

    def begin_image(self, known=None):
        """An image of the state as it is now, without the units whose digests are those of `known`."""
        return StateImage(self, known)

    def install(self, chunks) -> None:
        """Become what an image says: its units replace ours, units its source does not have go away. All or nothing."""
        image_install(self.state, chunks)


cdef class StateImage:
    """A state as it was when this image began, to be fetched in chunks while the state goes on."""

    def __cinit__(self, StateKernel kernel not None, known):
        cdef const uint64_t[::1] digests
        self.kernel = kernel
        if known is None or len(known) == 0:
            self.image = image_open(kernel.state, NULL, 0)
            return
        digests = numpy.ascontiguousarray(known, dtype=numpy.uint64)
        self.image = image_open(kernel.state, &digests[0], <uint32_t>min(digests.shape[0], 2**31))

    def __dealloc__(self):
        if self.image is not NULL:
            image_close(self.kernel.state, self.image)

    @property
    def digest(self) -> int:
        """Of the whole state, as the image has it."""
        return self.image.digest

    @property
    def copies(self) -> int:
        """Units copied so far, because they changed before they were sent or did not fit a chunk."""
        return self.image.copies

    @property
    def copied_size(self) -> int:
        """Bytes of those copies."""
        return self.image.copied_size

    def chunk(self, uint64_t size_max) -> bytes:
        """The next chunk, of at most `size_max` bytes; b"" when there is nothing more."""
        cdef uint64_t size
        if not CHUNK_SIZE_MIN <= size_max < 2**31:
            raise LocalProtocolError(f"a chunk has from {CHUNK_SIZE_MIN} to {2**31 - 1} bytes, not {size_max}")
        if self.image.is_complete:
            return b""
        self.check()
        data = PyBytes_FromStringAndSize(NULL, size_max)
        size = image_fill(self.kernel.state, self.image, <uint8_t *>PyBytes_AS_STRING(data), size_max)
        self.check()
        return data[:size]

    cdef int check(self) except -1:
        if self.image.is_ended:
            raise StateImageError("the state was changed as a whole", hint="begin a new image")
        if self.image.is_short:
            raise StateImageError("there was no memory to keep the image while the state went on")
        return 0
