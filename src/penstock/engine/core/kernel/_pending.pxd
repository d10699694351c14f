"""The pending value of a pair: the updates since the last event written for it, and their conflated record."""

from libc.stdint cimport uint32_t, uint64_t

from penstock.engine.core.kernel._conflate cimport SpanStore
from penstock.engine.core.kernel._items cimport ITEM_RECORDED, Item
from penstock.engine.core.kernel._pairs cimport Pair


cdef inline void accumulate(Pair *pair, const Item *item, bint is_conflated) noexcept nogil:
    """Add the item's record to the pair's pending value. Unless it `is_conflated`, only the newest record will be
    sent."""
    pair.merged = <uint32_t>min(<uint64_t>pair.merged + item.merged, <uint64_t>0xFFFFFFFF)
    if is_conflated and item.spans is not NULL and item.flags & ITEM_RECORDED:
        (<SpanStore>item.spans).hold(
            &pair.span, item.record, item.record_size, item.model_version, item.version, item.started_ns
        )


cdef inline void discard(Pair *pair, const Item *item) noexcept nogil:
    """Discard the pending value: it has been written, or a refresh replaces it."""
    pair.merged = 0
    if pair.span:
        (<SpanStore>item.spans).release(&pair.span)
