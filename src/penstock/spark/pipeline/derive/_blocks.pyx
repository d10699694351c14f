"""Events into blocks for Spark to carry, and back: most of an event follows from the one before it.

An event in a block; numbers are LEB128, differences zigzag, each from the event before in the block (from 0 in its first):

    u8        action, bits 0-3; bit 4 PRICE, 5 REPLACED, 6 SESSION: what follows
    u8        side and flags, as in an Event
    number    instrument, by its place in the block
    number    differences of seq, source_seq, event_time, order_id
    number    quantity, zigzag
    number    PRICE: difference from the price before of the same instrument
    number    REPLACED: new_order_id, difference from order_id
    number    SESSION: session; without it the session before
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from itertools import pairwise

import numpy

from penstock.convert.books._units cimport PRICE_NONE
from penstock.spark.pipeline.derive._event cimport Event

from penstock.base.errors import LocalProtocolError

cdef enum:
    ACTION_MASK = 15
    HAS_PRICE = 16
    HAS_REPLACED = 32
    HAS_SESSION = 64
    NUMBER_SIZE_MAX = 10
    EVENT_SIZE_MAX = 2 + 9 * NUMBER_SIZE_MAX
    EVENT_SIZE_MIN = 8
    PLACE_NONE = 0xFFFFFFFF


cdef struct Columns: # of the events, one after the other in no order
    const int64_t *seq
    const int64_t *event_time
    const int64_t *source_seq
    const uint64_t *order_id
    const uint64_t *new_order_id
    const int64_t *price
    const int64_t *quantity
    const uint32_t *instrument
    const uint16_t *session
    const uint8_t *action
    const uint8_t *side_flags


cdef struct Before: # what the differences are from
    int64_t seq
    int64_t event_time
    int64_t source_seq
    uint64_t order_id
    uint16_t session


cdef struct Source: # a block that is read
    const uint8_t *at
    const uint8_t *end
    uint8_t is_damaged # a number did not end


cdef inline uint64_t zigzag(uint64_t difference) noexcept nogil:
    return difference << 1 ^ <uint64_t>(<int64_t>difference >> 63)


cdef inline uint64_t unzigzag(uint64_t number) noexcept nogil:
    return number >> 1 ^ (0 - (number & 1))


cdef inline uint8_t *put_number(uint8_t *into, uint64_t number) noexcept nogil:
    while number >= 128:
        into[0] = <uint8_t>(number | 128)
        into += 1
        number >>= 7
    into[0] = <uint8_t>number
    return into + 1


cdef inline uint8_t *put_difference(uint8_t *into, uint64_t value, uint64_t before) noexcept nogil:
    return put_number(into, zigzag(value - before))


cdef inline uint64_t take_number(Source *source) noexcept nogil:
    cdef uint64_t number = 0
    cdef uint32_t shift = 0
    cdef uint8_t byte = 128
    while byte & 128 and source.at < source.end and shift < 64:
        byte = source.at[0]
        number |= <uint64_t>(byte & 127) << shift
        shift += 7
        source.at += 1
    source.is_damaged |= byte & 128
    return number


cdef inline uint64_t take_difference(Source *source, uint64_t before) noexcept nogil:
    return before + unzigzag(take_number(source))


# One block


cdef uint8_t *encode_block(
    const Columns *columns, const int64_t *order, uint64_t count, uint32_t *places, int64_t *prices, uint32_t *used,
    uint32_t *used_count, uint8_t *into
) noexcept nogil:
    """Behind its last byte. `used` are the instruments in it, by their places; `places` and `prices` are room."""
    cdef Before before = Before(0, 0, 0, 0, 0)
    cdef uint64_t number
    cdef int64_t row
    cdef uint32_t place
    cdef uint8_t head
    for number in range(count):
        row = order[number]
        place = places[columns.instrument[row]]
        if place == PLACE_NONE:
            place = used_count[0]
            places[columns.instrument[row]] = place
            used[place] = columns.instrument[row]
            prices[place] = 0
            used_count[0] += 1
        head = columns.action[row] & ACTION_MASK
        head |= HAS_PRICE if columns.price[row] != PRICE_NONE() else 0
        head |= HAS_REPLACED if columns.new_order_id[row] else 0
        head |= HAS_SESSION if columns.session[row] != before.session else 0
        into[0] = head
        into[1] = columns.side_flags[row]
        into = put_number(into + 2, place)
        into = put_difference(into, columns.seq[row], before.seq)
        into = put_difference(into, columns.source_seq[row], before.source_seq)
        into = put_difference(into, columns.event_time[row], before.event_time)
        into = put_difference(into, columns.order_id[row], before.order_id)
        into = put_difference(into, columns.quantity[row], 0)
        if head & HAS_PRICE:
            into = put_difference(into, columns.price[row], prices[place])
            prices[place] = columns.price[row]
        if head & HAS_REPLACED:
            into = put_difference(into, columns.new_order_id[row], columns.order_id[row])
        if head & HAS_SESSION:
            into = put_number(into, columns.session[row])
        before = Before(
            columns.seq[row], columns.event_time[row], columns.source_seq[row], columns.order_id[row],
            columns.session[row],
        )
    return into


cdef int64_t decode_block(
    Source *source, const uint32_t *instruments, uint32_t instrument_count, int64_t *prices, Event *events,
    uint64_t room
) noexcept nogil:
    """How many events it has; -1 if it is none of ours."""
    cdef Before before = Before(0, 0, 0, 0, 0)
    cdef Event *event = events
    cdef uint64_t place
    cdef uint8_t head
    while source.at < source.end:
        if source.end - source.at < EVENT_SIZE_MIN or <uint64_t>(event - events) == room:
            return -1
        head = source.at[0]
        event.action = head & ACTION_MASK
        event.side_flags = source.at[1]
        source.at += 2
        place = take_number(source)
        if place >= instrument_count:
            return -1
        event.instrument = instruments[place]
        event.seq = before.seq = take_difference(source, before.seq)
        event.source_seq = before.source_seq = take_difference(source, before.source_seq)
        event.event_time = before.event_time = take_difference(source, before.event_time)
        event.order_id = before.order_id = take_difference(source, before.order_id)
        event.quantity = take_difference(source, 0)
        event.price = PRICE_NONE()
        event.new_order_id = 0
        if head & HAS_PRICE:
            event.price = prices[place] = take_difference(source, prices[place])
        if head & HAS_REPLACED:
            event.new_order_id = take_difference(source, event.order_id)
        if head & HAS_SESSION:
            before.session = <uint16_t>take_number(source)
        event.session = before.session
        event += 1
        if source.is_damaged:
            return -1
    return event - events


# Many


def encode(dict columns, order, starts, uint32_t instrument_count):
    """Blocks of the rows order[start:next start]: their bytes, where each block begins in them, and the instruments
    of each. `columns` has the fields of an Event, as arrays of their types."""
    cdef Columns given
    cdef const int64_t[::1] rows = order
    cdef uint64_t start, end
    cdef uint32_t used_count
    if len(order) == 0 or instrument_count == 0 or any(len(column) != len(order) for column in columns.values()):
        raise LocalProtocolError("no events, or columns of different lengths")
    if int(columns["instrument"].max()) >= instrument_count or order.min() < 0 or order.max() >= len(order):
        raise LocalProtocolError("an instrument or a row that there is not")
    if any(not 0 <= start < end <= len(order) for start, end in pairwise(starts)):
        raise LocalProtocolError("a block without events, or with more than there are")
    columns_into(columns, &given)
    made = numpy.empty(len(order) * EVENT_SIZE_MAX, numpy.uint8)
    prices_room = numpy.empty(instrument_count, numpy.int64)
    used_room = numpy.empty(instrument_count, numpy.uint32)
    cdef uint8_t[::1] room = made
    cdef int64_t[::1] prices = prices_room
    cdef uint32_t[::1] used = used_room
    cdef uint32_t[::1] places
    cdef uint8_t *into = &room[0]
    begins, instruments = [0], []
    for start, end in pairwise(starts):
        places_room = numpy.full(instrument_count, <uint32_t>PLACE_NONE, numpy.uint32)
        places = places_room
        used_count = 0
        with nogil:
            into = encode_block(
                &given, &rows[start], end - start, &places[0], &prices[0], &used[0], &used_count, into
            )
        begins.append(into - &room[0])
        instruments.append(used_room[:used_count].copy())
    return made[: into - &room[0]], begins, instruments


def decode(const uint8_t[::1] data, const uint32_t[::1] instruments, events):
    """The events of a block, as many as `events` has room for; `instruments` are their numbers by their places."""
    cdef Event[::1] into = events
    cdef int64_t[::1] prices = numpy.zeros(len(instruments), numpy.int64)
    cdef int64_t count = -1
    cdef Source source
    if len(data) and len(instruments) and len(events):
        source = Source(&data[0], &data[0] + data.shape[0], 0)
        with nogil:
            count = decode_block(
                &source, &instruments[0], <uint32_t>instruments.shape[0], &prices[0], &into[0], into.shape[0]
            )
    if count != len(events):
        raise LocalProtocolError("a block of events that does not have what was said")


cdef void columns_into(dict columns, Columns *given) except *:
    cdef const int64_t[::1] signed
    cdef const uint64_t[::1] unsigned
    cdef const uint32_t[::1] instrument = columns["instrument"]
    cdef const uint16_t[::1] session = columns["session"]
    cdef const uint8_t[::1] action = columns["action"], side_flags = columns["side_flags"]
    signed = columns["seq"]
    given.seq = &signed[0]
    signed = columns["event_time"]
    given.event_time = &signed[0]
    signed = columns["source_seq"]
    given.source_seq = &signed[0]
    signed = columns["price"]
    given.price = &signed[0]
    signed = columns["quantity"]
    given.quantity = &signed[0]
    unsigned = columns["order_id"]
    given.order_id = &unsigned[0]
    unsigned = columns["new_order_id"]
    given.new_order_id = &unsigned[0]
    given.instrument = &instrument[0]
    given.session = &session[0]
    given.action = &action[0]
    given.side_flags = &side_flags[0]
