from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.engine.core.kernel._adaptive cimport AdaptiveClass
from penstock.engine.core.kernel._classify cimport ClassProgram
from penstock.engine.core.kernel._consumers cimport Consumers
from penstock.engine.core.kernel._event cimport ADAPTIVE, CRITICAL, METERED, Head
from penstock.engine.core.kernel._items cimport Item, Items
from penstock.engine.core.kernel._metered cimport MeteredClass
from penstock.engine.core.kernel._metering cimport METER_NONE
from penstock.engine.core.kernel._pairs cimport Pair, Pairs
from penstock.engine.core.kernel._regions cimport Regions

cdef enum:
    CLASS_BITS = 3


cdef inline uint8_t class_of(const Pair *pair, const uint8_t *record, uint32_t size) noexcept nogil:
    """The class in which the pair gets this record; 0: none."""
    cdef uint8_t cls
    if pair.program is NULL:
        return pair.cls
    cls = (<ClassProgram>pair.program).classify(record, size)
    cls = pair.served >> 2 * (cls - 1) & CLASS_BITS
    if cls == METERED and pair.metered == METER_NONE:
        return CRITICAL
    return cls


cdef class Withheld:
    cdef readonly AdaptiveClass adaptive
    cdef readonly MeteredClass metered
    cdef Items items
    cdef Pairs pairs
    cdef Consumers consumers
    cdef Regions regions

    # The item was updated, and the pair gets the update in this class: adaptive or metered.
    cdef inline void add(self, uint32_t at, const Item *item, uint8_t cls, int64_t now_ns) noexcept nogil:
        if cls == METERED:
            self.metered.add(at, item, now_ns)
        else:
            self.adaptive.add(at, item)

    # The same for an update from the log.
    cdef void add_event(self, uint32_t at, const Head *head, uint8_t cls, int64_t now_ns) noexcept nogil
    # The item has no record any more: discard the pair's value and notify its consumer. True if the log must notify it.
    cdef bint withdraw(self, uint32_t at, const Item *item, int64_t now_ns) noexcept nogil
    # The consumer was sent a record that covers the pair's value.
    cdef void clear(self, uint32_t at, int64_t now_ns) noexcept nogil
    # Write the pair's conflated value, which only this pair has, before its class changes.
    cdef void flush(self, uint32_t at, int64_t now_ns) noexcept nogil
    cdef void resume(self, uint32_t number, int64_t now_ns) noexcept nogil
