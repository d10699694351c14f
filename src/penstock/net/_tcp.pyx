"""Bytes to and from a connected socket without an event loop: for whoever waits for just these, and for nothing else."""

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
    SPINS_PER_LOOK = 8          # at the clock
    TAKEN_NS = 200_000          # between two looks: others have had the core
    SPARED = 64
    NS_PER_MS = 1_000_000
    POLL_MS_MAX = 1_000


def send_now(int fd, bytes data not None) -> int:
    """How many of the bytes the kernel has taken; 0 also when the connection is broken: whoever reads hears of that."""
    cdef ssize_t sent = send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
    return max(sent, 0)


cdef class Receiver:
    """Reads from sockets, of one thread at a time. For the first `spin_ns` of each wait the thread does not sleep: what
    comes meanwhile is here a microsecond later. When others take its core for long at that time, it sleeps at once, for the
    next SPARED waits."""

    def __cinit__(self, int64_t spin_ns) -> None:
        self.spin_ns = spin_ns

    @property
    def is_spared(self) -> bool:
        """Whether it does not spin, because others want the core."""
        return self.spared > 0

    def receive(self, int fd, *, int64_t timeout_ns = 0, int bell = -1) -> bytes | None:
        """Bytes that are there, or come in time; empty: the connection has ended, as its next reader is told as well.
        None: the time is over, a signal came, or the bell, an eventfd, was rung. Without a timeout, it waits only as
        long as it spins."""
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
        if self.spared:
            self.spared -= 1
            return _receive(fd, room)
        while size == -EAGAIN and looked < began + self.spin_ns:
            for spins in range(SPINS_PER_LOOK):
                size = _receive(fd, room)
                if size != -EAGAIN:
                    return size
            sched_yield() # whoever is to answer may have been woken on this core
            before, looked = looked, _now()
            if looked - before > TAKEN_NS:
                self.spared = SPARED
        return size


cdef bint has_something(int fd) noexcept nogil:
    cdef pollfd[1] waited
    waited[0].fd, waited[0].events, waited[0].revents = fd, POLLIN, 0
    return poll(waited, 1, 0) > 0


cdef ssize_t _receive(int fd, uint8_t *room) noexcept nogil:
    """How many bytes; 0: the connection has ended, in order or not; -EAGAIN: none yet."""
    cdef ssize_t size = recv(fd, room, RECEIVED_MAX, MSG_DONTWAIT)
    if size >= 0:
        return size
    return -EAGAIN if errno == EAGAIN or errno == EINTR else 0


cdef int64_t _now() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <int64_t>1_000_000_000 + now.tv_nsec
