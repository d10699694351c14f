"""The critical ring's layout, and the kernels that write and read it; docs/protocol/shared-memory.md draws it.

This is the only place where the layout is written down as numbers. Compiled code cimports it, Python imports the same
names from penstock.shm._ring.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cpdef enum:
    RING_MAGIC = 0x47525350 # the bytes "PSRG"
    RING_VERSION = 1

    RING_MAGIC_AT = 0
    RING_VERSION_AT = 4
    RING_CAPACITY_AT = 8
    RING_EVENT_SIZE_MAX_AT = 16
    RING_CHECKSUM_AT = 20
    RING_TOKEN_AT = 24
    RING_HEADER_SIZE = 64

    EVENT_TOKEN_AT = 0
    EVENT_LENGTH_AT = 4
    EVENT_SEQUENCE_AT = 8
    EVENT_HEADER_SIZE = 16
    EVENT_CHECKSUM_SIZE = 4
    EVENT_ALIGNMENT = 8

    EVENTS_MIN = 4 # maximal events, each with a blank header, that a ring has room for at least
    DOORBELL_SIZE = 4


cpdef enum:
    LENGTH_CLOSED = 0xFFFFFFFF # in place of a length: no more events


cdef enum State:
    STATE_BLANK
    STATE_EVENT
    STATE_CLOSED
    STATE_OVERRUN
    STATE_CHECKSUM


# Where one side is in the ring. Nothing of it is shared.
cdef struct Cursor:
    uint8_t *events
    uint64_t capacity
    uint64_t begin_max      # the last offset at which an event may begin
    uint64_t at
    uint64_t sequence
    uint32_t token
    uint32_t event_size_max # bytes of payload


# The bytes an event with such a payload takes.
cdef inline uint64_t event_space(uint64_t payload_size) noexcept nogil:
    return (EVENT_HEADER_SIZE + payload_size + EVENT_CHECKSUM_SIZE + EVENT_ALIGNMENT - 1) & ~<uint64_t>(
        EVENT_ALIGNMENT - 1
    )


# Set the cursor to the ring's base and the first sequence number.
cdef void cursor_begin(Cursor *cursor, uint32_t token) noexcept nogil

# Write the blank header at which a reader waits for the next event.
cdef void put_blank(Cursor *cursor) noexcept nogil

# Write an event and the blank header behind it. The event's first word, which makes it visible, is left to the caller
# and returned.
cdef uint64_t put_event(Cursor *cursor, const uint8_t *payload, uint32_t size) noexcept nogil

# What is at the cursor; `size` is set for an event.
cdef State look(const Cursor *cursor, uint32_t *size) noexcept nogil

# Copy the event that look() found to `out`, verify the copy and advance.
cdef State take_event(Cursor *cursor, uint8_t *out, uint32_t size) noexcept nogil
