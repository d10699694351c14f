"""An image becomes the state. Every byte is looked at with suspicion, and nothing changes until all of them are good.

The image's units are built into a new state; the units it leaves out are then moved over from the old one, and the
whole must have the digest that the image promises.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.convert.books._image cimport (
    CHUNK_BODY_SIZE_AT,
    CHUNK_CHECKSUM_AT,
    CHUNK_DIGEST_AT,
    CHUNK_FLAGS_AT,
    CHUNK_HEADER_SIZE,
    CHUNK_INSTRUMENTS_AT,
    CHUNK_NUMBER_AT,
    CHUNK_VERSION_AT,
    IMAGE_FIRST,
    IMAGE_LAST,
    IMAGE_MAGIC,
    IMAGE_VERSION,
    UNIT_DIGEST_AT,
    UNIT_HEADER_SIZE,
    UNIT_NUMBER_AT,
    UNIT_RESERVED_AT,
    UNIT_SIZE_AT,
    images_end,
)
from penstock.convert.books._instruments cimport instrument_enter
from penstock.convert.books._orders cimport shard_find, shard_put
from penstock.convert.books._units cimport (
    EXTENDED_SIZE,
    INSTRUMENT_DECIMALS_MAX,
    Instrument,
    LEVEL_SIZE,
    LIMIT_INSTRUMENTS,
    LIMIT_LEVELS,
    LIMIT_ORDERS,
    LIMIT_TRADES,
    Ladder,
    LevelRow,
    ORDER_SIZE,
    OrderRow,
    POSITION_SIZE,
    PRICE_NONE,
    REFERENCE_SIZE,
    SESSION_SIZE,
    SHARDS,
    SIDE_ASK,
    STATE_OK,
    STATISTICS_SIZE,
    Shard,
    TRADE_SIZE,
    TradeRow,
    UNIT_INSTRUMENTS,
    UNIT_SESSION,
    UNIT_SHARDS,
    is_size,
    extended_mix,
    level_mix,
    pool_take,
    position_mix,
    reference_mix,
    session_mix,
    shard_of,
    state_close,
    state_empty,
    state_open,
    statistics_mix,
    trade_mix,
    unit_at,
    unit_count,
    unit_of_instrument,
    unit_of_log,
    unit_of_shard,
)

from penstock.base.errors import StateImageError

crc32c_initialise()

cdef enum:
    INSTRUMENT_SIZE = REFERENCE_SIZE + STATISTICS_SIZE + EXTENDED_SIZE + POSITION_SIZE + 8


cdef class Body:
    """What the chunks of one image come to, joined."""

    cdef bytes data
    cdef uint64_t digest
    cdef uint32_t instrument_count


cdef inline uint32_t u32_at(const uint8_t *data) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, data, 4)
    return value


cdef inline uint64_t u64_at(const uint8_t *data) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, data, 8)
    return value


cdef object wrong(str what, object where):
    return StateImageError(what, where=str(where))


# Chunks


cdef uint64_t body_size_max(const State *state) noexcept:
    """Bytes of the largest image of a state with these limits."""
    cdef const uint64_t *limits = &state.limits.counts[0]
    return (
        UNIT_HEADER_SIZE * (UNIT_INSTRUMENTS + 2 * limits[LIMIT_INSTRUMENTS]) + SESSION_SIZE
        + INSTRUMENT_SIZE * limits[LIMIT_INSTRUMENTS] + ORDER_SIZE * limits[LIMIT_ORDERS]
        + LEVEL_SIZE * limits[LIMIT_LEVELS] + TRADE_SIZE * limits[LIMIT_TRADES]
    )


cdef Body join(const State *state, object chunks):
    """Check the chunks one by one, and put their bodies together."""
    cdef Body body = Body()
    cdef const uint8_t[::1] chunk
    cdef uint64_t size = 0, size_max = body_size_max(state)
    cdef uint32_t number = 0
    cdef bint is_whole = False
    parts = []
    for each in chunks:
        where = f"chunk {number}"
        if is_whole:
            raise wrong("there is more after the last chunk", where)
        chunk = memoryview(each).cast("B")
        if chunk.shape[0] < CHUNK_HEADER_SIZE:
            raise wrong(f"{chunk.shape[0]} bytes are no chunk", where)
        check_header(&chunk[0], chunk.shape[0], number, where)
        if number == 0:
            body.digest = u64_at(&chunk[CHUNK_DIGEST_AT])
            body.instrument_count = u32_at(&chunk[CHUNK_INSTRUMENTS_AT])
        elif (
            body.digest != u64_at(&chunk[CHUNK_DIGEST_AT])
            or body.instrument_count != u32_at(&chunk[CHUNK_INSTRUMENTS_AT])
        ):
            raise wrong("it belongs to another image", where)
        is_whole = (chunk[CHUNK_FLAGS_AT] & IMAGE_LAST) != 0
        size += chunk.shape[0] - CHUNK_HEADER_SIZE
        if size > size_max:
            raise wrong(f"the image has more than {size_max} bytes, which the limits allow", where)
        parts.append(bytes(chunk[CHUNK_HEADER_SIZE:]))
        number += 1
    if not is_whole:
        raise wrong("the last chunk is missing", f"after {number} chunks")
    body.data = b"".join(parts)
    return body


cdef int check_header(const uint8_t *chunk, uint64_t size, uint32_t number, str where) except -1:
    cdef uint32_t checksum
    cdef uint8_t flags = chunk[CHUNK_FLAGS_AT]
    if u32_at(chunk) != IMAGE_MAGIC:
        raise wrong("this is no chunk of an image", where)
    if chunk[CHUNK_VERSION_AT] != IMAGE_VERSION:
        raise wrong(f"version {chunk[CHUNK_VERSION_AT]} is not known", where)
    if u32_at(chunk + CHUNK_BODY_SIZE_AT) != size - CHUNK_HEADER_SIZE:
        raise wrong("its length is not what it says", where)
    checksum = crc32c_extend(0, chunk, CHUNK_CHECKSUM_AT)
    checksum = crc32c_extend(checksum, chunk + CHUNK_NUMBER_AT, size - CHUNK_NUMBER_AT)
    if checksum != u32_at(chunk + CHUNK_CHECKSUM_AT):
        raise wrong("its checksum is wrong", where)
    if u32_at(chunk + CHUNK_NUMBER_AT) != number or ((flags & IMAGE_FIRST) != 0) != (number == 0):
        raise wrong(f"it is chunk {u32_at(chunk + CHUNK_NUMBER_AT)}", where)
    return 0


# Units


cdef int read_units(State *fresh, Body body, uint8_t *has) except -1:
    cdef const uint8_t *data = body.data
    cdef uint64_t size = len(body.data), at = 0, unit_size
    cdef uint32_t number, count = unit_count(fresh)
    cdef int64_t before = -1
    while at < size:
        if size - at < UNIT_HEADER_SIZE:
            raise wrong("a unit is cut off", f"byte {at}")
        number = u32_at(data + at + UNIT_NUMBER_AT)
        unit_size = u64_at(data + at + UNIT_SIZE_AT)
        if number <= before or number >= count or u32_at(data + at + UNIT_RESERVED_AT) != 0:
            raise wrong(f"unit {number} does not belong here", f"byte {at}")
        if unit_size > size - at - UNIT_HEADER_SIZE:
            raise wrong(f"unit {number} is cut off", f"byte {at}")
        read_unit(fresh, number, data + at + UNIT_HEADER_SIZE, unit_size)
        if unit_at(fresh, number).digest != u64_at(data + at + UNIT_DIGEST_AT):
            raise wrong(f"unit {number} does not have its digest", f"byte {at}")
        has[number] = True
        before = number
        at += UNIT_HEADER_SIZE + unit_size
    return 0


cdef int read_unit(State *fresh, uint32_t number, const uint8_t *data, uint64_t size) except -1:
    cdef str where = f"unit {number}"
    cdef uint32_t index = (number - UNIT_INSTRUMENTS) >> 1
    if number == UNIT_SESSION:
        if size != SESSION_SIZE:
            raise wrong("a session has another size", where)
        memcpy(&fresh.session, data, SESSION_SIZE)
        fresh.session_unit.digest = session_mix(&fresh.session)
    elif number < UNIT_INSTRUMENTS:
        read_shard(fresh, number - UNIT_SHARDS, data, size, where)
    elif (number - UNIT_INSTRUMENTS) & 1:
        read_log(fresh, index, data, size, where)
    else:
        read_instrument(fresh, index, data, size, where)
    return 0


cdef int read_shard(State *fresh, uint32_t number, const uint8_t *data, uint64_t size, str where) except -1:
    cdef Shard *shard = &fresh.shards[number]
    cdef OrderRow row
    cdef uint64_t at
    if size % ORDER_SIZE:
        raise wrong("a part of an order is missing", where)
    for at in range(0, size, ORDER_SIZE):
        memcpy(&row, data + at, ORDER_SIZE)
        if not is_size(row.shares) or row.price == PRICE_NONE() or shard_of(row.reference) != number:
            raise wrong(f"order {row.reference} cannot be", where)
        if row.place >> 1 >= fresh.counts[LIMIT_INSTRUMENTS]:
            raise wrong(f"order {row.reference} is of no instrument", where)
        if shard_find(fresh, shard, row.reference) is not NULL:
            raise wrong(f"order {row.reference} is there twice", where)
        if shard_put(fresh, shard, &row) != STATE_OK:
            raise wrong(f"there is no room for more than {fresh.counts[LIMIT_ORDERS]} orders", where)
    return 0


cdef int read_instrument(State *fresh, uint32_t number, const uint8_t *data, uint64_t size, str where) except -1:
    cdef Instrument *made = &fresh.instruments[number]
    cdef uint64_t counts[2]
    cdef uint8_t side
    if size < INSTRUMENT_SIZE:
        raise wrong(f"{size} bytes are no instrument", where)
    memcpy(&made.reference, data, REFERENCE_SIZE)
    memcpy(&made.statistics, data + REFERENCE_SIZE, STATISTICS_SIZE)
    memcpy(&made.extended, data + REFERENCE_SIZE + STATISTICS_SIZE, EXTENDED_SIZE)
    memcpy(&made.position, data + REFERENCE_SIZE + STATISTICS_SIZE + EXTENDED_SIZE, POSITION_SIZE)
    for side in range(2):
        counts[side] = u32_at(data + INSTRUMENT_SIZE - 8 + 4 * side)
    if size != INSTRUMENT_SIZE + LEVEL_SIZE * (counts[0] + counts[1]):
        raise wrong("an instrument has another size", where)
    if max(made.reference.price_decimals, made.reference.quantity_decimals) > INSTRUMENT_DECIMALS_MAX + 1:
        raise wrong(f"an instrument has more than {INSTRUMENT_DECIMALS_MAX} decimals", where)
    if fresh.counts[LIMIT_LEVELS] + counts[0] + counts[1] > fresh.limits.counts[LIMIT_LEVELS]:
        raise wrong(f"there is no room for more than {fresh.limits.counts[LIMIT_LEVELS]} levels", where)
    made.unit.digest = (
        reference_mix(number, &made.reference) + statistics_mix(number, &made.statistics)
        + extended_mix(number, &made.extended) + position_mix(number, &made.position)
    )
    data += INSTRUMENT_SIZE
    for side in range(2):
        read_ladder(fresh, number, side, data, counts[side], where)
        data += LEVEL_SIZE * counts[side]
    return 0


cdef inline bint is_better(uint8_t side, int64_t price, int64_t other) noexcept nogil:
    return price < other if side == SIDE_ASK else price > other


cdef int read_ladder(
    State *fresh, uint32_t number, uint8_t side, const uint8_t *data, uint64_t count, str where
) except -1:
    cdef Instrument *owner = &fresh.instruments[number]
    cdef Ladder *ladder = &owner.sides[side]
    cdef LevelRow *level
    cdef uint64_t index
    if count == 0:
        return 0
    ladder.levels = <LevelRow *>pool_take(fresh.pool, count * LEVEL_SIZE)
    if ladder.levels is NULL:
        raise MemoryError
    ladder.room = <uint32_t>count
    ladder.count = <uint32_t>count
    memcpy(ladder.levels, data, count * LEVEL_SIZE)
    fresh.counts[LIMIT_LEVELS] += count
    for index in range(count):
        level = &ladder.levels[index]
        if not is_size(level.size) or level.reserved or level.price == PRICE_NONE():
            raise wrong(f"a level at {level.price} cannot be", where)
        if index and not is_better(side, level.price, (level - 1).price):
            raise wrong("the levels are not sorted", where)
        owner.unit.digest += level_mix(number, side, level)
    return 0


cdef int read_log(State *fresh, uint32_t number, const uint8_t *data, uint64_t size, str where) except -1:
    cdef Instrument *owner = &fresh.instruments[number]
    cdef uint64_t count = size // TRADE_SIZE
    cdef TradeRow *trade
    cdef uint32_t ordinal
    if size % TRADE_SIZE or count >> 31:
        raise wrong("a part of a trade is missing", where)
    if fresh.counts[LIMIT_TRADES] + count > fresh.limits.counts[LIMIT_TRADES]:
        raise wrong(f"there is no room for more than {fresh.limits.counts[LIMIT_TRADES]} trades", where)
    owner.is_log_ascending = True
    if count == 0:
        return 0
    owner.trades = <TradeRow *>pool_take(fresh.pool, size)
    if owner.trades is NULL:
        raise MemoryError
    memcpy(owner.trades, data, size)
    owner.trade_count = <uint32_t>count
    owner.trade_room = <uint32_t>count
    fresh.counts[LIMIT_TRADES] += count
    for ordinal in range(<uint32_t>count):
        trade = &owner.trades[ordinal]
        if not is_size(trade.size) or trade.price == PRICE_NONE() or trade.reserved:
            raise wrong(f"trade {trade.trade_id} cannot be", where)
        if ordinal and trade.trade_id <= (trade - 1).trade_id:
            owner.is_log_ascending = False
        owner.log_unit.digest += trade_mix(number, ordinal, trade)
    return 0


# The whole


cdef int check_whole(State *fresh, State *state, Body body, const uint8_t *has) except -1:
    """The image's units and those that are kept must be one state: the one whose digest the image has."""
    cdef Instrument *owner
    cdef uint32_t number, index, kept = 0
    cdef uint64_t digest = 0, orders = fresh.counts[LIMIT_ORDERS]
    cdef uint64_t levels = fresh.counts[LIMIT_LEVELS], trades = fresh.counts[LIMIT_TRADES]
    for number in range(unit_count(fresh)):
        if not has[number] and number >= unit_count(state):
            raise wrong(f"unit {number} is not in the image, and not here", "image")
        digest += unit_at(fresh if has[number] else state, number).digest
    if digest != body.digest:
        raise wrong("with what it leaves out it does not have its digest", "image")
    for index in range(SHARDS):
        orders += 0 if has[unit_of_shard(index)] else state.shards[index].count
    for index in range(<uint32_t>fresh.counts[LIMIT_INSTRUMENTS]):
        owner = &state.instruments[index]
        if not has[unit_of_log(index)]:
            trades += owner.trade_count
        if not has[unit_of_instrument(index)]:
            levels += <uint64_t>owner.sides[0].count + owner.sides[1].count
            fresh.instruments[index].reference = owner.reference
        if instrument_enter(fresh, index) != STATE_OK:
            raise wrong(f"instrument {index} has the symbol or key of another", "image")
    for number, total in ((LIMIT_ORDERS, orders), (LIMIT_LEVELS, levels), (LIMIT_TRADES, trades)):
        if total > fresh.limits.counts[number]:
            raise wrong(f"there is no room for {total} rows", "image")
        fresh.counts[number] = total
    fresh.digest = digest
    return 0


cdef void move_kept(State *fresh, State *state, const uint8_t *has) noexcept nogil:
    """Move what the image leaves out from the old state to the new one."""
    cdef Instrument *source
    cdef Instrument *target
    cdef uint32_t index, side
    if not has[UNIT_SESSION]:
        fresh.session = state.session
        fresh.session_unit = state.session_unit
    for index in range(SHARDS):
        if not has[unit_of_shard(index)]:
            fresh.shards[index] = state.shards[index]
            state.shards[index].slots = NULL
    for index in range(<uint32_t>fresh.counts[LIMIT_INSTRUMENTS]):
        source = &state.instruments[index]
        target = &fresh.instruments[index]
        if not has[unit_of_instrument(index)]:
            target.unit = source.unit
            target.reference = source.reference
            target.statistics = source.statistics
            target.extended = source.extended
            target.position = source.position
            for side in range(2):
                target.sides[side] = source.sides[side]
                source.sides[side].levels = NULL
        if not has[unit_of_log(index)]:
            target.log_unit = source.log_unit
            target.trades = source.trades
            target.trade_count = source.trade_count
            target.trade_room = source.trade_room
            target.is_log_ascending = source.is_log_ascending
            source.trades = NULL


cdef int image_install(State *state, object chunks) except -1:
    cdef Body body = join(state, chunks)
    cdef State *fresh
    cdef uint8_t *has
    if body.instrument_count > state.limits.counts[LIMIT_INSTRUMENTS]:
        raise wrong(f"there is no room for {body.instrument_count} instruments", "image")
    fresh = state_open(&state.limits, state.seed, state.pool)
    fresh.counts[LIMIT_INSTRUMENTS] = body.instrument_count
    has = <uint8_t *>malloc(unit_count(fresh))
    try:
        if has is NULL:
            raise MemoryError
        memset(has, 0, unit_count(fresh))
        read_units(fresh, body, has)
        check_whole(fresh, state, body, has)
    except BaseException:
        free(has)
        state_close(fresh, True)
        raise
    images_end(state)
    move_kept(fresh, state, has)
    free(has)
    fresh.images_begun = state.images_begun
    fresh.installs = state.installs + 1
    memcpy(fresh.images, state.images, sizeof(state.images))
    memcpy(fresh.refused, state.refused, sizeof(state.refused))
    state_empty(state)
    state[0] = fresh[0]
    free(fresh)
    return 0
