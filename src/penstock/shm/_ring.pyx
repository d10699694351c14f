"""The critical ring: RingWriter and RingReader."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.shm._memory cimport (
    Mapping,
    doorbell_arm,
    doorbell_ring,
    doorbell_wait,
    fence_acquire,
    fence_release,
    load_acquire,
    load_relaxed,
    monotonic_ns,
    spin_pause,
    store_relaxed,
    store_release,
)
from penstock.wire._codec cimport load_u16, load_u32, load_u64, store_u16, store_u32, store_u64

from penstock.base.clock import random_bytes
from penstock.base.errors import LocalProtocolError, OverrunError, ProducerGoneError, RingClosedError, SharedMemoryError
from penstock.base.limits import MESSAGE_SIZE_MAX
from penstock.base.segment import Segment
from penstock.shm.memory import create_memory, open_memory

crc32c_initialise()

cdef enum:
    CHECKSUM_ATTEMPTS = 16
    SPINS_PER_CLOCK = 64
    SLICE_NS = 20_000_000 # how long a wait lasts before signals and the producer's life are looked at again

cdef int64_t TIMEOUT_NS_MAX = INT64_MAX // 2


cdef void cursor_begin(Cursor *cursor, uint32_t token) noexcept nogil:
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


cdef inline uint32_t event_checksum(uint64_t word, uint64_t sequence, const uint8_t *payload, uint32_t size) noexcept nogil:
    cdef uint64_t[2] header
    header[0] = word
    header[1] = sequence
    return crc32c_extend(crc32c_extend(0, header, EVENT_HEADER_SIZE), payload, size)


cdef void put_blank(Cursor *cursor) noexcept nogil:
    cdef uint8_t *at = cursor.events + cursor.at
    store_relaxed(at, event_word(~cursor.token, 0))
    store_relaxed(at + EVENT_SEQUENCE_AT, cursor.sequence)


cdef uint64_t put_event(Cursor *cursor, const uint8_t *payload, uint32_t size) noexcept nogil:
    cdef uint8_t *at = cursor.events + cursor.at
    cdef uint64_t word = event_word(cursor.token, size)
    # The blank header that stands here was there before any of these bytes: a reader that was overrun while it copied
    # sees that header change.
    fence_release()
    if size:
        memcpy(at + EVENT_HEADER_SIZE, payload, size)
    store_u32(at + event_space(size) - EVENT_CHECKSUM_SIZE, event_checksum(word, cursor.sequence, at + EVENT_HEADER_SIZE, size))
    advance(cursor, size)
    put_blank(cursor)
    return word


cdef State look(const Cursor *cursor, uint32_t *size) noexcept nogil:
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


cdef State take_event(Cursor *cursor, uint8_t *out, uint32_t size) noexcept nogil:
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


cdef State spin(const Cursor *cursor, int64_t until_ns) noexcept nogil:
    """Look until there is something or the time has come."""
    cdef State state
    cdef uint32_t size
    cdef int turn
    while True:
        for turn in range(SPINS_PER_CLOCK):
            state = look(cursor, &size)
            if state != STATE_BLANK:
                return state
            spin_pause()
        if monotonic_ns() >= until_ns:
            return STATE_BLANK


cdef State sleep(const Cursor *cursor, uint32_t *bell, int64_t until_ns) noexcept nogil:
    """The same without burning a core: at most one sleep, which the writer's doorbell or a signal ends."""
    cdef uint32_t size
    cdef int64_t left_ns
    doorbell_arm(bell)
    cdef State state = look(cursor, &size)
    if state == STATE_BLANK:
        left_ns = until_ns - monotonic_ns()
        if left_ns > 0:
            doorbell_wait(bell, left_ns)
        state = look(cursor, &size)
    return state


cdef int set_geometry(Cursor *cursor, uint8_t *start, uint64_t capacity, uint64_t event_size_max) except -1:
    """Check what the segment's header says and set the cursor up for it."""
    cdef uint64_t room = event_space(event_size_max) + EVENT_HEADER_SIZE
    if not 1 <= event_size_max <= MESSAGE_SIZE_MAX:
        raise SharedMemoryError(
            f"events of at most {event_size_max} bytes cannot be carried", hint=f"1 to {MESSAGE_SIZE_MAX} can"
        )
    if capacity % EVENT_ALIGNMENT or capacity < EVENTS_MIN * room:
        raise SharedMemoryError(
            f"a ring of {capacity} bytes cannot carry events of {event_size_max} bytes",
            hint=f"it takes a multiple of {EVENT_ALIGNMENT}, at least {EVENTS_MIN * room}",
        )
    cursor.events = start + RING_HEADER_SIZE
    cursor.capacity = capacity
    cursor.begin_max = capacity - room
    cursor.event_size_max = <uint32_t>event_size_max
    return 0


cdef uint32_t new_token(uint32_t before) except? 0:
    """A random number; it and its complement, the blank token, are neither zero nor those of before."""
    cdef uint32_t token
    while True:
        token = int.from_bytes(random_bytes(4), "little")
        if token not in (0, UINT32_MAX, before, UINT32_MAX - before):
            return token


cdef class RingWriter:
    """The producer's end. It never waits and never looks at what the reader has done.

    Made by create(). One thread at a time. `segment` is what a consumer needs; it stays this writer's own.
    """

    cdef Mapping _mapping
    cdef Mapping _doorbell
    cdef Cursor _cursor
    cdef bint _is_busy
    cdef readonly object segment

    def __init__(self):
        raise LocalProtocolError("RingWriter.create() makes one")

    @staticmethod
    def create(capacity: int, event_size_max: int) -> RingWriter:
        """A new ring of `capacity` bytes for events of at most `event_size_max` bytes of payload."""
        cdef RingWriter self = RingWriter.__new__(RingWriter)
        if capacity < 0 or event_size_max < 0:
            raise SharedMemoryError("sizes are not negative")
        set_geometry(&self._cursor, NULL, capacity, event_size_max)
        fd, self._mapping = create_memory("penstock-ring", RING_HEADER_SIZE + capacity)
        try:
            bell_fd, self._doorbell = create_memory("penstock-doorbell", DOORBELL_SIZE, is_shared_writable=True)
        except SharedMemoryError:
            Segment("ring", (fd,)).close()
            raise
        self.segment = Segment("ring", (fd, bell_fd))
        cdef uint8_t *start = self._mapping.start
        set_geometry(&self._cursor, start, capacity, event_size_max)
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
        """The sequence number of the event that is written next."""
        return self._cursor.sequence

    def write(self, payload not None) -> int:
        """Push one event and return its sequence number."""
        self.check_open()
        cdef uint8_t *at
        cdef uint64_t word = self.put(payload, &at)
        store_release(at, word)
        doorbell_ring(<uint32_t *>self._doorbell.start)
        return self._cursor.sequence - 1

    def write_many(self, payloads not None) -> int:
        """Push several events in one go, so that a reader sees all of them or none, and return how many.

        More than half a ring becomes visible in several goes. Of payloads with one that cannot be written, those
        before it are written and the error is raised.
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
        """Push each row of a C-contiguous array as an event, coalesced as by write_many(), and return how many.

        The rows of a two-dimensional array of bytes or the records of a structured array are the payloads. Works
        without the interpreter's lock.
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
        """Begin again at sequence 1 and the ring's base with a new token; then the reader's restart() succeeds.

        What the reader has not read is lost to it.
        """
        self.check_open()
        cdef uint8_t *token_at = self._mapping.start + RING_TOKEN_AT
        cursor_begin(&self._cursor, new_token(load_u32(token_at)))
        put_blank(&self._cursor)
        store_release(token_at, self._cursor.token)

    def close(self) -> None:
        """Tell the reader that nothing more comes, and give the memory back; a second call does nothing."""
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

    cdef int check_open(self) except -1:
        if self._mapping is None:
            raise LocalProtocolError("the ring is closed")
        if self._is_busy:
            raise LocalProtocolError("another thread is writing to the ring", hint="a ring has one producer")
        return 0

    cdef int check_size(self, uint64_t size) except -1:
        if size > self._cursor.event_size_max:
            raise LocalProtocolError(f"the event has {size} bytes, at most {self._cursor.event_size_max} fit this ring")
        return 0

    cdef uint64_t put(self, payload, uint8_t **at) except? 0:
        """Write the event at `at`; returns the word that makes it visible there."""
        cdef Py_buffer content
        PyObject_GetBuffer(payload, &content, PyBUF_SIMPLE)
        try:
            if self._mapping is None: # a payload written in Python can do anything when asked for its bytes
                raise LocalProtocolError("the ring was closed by its payload")
            self.check_size(content.len)
            at[0] = self._cursor.events + self._cursor.at
            return put_event(&self._cursor, <const uint8_t *>content.buf, <uint32_t>content.len)
        finally:
            PyBuffer_Release(&content)


cdef int64_t bounded(timeout_ns) except? -1:
    """The time-out, None as the longest one there is."""
    return TIMEOUT_NS_MAX if timeout_ns is None else max(0, min(timeout_ns, TIMEOUT_NS_MAX))


cdef int get_rows(rows, Py_buffer *buffer, int flags) except -1:
    try:
        PyObject_GetBuffer(rows, buffer, PyBUF_C_CONTIGUOUS | flags)
    except (BufferError, ValueError) as error:
        raise LocalProtocolError(f"these are no rows of bytes: {error}") from None
    if buffer.ndim < 1:
        PyBuffer_Release(buffer)
        raise LocalProtocolError("a single value has no rows")
    return 0


cdef void put_rows(Cursor *cursor, const uint8_t *row, uint64_t count, uint32_t row_size) noexcept nogil:
    """Events that follow the first of a group become visible with it; a group is at most half the ring."""
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


cdef class RingReader:
    """The consumer's end: an iterator over the payloads.

    `wait` is what it does while there is no event: "spin" for the lowest latency at the cost of a core, "block" to
    sleep until the producer wakes it. Waiting releases the interpreter's lock and ends on Ctrl-C. Iteration ends when
    the producer closes the ring. The segment stays the caller's to close, after the reader. One thread at a time.
    """

    cdef Mapping _mapping
    cdef Mapping _doorbell
    cdef Cursor _cursor
    cdef bint _is_busy
    cdef bint _is_blocking
    cdef object _lifeline

    def __init__(self, segment not None, *, wait = "spin"):
        if wait not in ("spin", "block"):
            raise LocalProtocolError(f"a reader cannot wait by {wait!r}", hint='"spin" or "block"')
        if segment.kind != "ring" or len(segment.fds) != 2:
            raise SharedMemoryError(f"the segment is a {segment.kind} of {len(segment.fds)} files, not a ring")
        cdef Mapping mapping = open_memory(segment.fds[0])
        cdef Mapping doorbell = open_memory(segment.fds[1], is_writable=True)
        check_header(&self._cursor, mapping)
        if doorbell.size < DOORBELL_SIZE:
            raise SharedMemoryError("the ring's doorbell is too small")
        mapping.populate()
        self._mapping = mapping
        self._doorbell = doorbell
        self._is_blocking = wait == "block"
        self._lifeline = segment.lifeline
        cursor_begin(&self._cursor, load_u32(mapping.start + RING_TOKEN_AT))

    @property
    def next_sequence(self) -> int:
        """The sequence number of the event that is read next."""
        return self._cursor.sequence

    def read(self, timeout_ns = None) -> bytes | None:
        """The next payload; None when there is none after `timeout_ns` (None waits without end, 0 not at all).

        OverrunError when the producer was faster by a whole ring, RingClosedError after the last event,
        ProducerGoneError when no more can come.
        """
        return self.next_payload(bounded(timeout_ns))

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.next_payload(TIMEOUT_NS_MAX)
        except RingClosedError:
            raise StopIteration from None

    def read_batch(self, rows not None, sizes = None, timeout_ns = None) -> int:
        """Read as many events as are there into the rows of a C-contiguous array, and return how many.

        Waits for the first one as read() does; 0 when there was none. `rows` is a two-dimensional array of bytes or a
        structured array. A payload shorter than a row is followed by zeros; `sizes`, an array of uint32, gets their
        lengths. One that is longer than a row is a LocalProtocolError once it comes first. Works without the
        interpreter's lock.
        """
        cdef uint32_t[::1] size_rows = sizes
        cdef Py_buffer buffer
        cdef uint64_t count = 0, row_size
        cdef State state = STATE_BLANK
        cdef uint32_t *sizes_out = NULL
        cdef Mapping mapping = self._mapping
        get_rows(rows, &buffer, PyBUF_WRITABLE)
        try:
            if buffer.shape[0] == 0 or (sizes is not None and size_rows.shape[0] < buffer.shape[0]):
                raise LocalProtocolError(f"{buffer.shape[0]} rows and no room for as many sizes")
            if sizes is not None:
                sizes_out = &size_rows[0]
            if self.wait(bounded(timeout_ns)) == STATE_BLANK:
                return 0
            row_size = buffer.len // buffer.shape[0]
            self._is_busy = True
            try:
                with nogil:
                    state = take_rows(
                        &self._cursor, <uint8_t *>buffer.buf, buffer.shape[0], row_size, sizes_out, &count
                    )
            finally:
                self._is_busy = False
            if count == 0:
                if state == STATE_EVENT:
                    raise LocalProtocolError(f"event {self._cursor.sequence} is longer than a row of {row_size} bytes")
                raise self.error(state)
            return count
        finally:
            PyBuffer_Release(&buffer)

    def restart(self) -> bool:
        """Begin again at sequence 1 if the producer has restarted the ring since, and say whether it has."""
        self.check_open()
        cdef uint32_t token = <uint32_t>load_acquire(self._mapping.start + RING_TOKEN_AT)
        if token == self._cursor.token:
            return False
        cursor_begin(&self._cursor, token)
        return True

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._mapping = self._doorbell = self._lifeline = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    cdef int check_open(self) except -1:
        if self._mapping is None:
            raise LocalProtocolError("the reader is closed")
        if self._is_busy:
            raise LocalProtocolError("another thread is reading from the ring", hint="a ring has one consumer")
        return 0

    cdef bytes next_payload(self, int64_t timeout_ns):
        cdef State state = self.wait(timeout_ns)
        if state == STATE_BLANK:
            return None
        cdef uint32_t size = 0
        state = look(&self._cursor, &size)
        cdef bytes payload
        if state == STATE_EVENT:
            payload = PyBytes_FromStringAndSize(NULL, size)
            state = take_event(&self._cursor, <uint8_t *>PyBytes_AS_STRING(payload), size)
            if state == STATE_EVENT:
                return payload
        raise self.error(state)

    cdef State wait(self, int64_t timeout_ns) except *:
        """What is at the cursor; STATE_BLANK when the time is over."""
        cdef uint32_t size
        self.check_open()
        cdef State state = look(&self._cursor, &size)
        if state != STATE_BLANK or timeout_ns == 0:
            return state
        cdef int64_t deadline_ns = monotonic_ns() + timeout_ns
        cdef int64_t until_ns
        cdef Mapping mapping = self._mapping, doorbell = self._doorbell # another thread may close()
        self._is_busy = True
        try:
            while True:
                with nogil:
                    until_ns = min(deadline_ns, monotonic_ns() + SLICE_NS)
                    if self._is_blocking:
                        state = sleep(&self._cursor, <uint32_t *>doorbell.start, until_ns)
                    else:
                        state = spin(&self._cursor, until_ns)
                if state != STATE_BLANK:
                    break
                PyErr_CheckSignals()
                self.check_producer()
                if monotonic_ns() >= deadline_ns or self._mapping is None:
                    break
        finally:
            self._is_busy = False
        if self._mapping is None:
            raise LocalProtocolError("the reader was closed while it waited")
        return state

    cdef int check_producer(self) except -1:
        cdef uint32_t size
        if self._lifeline is None or self._lifeline.peer_is_alive():
            return 0
        if look(&self._cursor, &size) == STATE_BLANK: # what it wrote before it went is still read
            raise ProducerGoneError("the producer is gone", hint="connect again: the next one makes a new ring")
        return 0

    cdef object error(self, State state):
        if state == STATE_CLOSED:
            return RingClosedError("the producer has closed the ring")
        cdef const uint8_t *at = self._cursor.events + self._cursor.at
        if state == STATE_CHECKSUM:
            return OverrunError(self._cursor.sequence, f"its checksum is wrong {CHECKSUM_ATTEMPTS} times in a row")
        token, length, found = load_u32(at), load_u32(at + EVENT_LENGTH_AT), load_u64(at + EVENT_SEQUENCE_AT)
        names = {self._cursor.token: "an event", ~self._cursor.token & UINT32_MAX: "a blank header"}
        name = names.get(token, "no header")
        return OverrunError(
            self._cursor.sequence, f"{name} with token {token:#010x}, length {length}, sequence {found}"
        )


cdef int check_header(Cursor *cursor, Mapping mapping) except -1:
    cdef uint8_t *start = mapping.start
    if mapping.size < RING_HEADER_SIZE or load_u32(start + RING_MAGIC_AT) != RING_MAGIC:
        raise SharedMemoryError("the segment is not a ring of Penstock's")
    if load_u16(start + RING_VERSION_AT) != RING_VERSION:
        raise SharedMemoryError(f"the ring has version {load_u16(start + RING_VERSION_AT)}, not {RING_VERSION}")
    if load_u32(start + RING_CHECKSUM_AT) != crc32c_extend(0, start, RING_CHECKSUM_AT):
        raise SharedMemoryError("the ring's header is damaged: its checksum is wrong")
    cdef uint64_t capacity = load_u64(start + RING_CAPACITY_AT)
    if capacity != mapping.size - RING_HEADER_SIZE:
        raise SharedMemoryError(f"the ring's header says {capacity} bytes, the segment has {mapping.size}")
    return set_geometry(cursor, start, capacity, load_u32(start + RING_EVENT_SIZE_MAX_AT))


cdef State take_rows(
    Cursor *cursor, uint8_t *row, uint64_t row_count, uint64_t row_size, uint32_t *sizes, uint64_t *count
) noexcept nogil:
    """Fill rows until they or the events end; the state that ended it, STATE_EVENT if the next one is too long."""
    cdef State state
    cdef uint32_t size = 0
    while count[0] < row_count:
        state = look(cursor, &size)
        if state != STATE_EVENT or size > row_size:
            return state
        state = take_event(cursor, row, size)
        if state != STATE_EVENT:
            return state
        if size < row_size:
            memset(row + size, 0, row_size - size)
        if sizes is not NULL:
            sizes[count[0]] = size
        row += row_size
        count[0] += 1
    return STATE_EVENT
