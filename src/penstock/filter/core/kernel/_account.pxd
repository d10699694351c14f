from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.middleware.core._streams cimport StreamEntry
from penstock.wire._codec cimport PacketView
from penstock.wire._packets cimport PacketStore


cdef struct Share:  # a consumer takes the fragmented message
    uint32_t consumer
    uint32_t word  # start of its mask in `words`
    uint32_t word_count


cdef struct Booked:  # packets of the stream sent to a consumer since it began to listen
    uint64_t first  # the first number it should get
    uint64_t packets  # packets sent in order
    uint64_t left_out  # numbers that these packets' gaps account for
    uint64_t lost  # numbers skipped because they never arrived
    uint64_t late  # packets sent after ones with higher numbers
    uint64_t messages  # messages in all of these packets
    uint64_t before  # messages of the stream before the consumer listened


cdef class StreamAccount(StreamEntry):
    cdef readonly uint32_t epoch
    cdef readonly uint32_t consumers_max
    cdef readonly uint64_t position  # one more than the newest forwarded packet
    cdef public bint is_passing  # fragments without a known first fragment go to all consumers
    cdef public PacketStore kept  # forwarded packets, for repairs; None: not kept
    cdef uint64_t *expected  # by consumer: one more than the last number it knows; 0: does not listen
    cdef uint64_t *listening  # a bit for each consumer
    cdef Booked *books  # by consumer; NULL: not counted
    cdef readonly uint64_t packets  # forwarded in order
    cdef readonly uint64_t left_out  # numbers that these packets' gaps account for
    cdef readonly uint64_t messages  # in these packets, and in late ones
    cdef readonly uint64_t unwanted  # messages that matched for no consumer
    # the last fragmented message: first fragment in packet `begun`, last one in packet `ended` (LAST: not yet received)
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

    # Count a forwarded packet, late or in order. Called after a consumer was sent its copy with this gap, before the
    # number is recorded.
    cdef void book(self, const PacketView *packet, uint32_t wanted, bint is_late) noexcept nogil
    cdef void book_for(self, uint32_t consumer, const PacketView *sent) noexcept nogil

    # True if this fragment continues the message whose shares are stored.
    cdef bint is_shared(self, uint64_t sequence, const uint8_t *topic, uint16_t size) noexcept nogil
    cdef void begin(self, uint64_t sequence, const uint8_t *topic, uint16_t size) noexcept nogil
    cdef int share(self, uint32_t consumer, const uint64_t *mask, uint32_t word_count) noexcept nogil


cdef uint64_t LAST


# Make room for `needed` items: 0, or -1 without memory.
cdef inline int grow(void **block, uint64_t *capacity, uint64_t needed, size_t item_size) noexcept nogil:
    return 0 if needed <= capacity[0] else grow_block(block, capacity, needed, item_size)


cdef int grow_block(void **block, uint64_t *capacity, uint64_t needed, size_t item_size) noexcept nogil
