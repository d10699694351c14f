"""The publisher's fast path: packs a message that fits into one packet, on a checked topic, without Python.

Everything else (a new topic, several packets, several messages per packet) is left to the publisher.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongAndOverflow
from libc.stdint cimport UINT16_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

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


cdef class OutgoingCursor:
    """The position of a stream and the time of its next keep-alive. While `is_prompt`, messages are sent at once,
    and no earlier message waits."""

    cpdef uint64_t publish_one(self, str topic, payload, model_id, model_version, int64_t now_ns) except? 0:
        """Pack the message into a packet of its own, and store it. Return the packet's number, or 0 if the fast path
        cannot do this and has done nothing."""
        cdef uint64_t sequence = self.pack_one(topic, payload, model_id, model_version)
        if sequence:
            self.break_silence(now_ns)
        return sequence

    cdef uint64_t pack_one(self, str topic, payload, model_id, model_version) except? 0:
        cdef int is_beyond
        cdef long model = PyLong_AsLongAndOverflow(model_id, &is_beyond), version
        cdef bytes topic_bytes
        cdef MessageView message
        cdef Py_buffer content
        cdef PacketView packet
        if not self.is_prompt or self.packer._packet.count:
            return 0
        if is_beyond or not 0 <= model <= UINT16_MAX:
            return 0  # the packer reports the error
        version = PyLong_AsLongAndOverflow(model_version, &is_beyond)
        if is_beyond or not 0 <= version <= UINT16_MAX:
            return 0
        found = self.topics.get(topic)
        if found is None:
            return 0
        topic_bytes = found
        PyObject_GetBuffer(payload, &content, PyBUF_SIMPLE)
        memset(&message, 0, sizeof(message))
        message.topic_size = <uint16_t>len(topic_bytes)
        message.payload_size = <uint32_t>min(content.len, <Py_ssize_t>self.packer._size_max)
        message.model_id = <uint16_t>model
        message.model_version = <uint16_t>version
        packet = self.packer._packet
        packet.size = PACKET_HEADER_SIZE + <uint32_t>message_space(&message)
        packet.count = 1
        if packet.size > self.packer._size_max or packet.size + self.kept.trailer_size > self.kept.bytes_max:
            PyBuffer_Release(&content)
            return 0
        packet.flags = self.packer._flags
        if packet.sequence % self.packer._keep_alive_packets == 0:
            packet.flags |= PACKET_KEEP_ALIVE
        self.write(&packet, &message, topic_bytes, <const uint8_t *>content.buf)
        PyBuffer_Release(&content)
        self.packets_sent += 1
        self.messages_published += 1
        return packet.sequence

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
