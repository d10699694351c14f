from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.middleware._streams cimport StreamEntry
from penstock.wire._packets cimport PacketStore


cdef struct Share:      # a consumer takes the message that is cut into fragments
    uint32_t consumer
    uint32_t word       # where its mask begins in `words`
    uint32_t word_count


cdef class StreamAccount(StreamEntry):
    cdef readonly uint32_t epoch
    cdef readonly uint32_t consumers_max
    cdef readonly uint64_t position # one more than the newest packet that was forwarded
    cdef public bint is_passing     # fragments whose beginning was not seen go to everybody
    cdef public PacketStore kept    # what was forwarded, for repairs; None: nothing is kept
    cdef uint64_t *expected         # by consumer: one more than the last number it knows of; 0: it does not listen
    cdef uint64_t *listening        # a bit for each consumer
    # the last message that was cut: its first fragment is in packet `begun`, its last one in packet `ended` (LAST: to come)
    cdef uint64_t begun
    cdef uint64_t ended
    cdef uint8_t topic[256]
    cdef uint16_t topic_size
    cdef Share *shares
    cdef uint64_t share_count
    cdef uint64_t share_capacity
    cdef uint64_t *words
    cdef uint64_t word_count
    cdef uint64_t word_capacity

    cdef int check(self, uint64_t consumer) except -1

    # Whether this fragment, no first one, belongs to the message whose shares are remembered.
    cdef bint is_shared(self, uint64_t sequence, const uint8_t *topic, uint16_t size) noexcept nogil
    cdef void begin(self, uint64_t sequence, const uint8_t *topic, uint16_t size) noexcept nogil
    cdef int share(self, uint32_t consumer, const uint64_t *mask, uint32_t word_count) noexcept nogil


cdef uint64_t LAST


# Make room for `needed` items: 0, or -1 when there is no memory.
cdef inline int grow(void **block, uint64_t *capacity, uint64_t needed, size_t item_size) noexcept nogil:
    return 0 if needed <= capacity[0] else grow_block(block, capacity, needed, item_size)


cdef int grow_block(void **block, uint64_t *capacity, uint64_t needed, size_t item_size) noexcept nogil
