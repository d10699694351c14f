"""The layout of source messages in datagrams and files; docs/reference/protocol/feeds.md has drawings.

MoldUDP64 (big-endian)             IEX-TP (little-endian)
  0  session          10 bytes       0  version            u8    12  payload size    u16
 10  first sequence   u64            2  message protocol   u16   14  message count   u16
 18  message count    u16            4  channel            u32   16  stream offset   u64
 20  messages                        8  session            u32   24  first sequence  u64
                                                                 32  send time       i64
                                                                 40  messages

SoupBinTCP (big-endian): 0 size of what follows u16, 2 type, 3 content.

Each message is preceded by its size in two bytes of the same order. A file of ITCH has only such messages.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cpdef enum:
    MOLD_SESSION_SIZE = 10
    MOLD_SEQUENCE_AT = 10
    MOLD_COUNT_AT = 18
    MOLD_HEADER_SIZE = 20
    MOLD_COUNT_HEARTBEAT = 0
    MOLD_COUNT_END = 0xFFFF

    IEXTP_VERSION = 1
    IEXTP_VERSION_AT = 0
    IEXTP_PROTOCOL_AT = 2
    IEXTP_CHANNEL_AT = 4
    IEXTP_SESSION_AT = 8
    IEXTP_PAYLOAD_SIZE_AT = 12
    IEXTP_COUNT_AT = 14
    IEXTP_OFFSET_AT = 16
    IEXTP_SEQUENCE_AT = 24
    IEXTP_TIME_AT = 32
    IEXTP_HEADER_SIZE = 40

    SOUP_TYPE_AT = 2
    SOUP_HEADER_SIZE = 3

    SIZE_SIZE = 2  # bytes of the size before a message

    # datagram formats implemented in compiled code
    MOLD = 1
    IEXTP = 2

cdef enum Fault:
    SOUND = 0
    TRUNCATED = 1  # the datagram is shorter than its header says
    LENGTH = 2  # the datagram is longer, or its sizes are contradictory
    FOREIGN = 3  # the datagram has another format
    VERSION = 4

cdef struct Segment:
    uint8_t session[16]  # zero-padded; for IEX-TP protocol, channel and session as in the header
    uint64_t first_sequence
    uint32_t count          # of messages; 0 in a heartbeat and at the end of a session
    uint32_t offset  # of the first message's size field
    bint is_end             # of the session

cdef inline uint32_t big_u16(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 8 | at[1]

cdef inline uint32_t little_u16(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[1] << 8 | at[0]

cdef inline uint32_t block_size(int kind, const uint8_t *at) noexcept nogil:
    return little_u16(at) if kind == IEXTP else big_u16(at)

# Check a datagram of MOLD or IEXTP: all sizes are verified before any content is used.
cdef Fault open_datagram(int kind, const uint8_t *data, Py_ssize_t size, Segment *segment) noexcept nogil


cdef class Blocks:
    cdef object _batch
    cdef readonly Py_ssize_t consumed


cdef class SoupData:
    cdef object _batch
    cdef readonly Py_ssize_t end
