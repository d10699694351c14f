"""The row types of captured messages, in addition to those of penstock.wire."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.wire._codec cimport (
    MessageView,
    ORIGIN_FLAGS_AT,
    ORIGIN_INDEX_AT,
    ORIGIN_MESSAGE_SEQUENCE_AT,
    ORIGIN_SOURCE_SEQUENCE_AT,
    ORIGIN_STREAM_ID_AT,
    ORIGIN_TERM_AT,
    load_u16,
    load_u32,
    load_u64,
)
from penstock.wire._origin cimport find_origin

cdef enum:
    AHEAD = 16 # prefetch distance, in messages


# A row of ORIGIN_DTYPE; all zero for a message without ORIGIN.
cdef struct OriginRow:
    uint32_t stream_id
    uint16_t part
    uint16_t flags
    uint64_t term
    uint64_t source_seq
    uint64_t seq


# A row of PLACE_DTYPE: the position of a message in a journal.
cdef struct PlaceRow:
    uint64_t record
    int64_t captured_ns
    uint64_t publisher
    uint64_t packet
    uint32_t group
    uint32_t epoch
    uint16_t flags
    uint16_t reserved
    uint32_t reserved_too


# A row of STREAM_DTYPE: counts of one epoch of a publisher's stream.
cdef struct StreamRow:
    uint64_t publisher
    uint32_t group
    uint32_t epoch
    uint64_t first_record
    uint64_t last_record
    uint64_t first_packet
    uint64_t last_packet
    uint64_t packets
    uint64_t packets_lost
    uint64_t packets_leapt
    uint64_t packets_repaired
    uint64_t packets_repeated
    uint64_t packets_reordered
    uint64_t messages
    uint64_t bytes
    uint64_t recent # bit n: packet last_packet - n was received


cdef inline bint read_origin(const uint8_t *payloads, const MessageView *row, OriginRow *out) noexcept nogil:
    """True if the message has a valid ORIGIN; its extensions must be complete and within the payloads."""
    cdef const uint8_t *origin = NULL
    if not find_origin(payloads + row.extensions_offset, row.extensions_size, &origin) or origin is NULL:
        return False
    out.stream_id = load_u32(origin + ORIGIN_STREAM_ID_AT)
    out.part = load_u16(origin + ORIGIN_INDEX_AT)
    out.flags = load_u16(origin + ORIGIN_FLAGS_AT)
    out.term = load_u32(origin + ORIGIN_TERM_AT)
    out.source_seq = load_u64(origin + ORIGIN_SOURCE_SEQUENCE_AT)
    out.seq = load_u64(origin + ORIGIN_MESSAGE_SEQUENCE_AT)
    return True
