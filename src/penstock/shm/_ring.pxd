"""The critical ring's layout, and the kernels that write and read it; docs/reference/protocol/shared-memory.md draws the layout.

Only this file defines the layout as numbers. Compiled code cimports it, Python imports the same names from
penstock.shm._ring.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.base._crc32c cimport crc32c_extend, crc32c_join
from penstock.shm._memory cimport (
    Mapping,
    fence_acquire,
    fence_release,
    load_acquire,
    load_relaxed,
    spin_pause,
    store_relaxed,
    store_release,
)
from penstock.wire._codec cimport load_u32, store_u32
from penstock.wire._packets cimport PacketStore

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

    EVENTS_MIN = 4 # minimum capacity, in events of maximum size with a blank header each
    DOORBELL_SIZE = 4
    CHECKSUM_ATTEMPTS = 16


cpdef enum:
    LENGTH_CLOSED = 0xFFFFFFFF # instead of a length: the ring is closed


cdef enum State:
    STATE_BLANK
    STATE_EVENT
    STATE_CLOSED
    STATE_OVERRUN
    STATE_CHECKSUM


# Private position of one side in the ring.
cdef struct Cursor:
    uint8_t *events
    uint64_t capacity
    uint64_t begin_max      # the last offset at which an event may begin
    uint64_t at
    uint64_t sequence
    uint32_t token
    uint32_t event_size_max # maximum payload size


# Return the space of an event with this payload size.
cdef inline uint64_t event_space(uint64_t payload_size) noexcept nogil:
    return (EVENT_HEADER_SIZE + payload_size + EVENT_CHECKSUM_SIZE + EVENT_ALIGNMENT - 1) & ~<uint64_t>(
        EVENT_ALIGNMENT - 1
    )


# Check the geometry of an existing or new ring, and initialise the cursor except for the location of the events.
cdef int set_geometry(Cursor *cursor, uint64_t capacity, uint64_t event_size_max) except -1

# Get the buffer of a C-contiguous array with rows, or raise LocalProtocolError.
cdef int get_rows(rows, Py_buffer *buffer, int flags) except -1


cdef inline void cursor_begin(Cursor *cursor, uint32_t token) noexcept nogil:
    """Set the cursor to the ring's base and the first sequence number."""
    cursor.token = token
    cursor.at = 0
    cursor.sequence = 1


cdef inline void advance(Cursor *cursor, uint32_t size) noexcept nogil:
    cursor.sequence += 1
    cursor.at += event_space(size)
    if cursor.at > cursor.begin_max:
        cursor.at = 0


cdef inline uint64_t event_word(uint32_t token, uint32_t length) noexcept nogil:
    return token | <uint64_t>length << 32


cdef inline uint32_t event_checksum(
    uint64_t word, uint64_t sequence, const uint8_t *payload, uint32_t size
) noexcept nogil:
    cdef uint64_t[2] header
    header[0] = word
    header[1] = sequence
    return crc32c_extend(crc32c_extend(0, header, EVENT_HEADER_SIZE), payload, size)


cdef inline void put_blank(Cursor *cursor) noexcept nogil:
    """Write the blank header at which a reader waits for the next event."""
    cdef uint8_t *at = cursor.events + cursor.at
    store_relaxed(at, event_word(~cursor.token, 0))
    store_relaxed(at + EVENT_SEQUENCE_AT, cursor.sequence)


cdef inline uint64_t put_event(Cursor *cursor, const uint8_t *payload, uint32_t size) noexcept nogil:
    """Write an event and the blank header after it.

    Return the event's first word, which the caller must store to make the event visible.
    """
    cdef const uint8_t *copied = put_payload(cursor, payload, size)
    return end_event(cursor, size, event_checksum(event_word(cursor.token, size), cursor.sequence, copied, size))


cdef inline uint64_t put_summed(
    Cursor *cursor, const uint8_t *payload, uint32_t size, uint32_t checksum
) noexcept nogil:
    """put_event() for a payload with a known checksum; with crc32c_joins(size) the checksum is not recomputed."""
    cdef uint64_t[2] header
    put_payload(cursor, payload, size)
    header[0] = event_word(cursor.token, size)
    header[1] = cursor.sequence
    return end_event(cursor, size, crc32c_join(crc32c_extend(0, header, EVENT_HEADER_SIZE), checksum, size))


cdef inline const uint8_t *put_payload(Cursor *cursor, const uint8_t *payload, uint32_t size) noexcept nogil:
    cdef uint8_t *at = cursor.events + cursor.at + EVENT_HEADER_SIZE
    # The blank header was written before any of these bytes, so that a reader that was overrun during its copy sees the
    # header change.
    fence_release()
    if size:
        memcpy(at, payload, size)
    return at


cdef inline uint64_t end_event(Cursor *cursor, uint32_t size, uint32_t checksum) noexcept nogil:
    cdef uint8_t *at = cursor.events + cursor.at
    cdef uint64_t word = event_word(cursor.token, size)
    store_u32(at + event_space(size) - EVENT_CHECKSUM_SIZE, checksum)
    advance(cursor, size)
    put_blank(cursor)
    return word


cdef inline void push(Cursor *cursor, const uint8_t *payload, uint32_t size) noexcept nogil:
    """Write an event and make it visible. The caller has checked its size, and must ring the doorbell."""
    cdef uint8_t *at = cursor.events + cursor.at
    cdef uint64_t word = put_event(cursor, payload, size)
    store_release(at, word)


cdef inline State look(const Cursor *cursor, uint32_t *size) noexcept nogil:
    """Return the state at the cursor; `size` is set for an event."""
    cdef const uint8_t *at = cursor.events + cursor.at
    cdef uint64_t word = load_acquire(at)
    if load_relaxed(at + EVENT_SEQUENCE_AT) != cursor.sequence:
        return STATE_OVERRUN
    if <uint32_t>word == ~cursor.token:
        return STATE_BLANK
    if <uint32_t>word != cursor.token:
        return STATE_OVERRUN
    size[0] = word >> 32
    if size[0] > cursor.event_size_max:
        return STATE_CLOSED if size[0] == <uint32_t>LENGTH_CLOSED else STATE_OVERRUN
    return STATE_EVENT


cdef inline State take_event(Cursor *cursor, uint8_t *out, uint32_t size) noexcept nogil:
    """Copy the event found by look() to `out`, verify the copy and advance the cursor."""
    cdef const uint8_t *at = cursor.events + cursor.at
    cdef uint64_t word = event_word(cursor.token, size)
    cdef uint32_t checksum, size_again
    cdef int attempt
    for attempt in range(CHECKSUM_ATTEMPTS):
        memcpy(out, at + EVENT_HEADER_SIZE, size)
        checksum = load_u32(at + event_space(size) - EVENT_CHECKSUM_SIZE)
        fence_acquire()
        if look(cursor, &size_again) != STATE_EVENT or size_again != size:
            return STATE_OVERRUN
        if checksum == event_checksum(word, cursor.sequence, out, size):
            advance(cursor, size)
            return STATE_EVENT
        spin_pause()
    return STATE_CHECKSUM


cdef class RingWriter:
    cdef Mapping _mapping
    cdef Mapping _doorbell
    cdef Cursor _cursor
    cdef bint _is_busy
    cdef readonly object segment

    # write_stored() without the GIL, for packets that the store has, while nobody closes the ring. Return the number
    # of packets that could not be written: the ring is closed, or they are too large.
    cdef int put_stored(self, PacketStore store, uint64_t first, uint64_t last) noexcept nogil

    cpdef void write_stored(self, PacketStore store, uint64_t first, uint64_t last) except *
    cdef int check_open(self) except -1
    cdef int check_size(self, uint64_t size) except -1
    cdef uint64_t put(self, payload, uint8_t **at) except? 0
