"""Looking ahead in a batch; _ahead.pxd says why."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t, uintptr_t

from penstock.convert.kernel._frame cimport Frame
from penstock.convert.books._instruments cimport instrument_by_locate
from penstock.convert.books._orders cimport order_find, slot_of
from penstock.convert.kernel._program cimport Program, Route, Window, load_window
from penstock.convert.kernel._source cimport SourceBatch, SourceRow
from penstock.convert.books._units cimport (
    Instrument,
    Ladder,
    LevelRow,
    OrderRow,
    SIDE_ASK,
    SIDE_BID,
    Shard,
    State,
    prefetch,
    shard_of,
)

cdef enum:
    CACHE_LINE = 64


cdef void look_ahead(Program program, const Frame *frame, SourceBatch batch, Py_ssize_t at) noexcept nogil:
    """Each step needs what the step before has fetched, so the steps go over all messages one after another; the
    slots of orders are fetched for the messages after next."""
    if at == 0:
        fetch_slots(program, frame.state, batch, at)
    fetch_slots(program, frame.state, batch, at + AHEAD)
    fetch_instruments(program, frame, batch, at)


cdef inline void fetch_slots(Program program, const State *state, SourceBatch batch, Py_ssize_t at) noexcept nogil:
    cdef Py_ssize_t end = min(at + AHEAD, batch.count)
    cdef const Route *route
    while at < end:
        route = route_at(program, batch, at)
        if route is not NULL and route.order.mask:
            fetch_slot(state, read_key(&route.order, batch.data + batch.row[at].offset))
            if route.new_order.mask:
                fetch_slot(state, read_key(&route.new_order, batch.data + batch.row[at].offset))
        at += 1


cdef inline void fetch_slot(const State *state, uint64_t reference) noexcept nogil:
    """The slot where the order should be, and the one after it, which is looked at when an order goes."""
    cdef const Shard *shard = &state.shards[shard_of(reference)]
    cdef const OrderRow *slot
    if shard.slots is not NULL:
        slot = &shard.slots[slot_of(state, shard, reference)]
        prefetch(slot)
        prefetch(slot + 1)


cdef inline void fetch_instruments(Program program, const Frame *frame, SourceBatch batch, Py_ssize_t at) noexcept nogil:
    cdef const Instrument *found[AHEAD]
    cdef const Instrument *instrument
    cdef Py_ssize_t end = min(at + AHEAD, batch.count)
    cdef uint32_t index, count = 0
    cdef const Route *route
    cdef int32_t number
    while at < end:
        route = route_at(program, batch, at)
        number = -1 if route is NULL else instrument_of(route, frame.state, batch.data + batch.row[at].offset)
        if number >= 0:
            instrument = &frame.state.instruments[number]
            prefetch(instrument)
            prefetch(&instrument.position)
            prefetch(&instrument.reference)
            if <uint32_t>number < frame.instruments_known:
                prefetch(&frame.topics[(number + 1) * frame.topic_kinds])
            found[count] = instrument
            count += 1
        at += 1
    for index in range(count):
        fetch_levels(&found[index].sides[SIDE_BID])
        fetch_levels(&found[index].sides[SIDE_ASK])


cdef inline int32_t instrument_of(const Route *route, const State *state, const uint8_t *data) noexcept nogil:
    """What the message is about, or -1."""
    cdef const OrderRow *order
    if route.instrument.mask:
        return instrument_by_locate(state, read_key(&route.instrument, data))
    if route.order.mask:
        order = order_find(state, read_key(&route.order, data))
        return -1 if order is NULL else <int32_t>(order.place >> 1)
    return -1


cdef inline void fetch_levels(const Ladder *ladder) noexcept nogil:
    """The best of them: three cache lines from the end of the ladder, also where it is shorter; that harms nobody."""
    cdef uintptr_t best = <uintptr_t>ladder.levels + (<uintptr_t>ladder.count - 1) * sizeof(LevelRow)
    prefetch(<const void *>best)
    prefetch(<const void *>(best - CACHE_LINE))
    prefetch(<const void *>(best - 2 * CACHE_LINE))


cdef inline const Route *route_at(Program program, SourceBatch batch, Py_ssize_t at) noexcept nogil:
    """The route of a message of the right size, or NULL."""
    cdef const SourceRow *row = &batch.row[at]
    cdef int route
    if row.size <= <uint32_t>program.type_at:
        return NULL
    route = program.route_by_byte[batch.data[row.offset + program.type_at]]
    if route < 0 or row.size < program.routes[route].size_min:
        return NULL
    return &program.routes[route]


cdef inline uint64_t read_key(const Window *window, const uint8_t *data) noexcept nogil:
    return load_window(data + window.offset, window.shift, window.mask, window.is_big)
