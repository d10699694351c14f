"""Encode and decode many packets in one call: from and into the caller's memory, without the GIL.

Rows of MESSAGE_DTYPE locate each message's parts, so decoding copies nothing; the same rows are the input of
encode_batch().
"""

from libc.stdint cimport UINT32_MAX, UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

import numpy

from penstock.wire._codec cimport (
    ALIGNMENT,
    ERROR_COUNT,
    ERROR_NONE,
    KIND_DATA,
    MESSAGE_CONTINUATION,
    MESSAGE_DIRECT,
    MESSAGE_HEADER_SIZE,
    MESSAGE_MORE,
    MessageView,
    PACKET_HEADER_SIZE,
    PacketView,
    finish_packet,
    is_extensions,
    is_utf8,
    message_space,
    parse_contents,
    parse_header,
    write_message,
)
from penstock.wire._packer cimport set_stream, unsigned

from penstock.base import limits
from penstock.base.errors import LocalProtocolError
from penstock.wire._codec import ERROR_CAUSES
from penstock.wire._packer import PACKET_SIZE_MIN

# row types shared with numpy; a typed memoryview refuses an array whose fields differ
PACKET_DTYPE = numpy.dtype(
    [
        ("publisher_id", "u8"),
        ("sequence", "u8"),
        ("group", "u4"),
        ("epoch", "u4"),
        ("gap", "u4"),
        ("offset", "u4"),
        ("size", "u4"),
        ("message_start", "u4"),
        ("error_at", "u4"),
        ("flags", "u2"),
        ("count", "u2"),
        ("extensions_size", "u2"),
        ("kind", "u1"),
        ("error", "u1"),
        ("reserved", "u4"),
    ]
)
MESSAGE_DTYPE = numpy.dtype(
    [
        ("packet_index", "u4"),
        ("topic_offset", "u4"),
        ("payload_offset", "u4"),
        ("payload_size", "u4"),
        ("extensions_offset", "u4"),
        ("topic_size", "u2"),
        ("extensions_size", "u2"),
        ("flags", "u2"),
        ("model_id", "u2"),
        ("model_version", "u2"),
        ("reserved", "u2"),
    ]
)

MESSAGES_MAX = (limits.PACKET_SIZE_MAX - PACKET_HEADER_SIZE) // MESSAGE_HEADER_SIZE
"""Maximum number of messages that a packet can claim to have."""

cdef uint32_t topic_size_max = limits.TOPIC_SIZE_MAX


def decode_batch(
    const uint8_t[::1] data not None,
    const uint32_t[::1] packet_offsets not None,
    const uint32_t[::1] packet_sizes not None,
    PacketView[::1] packets_out not None,
    MessageView[::1] messages_out not None,
) -> tuple:
    """Decode the datagrams at these offsets of `data` into rows of PACKET_DTYPE and MESSAGE_DTYPE.

    Return the number of decoded packets, the number of their messages, and the number of dropped packets by cause. The
    row of a dropped packet has its error and no messages, like the row of a NACK or GONE. Decoding stops early when the
    next packet's messages might not fit: call again with the rest. `messages_out` must have at least MESSAGES_MAX rows,
    so that one packet always fits.
    """
    cdef Py_ssize_t packet_count = packet_offsets.shape[0]
    cdef Py_ssize_t messages_max = messages_out.shape[0]
    cdef Py_ssize_t decoded = 0
    cdef Py_ssize_t message_count = 0
    cdef uint64_t errors[ERROR_COUNT]
    cdef PacketView *packet
    memset(errors, 0, sizeof(errors))
    if packet_sizes.shape[0] != packet_count or packets_out.shape[0] < packet_count:
        raise LocalProtocolError("packet_offsets, packet_sizes and packets_out differ in length")
    if messages_max < MESSAGES_MAX:
        raise LocalProtocolError(f"messages_out has {messages_max} rows", hint=f"it needs at least {MESSAGES_MAX}")
    check_buffer(data.shape[0])
    with nogil:
        check_places(data.shape[0], packet_offsets, packet_sizes)
        while decoded < packet_count:
            packet = &packets_out[decoded]
            if parse_header(start_of(data), packet_offsets[decoded], packet_sizes[decoded], packet) == ERROR_NONE:
                if packet.kind == KIND_DATA and packet.count > messages_max - message_count:
                    break
                packet.message_start = <uint32_t>message_count
                message_count += decode_contents(
                    start_of(data), <uint32_t>decoded, packet, &messages_out[0] + message_count
                )
            errors[packet.error] += 1
            decoded += 1
    return decoded, message_count, {cause: errors[error] for error, cause in ERROR_CAUSES.items() if errors[error]}


cdef inline uint32_t decode_contents(
    const uint8_t *data, uint32_t packet_index, PacketView *packet, MessageView *messages
) noexcept nogil:
    """Return the number of messages in the packet; 0 for an invalid one."""
    cdef uint32_t index
    if parse_contents(data, packet, messages) != ERROR_NONE or packet.kind != KIND_DATA:
        return 0
    for index in range(packet.count):
        messages[index].packet_index = packet_index
    return packet.count


def encode_batch(
    const uint8_t[::1] topics not None,
    const uint8_t[::1] payloads not None,
    const MessageView[::1] messages not None,
    uint8_t[::1] out not None,
    PacketView[::1] packets_out not None,
    *,
    publisher_id,
    group,
    epoch,
    first_sequence = 1,
    packet_size_max = limits.PACKET_SIZE_DEFAULT,
    messages_max = MESSAGES_MAX,
) -> tuple:
    """Encode messages into packets of at most `packet_size_max` bytes and `messages_max` messages, one after another.

    A row's topic is in `topics`, its payload and extensions are in `payloads`. Return the number of packed messages and
    of packets; packets_out has the offset of each packet. Packing stops early when `out` or packets_out is full. A
    message that needs fragments is refused: use Packer.
    """
    cdef PacketView packet
    cdef Py_ssize_t message_count = messages.shape[0]
    cdef Py_ssize_t packed = 0
    cdef Py_ssize_t packet_count = 0
    cdef Py_ssize_t out_at = 0
    cdef uint32_t size_max, count_max
    if not PACKET_SIZE_MIN <= packet_size_max <= limits.PACKET_SIZE_MAX:
        raise LocalProtocolError(
            f"packet_size_max {packet_size_max} is outside {PACKET_SIZE_MIN} to {limits.PACKET_SIZE_MAX}"
        )
    if not 1 <= messages_max <= MESSAGES_MAX:
        raise LocalProtocolError(f"messages_max {messages_max} is outside 1 to {MESSAGES_MAX}")
    set_stream(&packet, publisher_id, group, epoch)
    packet.kind = KIND_DATA
    packet.sequence = unsigned(first_sequence, UINT64_MAX, "first sequence")
    size_max = packet_size_max // ALIGNMENT * ALIGNMENT
    count_max = messages_max
    check_buffer(out.shape[0])
    with nogil:
        check_messages(topics, payloads, messages, size_max - PACKET_HEADER_SIZE)
        while packed < message_count and packet_count < packets_out.shape[0]:
            packet.message_start = <uint32_t>packed
            measure_packet(&messages[packed], message_count - packed, size_max, count_max, &packet)
            if out_at + packet.size > out.shape[0]:
                break
            packet.offset = <uint32_t>out_at
            write_packet(&out[out_at], &packet, &messages[packed], start_of(topics), start_of(payloads))
            packets_out[packet_count] = packet
            packet.sequence += 1
            packed += packet.count
            packet_count += 1
            out_at += packet.size
    return packed, packet_count


cdef inline const uint8_t *start_of(const uint8_t[::1] data) noexcept nogil:
    return &data[0] if data.shape[0] else NULL


cdef int check_buffer(Py_ssize_t size) except -1:
    """Check a buffer's size: its offsets are 32-bit numbers."""
    if size > <Py_ssize_t>UINT32_MAX:
        raise LocalProtocolError(f"a batch of {size} bytes exceeds the limit of {UINT32_MAX}")
    return 0


cdef int check_places(Py_ssize_t data_size, const uint32_t[::1] offsets, const uint32_t[::1] sizes) except -1 nogil:
    cdef Py_ssize_t index
    for index in range(offsets.shape[0]):
        if <uint64_t>offsets[index] + sizes[index] > <uint64_t>data_size:
            with gil:
                raise LocalProtocolError(f"packet {index} is outside the data")
    return 0


cdef int check_messages(
    const uint8_t[::1] topics, const uint8_t[::1] payloads, const MessageView[::1] messages, uint32_t capacity
) except -1 nogil:
    cdef Py_ssize_t index
    for index in range(messages.shape[0]):
        if not is_packable(topics, payloads, &messages[index], capacity):
            with gil:
                raise LocalProtocolError(
                    f"message {index} cannot be packed",
                    hint="its UTF-8 topic and its payload must be within their buffers and fit into one packet; "
                    "use Packer for fragments",
                )
    return 0


cdef inline bint is_packable(
    const uint8_t[::1] topics, const uint8_t[::1] payloads, const MessageView *message, uint32_t capacity
) noexcept nogil:
    return (
        <uint64_t>message.topic_offset + message.topic_size <= <uint64_t>topics.shape[0]
        and <uint64_t>message.payload_offset + message.payload_size <= <uint64_t>payloads.shape[0]
        and 0 < message.topic_size <= topic_size_max
        and message_space(message) <= capacity
        and message.extensions_size % ALIGNMENT == 0
        and <uint64_t>message.extensions_offset + message.extensions_size <= <uint64_t>payloads.shape[0]
        and (
            message.extensions_size == 0
            or is_extensions(&payloads[message.extensions_offset], message.extensions_size)
        )
        and not message.flags & (MESSAGE_CONTINUATION | MESSAGE_MORE | MESSAGE_DIRECT)
        and is_utf8(&topics[message.topic_offset], message.topic_size)
    )
