"""Looking ahead in a batch; _ahead.pxd says why."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.convert._instruments cimport instrument_by_locate
from penstock.convert._orders cimport books_prefetch, orders_prefetch
from penstock.convert._program cimport KeyPlace, Program, Route
from penstock.convert._source cimport SourceBatch, SourceRow
from penstock.convert._units cimport State


cdef extern from *:
    """
    #define ahead_swapped(value) __builtin_bswap64(value)
    """
    uint64_t ahead_swapped(uint64_t value) noexcept nogil


cdef void look_ahead(Program program, const State *state, SourceBatch batch, Py_ssize_t at) noexcept nogil:
    cdef uint64_t references[AHEAD]
    cdef uint32_t instruments[AHEAD]
    cdef uint32_t reference_count = 0, instrument_count = 0
    cdef Py_ssize_t end = min(at + AHEAD, batch.count)
    cdef const Route *route
    cdef int32_t number
    while at < end:
        route = route_at(program, batch, at)
        if route is not NULL and route.order.size:
            references[reference_count] = read_key(&route.order, batch.data + batch.row[at].offset)
            reference_count += 1
        if route is not NULL and route.instrument.size:
            number = instrument_by_locate(state, read_key(&route.instrument, batch.data + batch.row[at].offset))
            if number >= 0:
                instruments[instrument_count] = <uint32_t>number
                instrument_count += 1
        at += 1
    orders_prefetch(state, references, reference_count)
    books_prefetch(state, instruments, instrument_count)


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


cdef inline uint64_t read_key(const KeyPlace *place, const uint8_t *data) noexcept nogil:
    cdef uint64_t value = 0
    memcpy(&value, data + place.offset, place.size)
    return ahead_swapped(value) >> (64 - 8 * place.size) if place.is_big else value
