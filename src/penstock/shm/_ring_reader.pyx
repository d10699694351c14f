"""The critical ring's consumer: RingReader."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from penstock.base._crc32c cimport crc32c_extend, crc32c_initialise
from penstock.shm._memory cimport Mapping, doorbell_arm, doorbell_wait, load_acquire, monotonic_ns, spin_pause
from penstock.shm._ring cimport (
    CHECKSUM_ATTEMPTS,
    Cursor,
    DOORBELL_SIZE,
    EVENT_LENGTH_AT,
    EVENT_SEQUENCE_AT,
    RING_CAPACITY_AT,
    RING_CHECKSUM_AT,
    RING_EVENT_SIZE_MAX_AT,
    RING_HEADER_SIZE,
    RING_MAGIC,
    RING_MAGIC_AT,
    RING_TOKEN_AT,
    RING_VERSION,
    RING_VERSION_AT,
    STATE_BLANK,
    STATE_CHECKSUM,
    STATE_CLOSED,
    STATE_EVENT,
    State,
    cursor_begin,
    get_rows,
    look,
    set_geometry,
    take_event,
)
from penstock.wire._codec cimport load_u16, load_u32, load_u64
from penstock.wire._datagrams cimport DatagramBatch

from penstock.base.errors import LocalProtocolError, OverrunError, ProducerGoneError, RingClosedError, SharedMemoryError
from penstock.shm.memory import open_memory

crc32c_initialise()

cdef enum:
    SPINS_PER_CLOCK = 64
    SLICE_NS = 20_000_000 # interval of checks for signals and for the producer's life

cdef int64_t TIMEOUT_NS_MAX = INT64_MAX // 2


cdef State spin(const Cursor *cursor, int64_t until_ns) noexcept nogil:
    """Poll until there is an event or the time has passed."""
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
    """Wait without polling: at most one sleep, which the writer's doorbell or a signal ends."""
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


cdef int64_t bounded(timeout_ns) except? -1:
    """Return the timeout, with None as the longest possible one."""
    return TIMEOUT_NS_MAX if timeout_ns is None else max(0, min(timeout_ns, TIMEOUT_NS_MAX))


cdef class RingReader:
    """The consumer's end: an iterator over the payloads.

    `wait` selects how to wait for an event: "spin" polls for the lowest latency and uses a whole core, "block" sleeps
    until the producer wakes it. Waiting releases the GIL and ends on Ctrl-C. Iteration ends when the producer closes
    the ring. The caller closes the segment, after the reader. Not thread-safe.
    """

    def __init__(self, segment not None, *, wait = "spin"):
        if wait not in ("spin", "block"):
            raise LocalProtocolError(f"invalid wait {wait!r}", hint='use "spin" or "block"')
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
        """Sequence number of the next event."""
        return self._cursor.sequence

    def read(self, timeout_ns = None) -> bytes | None:
        """Return the next payload; None if there is none within `timeout_ns` (None: no limit, 0: do not wait).

        Raises OverrunError when the producer was ahead by more than a ring, RingClosedError after the last event, and
        ProducerGoneError when the producer has ended.
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
        """Read the available events into the rows of a C-contiguous array, and return their number.

        Waits for the first event like read(); returns 0 if there is none. `rows` is a two-dimensional array of bytes or
        a structured array. A payload shorter than a row is padded with zeros; `sizes`, an array of uint32, receives the
        payload sizes. A payload longer than a row raises LocalProtocolError when it is the first. Releases the GIL.
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
                raise LocalProtocolError(f"sizes has fewer elements than the {buffer.shape[0]} rows")
            if sizes is not None:
                sizes_out = &size_rows[0]
            if self.wait(bounded(timeout_ns)) == STATE_BLANK:
                return 0
            row_size = buffer.len // buffer.shape[0]
            self._is_busy = True
            try:
                with nogil:
                    state = take_rows(
                        &self._cursor, <uint8_t *>buffer.buf, buffer.shape[0], row_size, sizes_out, &count,
                        is_padded=True,
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

    cpdef int receive(self, DatagramBatch batch, uint64_t source, int64_t timeout_ns) except -1:
        """Fill the batch with available datagrams, or wait for one; return their number. `source` is their source
        address, as a key of net's sockets.
        """
        cdef uint64_t count = 0, more = 0
        cdef uint32_t size
        cdef Py_ssize_t index
        cdef State state = STATE_BLANK
        cdef Mapping mapping = self._mapping
        batch.clear()
        if self.wait(timeout_ns) == STATE_BLANK:
            return 0
        # usually there is one event: taking it is faster than releasing and reacquiring the GIL
        state = take_rows(&self._cursor, batch.data, 1, batch.stride, batch.sizes, &count, is_padded=False)
        if count and batch.capacity > 1 and look(&self._cursor, &size) == STATE_EVENT:
            self._is_busy = True
            try:
                with nogil:
                    take_rows(
                        &self._cursor, batch.data + batch.stride, batch.capacity - 1, batch.stride, batch.sizes + 1,
                        &more, is_padded=False,
                    )
            finally:
                self._is_busy = False
            count += more
        if count == 0:
            if state == STATE_EVENT:
                raise LocalProtocolError(f"event {self._cursor.sequence} is larger than a datagram")
            raise self.error(state)
        for index in range(<Py_ssize_t>count):
            batch.sources[index] = source
            batch.arrivals_ns[index] = 0
            batch.sockets[index] = 0
        batch.count = count
        return <int>count

    def restart(self) -> bool:
        """Continue at sequence 1 if the producer has restarted the ring; return whether it has."""
        self.check_open()
        cdef uint32_t token = <uint32_t>load_acquire(self._mapping.start + RING_TOKEN_AT)
        if token == self._cursor.token:
            return False
        cursor_begin(&self._cursor, token)
        return True

    def close(self) -> None:
        """Unmap the memory; a second call has no effect."""
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
        """Wait, and return the state at the cursor; STATE_BLANK after the timeout."""
        cdef uint32_t size
        self.check_open()
        cdef State state = look(&self._cursor, &size)
        if state != STATE_BLANK or timeout_ns == 0:
            return state
        cdef int64_t deadline_ns = monotonic_ns() + timeout_ns
        cdef int64_t until_ns
        cdef Mapping mapping = self._mapping, doorbell = self._doorbell # another thread may call close()
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
        if look(&self._cursor, &size) == STATE_BLANK: # events written before the producer ended are still read
            raise ProducerGoneError("the producer has ended", hint="connect again: the next one creates a new ring")
        return 0

    cdef object error(self, State state):
        if state == STATE_CLOSED:
            return RingClosedError("the producer has closed the ring")
        cdef const uint8_t *at = self._cursor.events + self._cursor.at
        if state == STATE_CHECKSUM:
            return OverrunError(self._cursor.sequence, f"the checksum was wrong {CHECKSUM_ATTEMPTS} times in a row")
        token, length, found = load_u32(at), load_u32(at + EVENT_LENGTH_AT), load_u64(at + EVENT_SEQUENCE_AT)
        names = {self._cursor.token: "an event", ~self._cursor.token & UINT32_MAX: "a blank header"}
        name = names.get(token, "an invalid header")
        return OverrunError(
            self._cursor.sequence, f"{name} with token {token:#010x}, length {length}, sequence {found}"
        )


cdef int check_header(Cursor *cursor, Mapping mapping) except -1:
    cdef uint8_t *start = mapping.start
    if mapping.size < RING_HEADER_SIZE or load_u32(start + RING_MAGIC_AT) != RING_MAGIC:
        raise SharedMemoryError("the segment is not a Penstock ring")
    if load_u16(start + RING_VERSION_AT) != RING_VERSION:
        raise SharedMemoryError(f"the ring has version {load_u16(start + RING_VERSION_AT)}, expected {RING_VERSION}")
    if load_u32(start + RING_CHECKSUM_AT) != crc32c_extend(0, start, RING_CHECKSUM_AT):
        raise SharedMemoryError("the ring's header is damaged: wrong checksum")
    cdef uint64_t capacity = load_u64(start + RING_CAPACITY_AT)
    if capacity != mapping.size - RING_HEADER_SIZE:
        raise SharedMemoryError(f"the ring's header gives {capacity} bytes, but the segment has {mapping.size}")
    cursor.events = start + RING_HEADER_SIZE
    return set_geometry(cursor, capacity, load_u32(start + RING_EVENT_SIZE_MAX_AT))


cdef State take_rows(
    Cursor *cursor,
    uint8_t *row,
    uint64_t row_count,
    uint64_t row_size,
    uint32_t *sizes,
    uint64_t *count,
    bint is_padded,
) noexcept nogil:
    """Fill rows until rows or events are exhausted; return the final state, STATE_EVENT if the next event is too
    long.
    """
    cdef State state
    cdef uint32_t size = 0
    while count[0] < row_count:
        state = look(cursor, &size)
        if state != STATE_EVENT or size > row_size:
            return state
        state = take_event(cursor, row, size)
        if state != STATE_EVENT:
            return state
        if is_padded and size < row_size:
            memset(row + size, 0, row_size - size)
        if sizes is not NULL:
            sizes[count[0]] = size
        row += row_size
        count[0] += 1
    return STATE_EVENT
