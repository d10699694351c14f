from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.engine._critical cimport Critical
from penstock.engine._items cimport Item
from penstock.wire._codec cimport MessageView


cdef struct Update:          # of an item
    const uint8_t *record
    uint64_t version         # 0: one more than before
    int64_t started_ns
    uint32_t size
    uint32_t merged          # updates that it stands for
    uint16_t model_version
    const uint8_t *origin    # NULL: the message says nothing of its source stream


cdef class Distributor(Critical):
    cdef uint64_t _lost_number              # when updates were last said not to have come to this node
    cdef readonly int64_t budget_bytes      # of what publish() and distribute() write at once; -1: all
    cdef readonly uint64_t oversized        # messages that no record can be as long as
    cdef readonly uint64_t fragments        # parts of messages, which are not put together here
    cdef uint64_t _untaken                  # updates that were counted and could not be taken
    cdef uint16_t _feed                     # of what is being taken, as the caller counts feeds
    cdef uint32_t _feed_checksum            # of its name
    cdef list _feed_checksums               # by the number of the feed
    cdef object _admit
    cdef int64_t[4] _weights                # by class
    cdef int64_t[4] _deficits               # bytes that it may still write in its turn
    cdef int _turn

    cdef int choose_feed(self, uint16_t feed) except -1
    cdef uint32_t number_of(self, bytes topic, uint16_t model_id, uint16_t model_version, Py_ssize_t size) except? 0xFFFFFFFF
    cdef void note_source(self, Item *item, uint32_t stream, uint16_t session_tag) noexcept nogil
    cdef bint note_missed(self, const Item *item) noexcept nogil
    cdef int take(self, uint32_t number, const Update *update, int64_t now_ns) noexcept nogil
    cdef void withdraw_item(self, uint32_t number, uint64_t version, int64_t now_ns) noexcept nogil
    cdef void lose_update(self, uint32_t number, int64_t now_ns) noexcept nogil
    cdef int take_messages(
        self, const uint8_t *data, const MessageView *messages, Py_ssize_t count, int64_t now_ns, int64_t started_ns,
        Py_ssize_t *done
    ) noexcept nogil
    cdef int64_t serve_classes(self, int64_t budget_bytes, int64_t now_ns) noexcept nogil
    cdef bint is_backlogged(self, int cls) noexcept nogil
    cdef int64_t serve_class(self, int cls, int64_t bytes_max, int64_t now_ns) noexcept nogil
