"""A session's link in a thread of the application: a thread that waits for an acknowledgement, or the thread of an
asyncio loop (inline_commit.py).

Each call holds the interpreter's lock except while it waits for bytes, and runs no Python code. So a call is one step
for other threads, and no signal handler, which may raise or use the session, runs in between.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from posix.unistd cimport close

from penstock.assured.wire._frames cimport FrameSplitter
from penstock.assured.wire._layout cimport KIND_ACKNOWLEDGE
from penstock.assured.core.session._publish_window cimport PublishWindow
from penstock.net._epoll cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLLIN,
    MSG_DONTWAIT,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    recv,
)
from penstock.net._tcp cimport RECEIVED_MAX, Receiver

from penstock.assured.wire._frames import frames_in
from penstock.base.errors import RemoteProtocolError
from penstock.net._tcp import send_now


cdef class Readiness:
    """`fd`, an epoll that an asyncio loop watches, is readable while the attached link has data. Any thread may attach
    or detach a link, without a call in the loop's own thread."""

    cdef readonly int fd

    def __cinit__(self) -> None:
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self) -> None:
        if self.fd >= 0:
            close(self.fd)


cdef class InlineLink:
    """`fd` is the link's socket, `splitter` decodes its bytes, `named` has the endpoint names of refusals; the eventfd
    `wake_fd` ends the wait.

    A thread that may wait calls exchange(); an asyncio loop calls send() and receive(), which do not wait, with a
    Readiness of its own. One loop is attached at a time.
    """

    cdef readonly bint is_busy
    cdef readonly bint is_wanted        # the loop's thread requests the link
    cdef readonly uint64_t uses
    cdef readonly bytes unsent
    cdef readonly list pieces           # received, and left to the loop
    cdef int fd, wake_fd
    cdef Readiness readiness            # of the attached loop
    cdef FrameSplitter splitter
    cdef Receiver receiver
    cdef dict named

    def __init__(
        self,
        int fd,
        FrameSplitter splitter not None,
        Receiver receiver not None,
        dict named not None,
        int wake_fd,
    ) -> None:
        self.fd = fd
        self.wake_fd = wake_fd
        self.splitter = splitter
        self.receiver = receiver
        self.named = named
        self.unsent = b""
        self.pieces = []

    def reclaim(self) -> bool:
        """True if no thread uses the link, and none will from now on. Otherwise write to wake_fd."""
        self._end()
        return not self.is_busy

    def attach(self, Readiness readiness not None) -> bool:
        """Attach the readiness to this link. False if another readiness is attached."""
        cdef epoll_event event
        if self.is_busy or self.is_wanted:
            return False
        if self.readiness is None:
            event.events, event.data.u64 = EPOLLIN, 0
            if epoll_ctl(readiness.fd, EPOLL_CTL_ADD, self.fd, &event) < 0:
                return False
            self.readiness = readiness
        return self.readiness is readiness

    def send(self, PublishWindow window not None, uint32_t handle, Readiness readiness not None) -> bool:
        """Send a publisher's unsent messages without waiting. False if they were not sent."""
        if not handle or not self.attach(readiness):
            return False
        self.uses += 1
        self._send(window, handle)
        return True

    def receive(
        self, PublishWindow window not None, uint32_t handle, Readiness readiness not None, list refused
    ) -> bool:
        """Handle received acknowledgements without waiting; True if any were received. `refused` as in exchange()."""
        cdef uint8_t room[RECEIVED_MAX]
        cdef ssize_t size
        if self.is_busy or self.is_wanted or self.readiness is not readiness:
            return False
        size = recv(self.fd, room, RECEIVED_MAX, MSG_DONTWAIT)
        if size > 0:
            self.uses += 1
            self._take(PyBytes_FromStringAndSize(<char *>room, size), window, handle, refused)
        elif size == 0 or errno != EAGAIN and errno != EINTR:  # the connection has ended, as the loop is about to find out
            self._end()
        return size > 0

    def exchange(
        self, PublishWindow window not None, uint32_t handle, uint64_t number, int64_t timeout_ns, list refused
    ) -> bool:
        """Send a publisher's unsent messages, and wait until message `number` has an outcome. True if it has. A signal
        ends the wait. Refused messages of the publisher are added to `refused`: (first, last, outcome)."""
        if self.is_busy or self.is_wanted or not handle:
            return False
        self.is_busy = True
        self.uses += 1
        try:
            self._send(window, handle)
            return self._await(window, handle, number, timeout_ns, refused)
        finally:
            self.is_busy = False

    cdef void _send(self, PublishWindow window, uint32_t handle) except *:
        cdef bytes frames = window.take(handle)
        cdef Py_ssize_t sent = send_now(self.fd, frames) if frames else 0
        if sent < len(frames):
            self.unsent = frames[sent:]
            self._end()

    cdef void _end(self) noexcept:
        """Detach the link from this object."""
        self.is_wanted = True
        if self.readiness is not None:
            epoll_ctl(self.readiness.fd, EPOLL_CTL_DEL, self.fd, NULL)
            self.readiness = None

    cdef bint _await(
        self, PublishWindow window, uint32_t handle, uint64_t number, int64_t timeout_ns, list refused
    ) except -1:
        cdef uint8_t room[RECEIVED_MAX]
        cdef ssize_t size
        while not window.outcome_of(number):
            if self.is_wanted:
                return False
            with nogil:
                size = self.receiver.take(self.fd, room, timeout_ns, self.wake_fd)
            if size < 0:
                return False
            if size:
                self._take(PyBytes_FromStringAndSize(<char *>room, size), window, handle, refused)
            else:  # the connection has ended, as the loop is about to find out
                self._end()
        return True

    cdef void _take(self, bytes data, PublishWindow window, uint32_t handle, list refused) except *:
        """Handle acknowledgements of this publisher; leave any other frame, and all frames after it, to the loop."""
        for is_data, piece in self.splitter.feed(data):
            if not is_data or self.pieces or not self._acknowledge(piece, window, handle, refused):
                self.pieces.append((is_data, piece))
        if self.pieces or self.splitter.failure:
            self._end()

    cdef bint _acknowledge(self, bytes piece, PublishWindow window, uint32_t handle, list refused) except -1:
        """False if the piece has any other frame, or an invalid one."""
        try:
            frames = frames_in(piece)
            for kind, whose, _ in frames:
                if kind != KIND_ACKNOWLEDGE or whose != handle:
                    return False
            for _, _, frame in frames:
                refused += window.acknowledge(frame, self.named)
        except RemoteProtocolError:
            return False
        return True
