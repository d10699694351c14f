"""Items with their current records, and the number of the last update."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import numpy

from penstock.engine.core.kernel._conflate cimport SpanStore

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.base.limits import TOPIC_SIZE_MAX

cdef extern from "penstock/convert/books/mix.h" nogil:
    uint64_t mix_fold(uint64_t a, uint64_t b)

cdef enum:
    SLOTS_MIN = 64
    ENTRIES_MIN = 64

cdef uint64_t MULTIPLIER = 0x9E3779B97F4A7C15
cdef uint32_t NONE = UINT32_MAX


cdef class Items:
    """Items by number, and by topic and model. Numbers are dense; the numbers of removed items are reused."""

    def __cinit__(self, uint32_t items_max, uint64_t seed):
        self.items_max = items_max
        self._seed = seed
        self._free = []
        self._ranks = {}
        self._stores = set()
        self.allot(SLOTS_MIN)

    def __dealloc__(self):
        cdef uint32_t number
        for number in range(self.count):
            clear_item(&self.items[number])
        free(self.items)
        free(self._slots)

    def lookup(self, bytes topic not None) -> list:
        """The items with this topic, each with another model."""
        cdef uint32_t hash
        cdef uint64_t at
        found = []
        if len(topic) <= TOPIC_SIZE_MAX:
            hash = self.hash_of(<const uint8_t *>topic, <uint16_t>len(topic))
            at = hash & self._mask
            while self._slots[at] != NONE:
                if is_topic(&self.items[self._slots[at]], hash, <const uint8_t *>topic, <uint16_t>len(topic)):
                    found.append(self._slots[at])
                at = (at + 1) & self._mask
        return found

    def add(
        self, bytes topic not None, uint16_t model_id, uint16_t model_version, *, bint is_nonconflatable = False,
        bint is_logged = True, SpanStore spans = None, bint is_first = True,
    ) -> int:
        """Add an item without a record, and return its number. `spans` accumulates its withheld updates if the newest
        record alone does not represent them. Unless it `is_first`, the engine may have skipped earlier updates of the
        item. The caller has checked the topic, and that no item has this topic and model."""
        cdef uint32_t number, at_once = self.used + 1
        cdef uint16_t size = <uint16_t>len(topic)
        if at_once > self.items_max:
            raise LimitError(f"the limit of {self.items_max} items is reached", hint="raise items_max")
        if 2 * <uint64_t>at_once > self._mask + 1:
            self.allot(2 * (self._mask + 1))
        number = self._free.pop() if self._free else self.grown()
        cdef Item *item = &self.items[number]
        memset(item, 0, sizeof(Item))
        item.topic = <uint8_t *>malloc(max(size, 1))
        if item.topic is NULL:
            self._free.append(number)
            raise MemoryError
        memcpy(item.topic, <const uint8_t *>topic, size)
        item.topic_size = size
        item.hash = self.hash_of(item.topic, size)
        item.flags = ITEM_USED | (ITEM_NONCONFLATABLE if is_nonconflatable else 0) | (ITEM_LOGGED if is_logged else 0)
        if spans is not None:
            self._stores.add(spans)
            item.spans = <PyObject *>spans
        item.model_id = model_id
        item.model_version = model_version
        item.born = self.number
        item.unlogged = 0 if is_first else self.number
        ranks = self._ranks.setdefault(model_id, [0, []])
        if ranks[1]:
            item.rank = ranks[1].pop()
        else:
            item.rank = ranks[0]
            ranks[0] += 1
        self.insert(number)
        self.used += 1
        return number

    def remove(self, uint32_t number) -> None:
        """Remove an item without consumers and free its number."""
        cdef Item *item = self.item(number)
        cdef uint64_t hole, at, home
        if item.pair_count:
            raise LocalProtocolError(f"item {number} has consumers")
        hole = item.hash & self._mask
        while self._slots[hole] != number:
            hole = (hole + 1) & self._mask
        # move entries displaced by a collision back into the hole, so that every probe still finds its item
        at = hole
        while True:
            at = (at + 1) & self._mask
            if self._slots[at] == NONE:
                break
            home = self.items[self._slots[at]].hash & self._mask
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._slots[hole] = self._slots[at]
                hole = at
        self._slots[hole] = NONE
        self._ranks[item.model_id][1].append(item.rank)
        clear_item(item)
        self._free.append(number)
        self.used -= 1

    def rank_count(self, uint16_t model_id) -> int:
        """Upper bound of the ranks of the model's items."""
        return self._ranks.get(model_id, (0,))[0]

    def is_known(self, uint32_t number) -> bool:
        return number < self.count and self.items[number].flags & ITEM_USED != 0

    def topic(self, uint32_t number) -> bytes:
        cdef const Item *item = self.item(number)
        return PyBytes_FromStringAndSize(<const char *>item.topic, item.topic_size)

    def model(self, uint32_t number) -> tuple:
        """Id and version of the item's model."""
        cdef const Item *item = self.item(number)
        return item.model_id, item.model_version

    def record(self, uint32_t number) -> bytes | None:
        """The current record, or None if there is none yet."""
        cdef const Item *item = self.item(number)
        if not item.flags & ITEM_RECORDED:
            return None
        return PyBytes_FromStringAndSize(<const char *>item.record, item.record_size)

    def position(self, uint32_t number) -> tuple:
        """Version and number of the item's last update."""
        cdef const Item *item = self.item(number)
        return item.version, item.number

    def source(self, bytes topic not None, uint16_t model_id) -> tuple | None:
        """Feed, source stream and session tag of the item's last record; None if unknown."""
        cdef uint32_t number = NONE
        if len(topic) <= TOPIC_SIZE_MAX:
            number = self.find(<const uint8_t *>topic, <uint16_t>len(topic), model_id)
        if number == NONE or not self.items[number].flags & ITEM_SOURCED:
            return None
        return self.items[number].feed, self.items[number].stream, self.items[number].session_tag

    def kinds(self, const uint32_t[::1] numbers not None) -> tuple:
        """The kinds of these items (all bits set for a missing item), and the versions of their models."""
        kinds = numpy.full(len(numbers), NONE, numpy.uint32)
        versions = numpy.zeros(len(numbers), numpy.uint32)
        cdef uint32_t[::1] kind_rows = kinds
        cdef uint32_t[::1] version_rows = versions
        cdef Py_ssize_t row
        for row in range(len(numbers)):
            if self.is_known(numbers[row]):
                kind_rows[row] = self.items[numbers[row]].kind
                version_rows[row] = self.items[numbers[row]].model_version
        return kinds, versions

    def redefine(self, uint16_t model_id, bint is_nonconflatable, SpanStore spans) -> None:
        """Change the arguments of add() for the model's items. Items with a store keep it."""
        cdef uint32_t number
        cdef Item *item
        if spans is not None:
            self._stores.add(spans)
        for number in range(self.count):
            item = &self.items[number]
            if item.flags & ITEM_USED and item.model_id == model_id:
                item.flags &= ~ITEM_NONCONFLATABLE
                item.flags |= ITEM_NONCONFLATABLE if is_nonconflatable else 0
                if spans is not None and item.spans is NULL:
                    item.spans = <PyObject *>spans

    def set_kind(self, uint32_t number, uint32_t kind) -> None:
        self.item(number).kind = kind

    def forget_kinds(self) -> None:
        cdef uint32_t number
        for number in range(self.count):
            self.items[number].kind = 0

    def interest_count(self, uint32_t number) -> int:
        """Number of consumers of the item."""
        return self.item(number).pair_count

    def topics(self) -> tuple:
        """All topics for InterestTable.match_batch(): bytes, offsets, sizes, and the items' numbers."""
        cdef uint32_t number
        cdef uint64_t size = 0, at = 0, row = 0
        cdef const Item *item
        for number in range(self.count):
            size += self.items[number].topic_size
        offsets = numpy.empty(self.used, numpy.uint32)
        sizes = numpy.empty(self.used, numpy.uint16)
        numbers = numpy.empty(self.used, numpy.uint32)
        cdef uint32_t[::1] offset_rows = offsets
        cdef uint16_t[::1] size_rows = sizes
        cdef uint32_t[::1] number_rows = numbers
        data = bytearray(size)
        cdef uint8_t[::1] out = data
        for number in range(self.count):
            item = &self.items[number]
            if item.flags & ITEM_USED:
                memcpy(&out[at], item.topic, item.topic_size)
                offset_rows[row], size_rows[row], number_rows[row] = <uint32_t>at, item.topic_size, number
                at += item.topic_size
                row += 1
        return data, offsets, sizes, numbers

    cdef Item *item(self, uint32_t number) except NULL:
        if number >= self.count or not self.items[number].flags & ITEM_USED:
            raise LocalProtocolError(f"unknown item {number}")
        return &self.items[number]

    cdef uint32_t find(self, const uint8_t *topic, uint16_t size, uint16_t model_id) noexcept nogil:
        """Return the item's number, or NONE."""
        cdef uint32_t hash = self.hash_of(topic, size)
        cdef uint64_t at = hash & self._mask
        cdef uint32_t number = self._slots[at]
        cdef const Item *item
        while number != NONE:
            item = &self.items[number]
            if item.model_id == model_id and is_topic(item, hash, topic, size):
                return number
            at = (at + 1) & self._mask
            number = self._slots[at]
        return NONE

    cdef uint32_t hash_of(self, const uint8_t *topic, uint16_t size) noexcept nogil:
        """The seed is secret, so that chosen topics cannot collide."""
        cdef uint64_t mixed = mix_fold(self._seed ^ size, MULTIPLIER), word
        while size >= 8:
            memcpy(&word, topic, 8)
            mixed = mix_fold(word ^ mixed, MULTIPLIER ^ self._seed)
            topic += 8
            size -= 8
        word = 0
        memcpy(&word, topic, size)
        mixed = mix_fold(word ^ mixed, MULTIPLIER ^ self._seed)
        return <uint32_t>(mixed >> 32)

    cdef int keep(self, Item *item, const uint8_t *record, uint32_t size) noexcept nogil:
        """Store the item's current record. Return 0, or -1 without memory."""
        cdef void *bigger
        if size > item.record_capacity:
            bigger = realloc(item.record, size)
            if bigger is NULL:
                return -1
            item.record = <uint8_t *>bigger
            item.record_capacity = size
        if size:
            memcpy(item.record, record, size)
        item.record_size = size
        item.flags = item.flags & ~<uint8_t>ITEM_WITHDRAWN | ITEM_RECORDED
        return 0

    cdef uint32_t grown(self) except? 0xFFFFFFFF:
        """Return a number that was never used."""
        cdef uint64_t capacity = max(<uint64_t>ENTRIES_MIN, 2 * <uint64_t>self._capacity)
        cdef void *bigger
        if self.count == self._capacity:
            bigger = realloc(self.items, capacity * sizeof(Item))
            if bigger is NULL:
                raise MemoryError
            self.items = <Item *>bigger
            self._capacity = <uint32_t>min(capacity, <uint64_t>NONE)
        self.count += 1
        return self.count - 1

    cdef int allot(self, uint64_t slots) except -1:
        cdef uint32_t *fresh = <uint32_t *>malloc(slots * sizeof(uint32_t))
        cdef uint32_t number
        if fresh is NULL:
            raise MemoryError
        free(self._slots)
        memset(fresh, 0xFF, slots * sizeof(uint32_t))
        self._slots = fresh
        self._mask = slots - 1
        for number in range(self.count):
            if self.items[number].flags & ITEM_USED:
                self.insert(number)
        return 0

    cdef void insert(self, uint32_t number) noexcept:
        cdef uint64_t at = self.items[number].hash & self._mask
        while self._slots[at] != NONE:
            at = (at + 1) & self._mask
        self._slots[at] = number


cdef inline bint is_topic(const Item *item, uint32_t hash, const uint8_t *topic, uint16_t size) noexcept nogil:
    return item.hash == hash and item.topic_size == size and memcmp(item.topic, topic, size) == 0


cdef void clear_item(Item *item) noexcept nogil:
    free(item.topic)
    free(item.record)
    free(item.pairs)
    memset(item, 0, sizeof(Item))
