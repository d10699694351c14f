"""Frames to a connected socket from any thread: a frame that comes alone is sent at once by the caller, and the frames
of a burst share system calls and segments (net/_burst.pyx).

All bytes to the socket pass the writer, so that frames keep their order. The socket's owner reads from it, and notices
the end of the connection.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from penstock.net._burst cimport NEVER_NS, Burst, Flusher
from penstock.net._epoll cimport MSG_DONTWAIT, MSG_NOSIGNAL, send
from penstock.net._udp cimport udp_monotonic_ns

from penstock.base.clock import NS_PER_US

FLUSHER = "penstock-flusher"

cdef enum:
    FULL_SIZE = 32_768         # waiting bytes that are sent without further ones
    KEPT_SIZE = 131_072        # memory that an idle writer keeps
    LENGTH_SIZE = 4
    BLOCKED_NS = 500_000       # interval of attempts while the socket has no room

cdef size_t NO_FRAME = <size_t>-1


cdef class LinkWriter(Flushable):
    """`linger_us` bounds the wait of a frame; 0: no frame waits. The caller bounds what is unsent."""

    def __init__(self, int fd, int64_t linger_us) -> None:
        super().__init__(Burst(linger_us * <int64_t>NS_PER_US))
        self._fd = fd
        self._frame_at = NO_FRAME
        self._oldest_ns = NEVER_NS
        self._flusher = Flusher(self, FLUSHER)

    def __dealloc__(self):
        free(self._data)

    @property
    def unsent(self) -> int:
        """Number of bytes that wait, or that the socket did not take."""
        return self._end - self._begin

    def write(self, bytes data not None) -> None:
        """Send whole frames now, after those that wait."""
        with self.turn:
            self.put(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            self._frame_at = NO_FRAME
            self.send_all()
            if self._is_blocked:
                self._flusher.wake()

    def add(self, bytes frame not None) -> None:
        """Send a frame; in a burst, it may wait for further ones."""
        with self.turn:
            self.append(<const uint8_t *>PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame), NULL, 0, 0)

    def flush(self) -> None:
        """Send what waits."""
        with self.turn:
            self.send_all()
            if self._is_blocked:
                self._flusher.wake()

    def close(self) -> bytes:
        """Stop sending; return the unsent bytes."""
        with self.turn:
            self._is_closed = True
            rest = PyBytes_FromStringAndSize(<const char *>self._data + self._begin, self._end - self._begin)
            self._begin = self._end = 0
            self._is_blocked = False
        self._flusher.stop()
        return rest

    cdef int append(
        self, const uint8_t *head, size_t head_size, const uint8_t *body, size_t size, size_t frame_size_max
    ) except -1:
        cdef int64_t now_ns = udp_monotonic_ns()
        cdef bint joins = self.burst.joins(now_ns)
        cdef uint32_t length
        if self._frame_at != NO_FRAME and self._end - self._frame_at + size <= frame_size_max:
            self.put(body, size)
            length = <uint32_t>(self._end - self._frame_at - LENGTH_SIZE)
            memcpy(self._data + self._frame_at, &length, sizeof(length))
        else:
            self.put(head, head_size)
            if size:
                self.put(body, size)
            self._frame_at = self._end - head_size - size if frame_size_max else NO_FRAME
        if self._is_blocked:
            return 0
        if not joins or self._end - self._begin >= FULL_SIZE or self.burst.is_due(self._oldest_ns, now_ns):
            self.send_all()
        elif self._oldest_ns == NEVER_NS:
            self._oldest_ns = now_ns
        if self._end > self._begin:
            self._flusher.wake()
        self.burst.end_call(udp_monotonic_ns())
        return 0

    cdef int put(self, const uint8_t *data, size_t size) except -1:
        cdef void *bigger
        cdef size_t capacity
        if self._is_closed:
            return 0
        if self._end + size > self._capacity:
            capacity = max(2 * self._capacity, self._end + size, <size_t>KEPT_SIZE)
            bigger = realloc(self._data, capacity)
            if bigger is NULL:
                raise MemoryError
            self._data = <uint8_t *>bigger
            self._capacity = capacity
        memcpy(self._data + self._end, data, size)
        self._end += size
        return 0

    cdef int64_t flush_due(self, int64_t now_ns) noexcept nogil:
        if self._is_blocked or now_ns - self._oldest_ns >= self.burst.linger_ns:
            self.send_all()
        if self._is_blocked:
            return now_ns + BLOCKED_NS
        return self.burst.look_ns(self._oldest_ns, now_ns)

    cdef void send_all(self) noexcept nogil:
        cdef ssize_t sent
        self._frame_at = NO_FRAME
        self._oldest_ns = NEVER_NS
        self._is_blocked = False
        while self._begin < self._end:
            sent = send(self._fd, self._data + self._begin, self._end - self._begin, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                self._begin += sent
            elif errno == EAGAIN:
                self._is_blocked = True
                break
            elif errno != EINTR:  # the connection has ended: its owner notices
                self._begin = self._end
        if self._begin:
            memmove(self._data, self._data + self._begin, self._end - self._begin)
            self._end -= self._begin
            self._begin = 0
        if self._end == 0 and self._capacity > KEPT_SIZE:
            free(self._data)
            self._data = NULL
            self._capacity = 0
