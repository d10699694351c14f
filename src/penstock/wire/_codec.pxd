"""The packet format's layout, and the kernels that read and write it; docs/reference/protocol/packet.md draws it.

This is the only place where the layout is written down as numbers. Compiled code cimports it, Python imports the same
names from penstock.wire._codec.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cpdef enum:
    PACKET_MAGIC = 0x5350 # the bytes "PS"
    PACKET_VERSION = 1

    PACKET_MAGIC_AT = 0
    PACKET_VERSION_AT = 2
    PACKET_KIND_AT = 3
    PACKET_FLAGS_AT = 4
    PACKET_COUNT_AT = 6
    PACKET_SIZE_AT = 8
    PACKET_CHECKSUM_AT = 12
    PACKET_PUBLISHER_ID_AT = 16
    PACKET_GROUP_AT = 24
    PACKET_EPOCH_AT = 28
    PACKET_SEQUENCE_AT = 32
    PACKET_GAP_AT = 40
    PACKET_EXTENSIONS_SIZE_AT = 44
    PACKET_RESERVED_AT = 46
    PACKET_HEADER_SIZE = 48

    MESSAGE_FLAGS_AT = 0
    MESSAGE_TOPIC_SIZE_AT = 2
    MESSAGE_SIZE_AT = 4
    MESSAGE_MODEL_ID_AT = 8
    MESSAGE_MODEL_VERSION_AT = 10
    MESSAGE_EXTENSIONS_SIZE_AT = 12
    MESSAGE_RESERVED_AT = 14
    MESSAGE_HEADER_SIZE = 16

    EXTENSION_TYPE_AT = 0
    EXTENSION_SIZE_AT = 2
    EXTENSION_HEADER_SIZE = 4

    RANGE_FIRST_AT = 0
    RANGE_LAST_AT = 8
    RANGE_SIZE = 16

    # from the start of the authentication trailer, which follows a packet in its datagram
    TRAILER_MAGIC = 0x5441 # the bytes "AT"
    TRAILER_VERSION = 1
    TRAILER_MAGIC_AT = 0
    TRAILER_VERSION_AT = 2
    TRAILER_RESERVED_AT = 3
    TRAILER_KEY_ID_AT = 4
    TRAILER_TAG_AT = 8
    TRAILER_TAG_SIZE = 16
    TRAILER_SIZE = 24

    ALIGNMENT = 8

    KIND_DATA = 1
    KIND_NACK = 2
    KIND_GONE = 3

    PACKET_KEEP_ALIVE = 1
    PACKET_REPAIR = 2
    PACKET_REPLAY = 8
    PACKET_GOODBYE = 16

    MESSAGE_CONTINUATION = 1
    MESSAGE_MORE = 2
    MESSAGE_SEALED = 4
    MESSAGE_DIRECT = 8

    EXTENSION_ORIGIN = 1
    EXTENSION_HOPS = 2
    EXTENSION_SEAL = 3
    EXTENSION_INTEREST_MASK = 4
    EXTENSION_DESTINATION = 5
    EXTENSION_TAGS = 6

    # from the start of an ORIGIN extension, its header included; all of it is aligned as the record is
    ORIGIN_STREAM_ID_AT = 4
    ORIGIN_TERM_AT = 8
    ORIGIN_INDEX_AT = 12
    ORIGIN_FLAGS_AT = 14
    ORIGIN_SOURCE_SEQUENCE_AT = 16
    ORIGIN_MESSAGE_SEQUENCE_AT = 24
    ORIGIN_SIZE = 32

    ORIGIN_SYNCHRONISED = 1
    ORIGIN_DISCONTINUITY = 2
    ORIGIN_IMAGE = 4


cpdef enum:
    """What is wrong with a packet; ERROR_CAUSES names the Cause of each."""
    ERROR_NONE = 0
    ERROR_FOREIGN = 1
    ERROR_VERSION = 2
    ERROR_TRUNCATED = 3
    ERROR_LENGTH = 4
    ERROR_CHECKSUM = 5
    ERROR_KIND = 6
    ERROR_COUNT = 7


# A packet and a message as found in a buffer, every length checked; offsets count from the buffer's start. These are
# the rows of PACKET_DTYPE and MESSAGE_DTYPE, so the batch kernels write straight into numpy arrays.
cdef struct PacketView:
    uint64_t publisher_id
    uint64_t sequence
    uint32_t group
    uint32_t epoch
    uint32_t gap
    uint32_t offset
    uint32_t size
    uint32_t message_start # the row of the packet's first message
    uint32_t error_at      # the offset within the packet where the error was met
    uint16_t flags
    uint16_t count         # messages, or ranges
    uint16_t extensions_size
    uint8_t kind
    uint8_t error
    uint32_t reserved


cdef struct MessageView:
    uint32_t packet_index
    uint32_t topic_offset
    uint32_t payload_offset
    uint32_t payload_size
    uint32_t extensions_offset
    uint16_t topic_size
    uint16_t extensions_size
    uint16_t flags
    uint16_t model_id
    uint16_t model_version
    uint16_t reserved


# Numbers of the packet, which need not be aligned.
cdef inline uint16_t load_u16(const uint8_t *at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, sizeof(value))
    return value


cdef inline uint32_t load_u32(const uint8_t *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, sizeof(value))
    return value


cdef inline uint64_t load_u64(const uint8_t *at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, sizeof(value))
    return value


cdef inline void store_u16(uint8_t *at, uint16_t value) noexcept nogil:
    memcpy(at, &value, sizeof(value))


cdef inline void store_u32(uint8_t *at, uint32_t value) noexcept nogil:
    memcpy(at, &value, sizeof(value))


cdef inline void store_u64(uint8_t *at, uint64_t value) noexcept nogil:
    memcpy(at, &value, sizeof(value))


cdef inline uint64_t padded(uint64_t size) noexcept nogil:
    """The size with its zero padding."""
    return (size + (ALIGNMENT - 1)) & ~<uint64_t>(ALIGNMENT - 1)


cdef inline uint64_t message_space(const MessageView *message) noexcept nogil:
    """The bytes the message takes in a packet."""
    return (<uint64_t>MESSAGE_HEADER_SIZE + message.extensions_size + padded(message.topic_size)
            + padded(message.payload_size))


# Check the datagram of `size` bytes at data + offset up to its contents, and fill in `packet`; the error is also
# packet.error. After ERROR_NONE, a DATA packet has room for packet.count message headers.
cdef int parse_header(const uint8_t *data, uint32_t offset, uint32_t size, PacketView *packet) noexcept nogil

# Check the contents of a packet that parse_header() accepted; messages has room for packet.count rows of a DATA packet.
cdef int parse_contents(const uint8_t *data, PacketView *packet, MessageView *messages) noexcept nogil

cdef bint is_extensions(const uint8_t *extensions, uint32_t size) noexcept nogil
cdef bint is_utf8(const uint8_t *text, uint32_t size) noexcept nogil

# Write the message's header, extensions, topic and payload with their padding; returns message_space(message).
cdef uint32_t write_message(
    uint8_t *out, const MessageView *message, const uint8_t *extensions, const uint8_t *topic, const uint8_t *payload
) noexcept nogil

# Write the header in front of the packet.size - PACKET_HEADER_SIZE bytes that are in place already, and the checksum.
cdef void finish_packet(uint8_t *out, const PacketView *packet) noexcept nogil

cdef object packet_error(const PacketView *packet)
