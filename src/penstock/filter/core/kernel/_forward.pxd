from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.filter.core.kernel._account cimport StreamAccount
from penstock.filter.core.kernel._consumers cimport Consumer, Consumers
from penstock.filter.core.kernel._matching cimport Matcher
from penstock.middleware.core._streams cimport StreamIndex
from penstock.wire._codec cimport MessageView, PacketView
from penstock.wire._outbox cimport Outbox


cdef struct Taking:  # a consumer takes a message
    uint32_t message  # index in the packet
    uint32_t next  # the consumer's next taking; 0: none
    uint64_t word  # start of its mask


cdef struct Work:  # a packet and its handling
    const uint8_t *data
    const PacketView *packet
    const MessageView *messages
    uint64_t topic  # index in the matcher's results of the next message with a topic
    int64_t gap  # gap to write, or ACCOUNTED
    int64_t only  # the consumer, or EVERYBODY
    uint16_t flags  # flags to add
    bint is_to_all  # send also to consumers without a message in the packet
    bint is_late  # later packets were forwarded before


cdef enum Trouble:
    TROUBLE_NONE = 0
    TROUBLE_FULL = 1  # the outbox is full
    TROUBLE_STREAM = 2  # a packet of a stream that was not opened
    TROUBLE_MEMORY = 3


cdef class Forwarder(Consumers):
    cdef readonly Outbox outbox
    cdef readonly Matcher matcher
    cdef readonly uint64_t packets_in
    cdef readonly uint64_t packets_out
    cdef readonly uint64_t messages_in
    cdef readonly uint64_t messages_out
    cdef readonly uint64_t messages_unwanted
    cdef StreamIndex _accounts
    # the current packet
    cdef uint64_t _work_count
    cdef uint32_t *_takers
    cdef uint32_t _taker_count
    cdef Taking *_takings  # numbered from 1
    cdef uint64_t _taking_count, _taking_capacity
    cdef uint64_t *_words
    cdef uint64_t _word_count, _word_capacity
    cdef MessageView *_messages  # of a single packet

    # Forward packets with freshly matched topics, in order, until the outbox is full. Return the number of packets, or
    # an error of the packet after `done`.
    cdef int forward_rows(
        self, const uint8_t *data, const PacketView *packets, int64_t packet_count, const MessageView *messages,
        int64_t *done
    ) noexcept nogil

    cdef int forward_one(self, StreamAccount account, Work *work) noexcept nogil
    cdef int take_messages(self, StreamAccount account, Work *work) noexcept nogil
    cdef int take_message(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil
    cdef int take_matched(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil
    cdef int take_direct(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil
    cdef int take_unjudged(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil
    cdef int take_shares(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil
    cdef int take_bit(self, StreamAccount account, Work *work, uint32_t index, uint32_t number, uint16_t bit) noexcept nogil
    cdef Taking *take(self, StreamAccount account, Work *work, uint32_t index, uint32_t number) noexcept nogil
    cdef void take_empty(self, StreamAccount account, Work *work) noexcept nogil
    cdef Consumer *begin_taking(self, uint32_t number) noexcept nogil
    cdef int remember(self, StreamAccount account, Work *work) noexcept nogil
    cdef void write(self, StreamAccount account, Work *work, uint32_t number) noexcept nogil
    cdef int check_order(self, StreamAccount account, only) except -1


cdef int raise_trouble(int trouble, const PacketView *packet) except -1
