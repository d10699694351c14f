"""Many messages in place: rows that locate each message in the received datagrams."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

import numpy

from penstock.wire._codec cimport (
    EXTENSION_INTEREST_MASK,
    MessageView,
    ORIGIN_MESSAGE_SEQUENCE_AT,
    PACKET_EPOCH_AT,
    PACKET_GROUP_AT,
    PACKET_PUBLISHER_ID_AT,
    PACKET_SEQUENCE_AT,
    PacketView,
    load_u32,
    load_u64,
)
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._extensions cimport find_extension
from penstock.wire._origin cimport find_origin
from penstock.wire._packet cimport PacketMessage, read_extensions

from penstock.base.errors import LocalProtocolError
from penstock.wire._batch import MESSAGE_DTYPE, PACKET_DTYPE


cdef MessageBatch message_batch(
    DatagramBatch datagrams,
    object packet_rows,
    object message_rows,
    const PacketView *packets,
    const MessageView *messages,
    Py_ssize_t packet_start,
    Py_ssize_t packet_count,
    Py_ssize_t message_start,
    Py_ssize_t message_count,
):
    cdef MessageBatch made = MessageBatch.__new__(MessageBatch)
    made._datagrams = datagrams
    made._generation = datagrams.generation
    made._packet_rows = packet_rows
    made._message_rows = message_rows
    made.packet = packets + packet_start
    made.message = messages + message_start
    made._packet_start = packet_start
    made._message_start = message_start
    made.packet_count_ = packet_count
    made.message_count_ = message_count
    return made


@cython.freelist(4)
cdef class MessageBatch:
    """The messages of consecutive packets, of one or several streams, in the order of delivery.

    Valid until the next datagrams are received, which reuse the memory; later access raises LocalProtocolError.
    Messages from an iteration, and the arrays of records(), are copies; `packets`, `messages` and `data` are views of
    the memory.
    """

    def __len__(self) -> int:
        return self.message_count_

    @property
    def packet_count(self) -> int:
        return self.packet_count_

    @property
    def packets(self):
        """A row of PACKET_DTYPE per packet; message_start counts from this batch's first message."""
        self.check_current()
        return self._packet_rows[self._packet_start : self._packet_start + self.packet_count_]

    @property
    def messages(self):
        """A row of MESSAGE_DTYPE per message; packet_index counts the datagrams, offsets refer to `data`."""
        self.check_current()
        return self._message_rows[self._message_start : self._message_start + self.message_count_]

    @property
    def data(self) -> memoryview:
        """The memory that all offsets refer to."""
        return self._datagrams._view.toreadonly()

    def has_topic_below(self, bytes prefix not None) -> bool:
        """True if the topic of a message begins with the prefix."""
        cdef Py_ssize_t index, size = len(prefix)
        cdef const char *start = prefix
        self.check_current()
        for index in range(self.message_count_):
            if (
                self.message[index].topic_size >= size
                and memcmp(self._datagrams.data + self.message[index].topic_offset, start, size) == 0
            ):
                return True
        return False

    def packet_data(self, Py_ssize_t index) -> memoryview:
        """The bytes of one packet."""
        self.check_current()
        if not 0 <= index < self.packet_count_:
            raise IndexError(f"the batch has no packet {index}")
        cdef const PacketView *packet = &self.packet[index]
        return self.data[packet.offset : packet.offset + packet.size]

    def numbers(self):
        """The number of each message: that in its source stream if the message has an ORIGIN, else that of its packet."""
        self.check_current()
        cdef Py_ssize_t index
        cdef const uint8_t *data = self._datagrams.data
        cdef const uint8_t *origin
        cdef const MessageView *message
        numbers = numpy.empty(self.message_count_, numpy.uint64)
        cdef uint64_t[::1] out = numbers
        for index in range(self.message_count_):
            message = &self.message[index]
            origin = NULL
            find_origin(data + message.extensions_offset, message.extensions_size, &origin)
            if origin is NULL:
                out[index] = load_u64(data + message.packet_index * self._datagrams.stride + PACKET_SEQUENCE_AT)
            else:
                out[index] = load_u64(origin + ORIGIN_MESSAGE_SEQUENCE_AT)
        return numbers

    def arrivals_ns(self):
        """The kernel's receive time of each message's datagram, by the wall clock."""
        self.check_current()
        cdef Py_ssize_t index
        arrivals = numpy.empty(self.message_count_, numpy.int64)
        cdef long long[::1] out = arrivals
        for index in range(self.message_count_):
            out[index] = self._datagrams.arrivals_ns[self.message[index].packet_index]
        return arrivals

    def packet_arrivals_ns(self):
        """The kernel's receive time of each packet's datagram, by the wall clock."""
        self.check_current()
        cdef Py_ssize_t index
        arrivals = numpy.empty(self.packet_count_, numpy.int64)
        cdef long long[::1] out = arrivals
        for index in range(self.packet_count_):
            out[index] = self._datagrams.arrivals_ns[self.packet[index].offset // self._datagrams.stride]
        return arrivals

    def records(self, dtype, int model_id = 0):
        """Return the payloads as an array of `dtype`: those with its size and, unless it is 0, of this model. Releases
        the GIL.
        """
        cdef Py_ssize_t index
        cdef Py_ssize_t taken = 0
        cdef uint32_t size = numpy.dtype(dtype).itemsize
        if size == 0:
            raise LocalProtocolError("the record size must not be 0")
        self.check_current()
        records = numpy.empty(self.message_count_, dtype)
        if self.message_count_ == 0:
            return records
        cdef uint8_t[::1] memory = records.view(numpy.uint8)
        cdef const MessageView *message
        with nogil:
            for index in range(self.message_count_):
                message = &self.message[index]
                if message.payload_size == size and (model_id == 0 or message.model_id == model_id):
                    memcpy(&memory[taken * size], self._datagrams.data + message.payload_offset, size)
                    taken += 1
        return records if taken == self.message_count_ else records[:taken]

    def select(self, is_chosen not None) -> MessageBatch:
        """Return the selected messages as a batch, which is valid as long as this one."""
        marks = numpy.ascontiguousarray(is_chosen, numpy.bool_).view(numpy.uint8)
        if marks.shape != (self.message_count_,):
            raise LocalProtocolError(f"{marks.shape} marks do not match {self.message_count_} messages")
        cdef const uint8_t[::1] chosen = marks
        if self.message_count_ == 0:
            return self
        return self.choose(&chosen[0], 0, self.message_count_, numpy.count_nonzero(marks))

    def marked_for(self, uint32_t application):
        """Return for each message whether its interest mask has the application's bit: 1 or 0, and 2 without a mask."""
        self.check_current()
        marks = numpy.empty(self.message_count_, numpy.uint8)
        cdef uint8_t[::1] out = marks
        if self.message_count_:
            with nogil:
                mark_rows(self._datagrams.data, self.message, self.message_count_, application, &out[0])
        return marks

    def group_of(self, Py_ssize_t index) -> int:
        """Return the group of a message's packet."""
        self.check_current()
        if not 0 <= index < self.message_count_:
            raise IndexError(f"the batch has no message {index}")
        cdef const uint8_t *packet = self._datagrams.data + self.message[index].packet_index * self._datagrams.stride
        return load_u32(packet + PACKET_GROUP_AT)

    def of_packet(self, Py_ssize_t index) -> list:
        """Return copies of the messages of one packet."""
        self.check_current()
        if not 0 <= index < self.packet_count_:
            raise IndexError(f"the batch has no packet {index}")
        cdef const PacketView *packet = &self.packet[index]
        cdef Py_ssize_t first = packet.message_start
        return [self.read_message(each) for each in range(first, first + packet.count)]

    def __getitem__(self, Py_ssize_t index) -> PacketMessage:
        if index < 0:
            index += self.message_count_
        if not 0 <= index < self.message_count_:
            raise IndexError(f"the batch has no message {index}")
        return self.read_message(index)

    def __iter__(self):
        cdef Py_ssize_t index
        return iter([self.read_message(index) for index in range(self.message_count_)])

    cdef int check_current(self) except -1:
        if self._generation != self._datagrams.generation:
            raise LocalProtocolError(
                "the batch is no longer valid: later datagrams were received",
                hint="copy the data from a batch before the next receive()",
            )
        return 0

    cdef PacketMessage read_message(self, Py_ssize_t index):
        self.check_current()
        cdef const MessageView *view = &self.message[index]
        cdef const uint8_t *data = self._datagrams.data
        cdef const uint8_t *packet = data + view.packet_index * self._datagrams.stride
        cdef PacketMessage message = PacketMessage.__new__(PacketMessage)
        message.topic = PyUnicode_DecodeUTF8(<const char *>data + view.topic_offset, view.topic_size, NULL)
        message.payload = PyBytes_FromStringAndSize(<const char *>data + view.payload_offset, view.payload_size)
        message.publisher_id = load_u64(packet + PACKET_PUBLISHER_ID_AT)
        message.sequence = load_u64(packet + PACKET_SEQUENCE_AT)
        message.epoch = load_u32(packet + PACKET_EPOCH_AT)
        message.flags = view.flags
        message.model_id = view.model_id
        message.model_version = view.model_version
        if view.extensions_size:
            message._extensions = read_extensions(data + view.extensions_offset, view.extensions_size)
        return message

    cdef MessageBatch choose(self, const uint8_t *is_chosen, Py_ssize_t first, Py_ssize_t end, Py_ssize_t count):
        self.check_current()
        if count == self.message_count_:
            return self
        packet_rows = numpy.empty(max(self.packet_count_, 1), PACKET_DTYPE)
        message_rows = numpy.empty(max(count, 1), MESSAGE_DTYPE)
        cdef PacketView[::1] packets = packet_rows
        cdef MessageView[::1] messages = message_rows
        cdef Py_ssize_t packet_count = choose_rows(
            self.packet, self.packet_count_, self.message, is_chosen, first, end, &packets[0], &messages[0]
        )
        return message_batch(
            self._datagrams, packet_rows, message_rows, &packets[0], &messages[0], 0, packet_count, 0, count
        )


cdef Py_ssize_t choose_rows(
    const PacketView *packets,
    Py_ssize_t packet_count,
    const MessageView *messages,
    const uint8_t *is_chosen,
    Py_ssize_t first,
    Py_ssize_t end,
    PacketView *packets_out,
    MessageView *messages_out,
) noexcept nogil:
    """Copy the rows of the selected messages, and of the packets that contain some; return the number of packets."""
    cdef Py_ssize_t index, each
    cdef Py_ssize_t taken = 0
    cdef Py_ssize_t packets_taken = 0
    cdef Py_ssize_t before
    for index in range(packet_count):
        before = taken
        for each in range(packets[index].message_start, packets[index].message_start + packets[index].count):
            if first <= each < end and is_chosen[each]:
                messages_out[taken] = messages[each]
                taken += 1
        if taken > before:
            packets_out[packets_taken] = packets[index]
            packets_out[packets_taken].message_start = <uint32_t>before
            packets_out[packets_taken].count = <uint16_t>(taken - before)
            packets_taken += 1
    return packets_taken


cdef void mark_rows(
    const uint8_t *data, const MessageView *messages, Py_ssize_t count, uint32_t application, uint8_t *marks
) noexcept nogil:
    cdef uint32_t word = application // 64
    cdef uint16_t size = 0
    cdef Py_ssize_t index
    cdef const uint8_t *mask
    for index in range(count):
        mask = find_extension(
            data + messages[index].extensions_offset, messages[index].extensions_size, EXTENSION_INTEREST_MASK, &size
        )
        if mask is NULL:
            marks[index] = 2
        else: # words beyond the mask's end are 0
            marks[index] = <uint64_t>8 * word + 8 <= size and (load_u64(mask + 8 * word) >> (application % 64)) & 1
