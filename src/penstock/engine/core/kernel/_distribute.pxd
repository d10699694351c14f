from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.engine.core.kernel._adaptive cimport AdaptiveClass
from penstock.engine.core.kernel._classify cimport ClassProgram
from penstock.engine.core.kernel._consumers cimport Consumers
from penstock.engine.core.kernel._critical cimport CriticalClass
from penstock.engine.core.kernel._items cimport Item, Items
from penstock.engine.core.kernel._metered cimport MeteredClass
from penstock.engine.core.kernel._metering cimport Metering
from penstock.engine.core.kernel._pairs cimport Pairs
from penstock.engine.core.kernel._refreshes cimport Refreshes
from penstock.engine.core.kernel._regions cimport Regions
from penstock.engine.core.kernel._withheld cimport Withheld
from penstock.wire._codec cimport MessageView


cdef struct Update:  # of an item
    const uint8_t *record
    uint64_t version  # 0: one more than before
    int64_t started_ns
    uint32_t size
    uint32_t merged  # number of updates that it represents
    uint16_t model_version
    const uint8_t *origin  # NULL: the message has no source stream


cdef struct Selection:  # how a consumer gets items
    uint8_t cls
    uint8_t served
    int64_t interval_ns


cdef class Distributor:
    cdef readonly Items items
    cdef readonly Pairs pairs
    cdef readonly Consumers consumers
    cdef readonly Regions regions
    cdef readonly CriticalClass critical
    cdef readonly Metering metering  # None: the metered class is not served
    cdef AdaptiveClass _adaptive
    cdef MeteredClass _metered
    cdef Withheld _withheld
    cdef Refreshes _refreshes
    cdef dict _programs  # by pair: keeps the programs that pairs point to
    cdef uint64_t _lost_number              # the number at which updates were last reported lost upstream
    cdef readonly int64_t budget_bytes  # bytes that publish() and distribute() write at once; -1: no limit
    cdef readonly uint64_t oversized  # messages larger than a record
    cdef readonly uint64_t fragments  # message fragments, which are not reassembled here
    cdef uint64_t _untaken  # updates that were counted but could not be taken
    cdef uint16_t _feed  # feed of the current batch, by the caller's number
    cdef uint32_t _feed_checksum  # of the feed's name
    cdef list _feed_checksums  # by feed number
    cdef object _admit
    cdef int64_t[4] _weights  # by class
    cdef int64_t[4] _deficits  # bytes that the class may still write in its turn
    cdef int _turn

    # Pairs
    cdef int add_pair(
        self, uint32_t consumer_number, uint32_t item, const Selection *selection, ClassProgram program,
        int64_t now_ns, int64_t replayed_after
    ) except -1
    cdef int change_pair(
        self, uint32_t at, const Selection *selection, ClassProgram program, int64_t now_ns
    ) except -1
    cdef int set_class(self, uint32_t at, const Selection *selection, ClassProgram program) except -1
    cdef void drop_pair(self, uint32_t at) noexcept nogil

    # Updates
    cdef int choose_feed(self, uint16_t feed) except -1
    cdef void note_source(self, Item *item, uint32_t stream, uint16_t session_tag) noexcept nogil
    cdef uint32_t number_of(self, bytes topic, uint16_t model_id, uint16_t model_version, Py_ssize_t size) except? 0xFFFFFFFF
    cdef bint note_missed(self, const Item *item) noexcept nogil
    cdef int take(self, uint32_t item_number, const Update *update, int64_t now_ns) noexcept nogil
    cdef void withdraw_item(self, uint32_t item_number, uint64_t version, int64_t now_ns) noexcept nogil
    cdef void lose_update(self, uint32_t item_number, int64_t now_ns) noexcept nogil
    cdef int take_messages(
        self, const uint8_t *data, const MessageView *messages, Py_ssize_t count, int64_t now_ns, int64_t started_ns,
        Py_ssize_t *done
    ) noexcept nogil
    cdef void prefetch_first(self, const Item *item) noexcept nogil
    cdef void prefetch_ahead(self, const Item *item, uint32_t index) noexcept nogil

    # Output
    cdef void catch_up(self, uint32_t consumer_number, int64_t now_ns) noexcept nogil
    cdef bint replay(self, uint32_t consumer_number, int64_t now_ns) noexcept nogil
    cdef void catch_up_waiting(self, int64_t now_ns) noexcept nogil
    cdef void serve_due(self, int64_t now_ns) noexcept nogil
    cdef int64_t serve_classes(self, int64_t budget_bytes, int64_t now_ns) noexcept nogil
    cdef bint is_backlogged(self, int cls) noexcept nogil
    cdef int64_t serve_class(self, int cls, int64_t bytes_max, int64_t now_ns) noexcept nogil
