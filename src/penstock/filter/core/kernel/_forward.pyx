"""Forwarder: writes, for every consumer, a packet with only its messages and the gap before it.

The topics of many packets are matched at once. Each packet is then processed twice: the first pass finds the consumers
of each message (takings), the second pass writes the consumers' packets into the outbox. Nothing changes before it is
certain that all of them fit.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from libc.stdint cimport UINT16_MAX, UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from penstock.filter.core.kernel._account cimport LAST, Share, StreamAccount, grow
from penstock.filter.core.kernel._condition cimport is_met
from penstock.filter.core.kernel._consumers cimport NOBODY, Consumer, Consumers, Home, Slot
from penstock.filter.core.kernel._matching cimport Matcher
from penstock.middleware.core._streams cimport StreamIndex
from penstock.topics._store cimport lowest_bit
from penstock.wire._codec cimport (
    ALIGNMENT,
    ERROR_NONE,
    EXTENSION_DESTINATION,
    EXTENSION_HEADER_SIZE,
    EXTENSION_INTEREST_MASK,
    EXTENSION_SIZE_AT,
    EXTENSION_TYPE_AT,
    KIND_DATA,
    MESSAGE_CONTINUATION,
    MESSAGE_DIRECT,
    MESSAGE_EXTENSIONS_SIZE_AT,
    MESSAGE_HEADER_SIZE,
    MESSAGE_MORE,
    TRAILER_SIZE,
    MessageView,
    PACKET_GOODBYE,
    PACKET_HEADER_SIZE,
    PACKET_KEEP_ALIVE,
    PacketView,
    finish_packet,
    load_u64,
    message_space,
    packet_error,
    padded,
    parse_contents,
    parse_header,
    store_u16,
)
from penstock.wire._extensions cimport find_extension
from penstock.wire._messages cimport MessageBatch
from penstock.wire._outbox cimport Outbox

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.wire import MESSAGES_MAX

cdef enum:
    WORD_BITS = 64
    ACCOUNTED = -1
    EVERYBODY = -1

cdef uint32_t packet_size_max = PACKET_SIZE_MAX
cdef uint32_t masked_size_max = PACKET_SIZE_MAX - TRAILER_SIZE  # a trailer may follow


cdef class Forwarder(Consumers):
    """Slots are the subscribers of the `table`: an application's interests under one condition.

    Use it in one thread; another thread may change only the table meanwhile. `seed` is a random number.
    """

    def __cinit__(
        self, table not None, *, uint32_t consumers_max, uint32_t slots_max, Outbox outbox not None, uint64_t seed
    ):
        if not outbox.has_room(consumers_max, <uint64_t>consumers_max * packet_size_max) or not consumers_max:
            raise LocalProtocolError(
                f"the outbox has no room for a packet for each of {consumers_max} consumers",
                hint="create it with Outbox.for_consumers()",
            )
        self.outbox = outbox
        self.matcher = Matcher(table)
        self._accounts = StreamIndex(seed)
        self._takers = <uint32_t *>malloc(consumers_max * sizeof(uint32_t))
        self._messages = <MessageView *>malloc(MESSAGES_MAX * sizeof(MessageView))
        if self._takers is NULL or self._messages is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._takers)
        free(self._takings)
        free(self._words)
        free(self._messages)

    @property
    def table(self):
        return self.matcher.table

    def clear_consumer(self, uint64_t consumer) -> None:
        """Remove a consumer with its slots and applications from all streams."""
        Consumers.clear_consumer(self, consumer)
        for account in self._accounts._entries:
            account.leave(consumer)

    def use(self, Outbox outbox not None) -> Outbox:
        """Use this outbox from now on; return the previous one."""
        before, self.outbox = self.outbox, outbox
        return before

    def open(self, uint64_t publisher_id, uint32_t group, uint32_t epoch) -> StreamAccount:
        """Open a stream without listeners. It replaces an earlier stream of the publisher."""
        cdef PyObject *known = self._accounts.find(publisher_id, group)
        if known is not NULL:
            self._accounts.remove(<StreamAccount>known)
        account = StreamAccount(publisher_id, group, epoch, self.consumers_max)
        self._accounts.add(account)
        return account

    def close(self, StreamAccount account not None) -> None:
        """The stream has ended."""
        self._accounts.remove(account)

    # Packets

    def forward(self, MessageBatch messages not None, int64_t start = 0) -> int:
        """Forward the packets from index `start` on, which are in the order of their streams.

        Return the index where it stopped: the number of packets, or less when the outbox was full. In that case send
        and clear the outbox, and continue from there.
        """
        cdef const PacketView *packets = messages.packet
        cdef int64_t done = 0, count = messages.packet_count_ - start
        cdef uint64_t first
        cdef int trouble
        view = messages._datagrams._view
        messages.check_current()
        if not 0 <= start <= messages.packet_count_:
            raise LocalProtocolError(f"the batch has {messages.packet_count_} packets, {start} is out of range")
        if count == 0:
            return start
        first = packets[start].message_start
        with nogil:
            self.matcher.match(
                messages._datagrams.data, view, messages.message + first, messages.message_count_ - first
            )
            trouble = self.forward_rows(messages._datagrams.data, packets + start, count, messages.message, &done)
        if trouble > TROUBLE_FULL:
            raise_trouble(trouble, packets + start + done)
        return start + done

    def forward_packet(
        self, data not None, StreamAccount account not None, *, gap = None, bint to_all = False, only = None,
        uint16_t flags = 0,
    ) -> int:
        """Forward one packet that is not simply the next one of its stream. Return the number of consumers that get a
        packet.

        `gap` is the gap that consumers get; by default it follows from the account, and consumers that already know
        this number get nothing. A late packet has `gap` for consumers that know its number, and the account's gap for
        others. With `to_all`, all listening consumers get the packet, even without a message; with `only`, one consumer
        gets it. `flags` are added to the packet's. The outbox must have room for a packet for each consumer, or nothing
        is done (LimitError).
        """
        cdef PacketView packet
        cdef Py_buffer content
        cdef Work work
        cdef uint64_t before = self.outbox.count
        cdef int trouble
        work.gap = ACCOUNTED if gap is None else check_gap(gap)
        work.only = EVERYBODY if only is None else only
        work.flags = flags
        work.is_to_all = to_all
        self.check_order(account, only)
        view = memoryview(data)
        PyObject_GetBuffer(data, &content, PyBUF_SIMPLE)
        try:
            work.data = <const uint8_t *>content.buf
            if parse_header(work.data, 0, <uint32_t>min(content.len, <Py_ssize_t>UINT32_MAX), &packet) != ERROR_NONE:
                raise packet_error(&packet)
            if parse_contents(work.data, &packet, self._messages) != ERROR_NONE:
                raise packet_error(&packet)
            if packet.kind != KIND_DATA or (packet.publisher_id, packet.group, packet.epoch) != (
                account.publisher_id, account.group, account.epoch
            ):
                raise LocalProtocolError("the packet belongs to another stream")
            work.packet = &packet
            work.messages = self._messages
            work.topic = 0
            with nogil:
                self.matcher.match(work.data, view, self._messages, packet.count)
                trouble = self.forward_one(account, &work)
            raise_trouble(trouble, &packet)
        finally:
            PyBuffer_Release(&content)
        return self.outbox.count - before

    def catch_up(
        self, StreamAccount account not None, uint64_t sequence, *, only = None, uint16_t flags = 0
    ) -> int:
        """Send listening consumers an empty packet with this number; its gap accounts for all packets up to this number
        that a consumer did not get. Return the number of consumers that get the packet."""
        cdef PacketView packet
        cdef Work work
        cdef uint64_t before = self.outbox.count
        memset(&packet, 0, sizeof(PacketView))
        packet.kind = KIND_DATA
        packet.publisher_id = account.publisher_id
        packet.group = account.group
        packet.epoch = account.epoch
        packet.sequence = sequence
        packet.flags = flags
        packet.size = PACKET_HEADER_SIZE
        memset(&work, 0, sizeof(Work))
        work.packet = &packet
        work.gap = ACCOUNTED
        work.only = EVERYBODY if only is None else only
        work.is_to_all = True
        self.check_order(account, only)
        raise_trouble(self.forward_one(account, &work), &packet)
        return self.outbox.count - before

    cdef int check_order(self, StreamAccount account, only) except -1:
        if account.consumers_max != self.consumers_max:
            raise LocalProtocolError("the account belongs to another forwarder")
        if only is not None:
            self.check_consumer(only)
        return 0

    cdef int forward_rows(
        self, const uint8_t *data, const PacketView *packets, int64_t packet_count, const MessageView *messages,
        int64_t *done
    ) noexcept nogil:
        cdef Work work
        cdef PyObject *account
        cdef int trouble
        memset(&work, 0, sizeof(Work))
        work.data = data
        work.gap = ACCOUNTED
        work.only = EVERYBODY
        while done[0] < packet_count:
            work.packet = packets + done[0]
            work.messages = messages + work.packet.message_start
            account = self._accounts.find(work.packet.publisher_id, work.packet.group)
            if account is NULL or (<StreamAccount>account).epoch != work.packet.epoch:
                return TROUBLE_STREAM
            trouble = self.forward_one(<StreamAccount>account, &work)
            if trouble != TROUBLE_NONE:
                return trouble
            done[0] += 1
        return TROUBLE_NONE

    cdef int forward_one(self, StreamAccount account, Work *work) noexcept nogil:
        cdef const PacketView *packet = work.packet
        cdef uint64_t size
        cdef uint32_t index
        cdef int wanted = self.take_messages(account, work)
        if wanted < 0:
            return TROUBLE_MEMORY
        if work.is_to_all or packet.flags & (PACKET_KEEP_ALIVE | PACKET_GOODBYE):
            self.take_empty(account, work)
        size = 0
        for index in range(self._taker_count):
            size += packet_size(&self.consumers[self._takers[index]], packet)
        if not self.outbox.has_room(self._taker_count, size):
            return TROUBLE_FULL
        work.is_late = packet.sequence < account.position
        if work.data is not NULL and work.only == EVERYBODY:
            self.packets_in += 1
            self.messages_in += packet.count
            self.messages_unwanted += packet.count - wanted
            account.book(packet, wanted, work.is_late)
        if not work.is_late and work.only == EVERYBODY:
            if self.remember(account, work):
                return TROUBLE_MEMORY
            account.position = packet.sequence + 1
            if account.kept is not None and work.data is not NULL:
                account.kept.keep_packet(packet.sequence, work.data + packet.offset, packet.size)
        for index in range(self._taker_count):
            self.write(account, work, self._takers[index])
        return TROUBLE_NONE

    # Finding the consumers of messages. These functions return 0, or -1 without memory.

    cdef int take_messages(self, StreamAccount account, Work *work) noexcept nogil:
        """Return the number of messages with a consumer, or -1 without memory."""
        cdef uint32_t index
        cdef uint64_t takings
        cdef int wanted = 0
        self._work_count += 1
        self._taker_count = 0
        self._taking_count = 1
        self._word_count = 0
        if is_nobodys(self.matcher, work):
            work.topic += work.packet.count
            return 0
        for index in range(work.packet.count):
            takings = self._taking_count
            if self.take_message(account, work, index):
                return -1
            wanted += self._taking_count != takings
        return wanted

    cdef int take_message(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil:
        cdef const MessageView *message = work.messages + index
        cdef int status
        if message.flags & MESSAGE_CONTINUATION and account.is_shared(
            work.packet.sequence, work.data + message.topic_offset, message.topic_size
        ):
            status = self.take_shares(account, work, index)
        elif message.flags & MESSAGE_CONTINUATION and account.is_passing:
            status = self.take_unjudged(account, work, index)
        elif message.flags & MESSAGE_DIRECT:
            status = self.take_direct(account, work, index)
        else:
            status = self.take_matched(account, work, index)
        work.topic += message.flags & MESSAGE_DIRECT == 0
        return status

    cdef int take_matched(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil:
        """Take by interests and conditions. A fragment without a known first fragment has no payload to check."""
        cdef const MessageView *message = work.messages + index
        cdef uint64_t at = self.matcher.results[work.topic], end = self.matcher.results[work.topic + 1]
        cdef const Slot *slot
        while at < end:
            if self.matcher.found.subscribers[at] < self.slots_max:
                slot = self.slots + self.matcher.found.subscribers[at]
                if slot.consumer != NOBODY and (
                    slot.terms is NULL
                    or message.flags & MESSAGE_CONTINUATION
                    or is_met(slot.terms, message, work.data + message.payload_offset)
                ):
                    if self.take_bit(account, work, index, slot.consumer, slot.bit):
                        return -1
            at += 1
        return 0

    cdef int take_direct(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil:
        cdef uint16_t size = 0
        cdef const MessageView *message = work.messages + index
        cdef const uint8_t *body = find_extension(
            work.data + message.extensions_offset, message.extensions_size, EXTENSION_DESTINATION, &size
        )
        cdef const Home *home
        if body is NULL or size != sizeof(uint64_t):
            return 0
        home = self.home_of(load_u64(body))
        if home is NULL:
            return 0
        return self.take_bit(account, work, index, home.consumer, home.bit)

    cdef int take_shares(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil:
        """Give a fragment to the consumers of the message's first fragment."""
        cdef const Share *share
        cdef Taking *taking
        cdef uint64_t each
        cdef uint32_t word
        for each in range(account.share_count):
            share = account.shares + each
            taking = self.take(account, work, index, share.consumer)
            if taking is NULL:
                if self._taking_count == 0:
                    return -1
                continue
            for word in range(min(share.word_count, <uint32_t>self.consumers[share.consumer].word_count)):
                self._words[taking.word + word] |= account.words[share.word + word]
        return 0

    cdef int take_unjudged(self, StreamAccount account, Work *work, uint32_t index) noexcept nogil:
        """Give a fragment to all listening consumers, for all their applications: its first fragment may still reach
        them."""
        cdef Taking *taking
        cdef uint32_t block, number, word
        cdef uint64_t bits
        for block in range(self.consumers_max // WORD_BITS + 1):
            bits = account.listening[block]
            while bits:
                number = block * WORD_BITS + lowest_bit(bits)
                bits &= bits - 1
                taking = self.take(account, work, index, number)
                if taking is NULL:
                    if self._taking_count == 0:
                        return -1
                    continue
                for word in range(self.consumers[number].word_count):
                    self._words[taking.word + word] = UINT64_MAX
        return 0

    cdef int take_bit(
        self, StreamAccount account, Work *work, uint32_t index, uint32_t number, uint16_t bit
    ) noexcept nogil:
        cdef Taking *taking = self.take(account, work, index, number)
        if taking is NULL:
            return -1 if self._taking_count == 0 else 0
        if bit // WORD_BITS < self.consumers[number].word_count:
            self._words[taking.word + bit // WORD_BITS] |= <uint64_t>1 << bit % WORD_BITS
        return 0

    cdef Taking *take(self, StreamAccount account, Work *work, uint32_t index, uint32_t number) noexcept nogil:
        """Return the consumer's taking of this message. Return NULL if the consumer must not have the message, or, if
        there are no takings, if memory is exhausted."""
        cdef Consumer *consumer = &self.consumers[number]
        cdef Taking *taking
        cdef uint32_t word
        if not is_for(account, work, number):
            return NULL
        if consumer.packet != self._work_count:
            self.begin_taking(number)
        elif consumer.last and self._takings[consumer.last].message == index:
            return self._takings + consumer.last
        if grow(
            <void **>&self._takings, &self._taking_capacity, self._taking_count + 1, sizeof(Taking)
        ) or grow(
            <void **>&self._words, &self._word_capacity, self._word_count + consumer.word_count, sizeof(uint64_t)
        ):
            self._taking_count = 0
            return NULL
        taking = self._takings + self._taking_count
        taking.message = index
        taking.next = 0
        taking.word = self._word_count
        for word in range(consumer.word_count):
            self._words[self._word_count + word] = 0
        self._word_count += consumer.word_count
        if consumer.last:
            self._takings[consumer.last].next = <uint32_t>self._taking_count
        else:
            consumer.first = <uint32_t>self._taking_count
        consumer.last = <uint32_t>self._taking_count
        consumer.count += 1
        consumer.size += <uint32_t>message_space(work.messages + index)
        self._taking_count += 1
        return taking

    cdef void take_empty(self, StreamAccount account, Work *work) noexcept nogil:
        """Give all listening consumers a packet, even without a message."""
        cdef uint32_t block, number
        cdef uint64_t bits
        for block in range(self.consumers_max // WORD_BITS + 1):
            bits = account.listening[block]
            while bits:
                number = block * WORD_BITS + lowest_bit(bits)
                bits &= bits - 1
                if self.consumers[number].packet != self._work_count and is_for(account, work, number):
                    self.begin_taking(number)

    cdef Consumer *begin_taking(self, uint32_t number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        consumer.packet = self._work_count
        consumer.first = 0
        consumer.last = 0
        consumer.count = 0
        consumer.size = 0
        self._takers[self._taker_count] = number
        self._taker_count += 1
        return consumer

    cdef int remember(self, StreamAccount account, Work *work) noexcept nogil:
        """Store the consumers of a message that begins here and continues in the next packet, or note that one has
        ended."""
        cdef const PacketView *packet = work.packet
        cdef const MessageView *message
        cdef const Consumer *consumer
        cdef uint32_t index
        if account.begun != LAST and account.ended == LAST:
            if packet.count == 0 or not work.messages[0].flags & MESSAGE_CONTINUATION:
                account.ended = packet.sequence - 1
            elif not work.messages[0].flags & MESSAGE_MORE:
                account.ended = packet.sequence
        if packet.count == 0:
            return 0
        message = work.messages + (packet.count - 1)
        if message.flags & (MESSAGE_MORE | MESSAGE_CONTINUATION) != MESSAGE_MORE:
            return 0
        account.begin(packet.sequence, work.data + message.topic_offset, message.topic_size)
        for index in range(self._taker_count):
            consumer = &self.consumers[self._takers[index]]
            if consumer.last and self._takings[consumer.last].message == <uint32_t>packet.count - 1:
                if account.share(
                    self._takers[index], self._words + self._takings[consumer.last].word, consumer.word_count
                ):
                    return -1
        return 0

    # Writing the packets

    cdef void write(self, StreamAccount account, Work *work, uint32_t number) noexcept nogil:
        cdef Consumer *consumer = &self.consumers[number]
        cdef PacketView packet = work.packet[0]
        cdef uint8_t *out
        cdef uint8_t *at
        cdef const Taking *taking
        cdef uint32_t next_taking = consumer.first
        cdef uint32_t word_count = consumer.word_count if is_masked(consumer, work.packet) else 0
        packet.size = packet_size(consumer, work.packet)
        packet.count = <uint16_t>consumer.count
        packet.flags |= work.flags
        packet.gap = <uint32_t>work.gap
        if work.gap == ACCOUNTED or (work.is_late and packet.sequence >= account.expected[number]):
            packet.gap = <uint32_t>min(packet.sequence - account.expected[number], <uint64_t>UINT32_MAX)
        account.book_for(number, &packet)
        account.expected[number] = max(account.expected[number], packet.sequence + 1)
        out = self.outbox.reserve(packet.size)
        at = out + PACKET_HEADER_SIZE
        if packet.extensions_size:
            memcpy(at, work.data + packet.offset + PACKET_HEADER_SIZE, packet.extensions_size)
            at += packet.extensions_size
        while next_taking:
            taking = self._takings + next_taking
            at = copy_message(at, work.data, work.messages + taking.message, self._words + taking.word, word_count)
            next_taking = taking.next
        finish_packet(out, &packet)
        self.outbox.commit(number, packet.size)
        consumer.packets_out += 1
        consumer.messages_out += packet.count
        self.packets_out += 1
        self.messages_out += packet.count


cdef inline bint is_for(StreamAccount account, const Work *work, uint32_t number) noexcept nogil:
    """True if the consumer may get the packet at all."""
    cdef uint64_t expected = account.expected[number]
    if expected == 0 or (work.only != EVERYBODY and work.only != number):
        return False
    return work.gap != ACCOUNTED or work.packet.sequence >= expected


cdef inline bint is_nobodys(Matcher matcher, const Work *work) noexcept nogil:
    """True if obviously no consumer takes any message, as with most packets."""
    cdef uint16_t count = work.packet.count
    return (
        count and not matcher.has_direct and not work.messages[0].flags & MESSAGE_CONTINUATION
        and matcher.results[work.topic] == matcher.results[work.topic + count]
    )


cdef inline uint32_t mask_space(const Consumer *consumer) noexcept nogil:
    """Size of an INTEREST_MASK extension."""
    return <uint32_t>padded(<uint64_t>EXTENSION_HEADER_SIZE + consumer.word_count * sizeof(uint64_t))


cdef inline bint is_masked(const Consumer *consumer, const PacketView *packet) noexcept nogil:
    """Masks are omitted if they would make the packet too long; applications without a mask match by themselves."""
    return consumer.word_count and (
        PACKET_HEADER_SIZE + packet.extensions_size + <uint64_t>consumer.size
        + <uint64_t>consumer.count * mask_space(consumer) <= masked_size_max
    )


cdef inline uint32_t packet_size(const Consumer *consumer, const PacketView *packet) noexcept nogil:
    cdef uint32_t size = PACKET_HEADER_SIZE + packet.extensions_size + consumer.size
    return size + consumer.count * mask_space(consumer) if is_masked(consumer, packet) else size


cdef inline uint8_t *copy_message(
    uint8_t *out, const uint8_t *data, const MessageView *message, const uint64_t *words, uint32_t word_count
) noexcept nogil:
    """Copy the message, with a mask as its last extension if there are words; return the end."""
    cdef const uint8_t *start = data + message.extensions_offset - MESSAGE_HEADER_SIZE
    cdef uint32_t head = MESSAGE_HEADER_SIZE + message.extensions_size
    cdef uint32_t rest = <uint32_t>message_space(message) - head
    cdef uint32_t mask_size = word_count * sizeof(uint64_t)
    memcpy(out, start, head)
    if word_count:
        store_u16(
            out + MESSAGE_EXTENSIONS_SIZE_AT,
            message.extensions_size + <uint16_t>padded(EXTENSION_HEADER_SIZE + mask_size),
        )
        out += head
        store_u16(out + EXTENSION_TYPE_AT, EXTENSION_INTEREST_MASK)
        store_u16(out + EXTENSION_SIZE_AT, <uint16_t>mask_size)
        memcpy(out + EXTENSION_HEADER_SIZE, words, mask_size)
        memset(out + EXTENSION_HEADER_SIZE + mask_size, 0, ALIGNMENT - EXTENSION_HEADER_SIZE)
        out += padded(EXTENSION_HEADER_SIZE + mask_size)
    else:
        out += head
    memcpy(out, start + head, rest)
    return out + rest


cdef int64_t check_gap(gap) except -1:
    if not 0 <= gap <= UINT32_MAX:
        raise LocalProtocolError(f"a packet cannot have a gap of {gap}")
    return gap


cdef int raise_trouble(int trouble, const PacketView *packet) except -1:
    if trouble == TROUBLE_MEMORY:
        raise MemoryError
    if trouble == TROUBLE_STREAM:
        raise LocalProtocolError(
            f"packet {packet.sequence} belongs to a stream that was not opened",
            where=f"publisher {packet.publisher_id:#x}, group {packet.group:#x}, epoch {packet.epoch}",
        )
    if trouble == TROUBLE_FULL:
        raise LimitError("the outbox is full", hint="send its content first")
    return 0
