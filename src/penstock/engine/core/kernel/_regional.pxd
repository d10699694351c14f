from libc.stdint cimport uint32_t

from penstock.engine.core.kernel._consumers cimport Consumers
from penstock.engine.core.kernel._items cimport Item
from penstock.engine.core.kernel._pairs cimport Pair
from penstock.engine.core.kernel._regions cimport RegionSink


cdef class Regional(Consumers):
    cdef bint _is_common                # one slot for an item in all regions
    cdef dict _regions                  # by consumer and model: keeps what the outlets point to
    cdef set _requests                  # consumers and models that need a region, or a larger one

    # A place for the item in the consumer's region; if there is none, one is asked for.
    cdef int take_slot(self, Pair *pair) except -1
    # The RegionSink for the pair's item, or NULL.
    cdef void *find_outlet(self, const Pair *pair) noexcept nogil
    cdef bint is_regional(self, const Pair *pair) noexcept nogil
    # Nothing is owed, or it begins anew.
    cdef void let_go(self, Pair *pair) noexcept nogil
    # Write the pair's value: its size.
    cdef uint32_t write_region(self, uint32_t at, RegionSink sink) noexcept nogil
    cdef void give_notice(self, Pair *pair, const Item *item) noexcept nogil
