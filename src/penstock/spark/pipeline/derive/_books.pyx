"""Book events, in their order, into what the books become: the best, and so many levels, whenever they change.

The books themselves are those of penstock.convert: there is no second one.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

import numpy
import pyarrow

from penstock.convert.books._book cimport DEPTH_NONE, book_level, level_set
from penstock.convert.books._instruments cimport instrument_for_locate
from penstock.convert.books._orders cimport (
    OrderChange, order_add, order_delete, order_find, order_replace, order_take, slot_of,
)
from penstock.convert.books._state cimport StateKernel, state_clear_book, state_clear_books
from penstock.convert.books._units cimport (
    LIMIT_INSTRUMENTS, LIMIT_ORDERS, Ladder, LevelRow, OrderRow, PRICE_NONE, SHARDS, SIDE_ASK, SIDE_BID, STATE_INVALID,
    STATE_OK, STATE_REFUSED, STATE_SHORT, Shard, State, prefetch, shard_of,
)
from penstock.spark.pipeline.derive._event cimport Event

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.convert.books.state import ConversionState, StateLimits

cpdef enum: # `action` of an event: those of the model book_event, and what is carried from step to step
    ACTION_ADD = 1
    ACTION_MODIFY = 2
    ACTION_REPLACE = 3
    ACTION_CANCEL = 4
    ACTION_DELETE = 5
    ACTION_EXECUTE = 6
    ACTION_CLEAR = 7
    ACTION_ORDER = 8   # an order, or a level of a feed without orders, that was there when the step before ended
    ACTION_PENDING = 9 # the best level, in `quantity`, that the event under way had changed by then

cpdef enum: # `flags` of an event
    FLAG_LAST = 1   # last_in_event: the book is consistent now
    FLAG_HIDDEN = 4 # not in the book that all can see

cdef enum:
    ORDER_NONE = 0 # `order_id` of an event that is about a whole price level
    AHEAD = 16
    ANSWERS = 6

INSTRUMENTS_MAX = 65_536
"""Of one stream, in one partition."""

SIDES = ("bid", "ask")


EVENT_DTYPE = numpy.dtype(
    [
        ("seq", "<i8"), ("event_time", "<i8"), ("source_seq", "<i8"), ("order_id", "<u8"), ("new_order_id", "<u8"),
        ("price", "<i8"), ("quantity", "<i8"), ("instrument", "<u4"), ("session", "<u2"), ("action", "u1"),
        ("side_flags", "u1"),
    ]
)


cdef struct Decimal: # 128 bits, as Arrow has it
    int64_t low
    int64_t high


cdef struct Levels: # of one side, row after row
    Decimal *price
    int64_t *size
    int32_t *orders
    uint32_t count


cdef struct Keys: # of the events that rows are of
    int64_t *seq
    int64_t *source_seq
    int64_t *event_time
    uint32_t *instrument


cdef struct Rows: # what becomes of the events: rows for the best, and rows for the levels
    Keys best_keys
    Levels best[2]
    uint8_t *best_is_there[2]
    uint32_t best_count
    Keys depth_keys
    int32_t *depth_level
    Levels depth[2]
    int32_t *depth_ends[2]
    uint32_t depth_count
    uint32_t levels_max


# One event


cdef int change_book(State *state, const Event *event, uint32_t *depth) noexcept nogil:
    """The answer; `depth` is of the best level that changed."""
    cdef OrderChange change
    cdef const OrderRow *order
    cdef int64_t price = event.price
    cdef uint8_t side = SIDE_ASK if event.side_flags & 3 == 2 else SIDE_BID
    cdef int answer = STATE_INVALID
    change.depth = DEPTH_NONE
    if event.order_id == ORDER_NONE and event.action != ACTION_CLEAR:
        answer = change_level(state, event, side, &change.depth)
    elif event.action == ACTION_ADD or event.action == ACTION_ORDER:
        if event.side_flags & 3:
            answer = order_add(state, event.order_id, event.instrument, side, price, event.quantity, 0, &change)
    elif event.action == ACTION_CANCEL or event.action == ACTION_EXECUTE:
        answer = order_take(state, event.order_id, event.quantity, &change)
    elif event.action == ACTION_DELETE:
        answer = order_delete(state, event.order_id, &change)
    elif event.action == ACTION_REPLACE:
        answer = order_replace(state, event.order_id, event.new_order_id, event.quantity, price, &change)
    elif event.action == ACTION_MODIFY:
        order = order_find(state, event.order_id)
        if order is not NULL and price == PRICE_NONE():
            price = order.price
        answer = order_replace(state, event.order_id, event.order_id, event.quantity, price, &change)
    elif event.action == ACTION_CLEAR:
        state_clear_book(state, event.instrument)
        change.depth = 0
        answer = STATE_OK
    depth[0] = change.depth if answer == STATE_OK or answer == STATE_SHORT or answer == STATE_REFUSED else DEPTH_NONE
    return answer


cdef int change_level(State *state, const Event *event, uint8_t side, uint32_t *depth) noexcept nogil:
    """An event of a feed that gives whole price levels: `quantity` is the size of the level from now on."""
    cdef uint64_t size = <uint64_t>event.quantity
    if event.side_flags & 3 == 0 or event.quantity < 0:
        return STATE_INVALID
    if event.action == ACTION_DELETE:
        size = 0
    elif event.action != ACTION_ADD and event.action != ACTION_MODIFY and event.action != ACTION_ORDER:
        return STATE_INVALID
    return level_set(state, event.instrument, side, event.price, size, 0, depth)


cdef inline void put_level(Levels *levels, const LevelRow *level) noexcept nogil:
    levels.price[levels.count].low = level.price
    levels.price[levels.count].high = level.price >> 63
    levels.size[levels.count] = <int64_t>level.size
    levels.orders[levels.count] = <int32_t>level.count
    levels.count += 1


cdef inline void put_keys(Keys *keys, uint32_t row, const Event *event) noexcept nogil:
    keys.seq[row] = event.seq
    keys.source_seq[row] = event.source_seq
    keys.event_time[row] = event.event_time
    keys.instrument[row] = event.instrument


cdef void put_best(const State *state, const Event *event, Rows *rows) noexcept nogil:
    cdef const LevelRow *level
    cdef LevelRow nothing
    cdef uint8_t side
    nothing.price = 0
    nothing.size = 0
    nothing.count = 0
    for side in range(2):
        level = book_level(state, event.instrument, side, 0)
        rows.best_is_there[side][rows.best_count] = level is not NULL
        if level is NULL:
            level = &nothing
        put_level(&rows.best[side], level)
    put_keys(&rows.best_keys, rows.best_count, event)
    rows.best_count += 1


cdef void put_depth(const State *state, const Event *event, uint32_t changed, Rows *rows) noexcept nogil:
    cdef const Ladder *ladder
    cdef const LevelRow *level
    cdef Levels *levels
    cdef uint32_t number, count, at
    cdef uint8_t side
    for side in range(2):
        ladder = &state.instruments[event.instrument].sides[side]
        levels = &rows.depth[side]
        level = ladder.levels + ladder.count
        count = min(ladder.count, rows.levels_max)
        at = levels.count
        for number in range(count):
            level -= 1
            levels.price[at].low = level.price
            levels.price[at].high = level.price >> 63
            levels.size[at] = <int64_t>level.size
            levels.orders[at] = <int32_t>level.count
            at += 1
        levels.count = at
        rows.depth_ends[side][rows.depth_count + 1] = <int32_t>at
    put_keys(&rows.depth_keys, rows.depth_count, event)
    rows.depth_level[rows.depth_count] = <int32_t>changed
    rows.depth_count += 1


# Many


cdef inline void look_ahead(const State *state, const Event *events, uint32_t left) noexcept nogil:
    """Orders and instruments are fetched for an event to come, ladders for a nearer one whose instrument is there."""
    cdef const Shard *shard
    cdef const Ladder *ladder
    cdef uint8_t side
    if left > AHEAD:
        shard = &state.shards[shard_of(events[AHEAD].order_id)]
        if shard.slots is not NULL:
            prefetch(&shard.slots[slot_of(state, shard, events[AHEAD].order_id)])
        prefetch(&state.instruments[events[AHEAD].instrument])
        for side in range(2):
            ladder = &state.instruments[events[AHEAD // 2].instrument].sides[side]
            if ladder.count:
                prefetch(&ladder.levels[ladder.count - 1])


cdef void apply_events(
    State *state, const Event *events, uint32_t count, uint32_t *pending, uint16_t *session, uint64_t *answers,
    Rows *rows
) noexcept nogil:
    cdef const Event *event
    cdef uint32_t index, depth
    cdef uint32_t *changed
    for index in range(count):
        look_ahead(state, events + index, count - index)
        event = &events[index]
        if event.session != session[0]:
            state_clear_books(state) # a new session of the source: nobody's orders are left
            session[0] = event.session
        changed = &pending[event.instrument]
        if event.action == ACTION_PENDING:
            changed[0] = <uint32_t>event.quantity
            continue
        if event.side_flags >> 2 & FLAG_HIDDEN == 0:
            answers[change_book(state, event, &depth)] += 1
            if event.action == ACTION_ORDER:
                continue
            changed[0] = min(changed[0], depth)
        if event.side_flags >> 2 & FLAG_LAST:
            if changed[0] == 0:
                put_best(state, event, rows)
            if changed[0] < rows.levels_max:
                put_depth(state, event, changed[0], rows)
            changed[0] = DEPTH_NONE


cdef class BookKernel:
    """The books of one source stream, or of some of its instruments."""

    cdef StateKernel kernel
    cdef object _pending # by instrument: the best level that the event under way has changed
    cdef uint16_t session
    cdef uint64_t answers[ANSWERS]
    cdef readonly uint32_t levels_max

    def __init__(self, uint32_t levels_max):
        limits = StateLimits(instruments=INSTRUMENTS_MAX)
        self.kernel = ConversionState(limits)
        self._pending = numpy.full(INSTRUMENTS_MAX, <uint32_t>DEPTH_NONE, numpy.uint32)
        self.levels_max = levels_max

    @property
    def counts(self):
        """How many events had which answer (penstock.convert.books.state.Answer)."""
        return [self.answers[answer] for answer in range(ANSWERS)]

    def instrument(self) -> int:
        """One more instrument; its number."""
        cdef uint64_t number = self.kernel.state.counts[LIMIT_INSTRUMENTS]
        if instrument_for_locate(self.kernel.state, number) < 0:
            raise LimitError(f"more than {INSTRUMENTS_MAX} instruments in one part of a stream")
        return number

    def apply(self, events):
        """Take events; what changed is (best, depth), each a dict of arrays. `instrument` is one of instrument()'s."""
        cdef const Event[::1] given = events
        cdef uint32_t[::1] pending = self._pending
        cdef uint32_t count = <uint32_t>len(events)
        cdef Rows rows
        if count == 0 or int(events["instrument"].max()) >= self.kernel.state.counts[LIMIT_INSTRUMENTS]:
            raise LocalProtocolError("no events, or one of an instrument that was not made")
        best, depth = best_arrays(count), depth_arrays(count, self.levels_max)
        best_into(best, &rows)
        depth_into(depth, &rows)
        rows.levels_max = self.levels_max
        with nogil:
            apply_events(
                self.kernel.state, &given[0], count, &pending[0], &self.session, self.answers, &rows
            )
        return cut(best, rows.best_count, rows.best_count, rows.best_count), cut(
            depth, rows.depth_count, rows.depth[SIDE_BID].count, rows.depth[SIDE_ASK].count
        )

    def carried(self):
        """Events that make the books again: the orders and levels that are left, and what is under way."""
        cdef const State *state = self.kernel.state
        cdef const Shard *shard
        cdef const OrderRow *order
        cdef uint32_t number
        cdef uint64_t slot, at = 0
        pending = numpy.flatnonzero(self._pending != <uint32_t>DEPTH_NONE)
        levels = self.levels_without_orders()
        made = numpy.zeros(state.counts[LIMIT_ORDERS] + len(levels) + len(pending), EVENT_DTYPE)
        cdef Event[::1] events = made
        for number in range(SHARDS):
            shard = &state.shards[number]
            if shard.count == 0:
                continue
            for slot in range(<uint64_t>shard.mask + 1):
                order = &shard.slots[slot]
                if order.shares:
                    events[at].order_id = order.reference
                    events[at].price = order.price
                    events[at].quantity = <int64_t>order.shares
                    events[at].instrument = order.place >> 1
                    events[at].side_flags = 2 if order.place & 1 else 1
                    events[at].action = ACTION_ORDER
                    at += 1
        made[at : at + len(levels)] = levels
        at += len(levels)
        made["instrument"][at:] = pending
        made["quantity"][at:] = self._pending[pending]
        made["action"][at:] = ACTION_PENDING
        made["session"] = self.session
        return made

    cdef object levels_without_orders(self):
        """Events that make the levels again which a feed gave as a whole: no order stands for them."""
        cdef const State *state = self.kernel.state
        cdef const Ladder *ladder
        cdef const LevelRow *level
        cdef uint32_t instrument, index
        cdef uint64_t at = 0, count = 0
        cdef uint8_t side
        for instrument in range(<uint32_t>state.counts[LIMIT_INSTRUMENTS]):
            for side in range(2):
                count += state.instruments[instrument].sides[side].count
        made = numpy.zeros(count, EVENT_DTYPE)
        cdef Event[::1] events = made
        for instrument in range(<uint32_t>state.counts[LIMIT_INSTRUMENTS]):
            for side in range(2):
                ladder = &state.instruments[instrument].sides[side]
                for index in range(ladder.count):
                    level = &ladder.levels[index]
                    if level.count:
                        continue
                    events[at].price = level.price
                    events[at].quantity = <int64_t>level.size
                    events[at].instrument = instrument
                    events[at].side_flags = 1 + side
                    events[at].action = ACTION_ORDER
                    at += 1
        return made[:at]


# Memory for what comes out


cdef object room_for(uint64_t count, kind):
    """From Arrow's pool, whose memory has been used before: a page that is new costs more than what is put there."""
    kind = numpy.dtype(kind)
    return numpy.frombuffer(pyarrow.allocate_buffer(count * kind.itemsize), kind)


cdef dict key_arrays(uint64_t count):
    wide = {name: room_for(count, numpy.int64) for name in ("seq", "source_seq", "event_time")}
    return {**wide, "instrument": room_for(count, numpy.uint32)}


cdef dict side_arrays(uint64_t count):
    return {
        "price": room_for(2 * count, numpy.int64),
        "size": room_for(count, numpy.int64),
        "orders": room_for(count, numpy.int32),
    }


cdef dict best_arrays(uint64_t count):
    sides = {side: {**side_arrays(count), "is_there": room_for(count, numpy.uint8)} for side in SIDES}
    return {**key_arrays(count), **sides}


cdef dict depth_arrays(uint64_t count, uint32_t levels_max):
    sides = {
        side: {**side_arrays(count * levels_max), "ends": room_for(count + 1, numpy.int32)} for side in SIDES
    }
    return {**key_arrays(count), "level": room_for(count, numpy.int32), **sides}


cdef void keys_into(dict arrays, Keys *keys) except *:
    cdef int64_t[::1] seq = arrays["seq"], source_seq = arrays["source_seq"], event_time = arrays["event_time"]
    cdef uint32_t[::1] instrument = arrays["instrument"]
    keys.seq = &seq[0]
    keys.source_seq = &source_seq[0]
    keys.event_time = &event_time[0]
    keys.instrument = &instrument[0]


cdef void side_into(dict arrays, Levels *levels) except *:
    cdef int64_t[::1] price = arrays["price"]
    cdef int64_t[::1] size = arrays["size"]
    cdef int32_t[::1] orders = arrays["orders"]
    levels.price = <Decimal *>&price[0]
    levels.size = &size[0]
    levels.orders = &orders[0]
    levels.count = 0


cdef void best_into(dict arrays, Rows *rows) except *:
    cdef uint8_t[::1] is_there
    keys_into(arrays, &rows.best_keys)
    rows.best_count = 0
    for side, name in enumerate(SIDES):
        side_into(arrays[name], &rows.best[side])
        is_there = arrays[name]["is_there"]
        rows.best_is_there[side] = &is_there[0]


cdef void depth_into(dict arrays, Rows *rows) except *:
    cdef int32_t[::1] level = arrays["level"]
    cdef int32_t[::1] ends
    keys_into(arrays, &rows.depth_keys)
    rows.depth_level = &level[0]
    rows.depth_count = 0
    for side, name in enumerate(SIDES):
        side_into(arrays[name], &rows.depth[side])
        ends = arrays[name]["ends"]
        rows.depth_ends[side] = &ends[0]
        ends[0] = 0


cdef dict cut(dict arrays, uint64_t rows, uint64_t bids, uint64_t asks):
    """Without the room that was not used."""
    made = {name: array[:rows] for name, array in arrays.items() if name not in SIDES}
    for name, count in zip(SIDES, (bids, asks), strict=True):
        lengths = {"ends": rows + 1, "price": 2 * count}
        made[name] = {what: array[: lengths.get(what, count)] for what, array in arrays[name].items()}
    return made
