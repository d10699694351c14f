"""Pairs of consumers and items, see _pairs.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from penstock.engine.core.kernel._items cimport Item, NONE

from penstock.base.errors import LimitError

cdef extern from "penstock/convert/books/mix.h" nogil:
    uint64_t mix_fold(uint64_t a, uint64_t b)

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "sys/mman.h" nogil:
    int MADV_HUGEPAGE
    int madvise(void *at, size_t size, int advice)

cdef enum:
    SLOTS_MIN = 64
    ENTRIES_MIN = 64
    CACHE_LINE = 64
    HUGE_PAGE = 2_097_152

cdef uint64_t MULTIPLIER = 0x9E3779B97F4A7C15

assert sizeof(Pair) == CACHE_LINE


cdef class Pairs:
    """Pairs by number, by consumer and item, and in each item's interest list."""

    def __cinit__(self, uint32_t pairs_max, uint32_t consumers_max, uint64_t seed):
        cdef uint32_t consumer
        self.pairs_max = pairs_max
        self.consumers_max = consumers_max
        self._by_consumer = <ConsumerPairs *>malloc((<size_t>consumers_max + 1) * sizeof(ConsumerPairs))
        if self._by_consumer is NULL:
            raise MemoryError
        for consumer in range(consumers_max):
            self._by_consumer[consumer] = ConsumerPairs(NONE, 0)
        self._seed = seed
        self._free = NONE
        self.allot(SLOTS_MIN)

    def __dealloc__(self):
        free(self.pairs)
        free(self.deliveries)
        free(self._slots)
        free(self._by_consumer)

    cdef uint32_t find(self, uint32_t consumer, uint32_t item) noexcept nogil:
        """Return the pair's number, or NONE."""
        cdef uint64_t at = self.slot_of(consumer, item)
        cdef uint32_t number = self._slots[at]
        while number != NONE and (self.pairs[number].consumer != consumer or self.pairs[number].item != item):
            at = (at + 1) & self._mask
            number = self._slots[at]
        return number

    cdef uint32_t add(self, Item *entry, uint32_t consumer, uint32_t item) except? 0xFFFFFFFF:
        """Add a pair to its item's interest list and the list of its consumer's pairs, but to no queue."""
        cdef uint32_t number
        cdef uint64_t at
        cdef Pair *pair
        cdef Delivery *delivery
        self.check_room(1)
        if 2 * <uint64_t>(self.used + 1) > self._mask + 1:
            self.allot(2 * (self._mask + 1))
        if entry.pair_count == entry.pair_capacity:
            grow_interest(entry)
        number = self.fresh()
        pair, delivery = &self.pairs[number], &self.deliveries[number]
        memset(pair, 0, sizeof(Pair))
        memset(delivery, 0, sizeof(Delivery))
        pair.flags = PAIR_USED
        pair.consumer, pair.item = consumer, item
        delivery.next_refresh = delivery.next_pending = delivery.slot = NONE
        delivery.previous, delivery.next = NONE, self._by_consumer[consumer].first
        if delivery.next != NONE:
            self.deliveries[delivery.next].previous = number
        self._by_consumer[consumer].first = number
        self._by_consumer[consumer].count += 1
        delivery.place = entry.pair_count
        entry.pairs[entry.pair_count] = number
        entry.pair_count += 1
        at = self.slot_of(consumer, item)
        while self._slots[at] != NONE:
            at = (at + 1) & self._mask
        self._slots[at] = number
        self.used += 1
        return number

    cdef int check_room(self, uint32_t count) except -1:
        if <uint64_t>self.used + count > self.pairs_max:
            raise LimitError(f"the limit of {self.used} items of consumers is reached", hint="raise pairs_max")
        return 0

    cdef void remove(self, Item *entry, uint32_t number) noexcept nogil:
        """Remove the pair from both lists, so that it is no longer found; its number stays taken until release()."""
        cdef Pair *pair = &self.pairs[number]
        cdef const Delivery *delivery = &self.deliveries[number]
        cdef ConsumerPairs *listed = &self._by_consumer[pair.consumer]
        cdef uint64_t at = self.slot_of(pair.consumer, pair.item)
        cdef uint32_t last = entry.pairs[entry.pair_count - 1]
        entry.pairs[self.deliveries[number].place] = last
        self.deliveries[last].place = self.deliveries[number].place
        entry.pair_count -= 1
        while self._slots[at] != number:
            at = (at + 1) & self._mask
        self.close_hole(at)
        if delivery.previous == NONE:
            listed.first = delivery.next
        else:
            self.deliveries[delivery.previous].next = delivery.next
        if delivery.next != NONE:
            self.deliveries[delivery.next].previous = delivery.previous
        listed.count -= 1

    cdef void release(self, uint32_t number) noexcept nogil:
        self.pairs[number].flags = 0
        self.deliveries[number].next_refresh = self._free
        self._free = number
        self.used -= 1

    cdef void close_hole(self, uint64_t hole) noexcept nogil:
        cdef uint64_t at = hole, home
        cdef const Pair *pair
        while True:
            at = (at + 1) & self._mask
            if self._slots[at] == NONE:
                break
            pair = &self.pairs[self._slots[at]]
            home = self.slot_of(pair.consumer, pair.item)
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._slots[hole] = self._slots[at]
                hole = at
        self._slots[hole] = NONE

    cdef uint64_t slot_of(self, uint32_t consumer, uint32_t item) noexcept nogil:
        return mix_fold((<uint64_t>consumer << 32 | item) ^ self._seed, MULTIPLIER) & self._mask

    cdef uint32_t fresh(self) except? 0xFFFFFFFF:
        cdef uint32_t number = self._free
        if number != NONE:
            self._free = self.deliveries[number].next_refresh
            return number
        if self._count == self.room:
            self.reserve(self._count + 1)
        self._count += 1
        return self._count - 1

    cdef int reserve(self, uint32_t count) except -1:
        cdef uint64_t room = min(max(<uint64_t>ENTRIES_MIN, 2 * <uint64_t>self.room, <uint64_t>count), <uint64_t>NONE)
        cdef void *bigger
        if count <= self.room:
            return 0
        bigger = realloc(self.deliveries, room * sizeof(Delivery))
        if bigger is NULL:
            raise MemoryError
        self.deliveries = <Delivery *>bigger
        bigger = zeroed_lines(room * sizeof(Pair))
        if bigger is NULL:
            raise MemoryError
        if self.room:
            memcpy(bigger, self.pairs, self.room * sizeof(Pair))
        free(self.pairs)
        self.pairs = <Pair *>bigger
        self.room = <uint32_t>room
        return 0

    cdef int allot(self, uint64_t slots) except -1:
        cdef uint32_t *fresh = <uint32_t *>malloc(slots * sizeof(uint32_t))
        cdef uint64_t old_slots = self._mask + 1 if self._slots is not NULL else 0, at, place
        cdef uint32_t number
        if fresh is NULL:
            raise MemoryError
        memset(fresh, 0xFF, slots * sizeof(uint32_t))
        for at in range(old_slots):
            number = self._slots[at]
            if number != NONE:
                place = mix_fold(
                    (<uint64_t>self.pairs[number].consumer << 32 | self.pairs[number].item) ^ self._seed, MULTIPLIER
                ) & (slots - 1)
                while fresh[place] != NONE:
                    place = (place + 1) & (slots - 1)
                fresh[place] = number
        free(self._slots)
        self._slots = fresh
        self._mask = slots - 1
        return 0


cdef void *zeroed_lines(uint64_t size) noexcept nogil:
    """Zeroed memory, aligned to a cache line; large blocks use huge pages, so that strided access needs few TLB entries."""
    cdef uint64_t unit = HUGE_PAGE if size >= HUGE_PAGE else CACHE_LINE
    cdef void *found
    size = (size + unit - 1) // unit * unit
    found = aligned_alloc(unit, size)
    if found is not NULL:
        if unit == HUGE_PAGE:
            madvise(found, size, MADV_HUGEPAGE)
        memset(found, 0, size)
    return found


cdef int grow_interest(Item *item) except -1:
    cdef uint32_t capacity = max(<uint32_t>4, 2 * item.pair_capacity)
    cdef void *bigger = realloc(item.pairs, capacity * sizeof(uint32_t))
    if bigger is NULL:
        raise MemoryError
    item.pairs = <uint32_t *>bigger
    item.pair_capacity = capacity
    return 0
