"""A session's link as the application's thread has it that waits for an acknowledgement (inline_commit.py).

Each call holds the interpreter's lock except while it waits for bytes, and runs no Python code. So a call is one step
for other threads, and no signal handler, which may raise or use the session, runs in between.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.assured.wire._frames cimport FrameSplitter
from penstock.assured.wire._layout cimport KIND_ACKNOWLEDGE
from penstock.assured.core.session._publish_window cimport PublishWindow
from penstock.net._tcp cimport RECEIVED_MAX, Receiver

from penstock.assured.wire._frames import frames_in
from penstock.base.errors import RemoteProtocolError
from penstock.net._tcp import send_now


cdef class InlineLink:
    """`fd` is the link's socket, `splitter` what its bytes go through, `named` what windows take refusals from; the
    `wake_fd`, an eventfd, ends the wait."""

    cdef readonly bint is_busy
    cdef readonly bint is_wanted        # the loop's thread must have the link back
    cdef readonly uint64_t uses
    cdef readonly bytes unsent
    cdef readonly list pieces           # received, and left to the loop
    cdef int fd, wake_fd
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
        """Whether no thread uses it; none does from now on. Otherwise write to wake_fd."""
        self.is_wanted = True
        return not self.is_busy

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
            self.is_wanted = True

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
                self.is_wanted = True
        return True

    cdef void _take(self, bytes data, PublishWindow window, uint32_t handle, list refused) except *:
        """Handle acknowledgements of this publisher; leave any other frame, and all frames after it, to the loop."""
        for is_data, piece in self.splitter.feed(data):
            if not is_data or self.pieces or not self._acknowledge(piece, window, handle, refused):
                self.pieces.append((is_data, piece))
        if self.pieces or self.splitter.failure:
            self.is_wanted = True

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
