"""Orders by reference, in 1,024 small hash tables that grow one at a time; every change goes into the book as well.

Unknown references are an answer (STATE_UNKNOWN), never a guess. `OrderChange` says what the order is and was.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.convert.books._units cimport Answer, OrderRow, Shard, State, mix_fold, shard_of


cdef struct OrderChange:
    uint64_t reference
    int64_t price
    uint64_t shares      # added, or taken by this change
    uint64_t remaining   # of the order after it
    uint32_t instrument
    uint32_t participant
    uint32_t depth       # of the best level that changed (_book.pxd), DEPTH_NONE when none did
    uint8_t side


cdef Answer order_add(
    State *state, uint64_t reference, uint32_t instrument, uint8_t side, int64_t price, uint64_t shares,
    uint32_t participant, OrderChange *change
) noexcept nogil
# Execution and cancellation of a part are the same to an order; STATE_SHORT when it had fewer shares.
cdef Answer order_take(State *state, uint64_t reference, uint64_t shares, OrderChange *change) noexcept nogil
cdef Answer order_delete(State *state, uint64_t reference, OrderChange *change) noexcept nogil
# The new order has the instrument, side and participant of the old one; `change` describes the new one.
cdef Answer order_replace(
    State *state, uint64_t old_reference, uint64_t new_reference, uint64_t shares, int64_t price, OrderChange *change
) noexcept nogil
cdef const OrderRow *order_find(const State *state, uint64_t reference) noexcept nogil
cdef void orders_clear(State *state) noexcept nogil
cdef void orders_clear_instrument(State *state, uint32_t instrument) noexcept nogil
# A shard without its book, for images.
cdef OrderRow *shard_find(const State *state, const Shard *shard, uint64_t reference) noexcept nogil
cdef Answer shard_put(State *state, Shard *shard, const OrderRow *row) noexcept nogil


cdef inline uint32_t slot_of(const State *state, const Shard *shard, uint64_t reference) noexcept nogil:
    return <uint32_t>mix_fold(reference ^ state.seed, 0xE7037ED1A0B428DBULL) & shard.mask
