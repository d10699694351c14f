"""Bytes to and from a connected socket without an event loop, for a thread that waits for this socket only."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from penstock.net._epoll cimport MSG_DONTWAIT, MSG_NOSIGNAL, recv, send

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)
    short POLLIN

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    SPINS_PER_LOOK = 8  # spins between two readings of the clock
    TAKEN_NS = 200_000  # gap between two readings after which the core was taken by others
    BACK_OFF_WAITS = 64
    NS_PER_MS = 1_000_000
    POLL_MS_MAX = 1_000


def send_now(int fd, bytes data not None) -> int:
    """Write without blocking. Return the number of bytes that the kernel accepted; 0 also for a broken connection,
    which the next read reports."""
    cdef ssize_t sent = send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
    return max(sent, 0)


cdef class Receiver:
    """Reads from sockets, in one thread at a time. For the first `spin_ns` of each wait the thread busy-waits, so
    that data is received within a microsecond. If other threads take the core for long in this time, the receiver
    backs off: it blocks at once in the next BACK_OFF_WAITS waits."""

    def __cinit__(self, int64_t spin_ns) -> None:
        self.spin_ns = spin_ns

    @property
    def is_backing_off(self) -> bool:
        """True if the receiver does not spin because other threads or processes need the core."""
        return self.back_off_waits > 0

    def receive(self, int fd, *, int64_t timeout_ns = 0, int bell = -1) -> bytes | None:
        """Return the received bytes; empty bytes mean that the connection has ended, which the next read reports
        too. Return None after a timeout, a signal, or when the bell (an eventfd) was rung. Without a timeout, wait
        only for the duration of spinning."""
        cdef uint8_t room[RECEIVED_MAX]
        cdef ssize_t size
        with nogil:
            size = self.take(fd, room, timeout_ns, bell)
        return None if size < 0 else PyBytes_FromStringAndSize(<char *>room, size)

    cdef ssize_t take(self, int fd, uint8_t *room, int64_t timeout_ns, int bell) noexcept nogil:
        cdef int64_t began = _now(), left
        cdef ssize_t size = self.spin(fd, room, began)
        cdef pollfd[2] waited
        while size == -EAGAIN:
            left = began + timeout_ns - _now()
            if left <= 0:
                break
            waited[0].fd, waited[0].events, waited[0].revents = fd, POLLIN, 0
            waited[1].fd, waited[1].events, waited[1].revents = bell, POLLIN, 0
            if poll(waited, 2, <int>min(left // NS_PER_MS + 1, POLL_MS_MAX)) < 0 or waited[1].revents:
                break
            size = _receive(fd, room)
        return size

    cdef ssize_t spin(self, int fd, uint8_t *room, int64_t began) noexcept nogil:
        cdef ssize_t size = -EAGAIN
        cdef int64_t looked = began, before
        cdef int spins
        if self.back_off_waits:
            self.back_off_waits -= 1
            return _receive(fd, room)
        while size == -EAGAIN and looked < began + self.spin_ns:
            for spins in range(SPINS_PER_LOOK):
                size = _receive(fd, room)
                if size != -EAGAIN:
                    return size
            sched_yield()  # the thread with the answer may run on this core
            before, looked = looked, _now()
            if looked - before > TAKEN_NS:
                self.back_off_waits = BACK_OFF_WAITS
        return size


cdef bint has_something(int fd) noexcept nogil:
    cdef pollfd[1] waited
    waited[0].fd, waited[0].events, waited[0].revents = fd, POLLIN, 0
    return poll(waited, 1, 0) > 0


cdef ssize_t _receive(int fd, uint8_t *room) noexcept nogil:
    """Return the number of bytes; 0: the connection has ended, in order or not; -EAGAIN: no data yet."""
    cdef ssize_t size = recv(fd, room, RECEIVED_MAX, MSG_DONTWAIT)
    if size >= 0:
        return size
    return -EAGAIN if errno == EAGAIN or errno == EINTR else 0


cdef int64_t _now() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <int64_t>1_000_000_000 + now.tv_nsec
