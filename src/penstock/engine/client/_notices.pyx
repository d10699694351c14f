"""Notices: passes notices of written records from a ring to the watches of these records."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from penstock.base._crc32c cimport crc32c_initialise
from penstock.engine.core.kernel._event cimport NOTICE, Head, read_head
from penstock.engine.client._watch cimport Watch
from penstock.shm._memory cimport Mapping
from penstock.shm._ring cimport STATE_BLANK, STATE_EVENT, State, look, take_event
from penstock.shm._ring_reader cimport RingReader

from penstock.base.errors import RemoteProtocolError

crc32c_initialise()

cdef enum:
    EVENTS_MAX = 65_536  # maximum number taken in one call, so that a fast producer cannot occupy the reader


cdef class Notices:
    """One thread calls drain()."""

    cdef dict _routes
    cdef uint8_t *_block
    cdef uint64_t _capacity
    cdef uint64_t _size  # of other events than notices
    cdef readonly uint64_t count

    def __cinit__(self):
        self._routes = {}

    def __dealloc__(self):
        free(self._block)

    def route(self, model_id, list watches not None) -> None:
        """Replace the watches of this model's records."""
        self._routes[model_id] = watches

    def drain(self, RingReader ring not None, int64_t timeout_ns) -> bytes:
        """Pass on the notices that are in the ring or arrive within the timeout. Return other events as whole events.

        Raises the errors of RingReader.read(), and RemoteProtocolError for invalid events.
        """
        cdef uint32_t size = 0
        cdef State state = STATE_BLANK
        cdef Mapping mapping = ring._mapping  # another thread may close it
        cdef int left = EVENTS_MAX
        self._size = 0
        if ring.wait(timeout_ns) == STATE_BLANK:
            return b""
        while left:
            left -= 1
            self.reserve(self._size + ring._cursor.event_size_max)
            state = look(&ring._cursor, &size)
            if state == STATE_EVENT:
                state = take_event(&ring._cursor, self._block + self._size, size)
            if state != STATE_EVENT:
                break
            self.sort(size)
        if state != STATE_EVENT and state != STATE_BLANK and left == EVENTS_MAX - 1:
            raise ring.error(state)
        return PyBytes_FromStringAndSize(<const char *>self._block, self._size)

    cdef int reserve(self, uint64_t size) except -1:
        cdef uint8_t *block
        if size > self._capacity:
            block = <uint8_t *>realloc(self._block, 2 * size)
            if block is NULL:
                raise MemoryError
            self._block, self._capacity = block, 2 * size
        return 0

    cdef int sort(self, uint32_t size) except -1:
        """Sort the next `size` bytes of events: pass notices on, keep other events."""
        cdef Head head
        cdef uint64_t at = self._size, end = self._size + size
        cdef uint32_t taken
        while at < end:
            taken = read_head(self._block + at, end - at, &head)
            if taken == 0:
                raise RemoteProtocolError(f"{end - at} bytes in the ring of notices do not begin an event")
            if head.kind == NOTICE:
                self.pass_on(&head)
            else:
                if at != self._size:
                    memmove(self._block + self._size, self._block + at, taken)  # they may overlap
                self._size += taken
            at += taken
        return 0

    cdef int pass_on(self, const Head *head) except -1:
        cdef Watch watch
        self.count += 1
        for watch in self._routes.get(head.model_id, ()):
            if head.slot < watch.store.geometry.record_count:
                watch.touch(head.slot)
        return 0
