from cpython.ref cimport PyObject
from libc.stdint cimport uint16_t, uint32_t

from penstock.engine.core.kernel._consumers cimport Consumers
from penstock.engine.core.kernel._event cimport ADAPTIVE
from penstock.engine.core.kernel._items cimport Item, Items
from penstock.engine.core.kernel._pairs cimport Pair, Pairs
from penstock.engine.core.kernel._region_sink cimport RegionSink


cdef struct ModelRegion:  # a consumer's records of one model
    PyObject *sink  # a RegionSink
    uint16_t model_id


cdef struct ConsumerRegions:
    ModelRegion *regions
    uint32_t count


cdef class Regions:
    cdef Items items
    cdef Pairs pairs
    cdef Consumers consumers
    cdef bint _is_common  # an item has the same slot in all regions
    cdef ConsumerRegions *_by_consumer
    cdef dict _sinks                    # by consumer and model: keeps the sinks that the structs point to
    cdef set _requests                  # consumers and models that need a region, or a larger one

    # True if the pair's adaptive updates are written into a region.
    cdef inline bint takes(self, const Pair *pair) noexcept nogil:
        return self.consumers.consumers[pair.consumer].notices is not NULL and (
            pair.cls == ADAPTIVE or pair.program is not NULL
        )

    # Assign the item a slot in the consumer's region. If there is none, a region is requested.
    cdef int take_slot(self, Pair *pair) except -1
    cdef void free_slot(self, const Pair *pair) noexcept nogil
    # The RegionSink for the pair's item, or NULL.
    cdef void *find_sink(self, const Pair *pair) noexcept nogil
    # Assign slots in a region that replaces the consumer's former one, if any, to the items of its model.
    cdef int open(self, uint32_t number, uint16_t model_id, RegionSink sink) except -1
    # Write the pair's pending value. Return its size.
    cdef uint32_t write(self, uint32_t at, RegionSink sink) noexcept nogil
    # Write the pair's current record, or only a notice if the record is there. False: the ring of notices has no room.
    cdef bint write_refresh(self, uint32_t at) noexcept nogil
    cdef void write_notice(self, Pair *pair, const Item *item) noexcept nogil
    cdef int detach(self, uint32_t number) except -1
