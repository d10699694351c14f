"""Read and write packets: kernels for `decode`, `Packer`, the batch calls and other packages.

The kernels neither allocate nor need the GIL, except to create an error. The order of the checks is part of the format:
magic, version, size, checksum, kind, contents.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise

from penstock.base import limits
from penstock.base.counters import Cause
from penstock.base.errors import PacketError

cdef extern from *:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "packets are read in place, which needs a little-endian machine"
    #endif
    """

crc32c_initialise()

cdef uint32_t packet_size_max = limits.PACKET_SIZE_MAX
cdef uint32_t topic_size_max = limits.TOPIC_SIZE_MAX

ERROR_CAUSES = {
    ERROR_FOREIGN: Cause.FOREIGN,
    ERROR_VERSION: Cause.VERSION,
    ERROR_TRUNCATED: Cause.TRUNCATED,
    ERROR_LENGTH: Cause.LENGTH,
    ERROR_CHECKSUM: Cause.CHECKSUM,
    ERROR_KIND: Cause.KIND,
}

cdef dict ERROR_TEXTS = {
    ERROR_FOREIGN: "the data is not a Penstock packet",
    ERROR_VERSION: "the packet has an unknown version",
    ERROR_TRUNCATED: "the packet is truncated",
    ERROR_LENGTH: "the packet's lengths or contents are invalid",
    ERROR_CHECKSUM: "the packet was damaged in transit: wrong checksum",
    ERROR_KIND: "the packet has an unknown kind",
}


cdef inline uint32_t checksum(const uint8_t *packet, uint32_t size) noexcept nogil:
    """Return the checksum of all bytes except the checksum's own."""
    cdef uint32_t crc = crc32c_extend(0, packet, PACKET_CHECKSUM_AT)
    return crc32c_extend(crc, packet + PACKET_PUBLISHER_ID_AT, size - PACKET_PUBLISHER_ID_AT)


cdef inline int refuse(PacketView *packet, int error, uint32_t at) noexcept nogil:
    packet.error = <uint8_t>error
    packet.error_at = at
    return error


cdef int parse_header(const uint8_t *data, uint32_t offset, uint32_t size, PacketView *packet) noexcept nogil:
    cdef const uint8_t *header = data + offset
    cdef uint32_t body_size, item_size
    memset(packet, 0, sizeof(PacketView))
    packet.offset = offset
    packet.size = size
    if size < PACKET_HEADER_SIZE or load_u16(header + PACKET_MAGIC_AT) != PACKET_MAGIC:
        return refuse(packet, ERROR_FOREIGN, PACKET_MAGIC_AT)
    if header[PACKET_VERSION_AT] != PACKET_VERSION:
        return refuse(packet, ERROR_VERSION, PACKET_VERSION_AT)
    packet.size = load_u32(header + PACKET_SIZE_AT)
    if packet.size < PACKET_HEADER_SIZE or packet.size > packet_size_max or packet.size < size:
        return refuse(packet, ERROR_LENGTH, PACKET_SIZE_AT)
    if packet.size > size:
        return refuse(packet, ERROR_TRUNCATED, PACKET_SIZE_AT)
    if load_u32(header + PACKET_CHECKSUM_AT) != checksum(header, size):
        return refuse(packet, ERROR_CHECKSUM, PACKET_CHECKSUM_AT)
    packet.kind = header[PACKET_KIND_AT]
    if packet.kind < KIND_DATA or packet.kind > KIND_GONE:
        return refuse(packet, ERROR_KIND, PACKET_KIND_AT)

    packet.flags = load_u16(header + PACKET_FLAGS_AT)
    packet.count = load_u16(header + PACKET_COUNT_AT)
    packet.publisher_id = load_u64(header + PACKET_PUBLISHER_ID_AT)
    packet.group = load_u32(header + PACKET_GROUP_AT)
    packet.epoch = load_u32(header + PACKET_EPOCH_AT)
    packet.sequence = load_u64(header + PACKET_SEQUENCE_AT)
    packet.gap = load_u32(header + PACKET_GAP_AT)
    packet.extensions_size = load_u16(header + PACKET_EXTENSIONS_SIZE_AT)
    if packet.publisher_id == 0:
        return refuse(packet, ERROR_LENGTH, PACKET_PUBLISHER_ID_AT)
    body_size = size - PACKET_HEADER_SIZE
    if packet.extensions_size > body_size or not is_extensions(header + PACKET_HEADER_SIZE, packet.extensions_size):
        return refuse(packet, ERROR_LENGTH, PACKET_EXTENSIONS_SIZE_AT)
    item_size = MESSAGE_HEADER_SIZE if packet.kind == KIND_DATA else RANGE_SIZE
    if packet.count * item_size > body_size - packet.extensions_size:
        return refuse(packet, ERROR_LENGTH, PACKET_COUNT_AT)
    return ERROR_NONE


cdef int parse_contents(const uint8_t *data, PacketView *packet, MessageView *messages) noexcept nogil:
    if packet.kind == KIND_DATA:
        return parse_messages(data, packet, messages)
    return parse_ranges(data, packet)


cdef int parse_messages(const uint8_t *data, PacketView *packet, MessageView *messages) noexcept nogil:
    cdef uint64_t at = <uint64_t>packet.offset + PACKET_HEADER_SIZE + packet.extensions_size
    cdef uint64_t end = <uint64_t>packet.offset + packet.size
    cdef uint32_t index
    cdef MessageView *message
    for index in range(packet.count):
        message = &messages[index]
        if end - at < MESSAGE_HEADER_SIZE or not parse_message(data, <uint32_t>at, <uint32_t>(end - at), message):
            return refuse(packet, ERROR_LENGTH, <uint32_t>(at - packet.offset))
        if message.flags & (MESSAGE_CONTINUATION | MESSAGE_MORE):
            if (
                (message.flags & MESSAGE_CONTINUATION and index != 0)
                or (message.flags & MESSAGE_MORE and index != <uint32_t>packet.count - 1)
                or message.payload_size == 0
            ):
                return refuse(packet, ERROR_LENGTH, <uint32_t>(at - packet.offset))
        at += message_space(message)
    if at != end:
        return refuse(packet, ERROR_LENGTH, <uint32_t>(at - packet.offset))
    return ERROR_NONE


cdef inline bint parse_message(
    const uint8_t *data, uint32_t offset, uint32_t size, MessageView *message
) noexcept nogil:
    """True if a message begins at data + offset and ends within `size` bytes, which are at least
    MESSAGE_HEADER_SIZE.
    """
    cdef const uint8_t *header = data + offset
    message.flags = load_u16(header + MESSAGE_FLAGS_AT)
    message.topic_size = load_u16(header + MESSAGE_TOPIC_SIZE_AT)
    message.payload_size = load_u32(header + MESSAGE_SIZE_AT)
    message.model_id = load_u16(header + MESSAGE_MODEL_ID_AT)
    message.model_version = load_u16(header + MESSAGE_MODEL_VERSION_AT)
    message.extensions_size = load_u16(header + MESSAGE_EXTENSIONS_SIZE_AT)
    message.reserved = 0
    message.extensions_offset = offset + MESSAGE_HEADER_SIZE
    message.topic_offset = message.extensions_offset + message.extensions_size
    message.payload_offset = message.topic_offset + <uint32_t>padded(message.topic_size)
    if message_space(message) > size or message.topic_size > topic_size_max:
        return False
    if message.topic_size == 0 and not message.flags & MESSAGE_DIRECT:
        return False
    if message.extensions_size and not is_extensions(data + message.extensions_offset, message.extensions_size):
        return False
    return is_padded_ascii(data + message.topic_offset, message.topic_size) or is_utf8(
        data + message.topic_offset, message.topic_size
    )


cdef inline bint is_padded_ascii(const uint8_t *text, uint32_t size) noexcept nogil:
    """True if all bytes are ASCII; the padding is read as well."""
    cdef uint64_t met = 0
    cdef uint32_t at = 0
    while size - at >= ALIGNMENT:
        met |= load_u64(text + at)
        at += ALIGNMENT
    if at < size:
        met |= load_u64(text + at) & ((<uint64_t>1 << 8 * (size - at)) - 1)
    return not met & 0x8080808080808080U


cdef int parse_ranges(const uint8_t *data, PacketView *packet) noexcept nogil:
    cdef uint32_t at = PACKET_HEADER_SIZE + packet.extensions_size
    cdef uint32_t index
    cdef const uint8_t *item
    if packet.count == 0 or at + <uint32_t>packet.count * RANGE_SIZE != packet.size:
        return refuse(packet, ERROR_LENGTH, PACKET_COUNT_AT)
    for index in range(packet.count):
        item = data + packet.offset + at + index * RANGE_SIZE
        if load_u64(item + RANGE_FIRST_AT) > load_u64(item + RANGE_LAST_AT):
            return refuse(packet, ERROR_LENGTH, at + index * RANGE_SIZE)
    return ERROR_NONE


cdef bint is_extensions(const uint8_t *extensions, uint32_t size) noexcept nogil:
    """True if the bytes are complete extensions, whether or not their types are known."""
    cdef uint32_t at = 0
    if size % ALIGNMENT != 0:
        return False
    while at < size:
        at += <uint32_t>padded(<uint64_t>EXTENSION_HEADER_SIZE + load_u16(extensions + at + EXTENSION_SIZE_AT))
    return at == size


cdef bint is_utf8(const uint8_t *text, uint32_t size) noexcept nogil:
    """True if Python would decode the bytes: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef uint32_t at = 0
    cdef uint32_t follow, index
    cdef uint8_t lead, second_min, second_max
    while at < size:
        if size - at >= 8 and not load_u64(text + at) & 0x8080808080808080U:
            at += 8
            continue
        lead = text[at]
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        follow = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if size - at < follow:
            return False
        second_min = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        second_max = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if text[at] < second_min or text[at] > second_max:
            return False
        for index in range(1, follow):
            if text[at + index] & 0xC0 != 0x80:
                return False
        at += follow
    return True


cdef inline uint8_t *write_padded(uint8_t *out, const uint8_t *data, uint32_t size) noexcept nogil:
    cdef uint32_t tail = size % ALIGNMENT
    if tail:
        store_u64(out + size - tail, 0)
    if size:
        memcpy(out, data, size)
    return out + padded(size)


cdef uint32_t write_message(
    uint8_t *out, const MessageView *message, const uint8_t *extensions, const uint8_t *topic, const uint8_t *payload
) noexcept nogil:
    cdef uint8_t *at = out + MESSAGE_HEADER_SIZE
    store_u16(out + MESSAGE_FLAGS_AT, message.flags)
    store_u16(out + MESSAGE_TOPIC_SIZE_AT, message.topic_size)
    store_u32(out + MESSAGE_SIZE_AT, message.payload_size)
    store_u16(out + MESSAGE_MODEL_ID_AT, message.model_id)
    store_u16(out + MESSAGE_MODEL_VERSION_AT, message.model_version)
    store_u16(out + MESSAGE_EXTENSIONS_SIZE_AT, message.extensions_size)
    store_u16(out + MESSAGE_RESERVED_AT, 0)
    at = write_padded(at, extensions, message.extensions_size)
    at = write_padded(at, topic, message.topic_size)
    at = write_padded(at, payload, message.payload_size)
    return <uint32_t>(at - out)


cdef void finish_packet(uint8_t *out, const PacketView *packet) noexcept nogil:
    store_u16(out + PACKET_MAGIC_AT, PACKET_MAGIC)
    out[PACKET_VERSION_AT] = PACKET_VERSION
    out[PACKET_KIND_AT] = packet.kind
    store_u16(out + PACKET_FLAGS_AT, packet.flags)
    store_u16(out + PACKET_COUNT_AT, packet.count)
    store_u32(out + PACKET_SIZE_AT, packet.size)
    store_u64(out + PACKET_PUBLISHER_ID_AT, packet.publisher_id)
    store_u32(out + PACKET_GROUP_AT, packet.group)
    store_u32(out + PACKET_EPOCH_AT, packet.epoch)
    store_u64(out + PACKET_SEQUENCE_AT, packet.sequence)
    store_u32(out + PACKET_GAP_AT, packet.gap)
    store_u16(out + PACKET_EXTENSIONS_SIZE_AT, packet.extensions_size)
    store_u16(out + PACKET_RESERVED_AT, 0)
    store_u32(out + PACKET_CHECKSUM_AT, checksum(out, packet.size))


cdef object packet_error(const PacketView *packet):
    """Return the exception for decode()."""
    return PacketError(
        ERROR_TEXTS[packet.error], cause=ERROR_CAUSES[packet.error], where=f"byte {packet.error_at}"
    )
