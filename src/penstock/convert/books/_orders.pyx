"""Orders come, shrink, move and go; _orders.pxd describes them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from penstock.convert.books._book cimport DEPTH_NONE, level_add, level_take
from penstock.convert.books._image cimport unit_touch
from penstock.convert.books._units cimport (
    LIMIT_ORDERS,
    PRICE_NONE,
    SHARDS,
    STATE_DUPLICATE,
    STATE_INVALID,
    STATE_OK,
    STATE_REFUSED,
    STATE_SHORT,
    STATE_UNKNOWN,
    digest_add,
    is_size,
    order_mix,
    pool_give,
    pool_take,
    unit_of_shard,
)

cdef enum:
    SLOTS_FIRST = 16
    SLOTS_SPARSE = 1024 # tables up to here are sparse: nearly every order is where it is looked for first


# Shards


cdef OrderRow *shard_find(const State *state, const Shard *shard, uint64_t reference) noexcept nogil:
    cdef OrderRow *row
    if shard.slots is NULL:
        return NULL
    row = shard_slot(state, shard, reference)
    return row if row.shares else NULL


cdef inline OrderRow *shard_slot(const State *state, const Shard *shard, uint64_t reference) noexcept nogil:
    """Where the order is, or the free slot that it would go into."""
    cdef uint32_t slot = slot_of(state, shard, reference)
    while shard.slots[slot].shares and shard.slots[slot].reference != reference:
        slot = (slot + 1) & shard.mask
    return &shard.slots[slot]


cdef inline uint64_t orders_max(uint64_t slots) noexcept nogil:
    return slots >> 2 if slots <= SLOTS_SPARSE else 3 * (slots >> 2)


cdef bint shard_make_room(State *state, Shard *shard) noexcept nogil:
    """One more order would fit; False without memory."""
    cdef OrderRow *before = shard.slots
    cdef uint64_t slots = <uint64_t>shard.mask + 1, slots_wanted = 2 * slots, slot
    if before is NULL:
        slots_wanted = SLOTS_FIRST
    elif shard.count < orders_max(slots):
        return True
    if slots_wanted >> 31:
        return False
    shard.slots = <OrderRow *>pool_take(state.pool, slots_wanted * sizeof(OrderRow))
    if shard.slots is NULL:
        shard.slots = before
        return False
    memset(shard.slots, 0, slots_wanted * sizeof(OrderRow))
    shard.mask = <uint32_t>(slots_wanted - 1)
    if before is not NULL:
        for slot in range(slots):
            if before[slot].shares:
                shard_slot(state, shard, before[slot].reference)[0] = before[slot]
        pool_give(state.pool, before, slots * sizeof(OrderRow))
    return True


cdef Answer shard_put(State *state, Shard *shard, const OrderRow *row) noexcept nogil:
    """Put a row that is not there yet; the caller has touched the unit."""
    if state.counts[LIMIT_ORDERS] >= state.limits.counts[LIMIT_ORDERS] or not shard_make_room(state, shard):
        state.refused[LIMIT_ORDERS] += 1
        return STATE_REFUSED
    shard_slot(state, shard, row.reference)[0] = row[0]
    shard.count += 1
    state.counts[LIMIT_ORDERS] += 1
    digest_add(state, &shard.unit, order_mix(row))
    return STATE_OK


cdef void shard_remove(State *state, Shard *shard, OrderRow *row) noexcept nogil:
    """Take a row out, and move back what was pushed on by it, so that every probe still finds its order."""
    cdef uint32_t hole = <uint32_t>(row - shard.slots), at = hole, home
    digest_add(state, &shard.unit, 0 - order_mix(row))
    while True:
        at = (at + 1) & shard.mask
        if not shard.slots[at].shares:
            break
        home = slot_of(state, shard, shard.slots[at].reference)
        if ((at - home) & shard.mask) >= ((at - hole) & shard.mask):
            shard.slots[hole] = shard.slots[at]
            hole = at
    shard.slots[hole].shares = 0
    shard.count -= 1
    state.counts[LIMIT_ORDERS] -= 1


# Orders


cdef inline void describe(const OrderRow *row, uint64_t shares, uint64_t remaining, OrderChange *change) noexcept nogil:
    change.reference = row.reference
    change.price = row.price
    change.shares = shares
    change.remaining = remaining
    change.instrument = row.place >> 1
    change.participant = row.participant
    change.side = row.place & 1
    change.depth = DEPTH_NONE


cdef const OrderRow *order_find(const State *state, uint64_t reference) noexcept nogil:
    """The order as it is; valid until the next change. NULL when it is not known."""
    return shard_find(state, &state.shards[shard_of(reference)], reference)


cdef Answer order_add(
    State *state, uint64_t reference, uint32_t instrument, uint8_t side, int64_t price, uint64_t shares,
    uint32_t participant, OrderChange *change
) noexcept nogil:
    cdef OrderRow row
    row.reference = reference
    row.price = price
    row.shares = shares
    row.place = instrument << 1 | side
    row.participant = participant
    describe(&row, shares, shares, change)
    if not is_size(shares) or price == PRICE_NONE():
        return STATE_INVALID
    if order_find(state, reference) is not NULL:
        return STATE_DUPLICATE
    return order_put(state, &row, &change.depth)


cdef Answer order_put(State *state, const OrderRow *row, uint32_t *depth) noexcept nogil:
    """Put an order that is not known yet into its shard and its book, or into neither."""
    cdef uint32_t number = shard_of(row.reference)
    cdef Shard *shard = &state.shards[number]
    cdef Answer answer
    unit_touch(state, &shard.unit, unit_of_shard(number))
    answer = shard_put(state, shard, row)
    if answer != STATE_OK:
        return answer
    answer = level_add(state, row.place >> 1, row.place & 1, row.price, row.shares, depth)
    if answer != STATE_OK:
        shard_remove(state, shard, shard_find(state, shard, row.reference))
    return answer


cdef Answer order_take(State *state, uint64_t reference, uint64_t shares, OrderChange *change) noexcept nogil:
    cdef uint32_t number = shard_of(reference)
    cdef Shard *shard = &state.shards[number]
    cdef OrderRow *row = shard_find(state, shard, reference)
    cdef uint64_t before, taken
    if row is NULL:
        return STATE_UNKNOWN
    before = row.shares
    taken = min(shares, before)
    describe(row, taken, before - taken, change)
    if shares == 0:
        return STATE_INVALID
    unit_touch(state, &shard.unit, unit_of_shard(number))
    level_take(state, row.place >> 1, row.place & 1, row.price, taken, taken == before, &change.depth)
    if taken == before:
        shard_remove(state, shard, row)
    else:
        before = order_mix(row)
        row.shares -= taken
        digest_add(state, &shard.unit, order_mix(row) - before)
    return STATE_OK if taken == shares else STATE_SHORT


cdef Answer order_delete(State *state, uint64_t reference, OrderChange *change) noexcept nogil:
    cdef uint32_t number = shard_of(reference)
    cdef Shard *shard = &state.shards[number]
    cdef OrderRow *row = shard_find(state, shard, reference)
    if row is NULL:
        return STATE_UNKNOWN
    describe(row, row.shares, 0, change)
    unit_touch(state, &shard.unit, unit_of_shard(number))
    level_take(state, row.place >> 1, row.place & 1, row.price, row.shares, 1, &change.depth)
    shard_remove(state, shard, row)
    return STATE_OK


cdef Answer order_replace(
    State *state, uint64_t old_reference, uint64_t new_reference, uint64_t shares, int64_t price, OrderChange *change
) noexcept nogil:
    cdef const OrderRow *found = order_find(state, old_reference)
    cdef OrderRow old, row
    cdef uint32_t depth_before
    cdef Answer answer
    if found is NULL:
        return STATE_UNKNOWN
    old = found[0]
    row = old
    row.reference = new_reference
    row.price = price
    row.shares = shares
    describe(&row, shares, shares, change)
    if not is_size(shares) or price == PRICE_NONE():
        return STATE_INVALID
    if new_reference != old_reference and order_find(state, new_reference) is not NULL:
        return STATE_DUPLICATE
    order_delete(state, old_reference, change)
    depth_before = change.depth
    describe(&row, shares, shares, change)
    answer = order_put(state, &row, &change.depth)
    if answer != STATE_OK:
        describe(&old, old.shares, 0, change) # without room for the new one, the old one is gone all the same
    change.depth = min(change.depth, depth_before)
    return answer


# All at once


cdef void orders_clear(State *state) noexcept nogil:
    """Take away all orders; their levels and the images under way are the caller's matter."""
    cdef Shard *shard
    cdef uint32_t number
    for number in range(SHARDS):
        shard = &state.shards[number]
        pool_give(state.pool, shard.slots, (<uint64_t>shard.mask + 1) * sizeof(OrderRow))
        state.digest -= shard.unit.digest
        shard.slots = NULL
        shard.mask = 0
        shard.count = 0
        shard.unit.digest = 0
    state.counts[LIMIT_ORDERS] = 0


cdef void orders_clear_instrument(State *state, uint32_t instrument) noexcept nogil:
    """Take away the orders of one instrument, wherever they are; its levels are the caller's matter."""
    cdef Shard *shard
    cdef uint32_t number
    cdef uint64_t slot
    for number in range(SHARDS):
        shard = &state.shards[number]
        slot = 0
        while shard.count and slot <= shard.mask:
            if shard.slots[slot].shares and shard.slots[slot].place >> 1 == instrument:
                unit_touch(state, &shard.unit, unit_of_shard(number))
                shard_remove(state, shard, &shard.slots[slot]) # another row may have moved here: look again
            else:
                slot += 1
