"""The publisher's fast path: packs a message that fits into one packet, on a checked topic, without Python.

Everything else (a new topic, several packets) is left to the publisher.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongAndOverflow
from libc.stdint cimport UINT16_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.wire._codec cimport (
    MessageView,
    PACKET_HEADER_SIZE,
    PACKET_KEEP_ALIVE,
    PacketView,
    finish_packet,
    message_space,
    write_message,
)
from penstock.wire._packer cimport Packer
from penstock.wire._packets cimport PacketStore


cdef enum:
    UNSENT_MAX = 32  # complete packets that wait to be sent together


cdef class OutgoingCursor:
    """The position of a stream and the time of its next keep-alive. While `is_prompt`, no message waits in the core.

    Messages that append_one() packed wait in the packer's open packet and in the newest `unsent` packets of the store;
    the driver sends them before it passes anything else to the core.
    """

    cpdef uint64_t publish_one(self, str topic, payload, model_id, model_version, int64_t now_ns) except? 0:
        """Pack the message into a packet of its own, and store it. Return the packet's number, or 0 if the fast path
        cannot do this and has done nothing."""
        cdef uint64_t sequence = self.pack_one(topic, payload, model_id, model_version)
        if sequence:
            self.break_silence(now_ns)
        return sequence

    def append(self, str topic not None, payload not None, model_id, model_version) -> bool:
        """append_one() for Python."""
        return self.append_one(topic, payload, model_id, model_version)

    def take_unsent(self, int64_t now_ns) -> tuple:
        """Complete the open packet. Return the first and last number of the packets to send, which are then no longer
        unsent; (1, 0) if there is none."""
        cdef uint64_t last
        self.close_packet()
        if self.unsent == 0:
            return 1, 0
        self.break_silence(now_ns)
        last = self.kept.next_sequence - 1
        first, self.unsent = last + 1 - self.unsent, 0
        return first, last

    cdef uint64_t pack_one(self, str topic, payload, model_id, model_version) except? 0:
        cdef MessageView message
        cdef Py_buffer content
        cdef PacketView packet
        cdef bytes topic_bytes
        if self.packer._packet.count:
            return 0
        topic_bytes = self.describe(topic, payload, model_id, model_version, &message, &content)
        if topic_bytes is None:
            return 0
        packet = self.packer._packet
        packet.size = PACKET_HEADER_SIZE + <uint32_t>message_space(&message)
        packet.count = 1
        packet.flags = self.next_flags()
        self.write(&packet, &message, topic_bytes, <const uint8_t *>content.buf)
        PyBuffer_Release(&content)
        self.packets_sent += 1
        self.messages_published += 1
        return packet.sequence

    cdef bint append_one(self, str topic, payload, model_id, model_version) except -1:
        cdef MessageView message
        cdef Py_buffer content
        cdef bytes topic_bytes = self.describe(topic, payload, model_id, model_version, &message, &content)
        if topic_bytes is None:
            return False
        if message_space(&message) > self.packer._size_max - self.packer._packet.size:
            self.close_packet()
        self.packer.put(&message, topic_bytes, NULL, <const uint8_t *>content.buf)
        PyBuffer_Release(&content)
        self.messages_published += 1
        return True

    cdef bytes describe(
        self, str topic, payload, model_id, model_version, MessageView *message, Py_buffer *content
    ):
        """Fill in the message and get the payload's buffer, which the caller releases. None if the fast path cannot
        pack the message."""
        cdef int is_beyond
        cdef long model = PyLong_AsLongAndOverflow(model_id, &is_beyond), version
        if not self.is_prompt:
            return None
        if is_beyond or not 0 <= model <= UINT16_MAX:
            return None  # the packer reports the error
        version = PyLong_AsLongAndOverflow(model_version, &is_beyond)
        if is_beyond or not 0 <= version <= UINT16_MAX:
            return None
        found = self.topics.get(topic)
        if found is None:
            return None
        PyObject_GetBuffer(payload, content, PyBUF_SIMPLE)
        memset(message, 0, sizeof(message[0]))
        message.topic_size = <uint16_t>len(<bytes>found)
        message.payload_size = <uint32_t>min(content.len, <Py_ssize_t>self.packer._size_max)
        message.model_id = <uint16_t>model
        message.model_version = <uint16_t>version
        if PACKET_HEADER_SIZE + message_space(message) > min(
            <uint64_t>self.packer._size_max, self.kept.bytes_max - min(self.kept.bytes_max, self.kept.trailer_size)
        ):
            PyBuffer_Release(content)
            return None
        return found

    cdef uint16_t next_flags(self) noexcept nogil:
        """The flags of the next packet."""
        if self.packer._packet.sequence % self.packer._keep_alive_packets == 0:
            return self.packer._flags | PACKET_KEEP_ALIVE
        return self.packer._flags

    cdef void close_packet(self) noexcept nogil:
        cdef PacketView *packet = &self.packer._packet
        cdef uint8_t *out
        if packet.count == 0:
            return
        packet.flags = self.next_flags()
        out = self.kept.reserve(packet.size)
        memcpy(out + PACKET_HEADER_SIZE, self.packer._out + PACKET_HEADER_SIZE, packet.size - PACKET_HEADER_SIZE)
        finish_packet(out, packet)
        self.kept.commit(packet.size)
        packet.sequence += 1
        packet.count = 0
        packet.size = PACKET_HEADER_SIZE
        self.packets_sent += 1
        self.unsent += 1

    @property
    def is_full(self) -> bool:
        """has_no_room() for Python."""
        return self.has_no_room()

    cdef bint has_no_room(self) noexcept nogil:
        cdef uint64_t room = self.kept.bytes_max // (self.packer._size_max + self.kept.trailer_size)
        return self.unsent + 1 >= min(<uint64_t>UNSENT_MAX, min(self.kept.packets_max, room))

    cdef void break_silence(self, int64_t now_ns) noexcept nogil:
        self.silence_ns = self.silence_first_ns
        self.keep_alive_deadline_ns = now_ns + self.silence_first_ns

    cdef uint64_t publish_rows(
        self, const uint8_t *topics, const uint8_t *payloads, const MessageView *rows, Py_ssize_t count, int64_t now_ns
    ) noexcept nogil:
        cdef PacketView packet
        cdef uint64_t first
        if not self.is_prompt or self.packer._packet.count:
            return 0
        packet = self.packer._packet
        packet.flags = self.packer._flags
        first = packet.sequence
        self.packets_sent += self.kept.pack_rows(
            topics, payloads, rows, count, &packet, self.packer._size_max, self.packer._keep_alive_packets
        )
        self.packer._packet.sequence = self.kept.next_sequence
        self.messages_published += count
        self.break_silence(now_ns)
        return first

    cdef void write(self, const PacketView *packet, const MessageView *message, const uint8_t *topic,
                    const uint8_t *payload) noexcept:
        cdef uint8_t *out = self.kept.reserve(packet.size)
        write_message(out + PACKET_HEADER_SIZE, message, NULL, topic, payload)
        finish_packet(out, packet)
        self.kept.commit(packet.size)
        self.packer._packet.sequence += 1
