"""Conversion of publishers' packets to packets of streams, as functions on pointers."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.tree.core.kernel._frame cimport (
    EXTENSION_PUBLISHED,
    HOP_SIZE,
    PUBLISHED_NUMBER_AT,
    PUBLISHED_PUBLISHER_AT,
    PUBLISHED_SIZE,
    STAGE_PUBLISH,
    packet_size_at,
)
from penstock.wire._codec cimport (
    ERROR_NONE,
    EXTENSION_HEADER_SIZE,
    EXTENSION_HOPS,
    EXTENSION_SIZE_AT,
    EXTENSION_TYPE_AT,
    KIND_DATA,
    MESSAGE_CONTINUATION,
    MESSAGE_DIRECT,
    MESSAGE_MORE,
    MessageView,
    PACKET_HEADER_SIZE,
    PacketView,
    finish_packet,
    load_u16,
    message_space,
    padded,
    parse_contents,
    parse_header,
    store_u16,
    store_u64,
    write_message,
)
from penstock.wire._extensions cimport find_extension


cdef uint32_t parse_published(
    const uint8_t *data, uint32_t at, uint32_t size, PacketView *packet, MessageView *message
) noexcept nogil:
    cdef uint32_t packet_size = packet_size_at(data + at, size - at)
    if (
        packet_size == 0
        or parse_header(data, at, packet_size, packet) != ERROR_NONE
        or packet.kind != KIND_DATA
        or packet.count != 1
        or parse_contents(data, packet, message) != ERROR_NONE
        or message.flags & (MESSAGE_DIRECT | MESSAGE_CONTINUATION | MESSAGE_MORE)
    ):
        return 0
    return packet_size


cdef uint32_t write_placed(
    uint8_t *out, uint8_t *extensions, const uint8_t *data, const PacketView *published, const MessageView *message,
    const Place *place,
) noexcept nogil:
    cdef PacketView packet
    cdef MessageView placed = message[0]
    placed.extensions_size = write_extensions(extensions, data, published, message, place.time_ns)
    memset(&packet, 0, sizeof(PacketView))
    packet.kind = KIND_DATA
    packet.count = 1
    packet.publisher_id = place.tree_id
    packet.group = place.stream
    packet.epoch = place.term
    packet.sequence = place.sequence
    packet.size = <uint32_t>(PACKET_HEADER_SIZE + message_space(&placed))
    write_message(
        out + PACKET_HEADER_SIZE, &placed, extensions, data + placed.topic_offset, data + placed.payload_offset
    )
    finish_packet(out, &packet)
    return packet.size


cdef uint32_t write_extensions(
    uint8_t *out, const uint8_t *data, const PacketView *published, const MessageView *message, int64_t time_ns
) noexcept nogil:
    """Write the message's extensions, with one more hop, and PUBLISHED, which publishers cannot set."""
    cdef const uint8_t *given = data + message.extensions_offset
    cdef const uint8_t *hops
    cdef uint32_t at = 0, used = 0, space
    cdef uint16_t kind, hops_size = 0
    while at < message.extensions_size:
        kind = load_u16(given + at + EXTENSION_TYPE_AT)
        space = <uint32_t>padded(<uint64_t>EXTENSION_HEADER_SIZE + load_u16(given + at + EXTENSION_SIZE_AT))
        if kind != EXTENSION_HOPS and kind != EXTENSION_PUBLISHED:
            memcpy(out + used, given + at, space)
            used += space
        at += space
    hops = find_extension(given, message.extensions_size, EXTENSION_HOPS, &hops_size)
    if hops is NULL or hops_size % HOP_SIZE:
        hops_size = 0
    space = <uint32_t>padded(<uint64_t>EXTENSION_HEADER_SIZE + hops_size + HOP_SIZE)
    memset(out + used, 0, space + PUBLISHED_SIZE)
    store_u16(out + used + EXTENSION_TYPE_AT, EXTENSION_HOPS)
    store_u16(out + used + EXTENSION_SIZE_AT, hops_size + HOP_SIZE)
    if hops_size:
        memcpy(out + used + EXTENSION_HEADER_SIZE, hops, hops_size)
    store_u64(out + used + EXTENSION_HEADER_SIZE + hops_size, STAGE_PUBLISH)
    store_u64(out + used + EXTENSION_HEADER_SIZE + hops_size + 8, <uint64_t>time_ns)
    used += space
    store_u16(out + used + EXTENSION_TYPE_AT, EXTENSION_PUBLISHED)
    store_u16(out + used + EXTENSION_SIZE_AT, PUBLISHED_SIZE - EXTENSION_HEADER_SIZE)
    store_u64(out + used + PUBLISHED_PUBLISHER_AT, published.publisher_id)
    store_u64(out + used + PUBLISHED_NUMBER_AT, published.sequence)
    return used + PUBLISHED_SIZE
