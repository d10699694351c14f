"""Generated ITCH 5.0 order flow: a trading day of valid messages, reproducible by seed, millions per second.

The generator simulates a market of many books: orders are added, replaced, cancelled and executed in price-time order,
and messages describe each change. All randomness comes from one seeded generator of integers, without floating point,
so a seed produces the same bytes everywhere.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from penstock.feed.core.play._itch cimport (
    DEPTH, HALTS, MATCHES, POPULARITY, STEP_SIZE_MAX, TICK, Book, Flow, LiveOrder, about, begin, below, bits, directory,
    imbalance, levels, participant, position, put_u32, put_u64, short_sale, system_event, trading_action,
)

from penstock.base.errors import LocalProtocolError

cdef enum:
    BUY = 0
    SELL = 1

cdef enum Phase:
    BEFORE                  # start of messages, market-wide levels
    DIRECTORY  # the symbols of the day
    OPENING                 # start of system hours
    EARLY                   # order flow before the market opens
    OPEN                    # start of market hours
    OPEN_CROSS
    MARKET                  # order flow in market hours
    CLOSE                   # end of market hours
    CLOSE_CROSS
    LATE                    # order flow after the close
    CLEAN  # delete the remaining orders of the day
    AFTER                   # end of system hours, end of messages
    DONE

cdef enum:
    PAUSED = 1              # by limit up, limit down
    HALTED = 2              # by the regulator
    STOPPED = 3             # by an operational halt of one market
    RARE_KINDS = 9

cdef int64_t SECOND = 1_000_000_000
cdef int64_t MESSAGES_AT = 11_100 * SECOND      # 03:05
cdef int64_t SYSTEM_AT = 14_400 * SECOND        # 04:00
cdef int64_t OPEN_AT = 34_200 * SECOND          # 09:30
cdef int64_t BREACH_AT = 55_800 * SECOND  # 15:30: a level 1 breach after this time does not halt trading
cdef int64_t CLOSE_AT = 57_600 * SECOND         # 16:00
cdef int64_t CLEAN_AT = 70_200 * SECOND         # 19:30
cdef int64_t SYSTEM_END_AT = 72_000 * SECOND    # 20:00
cdef int64_t MESSAGES_END_AT = 72_300 * SECOND  # 20:05
cdef const char *INTERESTS = b"BSAN"
cdef const char *STATES = b"AEWS"


# Orders

cdef uint32_t a_price(Flow *flow, Book *book, int side) noexcept nogil:
    """Choose a price near the anchor, less often with growing distance, and never at or through the other side's
    best."""
    cdef uint64_t chance = bits(flow)
    cdef uint32_t away = <uint32_t>((chance & 15) * ((chance >> 8) & 15) >> 3)
    cdef uint16_t others = book.counts[1 - side]
    cdef uint32_t price
    if side == BUY:
        price = book.anchor - TICK * (1 + away)
        if others and price >= book.orders[SELL][others - 1].price:
            price = book.orders[SELL][others - 1].price - TICK
    else:
        price = book.anchor + TICK * away
        if others and price <= book.orders[BUY][others - 1].price:
            price = book.orders[BUY][others - 1].price + TICK
    return price


cdef uint32_t some_shares(Flow *flow) noexcept nogil:
    cdef uint64_t chance = bits(flow)
    if chance & 7:
        return 100 * (1 + <uint32_t>((chance >> 8 & 7) * (chance >> 16 & 3)))
    return 1 + <uint32_t>(chance >> 8 & 511)


cdef void enter(Book *book, int side, uint64_t reference, uint32_t price, uint32_t shares) noexcept nogil:
    cdef LiveOrder *orders = book.orders[side]
    cdef int at = book.counts[side]
    if side == BUY:
        while at > 0 and orders[at - 1].price >= price:
            at -= 1
    else:
        while at > 0 and orders[at - 1].price <= price:
            at -= 1
    memmove(orders + at + 1, orders + at, (book.counts[side] - at) * sizeof(LiveOrder))
    orders[at].reference = reference
    orders[at].price = price
    orders[at].shares = shares
    book.counts[side] += 1


cdef void leave(Book *book, int side, int at) noexcept nogil:
    cdef LiveOrder *orders = book.orders[side]
    book.counts[side] -= 1
    memmove(orders + at, orders + at + 1, (book.counts[side] - at) * sizeof(LiveOrder))


cdef void add(Flow *flow, uint32_t index, int side) noexcept nogil:
    cdef Book *book = &flow.books[index]
    cdef uint32_t price = a_price(flow, book, side)
    cdef uint32_t shares = some_shares(flow)
    cdef uint64_t reference = flow.next_reference
    cdef bint is_attributed = (bits(flow) & 63) == 0
    cdef uint8_t *message = begin(flow, c'F' if is_attributed else c'A', 40 if is_attributed else 36, index + 1)
    flow.next_reference += 1 + (shares & 3)
    put_u64(message + 11, reference)
    message[19] = c'B' if side == BUY else c'S'
    put_u32(message + 20, shares)
    memcpy(message + 24, book.symbol, 8)
    put_u32(message + 32, price)
    if is_attributed:
        participant(message + 36, <uint32_t>reference)
    enter(book, side, reference, price, shares)


cdef void drop(Flow *flow, uint32_t index, int side, int at) noexcept nogil:
    put_u64(begin(flow, c'D', 19, index + 1) + 11, flow.books[index].orders[side][at].reference)
    leave(&flow.books[index], side, at)


cdef void cancel(Flow *flow, uint32_t index, int side, int at) noexcept nogil:
    """Cancel a part of an order with at least two shares."""
    cdef LiveOrder *order = &flow.books[index].orders[side][at]
    cdef uint32_t shares = 1 + below(flow, order.shares - 1)
    cdef uint8_t *message = begin(flow, c'X', 23, index + 1)
    put_u64(message + 11, order.reference)
    put_u32(message + 19, shares)
    order.shares -= shares


cdef void replace(Flow *flow, uint32_t index, int side, int at) noexcept nogil:
    cdef Book *book = &flow.books[index]
    cdef uint64_t old = book.orders[side][at].reference
    cdef uint64_t new = flow.next_reference
    leave(book, side, at)
    cdef uint32_t price = a_price(flow, book, side)
    cdef uint32_t shares = some_shares(flow)
    cdef uint8_t *message = begin(flow, c'U', 35, index + 1)
    flow.next_reference += 1
    put_u64(message + 11, old)
    put_u64(message + 19, new)
    put_u32(message + 27, shares)
    put_u32(message + 31, price)
    enter(book, side, new, price, shares)


cdef uint64_t matched(Flow *flow, uint32_t index, bint may_break) noexcept nogil:
    """Return the number of a new match."""
    cdef uint64_t number = flow.next_match
    flow.next_match += 1
    if may_break:
        if flow.match_count == MATCHES:
            flow.match_count = 0  # older ones can no longer be broken
        flow.matches[flow.match_count].number = number
        flow.matches[flow.match_count].locate = <uint16_t>(index + 1)
        flow.match_count += 1
    return number


cdef uint32_t execute(Flow *flow, uint32_t index, int side, uint32_t cross_price) noexcept nogil:
    """Execute the best order of a side, completely or partly; return the shares. In a cross the execution is not
    printable and has the cross's price; without a cross (0) it may have a better price than the order's."""
    cdef Book *book = &flow.books[index]
    cdef int at = book.counts[side] - 1
    cdef LiveOrder *order = &book.orders[side][at]
    cdef uint64_t chance = bits(flow)
    cdef uint32_t shares = order.shares if chance & 1 else 1 + below(flow, order.shares)
    cdef bint has_price = cross_price != 0 or (chance >> 8 & 31) == 0
    cdef uint8_t *message = begin(flow, c'C' if has_price else c'E', 36 if has_price else 31, index + 1)
    put_u64(message + 11, order.reference)
    put_u32(message + 19, shares)
    put_u64(message + 23, matched(flow, index, cross_price == 0))
    if has_price:
        message[31] = c'Y' if cross_price == 0 else c'N'
        put_u32(message + 32, cross_price if cross_price else (order.price - TICK if side == BUY else order.price + TICK))
    order.shares -= shares
    if order.shares == 0:
        leave(book, side, at)
    if (chance >> 16 & 3) == 0:
        drift(book, side)
    return shares


cdef void drift(Book *book, int side) noexcept nogil:
    """Move the anchor: down after a buy order was hit, up after a sell order was lifted."""
    if side == BUY and book.anchor - TICK > book.base // 2:
        book.anchor -= TICK
    elif side == SELL and book.anchor + TICK < book.base * 2:
        book.anchor += TICK


cdef void hidden_trade(Flow *flow, uint32_t index) noexcept nogil:
    cdef Book *book = &flow.books[index]
    cdef uint8_t *message = begin(flow, c'P', 44, index + 1)
    put_u64(message + 11, 0)
    message[19] = c'B'
    put_u32(message + 20, some_shares(flow))
    memcpy(message + 24, book.symbol, 8)
    put_u32(message + 32, book.anchor)
    put_u64(message + 36, matched(flow, index, True))


cdef void cross(Flow *flow, uint32_t index, char kind) noexcept nogil:
    """Match up to three orders of each side at one price, then report the cross with its shares."""
    cdef Book *book = &flow.books[index]
    cdef uint32_t price = book.anchor
    cdef uint64_t shares = 0
    cdef int side, turn
    for turn in range(3):
        for side in range(2):
            if book.counts[side] > 1:
                shares += execute(flow, index, side, price)
    cdef uint8_t *message = begin(flow, c'Q', 40, index + 1)
    put_u64(message + 11, shares)
    memcpy(message + 19, book.symbol, 8)
    put_u32(message + 27, price if shares else 0)
    put_u64(message + 31, matched(flow, index, False))
    message[39] = <uint8_t>kind


# Rare events

cdef void break_trade(Flow *flow) noexcept nogil:
    """Break a trade that was not broken yet."""
    if flow.match_count == 0:
        return
    cdef int64_t at = below(flow, <uint32_t>flow.match_count)
    put_u64(begin(flow, c'B', 19, flow.matches[at].locate) + 11, flow.matches[at].number)
    flow.match_count -= 1
    flow.matches[at] = flow.matches[flow.match_count]


cdef void halt(Flow *flow, uint32_t index, uint8_t kind) noexcept nogil:
    cdef Book *book = &flow.books[index]
    cdef uint8_t *message
    if flow.halt_count == HALTS or book.halt:
        return
    if kind == STOPPED:
        message = about(flow, c'h', 21, index)
        memcpy(message + 19, b"QH", 2)
    elif kind == HALTED:
        trading_action(flow, index, c'H', b"T1  ")
    else:
        trading_action(flow, index, c'P', b"LUDP")
        message = about(flow, c'J', 35, index)
        put_u32(message + 19, book.anchor)
        put_u32(message + 23, book.anchor + book.anchor // 20)
        put_u32(message + 27, book.anchor - book.anchor // 20)
    book.halt = kind
    flow.halts[flow.halt_count].index = <uint16_t>index
    flow.halts[flow.halt_count].resume_at = flow.left - flow.rare_interval * (1 + below(flow, 4))
    flow.halt_count += 1


cdef void resume(Flow *flow, int which) noexcept nogil:
    cdef uint32_t index = flow.halts[which].index
    cdef Book *book = &flow.books[index]
    if book.halt == STOPPED:
        memcpy(about(flow, c'h', 21, index) + 19, b"QT", 2)
    else:
        trading_action(flow, index, c'Q', b"T3  " if book.halt == HALTED else b"LUDP")
        imbalance(flow, index, c'H')
        cross(flow, index, c'H')
        trading_action(flow, index, c'T', b"    ")
    book.halt = 0
    flow.halt_count -= 1
    flow.halts[which] = flow.halts[flow.halt_count]


cdef void something_rare(Flow *flow, uint32_t index) noexcept nogil:
    """Emit one kind of rare message after the other, so that even a short day has all of them."""
    cdef int kind = flow.rare_next % RARE_KINDS
    flow.rare_next += 1
    if kind == 0:
        halt(flow, index, PAUSED)
    elif kind == 1:
        halt(flow, index, HALTED)
    elif kind == 2:
        halt(flow, index, STOPPED)
    elif kind == 3:
        about(flow, c'N', 20, index)[19] = INTERESTS[below(flow, 4)]
    elif kind == 4:
        short_sale(flow, index, c'1')
    elif kind == 5:
        position(flow, index, 0, STATES[below(flow, 4)])
    elif kind == 6:
        break_trade(flow)
    elif kind == 7:
        hidden_trade(flow, index)
    elif flow.books[index].counts[SELL] and not flow.books[index].halt:
        execute(flow, index, SELL, 0)


# The order flow

cdef void pass_time(Flow *flow) noexcept nogil:
    """Advance the time by a skewed gap with the phase's mean; within a burst, a thirtieth of it."""
    cdef uint64_t chance = bits(flow)
    cdef uint64_t skew = ((chance & 65535) * (chance >> 16 & 0xFFFF)) >> 16
    cdef int64_t gap_ns = flow.gap_ns
    if flow.burst_left:
        flow.burst_left -= 1
        gap_ns = gap_ns // 30 + 1
    elif (chance >> 48) < 32:
        flow.burst_left = 100 + <int64_t>(chance >> 32 & 1023)
        flow.burst_index = flow.popular[chance >> 40 & 0xFFFF]
    flow.time_ns = min(flow.time_ns + <int64_t>((skew * <uint64_t>gap_ns) >> 14), flow.phase_end_ns)


cdef void order_event(Flow *flow, uint32_t index) noexcept nogil:
    """Change one side of one book, as most messages do."""
    cdef Book *book = &flow.books[index]
    cdef uint64_t chance = bits(flow)
    cdef int side = chance & 1
    cdef uint32_t kind = <uint32_t>(chance >> 8 & 1023)
    cdef int count = book.counts[side]
    cdef int at
    if count == 0 or (kind < 440 and count < DEPTH):
        add(flow, index, side)
        return
    # orders near the best are changed more often
    at = count - 1 - <int>(below(flow, count) * (chance >> 32 & 0xFFFF) >> 16)
    if kind < 840:
        drop(flow, index, side, at)
    elif kind < 930:
        replace(flow, index, side, at)
    elif kind < 990 and not book.halt:
        execute(flow, index, side, 0)
    elif kind < 998 and not book.halt:
        hidden_trade(flow, index)
    elif book.orders[side][at].shares > 1:
        cancel(flow, index, side, at)
    else:
        drop(flow, index, side, at)


cdef void trade_on(Flow *flow, char cross_kind) noexcept nogil:
    """One step of a phase of order flow; near its end, imbalances are reported."""
    cdef uint64_t chance = bits(flow)
    cdef uint32_t index = flow.popular[chance & 0xFFFF]
    cdef int which
    pass_time(flow)
    if flow.burst_left and (chance >> 16 & 1):
        index = flow.burst_index
    if flow.phase == MARKET:
        if not flow.is_breached and flow.left * 13 <= flow.shares_of[1]:
            flow.is_breached = True
            flow.time_ns = max(flow.time_ns, BREACH_AT)
            begin(flow, c'W', 12, 0)[11] = c'1'
        for which in range(flow.halt_count):
            if flow.left <= flow.halts[which].resume_at:
                resume(flow, which)
                break
        if flow.left % flow.rare_interval == 0:
            something_rare(flow, index)
    if cross_kind and flow.left * 10 < flow.shares_of[1 if flow.phase == MARKET else 0] and (chance >> 20 & 31) == 0:
        imbalance(flow, index, cross_kind)
    order_event(flow, index)
    flow.left -= 1


cdef void begin_trading(Flow *flow, Phase phase, int64_t messages, int64_t end_ns) noexcept nogil:
    flow.phase = phase
    flow.left = messages
    flow.phase_end_ns = end_ns
    # nearly a quarter of all messages come in bursts, which take almost no time
    flow.gap_ns = max((end_ns - flow.time_ns) // max(messages, 1) * 13 // 10, 1)
    flow.burst_left = 0


cdef bint next_symbol(Flow *flow) noexcept nogil:
    """True if a phase over all symbols is not finished."""
    flow.cursor += 1
    flow.time_ns += 1_000 + <int64_t>below(flow, 2_000)
    if flow.cursor < flow.symbols:
        return True
    flow.cursor = 0
    return False


cdef void clean(Flow *flow) noexcept nogil:
    """Delete up to 16 orders of one symbol; continue with the next symbol when it has none."""
    cdef Book *book = &flow.books[flow.cursor]
    cdef int side, turn
    for turn in range(8):
        for side in range(2):
            if book.counts[side]:
                drop(flow, <uint32_t>flow.cursor, side, book.counts[side] - 1)
    if book.counts[0] == 0 and book.counts[1] == 0:
        if not next_symbol(flow):
            flow.phase = AFTER


cdef void step(Flow *flow) noexcept nogil:
    """Write one or more messages, or begin the next phase."""
    if flow.phase == MARKET or flow.phase == EARLY or flow.phase == LATE:
        if flow.left > 0:
            trade_on(flow, c'C' if flow.phase == MARKET else (c'O' if flow.phase == EARLY else 0))
        elif flow.phase == MARKET and flow.halt_count:
            resume(flow, 0)
        else:
            flow.phase += 1
    elif flow.phase == BEFORE:
        system_event(flow, c'O', MESSAGES_AT)
        levels(flow)
        flow.phase = DIRECTORY
    elif flow.phase == DIRECTORY:
        directory(flow, <uint32_t>flow.cursor)
        if not next_symbol(flow):
            flow.phase = OPENING
    elif flow.phase == OPENING:
        system_event(flow, c'S', SYSTEM_AT)
        begin_trading(flow, EARLY, flow.shares_of[0], OPEN_AT - 1)
    elif flow.phase == OPEN:
        system_event(flow, c'Q', OPEN_AT)
        flow.phase = OPEN_CROSS
    elif flow.phase == OPEN_CROSS or flow.phase == CLOSE_CROSS:
        cross(flow, <uint32_t>flow.cursor, c'O' if flow.phase == OPEN_CROSS else c'C')
        if not next_symbol(flow):
            if flow.phase == OPEN_CROSS:
                begin_trading(flow, MARKET, flow.shares_of[1], CLOSE_AT - 1)
            else:
                begin_trading(flow, LATE, flow.shares_of[2], CLEAN_AT)
    elif flow.phase == CLOSE:
        system_event(flow, c'M', CLOSE_AT)
        flow.phase = CLOSE_CROSS
    elif flow.phase == CLEAN:
        flow.time_ns = max(flow.time_ns, CLEAN_AT)
        clean(flow)
    elif flow.phase == AFTER:
        system_event(flow, c'E', SYSTEM_END_AT)
        system_event(flow, c'C', MESSAGES_END_AT)
        flow.phase = DONE


cdef Py_ssize_t run(Flow *flow, uint8_t *out, Py_ssize_t room, int64_t messages_max) noexcept nogil:
    """Run whole steps while there is room for one more. Return the number of bytes written."""
    cdef int64_t last = flow.messages + messages_max
    flow.out = out
    while flow.phase != DONE and flow.messages < last and out + room - flow.out >= STEP_SIZE_MAX:
        step(flow)
    return flow.out - out


cdef class OrderFlow:
    """A day of the market of `symbols` (name, price in 1/10,000), the most popular first.

    `popular` has 65,536 symbol indices: a random entry yields each symbol in proportion to its entries.
    """

    def __cinit__(self, uint64_t seed, list symbols not None, const uint16_t[::1] popular not None, int64_t messages):
        cdef Flow *flow = &self.flow
        cdef Py_ssize_t index
        if popular.shape[0] != POPULARITY or not 1 <= len(symbols) < 65_535 or messages < 0:
            raise LocalProtocolError("order flow needs 1 to 65,534 symbols and a full table of their popularity")
        self.symbols = [name for name, _ in symbols]
        flow.symbols = len(symbols)
        flow.books = <Book *>PyMem_Calloc(len(symbols), sizeof(Book))
        flow.popular = <uint16_t *>PyMem_Calloc(POPULARITY, sizeof(uint16_t))
        if flow.books is NULL or flow.popular is NULL:
            raise MemoryError
        for index in range(POPULARITY):
            if popular[index] >= flow.symbols:
                raise LocalProtocolError(f"unknown symbol {popular[index]}")
            flow.popular[index] = popular[index]
        for index, (name, price) in enumerate(symbols):
            padded = name.encode("ascii").ljust(8)
            if len(padded) != 8 or not 50_000 <= price <= 100_000_000:
                raise LocalProtocolError(f"{name!r} at {price} is not a valid symbol")
            memcpy(flow.books[index].symbol, <const uint8_t *>padded, 8)
            flow.books[index].base = flow.books[index].anchor = price
        flow.random = seed
        flow.next_reference = 1
        flow.next_match = 1
        flow.phase = BEFORE
        flow.shares_of[0] = messages // 20
        flow.shares_of[2] = messages // 25
        flow.shares_of[1] = messages - flow.shares_of[0] - flow.shares_of[2]
        flow.rare_interval = min(max(flow.shares_of[1] // 64, 1), 5_000)

    def __dealloc__(self):
        PyMem_Free(self.flow.books)
        PyMem_Free(self.flow.popular)

    @property
    def messages(self) -> int:
        """Number of messages so far."""
        return self.flow.messages

    @property
    def is_done(self) -> bool:
        return self.flow.phase == DONE

    def fill(self, uint8_t[::1] room not None, int64_t messages_max) -> int:
        """Write messages, each with its length in two bytes before it. Return the number of bytes.

        Stops after `messages_max` messages (or a few more, because simultaneous messages stay together), when less
        than 2,048 bytes of room are left, or at the end of the day.
        """
        cdef Py_ssize_t size
        if room.shape[0] < STEP_SIZE_MAX:
            raise LocalProtocolError(f"the buffer has {room.shape[0]} bytes, the minimum is {STEP_SIZE_MAX}")
        with nogil:
            size = run(&self.flow, &room[0], room.shape[0], messages_max)
        return size
