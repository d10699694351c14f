"""Bytes to and from a connected socket without an event loop: for whoever waits for just these, and for nothing else."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *data, size_t size, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)
    short POLLIN

cdef extern from "<sys/resource.h>" nogil:
    struct rusage:
        long ru_nivcsw
    int getrusage(int who, rusage *used)
    int RUSAGE_THREAD

cdef enum:
    RECEIVED_MAX = 65_536
    SPINS_PER_LOOK = 8          # at the clock
    SPARED = 1_024
    NS_PER_MS = 1_000_000
    POLL_MS_MAX = 1_000         # then signals are looked at, and the clock


def send_now(int fd, bytes data not None) -> int:
    """How many of the bytes the kernel has taken; 0 also when the connection is broken: whoever reads hears of that."""
    cdef ssize_t sent = send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
    return max(sent, 0)


cdef class Receiver:
    """Reads from sockets, of one thread. For the first `spin_ns` of each wait the thread does not sleep: what comes
    meanwhile is here a microsecond later. When others want its core at that time, it sleeps at once, for the next
    SPARED waits."""

    cdef int64_t spin_ns
    cdef int spared

    def __cinit__(self, int64_t spin_ns) -> None:
        self.spin_ns = spin_ns

    def receive(self, int fd, *, int64_t timeout_ns = 0, int bell = -1) -> bytes | None:
        """Bytes that are there, or come in time; empty: the connection has ended, as its next reader is told as well.
        None: the time is over, or the bell, an eventfd, was rung. Without a timeout, it waits only as long as it spins.
        """
        cdef uint8_t room[RECEIVED_MAX]
        cdef ssize_t size
        cdef int64_t began = _now(), left
        with nogil:
            size = self.spin(fd, room, began)
        while size == -EAGAIN or size == -EINTR:
            left = began + timeout_ns - _now()
            if left <= 0 or not _wait(fd, bell, min(left // NS_PER_MS + 1, POLL_MS_MAX)):
                return None
            size = _receive(fd, room)
        return PyBytes_FromStringAndSize(<char *>room, max(size, 0))

    cdef ssize_t spin(self, int fd, uint8_t *room, int64_t began) noexcept nogil:
        cdef ssize_t size = -EAGAIN
        cdef long preempted
        cdef int spins
        if self.spared:
            self.spared -= 1
            return _receive(fd, room)
        preempted = _preempted()
        while size == -EAGAIN and _now() < began + self.spin_ns:
            for spins in range(SPINS_PER_LOOK):
                size = _receive(fd, room)
                if size != -EAGAIN:
                    break
        if _preempted() > preempted:
            self.spared = SPARED
        return size


cdef long _preempted() noexcept nogil:
    """How often this thread had to leave its core to others."""
    cdef rusage used
    getrusage(RUSAGE_THREAD, &used)
    return used.ru_nivcsw


cdef ssize_t _receive(int fd, uint8_t *room) noexcept nogil:
    """How many bytes; below 0: why none."""
    cdef ssize_t size = recv(fd, room, RECEIVED_MAX, MSG_DONTWAIT)
    return size if size >= 0 else -errno


cdef bint _wait(int fd, int bell, int timeout_ms) except -1:
    """False: the bell was rung."""
    cdef pollfd[2] waited
    waited[0].fd, waited[0].events, waited[0].revents = fd, POLLIN, 0
    waited[1].fd, waited[1].events, waited[1].revents = bell, POLLIN, 0
    with nogil:
        poll(waited, 2, timeout_ms)
    PyErr_CheckSignals()
    return not waited[1].revents


cdef int64_t _now() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <int64_t>1_000_000_000 + now.tv_nsec
