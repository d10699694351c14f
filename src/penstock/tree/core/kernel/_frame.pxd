"""Blocks of packets on a link of a distribution tree; docs/reference/protocol/tree.md has drawings.

Only this file defines the layout in numbers. Compiled code cimports it, Python imports the same names from
penstock.tree.core.kernel._frame.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.wire._codec cimport (
    ALIGNMENT,
    PACKET_HEADER_SIZE,
    PACKET_SIZE_AT,
    load_u32,
    store_u32,
)

cpdef enum:
    FRAME_LENGTH_SIZE = 4  # of net.framing; the length counts the following bytes

    BLOCK_LENGTH_AT = 0
    BLOCK_KIND_AT = 4
    BLOCK_RESERVED_AT = 5
    BLOCK_LEG_AT = 8
    BLOCK_RESERVED_TOO_AT = 12
    BLOCK_HEADER_SIZE = 16
    BLOCK_SIZE_MAX = 131_072  # including the header
    FRAME_SIZE_MAX = 4_194_308  # a control message, including its length

    KIND_PACKETS = 1
    KIND_PUBLISHED = 2
    ACKNOWLEDGE = 1         # the leg of a publisher's block: acknowledge now what came up to its end
    KIND_CONTROL = 0x80     # and above: the first byte of a message in msgpack

    EXTENSION_PUBLISHED = 7  # of a message, in addition to those of the packet format
    STAGE_PUBLISH = 3           # of a hop

    PUBLISHED_PUBLISHER_AT = 8  # from the start of a PUBLISHED extension, including its header
    PUBLISHED_NUMBER_AT = 16
    PUBLISHED_SIZE = 24
    HOP_SIZE = 16


cdef inline void write_block_header(uint8_t *out, uint8_t kind, uint32_t leg, uint32_t packets_size) noexcept nogil:
    store_u32(out + BLOCK_LENGTH_AT, packets_size + BLOCK_HEADER_SIZE - FRAME_LENGTH_SIZE)
    store_u32(out + BLOCK_KIND_AT, kind)
    store_u32(out + BLOCK_LEG_AT, leg)
    store_u32(out + BLOCK_RESERVED_TOO_AT, 0)


cdef inline uint32_t packet_size_at(const uint8_t *data, uint64_t size) noexcept nogil:
    """The size of the packet that begins here, if it can be one and ends within `size` bytes; else 0."""
    cdef uint32_t packet_size
    if size < PACKET_HEADER_SIZE:
        return 0
    packet_size = load_u32(data + PACKET_SIZE_AT)
    if packet_size < PACKET_HEADER_SIZE or packet_size > size or packet_size % ALIGNMENT:
        return 0
    return packet_size


# True if these are whole packets, one after another, by their sizes.
cdef bint are_packets(const uint8_t *data, uint64_t size) noexcept nogil
