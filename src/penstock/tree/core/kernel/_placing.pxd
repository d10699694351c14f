"""Converts a publisher's packet to a packet of a stream: the same message with its sequence, time and publisher."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.tree.core.kernel._frame cimport PUBLISHED_SIZE
from penstock.wire._codec cimport MessageView, PacketView

cdef enum:
    GROWTH_MAX = 2 * PUBLISHED_SIZE  # maximum growth of a packet: a hop, and PUBLISHED


cdef struct Place:
    uint64_t tree_id
    uint64_t sequence
    int64_t time_ns
    uint32_t stream
    uint32_t term


# Parse the packet that begins here. Return its size if it is complete and has exactly one message; otherwise 0.
cdef uint32_t parse_published(
    const uint8_t *data, uint32_t at, uint32_t size, PacketView *packet, MessageView *message
) noexcept nogil

# Write it as the stream's packet. Return its size. `extensions` is working memory for a packet's extensions.
cdef uint32_t write_placed(
    uint8_t *out, uint8_t *extensions, const uint8_t *data, const PacketView *published, const MessageView *message,
    const Place *place,
) noexcept nogil

# Upper bound of the size after write_placed().
cdef inline uint64_t placed_size_max(const PacketView *published) noexcept nogil:
    return <uint64_t>published.size + GROWTH_MAX
