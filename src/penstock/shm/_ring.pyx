"""The critical ring's producer: RingWriter."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.shm._memory cimport Mapping, doorbell_ring, fetch_ahead, store_relaxed, store_release
from penstock.wire._codec cimport load_u32, store_u16, store_u32, store_u64
from penstock.wire._packets cimport PacketStore, Place

from penstock.base.clock import random_bytes
from penstock.base.errors import LocalProtocolError, SharedMemoryError
from penstock.base.limits import MESSAGE_SIZE_MAX
from penstock.base.segment import Segment
from penstock.shm.memory import create_memory

crc32c_initialise()


cdef int set_geometry(Cursor *cursor, uint64_t capacity, uint64_t event_size_max) except -1:
    cdef uint64_t room = event_space(event_size_max) + EVENT_HEADER_SIZE
    if not 1 <= event_size_max <= MESSAGE_SIZE_MAX:
        raise SharedMemoryError(
            f"invalid maximum event size {event_size_max}", hint=f"use 1 to {MESSAGE_SIZE_MAX}"
        )
    if capacity % EVENT_ALIGNMENT or capacity < EVENTS_MIN * room:
        raise SharedMemoryError(
            f"a ring of {capacity} bytes is too small for events of {event_size_max} bytes",
            hint=f"use a multiple of {EVENT_ALIGNMENT}, at least {EVENTS_MIN * room}",
        )
    cursor.capacity = capacity
    cursor.begin_max = capacity - room
    cursor.event_size_max = <uint32_t>event_size_max
    return 0


cdef uint32_t new_token(uint32_t before) except? 0:
    """Return a random token; the token and its complement (the blank token) differ from zero and from the previous
    ones.
    """
    cdef uint32_t token
    while True:
        token = int.from_bytes(random_bytes(4), "little")
        if token not in (0, UINT32_MAX, before, UINT32_MAX - before):
            return token


cdef class RingWriter:
    """The producer's end. It never waits and never reads the reader's position.

    Created by create(). Not thread-safe. `segment` is passed to the consumer; this writer keeps its ownership.
    """

    def __init__(self):
        raise LocalProtocolError("use RingWriter.create()")

    @staticmethod
    def create(capacity: int, event_size_max: int) -> RingWriter:
        """Create a ring of `capacity` bytes for events with payloads of at most `event_size_max` bytes."""
        cdef RingWriter self = RingWriter.__new__(RingWriter)
        if capacity < 0 or event_size_max < 0:
            raise SharedMemoryError("a size is negative")
        set_geometry(&self._cursor, capacity, event_size_max)
        fd, self._mapping = create_memory("penstock-ring", RING_HEADER_SIZE + capacity)
        try:
            bell_fd, self._doorbell = create_memory("penstock-doorbell", DOORBELL_SIZE, is_shared_writable=True)
        except SharedMemoryError:
            Segment("ring", (fd,)).close()
            raise
        self.segment = Segment("ring", (fd, bell_fd))
        cdef uint8_t *start = self._mapping.start
        self._cursor.events = start + RING_HEADER_SIZE
        store_u32(start + RING_MAGIC_AT, RING_MAGIC)
        store_u16(start + RING_VERSION_AT, RING_VERSION)
        store_u64(start + RING_CAPACITY_AT, capacity)
        store_u32(start + RING_EVENT_SIZE_MAX_AT, event_size_max)
        store_u32(start + RING_CHECKSUM_AT, crc32c_extend(0, start, RING_CHECKSUM_AT))
        self.restart()
        return self

    @property
    def capacity(self) -> int:
        return self._cursor.capacity

    @property
    def event_size_max(self) -> int:
        return self._cursor.event_size_max

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next event."""
        return self._cursor.sequence

    def write(self, payload not None) -> int:
        """Write one event and return its sequence number."""
        self.check_open()
        cdef uint8_t *at
        cdef uint64_t word = self.put(payload, &at)
        store_release(at, word)
        doorbell_ring(<uint32_t *>self._doorbell.start)
        return self._cursor.sequence - 1

    def write_many(self, payloads not None) -> int:
        """Write several events that become visible atomically, and return their number.

        More than half a ring becomes visible in several steps. If a payload cannot be written, the payloads before it
        are written and the error is raised.
        """
        self.check_open()
        cdef uint64_t word, first_word = 0, first_sequence = self._cursor.sequence
        cdef uint8_t *at
        cdef uint8_t *first_at = NULL
        cdef uint64_t room = 0 # of the group that becomes visible together; always enough for one more event
        self._is_busy = True
        try:
            for payload in payloads:
                word = self.put(payload, &at)
                if first_at is NULL:
                    first_at, first_word, room = at, word, self._cursor.capacity // 2
                else:
                    store_relaxed(at, word)
                room -= event_space(word >> 32)
                if room < event_space(self._cursor.event_size_max):
                    store_release(first_at, first_word)
                    first_at = NULL
        finally:
            self._is_busy = False
            if first_at is not NULL:
                store_release(first_at, first_word)
            doorbell_ring(<uint32_t *>self._doorbell.start)
        return self._cursor.sequence - first_sequence

    def write_batch(self, rows not None) -> int:
        """Write each row of a C-contiguous array as an event, like write_many(), and return the number of events.

        The payloads are the rows of a two-dimensional array of bytes, or the records of a structured array. Releases
        the GIL.
        """
        self.check_open()
        cdef Py_buffer buffer
        get_rows(rows, &buffer, 0)
        cdef uint64_t count = 0, row_size = 0
        cdef Mapping mapping = self._mapping, doorbell = self._doorbell
        self._is_busy = True
        try:
            count = buffer.shape[0]
            if count:
                row_size = buffer.len // count
                self.check_size(row_size)
                with nogil:
                    put_rows(&self._cursor, <const uint8_t *>buffer.buf, count, <uint32_t>row_size)
                    doorbell_ring(<uint32_t *>doorbell.start)
        finally:
            self._is_busy = False
            PyBuffer_Release(&buffer)
        return count

    def restart(self) -> None:
        """Restart at sequence 1 and the ring's base with a new token; the reader's restart() then succeeds.

        A reader detects the overrun at the latest at this writer's previous position, and at once if it waits there.
        """
        self.check_open()
        cdef uint8_t *token_at = self._mapping.start + RING_TOKEN_AT
        cdef uint8_t *blank_at = self._cursor.events + self._cursor.at
        cursor_begin(&self._cursor, new_token(load_u32(token_at)))
        put_blank(&self._cursor)
        store_release(token_at, self._cursor.token)
        if blank_at != self._cursor.events: # the old blank header, unless the new one has overwritten it
            store_release(blank_at + EVENT_SEQUENCE_AT, 0)
        doorbell_ring(<uint32_t *>self._doorbell.start)

    def close(self) -> None:
        """Close the ring for the reader, and unmap the memory; a second call has no effect."""
        if self._mapping is None:
            return
        self.check_open()
        store_release(self._cursor.events + self._cursor.at, event_word(self._cursor.token, <uint32_t>LENGTH_CLOSED))
        doorbell_ring(<uint32_t *>self._doorbell.start)
        self._mapping = self._doorbell = None
        self.segment.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    cpdef void write_stored(self, PacketStore store, uint64_t first, uint64_t last) except *:
        """Write the packets `first` to `last` of a store, with their trailers."""
        self.check_open()
        cdef uint64_t sequence
        cdef const Place *place
        if not store.next_sequence - store.count <= first <= last < store.next_sequence:
            raise LocalProtocolError(f"packets {first} to {last} are not all in the store")
        for sequence in range(first, last + 1):
            place = store.place(sequence)
            self.check_size(place.size + store.trailer_size)
            push(&self._cursor, store.data + place.offset, place.size + store.trailer_size)
        doorbell_ring(<uint32_t *>self._doorbell.start)
        fetch_ahead(self._cursor.events + self._cursor.at, event_space(place.size))

    cdef int put_stored(self, PacketStore store, uint64_t first, uint64_t last) noexcept nogil:
        cdef uint64_t sequence
        cdef const Place *place
        cdef int unwritten = 0
        if self._mapping is None or self._is_busy:
            return <int>(last + 1 - first)
        self._is_busy = True
        for sequence in range(first, last + 1):
            place = store.place(sequence)
            if place.size + store.trailer_size > self._cursor.event_size_max:
                unwritten += 1
            else:
                push(&self._cursor, store.data + place.offset, place.size + store.trailer_size)
        doorbell_ring(<uint32_t *>self._doorbell.start)
        self._is_busy = False
        return unwritten

    cdef int check_open(self) except -1:
        if self._mapping is None:
            raise LocalProtocolError("the ring is closed")
        if self._is_busy:
            raise LocalProtocolError("another thread is writing to the ring", hint="a ring has one producer")
        return 0

    cdef int check_size(self, uint64_t size) except -1:
        if size > self._cursor.event_size_max:
            raise LocalProtocolError(f"the event of {size} bytes exceeds the limit of {self._cursor.event_size_max}")
        return 0

    cdef uint64_t put(self, payload, uint8_t **at) except? 0:
        """Write the event at `at`; return the word that makes the event visible."""
        cdef Py_buffer content
        PyObject_GetBuffer(payload, &content, PyBUF_SIMPLE)
        try:
            if self._mapping is None: # a payload implemented in Python may have closed the ring
                raise LocalProtocolError("the ring was closed by its payload")
            self.check_size(content.len)
            at[0] = self._cursor.events + self._cursor.at
            return put_event(&self._cursor, <const uint8_t *>content.buf, <uint32_t>content.len)
        finally:
            PyBuffer_Release(&content)


cdef int get_rows(rows, Py_buffer *buffer, int flags) except -1:
    try:
        PyObject_GetBuffer(rows, buffer, PyBUF_C_CONTIGUOUS | flags)
    except (BufferError, ValueError) as error:
        raise LocalProtocolError(f"the argument is not an array of rows: {error}") from None
    if buffer.ndim < 1:
        PyBuffer_Release(buffer)
        raise LocalProtocolError("a single value has no rows")
    return 0


cdef void put_rows(Cursor *cursor, const uint8_t *row, uint64_t count, uint32_t row_size) noexcept nogil:
    """Write events that become visible together with the first of their group; a group is at most half the ring."""
    cdef uint64_t group_max = max(<uint64_t>1, cursor.capacity // 2 // event_space(row_size))
    cdef uint64_t index, word, first_word
    cdef uint8_t *at
    cdef uint8_t *first_at
    while count:
        first_at = cursor.events + cursor.at
        first_word = put_event(cursor, row, row_size)
        for index in range(1, min(group_max, count)):
            at = cursor.events + cursor.at
            word = put_event(cursor, row + index * row_size, row_size)
            store_relaxed(at, word)
        store_release(first_at, first_word)
        row += min(group_max, count) * row_size
        count -= min(group_max, count)
