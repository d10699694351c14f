"""StreamAccount: the position of each consumer in one stream, and the consumers of the message in progress."""

from libc.stdint cimport UINT64_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

from penstock.middleware.core._streams cimport StreamEntry
from penstock.wire._codec cimport PacketView
from penstock.wire._packets cimport PacketStore

from penstock.base.errors import LimitError, LocalProtocolError

cdef enum:
    WORD_BITS = 64

cdef uint64_t LAST = UINT64_MAX


cdef int grow_block(void **block, uint64_t *capacity, uint64_t needed, size_t item_size) noexcept nogil:
    cdef uint64_t wanted = max(2 * capacity[0], needed + 64)
    cdef void *bigger = realloc(block[0], wanted * item_size)
    if bigger is NULL:
        return -1
    block[0] = bigger
    capacity[0] = wanted
    return 0


cdef class StreamAccount(StreamEntry):
    """One stream in one epoch, from Forwarder.open() to Forwarder.close()."""

    def __cinit__(self, uint64_t publisher_id, uint32_t group, uint32_t epoch, uint32_t consumers_max):
        if consumers_max == 0:
            raise LocalProtocolError("an account needs at least one consumer")
        self.publisher_id = publisher_id
        self.group = group
        self.epoch = epoch
        self.consumers_max = consumers_max
        self.begun = LAST
        self.expected = <uint64_t *>calloc(consumers_max, sizeof(uint64_t))
        self.listening = <uint64_t *>calloc(consumers_max // WORD_BITS + 1, sizeof(uint64_t))
        if self.expected is NULL or self.listening is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.expected)
        free(self.listening)
        free(self.books)
        free(self.shares)
        free(self.words)

    def listen(self, uint64_t consumer, uint64_t next_sequence) -> None:
        """The consumer listens to the stream's group and knows everything before this number."""
        self.check(consumer)
        if next_sequence == 0:
            raise LocalProtocolError("packets are numbered from 1")
        if self.books is not NULL:
            if self.expected[consumer] == 0:
                self.books[consumer] = Booked(next_sequence, 0, 0, 0, 0, 0, self.messages)
            elif next_sequence > self.expected[consumer]:
                self.books[consumer].lost += next_sequence - self.expected[consumer]
        self.expected[consumer] = next_sequence
        self.listening[consumer // WORD_BITS] |= <uint64_t>1 << consumer % WORD_BITS

    def leave(self, uint64_t consumer) -> None:
        """The consumer gets no further packets of this stream."""
        cdef uint64_t index, kept = 0
        self.check(consumer)
        self.expected[consumer] = 0
        self.listening[consumer // WORD_BITS] &= ~(<uint64_t>1 << consumer % WORD_BITS)
        for index in range(self.share_count):
            self.shares[kept] = self.shares[index]
            kept += self.shares[index].consumer != consumer
        self.share_count = kept

    def keep_books(self) -> None:
        """Count packets per consumer from now on."""
        if self.books is NULL:
            self.books = <Booked *>calloc(self.consumers_max, sizeof(Booked))
            if self.books is NULL:
                raise MemoryError

    def booked(self, uint64_t consumer) -> dict:
        """Return the counts of a listening consumer since it began to listen (the fields of Booked), and the number
        of messages of the stream in that time (`offered`). Needs keep_books()."""
        self.check(consumer)
        if self.books is NULL:
            raise LocalProtocolError("packets of this stream are not counted")
        found = dict(self.books[consumer])
        found["offered"] = self.messages - found.pop("before")
        return found

    def forget_fragments(self) -> None:
        """Forget the message in progress: the next fragments may belong to another message."""
        self.begun = LAST

    def expected_by(self, uint64_t consumer) -> int:
        """The number after the last one that the consumer knows, or 0 if it does not listen."""
        self.check(consumer)
        return self.expected[consumer]

    def listeners(self) -> list:
        """The consumers that listen."""
        return [consumer for consumer in range(self.consumers_max) if self.expected[consumer]]

    cdef int check(self, uint64_t consumer) except -1:
        if consumer >= self.consumers_max:
            raise LimitError(f"consumer {consumer} is not below {self.consumers_max}", hint="raise consumers_max")
        return 0

    cdef void book(self, const PacketView *packet, uint32_t wanted, bint is_late) noexcept nogil:
        if not is_late:
            self.packets += 1
            self.left_out += min(<uint64_t>packet.gap, packet.sequence - self.position) if self.position else packet.gap
        self.messages += packet.count
        self.unwanted += packet.count - wanted

    cdef void book_for(self, uint32_t consumer, const PacketView *sent) noexcept nogil:
        cdef Booked *books = self.books + consumer
        if self.books is NULL:
            return
        if sent.sequence >= self.expected[consumer]:
            books.packets += 1
            books.left_out += sent.gap
        else:
            books.late += 1
        books.messages += sent.count

    cdef bint is_shared(self, uint64_t sequence, const uint8_t *topic, uint16_t size) noexcept nogil:
        return (
            self.begun < sequence and sequence <= self.ended
            and size == self.topic_size and memcmp(topic, self.topic, size) == 0
        )

    cdef void begin(self, uint64_t sequence, const uint8_t *topic, uint16_t size) noexcept nogil:
        """A fragmented message begins in this packet, so far without consumers."""
        self.begun = sequence
        self.ended = LAST
        self.topic_size = min(size, <uint16_t>sizeof(self.topic))
        memcpy(self.topic, topic, self.topic_size)
        self.share_count = 0
        self.word_count = 0

    cdef int share(self, uint32_t consumer, const uint64_t *mask, uint32_t word_count) noexcept nogil:
        """Add a consumer of the message. Return 0, or -1 without memory."""
        if grow(
            <void **>&self.shares, &self.share_capacity, self.share_count + 1, sizeof(Share)
        ) or grow(<void **>&self.words, &self.word_capacity, self.word_count + word_count, sizeof(uint64_t)):
            return -1
        self.shares[self.share_count].consumer = consumer
        self.shares[self.share_count].word = <uint32_t>self.word_count
        self.shares[self.share_count].word_count = word_count
        self.share_count += 1
        if word_count:
            memcpy(self.words + self.word_count, mask, word_count * sizeof(uint64_t))
        self.word_count += word_count
        return 0
