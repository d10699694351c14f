from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.middleware.core._streams cimport StreamEntry
from penstock.wire._codec cimport PacketView
from penstock.wire._packets cimport PacketStore


cdef struct Share:      # a consumer takes the message that is cut into fragments
    uint32_t consumer
    uint32_t word       # where its mask begins in `words`
    uint32_t word_count


cdef struct Booked:     # what a consumer was sent of the stream since it listens
    uint64_t first      # the first number it was to be told of
    uint64_t packets    # sent in their turn
    uint64_t left_out   # numbers for which these packets' gaps account
    uint64_t lost       # numbers passed over because they never came
    uint64_t late       # packets sent after others that follow them
    uint64_t messages   # in all of them
    uint64_t before     # messages of the stream that came before it listened


cdef class StreamAccount(StreamEntry):
    cdef readonly uint32_t epoch
    cdef readonly uint32_t consumers_max
    cdef readonly uint64_t position # one more than the newest packet that was forwarded
    cdef public bint is_passing     # fragments whose beginning was not seen go to everybody
    cdef public PacketStore kept    # what was forwarded, for repairs; None: nothing is kept
    cdef uint64_t *expected         # by consumer: one more than the last number it knows of; 0: it does not listen
    cdef uint64_t *listening        # a bit for each consumer
    cdef Booked *books              # by consumer; NULL: none are kept
    cdef readonly uint64_t packets  # forwarded in their turn
    cdef readonly uint64_t left_out # numbers for which these packets' gaps account
    cdef readonly uint64_t messages # in those, and in packets that came late
    cdef readonly uint64_t unwanted # of these: wanted by nobody
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

    # A packet is forwarded, late or in its turn; a consumer is sent its own of it, with this gap, before that is told.
    cdef void book(self, const PacketView *packet, uint32_t wanted, bint is_late) noexcept nogil
    cdef void book_for(self, uint32_t consumer, const PacketView *sent) noexcept nogil

    # Whether this fragment, no first one, belongs to the message whose shares are remembered.
    cdef bint is_shared(self, uint64_t sequence, const uint8_t *topic, uint16_t size) noexcept nogil
    cdef void begin(self, uint64_t sequence, const uint8_t *topic, uint16_t size) noexcept nogil
    cdef int share(self, uint32_t consumer, const uint64_t *mask, uint32_t word_count) noexcept nogil


cdef uint64_t LAST


# Make room for `needed` items: 0, or -1 when there is no memory.
cdef inline int grow(void **block, uint64_t *capacity, uint64_t needed, size_t item_size) noexcept nogil:
    return 0 if needed <= capacity[0] else grow_block(block, capacity, needed, item_size)


cdef int grow_block(void **block, uint64_t *capacity, uint64_t needed, size_t item_size) noexcept nogil
