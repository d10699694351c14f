"""Kernels that encode rows of messages into packets."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.wire._codec cimport MessageView, PACKET_HEADER_SIZE, PacketView, finish_packet, message_space, write_message

# Check that every row can be packed; LocalProtocolError names the first invalid one.
cdef int check_messages(
    const uint8_t[::1] topics, const uint8_t[::1] payloads, const MessageView[::1] messages, uint32_t capacity
) except -1 nogil


cdef inline void measure_packet(
    const MessageView *messages, Py_ssize_t message_count, uint32_t size_max, uint32_t count_max, PacketView *packet
) noexcept nogil:
    """Compute the number of messages for the next packet, and its size; each message alone fits."""
    cdef uint64_t size = PACKET_HEADER_SIZE
    cdef uint64_t space
    cdef uint32_t count = 0
    while count < count_max and count < message_count:
        space = message_space(&messages[count])
        if size + space > size_max:
            break
        size += space
        count += 1
    packet.size = <uint32_t>size
    packet.count = count


cdef inline void write_packet(
    uint8_t *out, const PacketView *packet, const MessageView *messages, const uint8_t *topics, const uint8_t *payloads
) noexcept nogil:
    cdef uint8_t *at = out + PACKET_HEADER_SIZE
    cdef uint32_t index
    cdef const MessageView *message
    for index in range(packet.count):
        message = &messages[index]
        at += write_message(
            at,
            message,
            payloads + message.extensions_offset,
            topics + message.topic_offset,
            payloads + message.payload_offset,
        )
    finish_packet(out, packet)
