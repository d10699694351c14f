from libc.stdint cimport int64_t, uint8_t, uint32_t

from penstock.engine.core.kernel._classify cimport ClassProgram
from penstock.engine.core.kernel._consumers cimport Fifo
from penstock.engine.core.kernel._event cimport Head
from penstock.engine.core.kernel._items cimport Item
from penstock.engine.core.kernel._metering cimport Metering
from penstock.engine.core.kernel._pairs cimport Pair
from penstock.engine.core.kernel._regional cimport Regional


cdef class Withholding(Regional):
    cdef readonly Metering metering     # None: the class is not served
    cdef bint _serves_all               # all that wait for a record when it is read once
    cdef bint _drops                    # what the metered class withholds is not conflated
    cdef Fifo _round                    # consumers that the adaptive class has something for
    cdef dict _programs                 # by pair: keeps what it points to

    cdef int64_t _now_ns                # of the call that is under way

    # Whether its class depends on the record, and all classes go one way: its updates are classed as they are fanned out.
    cdef bint is_ordered(self, const Pair *pair) noexcept nogil
    # An update out of the log, for such a pair.
    cdef void withhold_event(self, uint32_t at, const Head *head, uint8_t cls) noexcept nogil
    # The event with what was withheld before it, in the scratch.
    cdef const uint8_t *with_owed(self, Pair *pair, const uint8_t *event) noexcept nogil
    # Nothing is owed any more.
    cdef void settle(self, uint32_t at) noexcept nogil
    cdef uint8_t class_of(self, uint32_t at, const uint8_t *record, uint32_t size) noexcept nogil
    cdef int want_pair(
        self, uint32_t number, uint32_t item, uint8_t cls, uint8_t served, ClassProgram program, int64_t interval_ns,
        int64_t now_ns, int64_t replayed_after
    ) except -1
    cdef int change_pair(
        self, uint32_t at, uint8_t cls, uint8_t served, ClassProgram program, int64_t interval_ns, int64_t now_ns
    ) except -1
    cdef void pay(self, uint32_t at) noexcept nogil
    cdef int choose_pair(
        self, uint32_t at, uint8_t cls, uint8_t served, ClassProgram program, int64_t interval_ns, int64_t now_ns
    ) except -1

    # An update of the item came, and the pair is to get it in this class.
    cdef void look_at_first(self, const Item *item) noexcept nogil
    cdef void look_ahead(self, const Item *item, uint32_t index) noexcept nogil
    cdef void withhold(self, uint32_t at, Item *item, uint8_t cls, int64_t now_ns) noexcept nogil
    cdef bint withdraw_pair(self, uint32_t at, Item *item, int64_t now_ns) noexcept nogil
    cdef void owe(self, Pair *pair, const Item *item, uint8_t cls) noexcept nogil

    # Write what waits, about so many bytes at most (-1: all); how many were.
    cdef int64_t serve_pending(self, int64_t bytes_max) noexcept nogil
    cdef int64_t serve_consumer(self, uint32_t number, int64_t bytes_max) noexcept nogil
    cdef int64_t serve_others(self, uint32_t item) noexcept nogil
    cdef int64_t serve_metered(self, int64_t bytes_max, int64_t now_ns) noexcept nogil
    cdef void look_at_round(self) noexcept nogil
    cdef void resume(self, uint32_t number, int64_t now_ns) noexcept nogil
    cdef void join_round(self, uint32_t number) noexcept nogil
    cdef void leave_round(self, uint32_t number) noexcept nogil

    # Write the pair's value: its size, or 0 if there was no room.
    cdef uint32_t write_pending(self, uint32_t at) noexcept nogil
    cdef uint32_t write_value(self, uint32_t at, uint8_t cls) noexcept nogil
