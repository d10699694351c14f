"""Sends events from the buffers of thousands of sessions to their sockets, without Python code and without blocking.

    session_sender = SessionSender(sessions_max, consumers_max, gather_ns=20_000_000, words_size_max=65_536)
        session_sender.open(session, sock.fileno())              # from now on only the session sender writes to this
socket
        session_sender.say(session, data, now_ns)                # words: complete frames made by the caller
    session_sender.attach(session, consumer, buffer, Framing.WEBSOCKET_MESSAGE)
        session_sender.notice(consumers, now_ns)                 # the buffers of these consumers have events
        session_sender.run(now_ns)                               # sends what is due; next_due_ns is the time of the
next call

All events that wait in a buffer when its session is due are sent in one frame. A session that was sent data less than
`gather_ns` ago waits for the rest of that time, unless an event of the critical class or an answer to a subscription
waits. A full socket costs no processor time: the rest of its frame is kept and events wait in the buffer, until the
kernel reports room (fileno() becomes readable, and the next run() sends). Times are those of the monotonic clock. Call
it from one thread at a time.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset
from posix.unistd cimport close

from penstock.engine.core.kernel._event cimport Head, read_head
from penstock.engine.core.kernel._sinks cimport Queue, SessionBuffer, queue_consume
from penstock.net._epoll cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    EPOLLONESHOT,
    EPOLLOUT,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SHUT_WR,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    iovec,
    msghdr,
    send,
    sendmsg,
    shutdown,
)

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.engine.control import EVENTS_SIZE_MAX

cdef enum:
    SESSIONS_PER_RUN = 256  # maximum number of sessions served in one call
    ROOM_BATCH = 256  # sockets per epoll_wait()
    LEFT_KEPT = 4_096  # bytes of memory that a line may keep when nothing is left to send
    HEADER_SIZE_MAX = 32
    WEBSOCKET_BINARY = 0x82  # a complete message in one frame
    WEBSOCKET_SMALL = 125
    WEBSOCKET_U16 = 126
    WEBSOCKET_U64 = 127

# {"type": "events", "data": <u32 bytes>} in msgpack, as engine.control.Events on a control connection
cdef const char *EVENTS_HEAD = b"\x82\xa4type\xa6events\xa4data\xc6"
cdef enum:
    EVENTS_HEAD_SIZE = 19
    FRAME_LENGTH_SIZE = 4

cdef enum:
    NO_SESSION = 0xFFFFFFFF

cdef size_t frame_size_max = EVENTS_SIZE_MAX


cdef size_t put_header(uint8_t *out, uint8_t framing, size_t size) noexcept nogil:
    """Write the header of `size` bytes of events; at most HEADER_SIZE_MAX bytes."""
    cdef int place
    cdef size_t length
    if framing == EVENTS_MESSAGE:
        length = EVENTS_HEAD_SIZE + 4 + size
        for place in range(FRAME_LENGTH_SIZE):
            out[place] = <uint8_t>(length >> 8 * place)
        memcpy(out + FRAME_LENGTH_SIZE, EVENTS_HEAD, EVENTS_HEAD_SIZE)
        for place in range(4):
            out[FRAME_LENGTH_SIZE + EVENTS_HEAD_SIZE + place] = <uint8_t>(size >> 8 * (3 - place))
        return FRAME_LENGTH_SIZE + EVENTS_HEAD_SIZE + 4
    out[0] = WEBSOCKET_BINARY
    if size <= WEBSOCKET_SMALL:
        out[1] = <uint8_t>size
        return 2
    if size <= 0xFFFF:
        out[1] = WEBSOCKET_U16
        out[2], out[3] = <uint8_t>(size >> 8), <uint8_t>size
        return 4
    out[1] = WEBSOCKET_U64
    for place in range(8):
        out[2 + place] = <uint8_t>(<uint64_t>size >> 8 * (7 - place))
    return 10


cdef size_t whole_events(const Queue *queue, size_t size_max) noexcept nogil:
    """Size of the complete events at the front that fit; at least one event, if any waits."""
    cdef Head head
    cdef size_t size = 0, waiting = queue.end - queue.begin
    cdef uint32_t next_size
    if waiting <= size_max:
        return waiting
    while size < waiting:
        next_size = read_head(queue.data + queue.begin + size, waiting - size, &head)
        if next_size == 0 or (size and size + next_size > size_max):
            break
        size += next_size
    return size


cdef bint keep(Line *line, const uint8_t *data, size_t size) noexcept nogil:
    """Append to the unsent rest; False if there is no memory."""
    cdef void *bigger
    if size == 0:  # the socket accepted everything
        return True
    if line.left_at and line.left_at + line.left_size + size > line.left_capacity:
        memmove(line.left, line.left + line.left_at, line.left_size)
        line.left_at = 0
    if line.left_at + line.left_size + size > line.left_capacity:
        bigger = realloc(line.left, line.left_size + size)
        if bigger is NULL:
            return False
        line.left = <uint8_t *>bigger
        line.left_capacity = line.left_size + size
    memcpy(line.left + line.left_at + line.left_size, data, size)
    line.left_size += size
    return True


cdef void forget_left(Line *line) noexcept nogil:
    line.left_at = line.left_size = 0
    if line.left_capacity > LEFT_KEPT or line.fd < 0:
        free(line.left)
        line.left = NULL
        line.left_capacity = 0


cdef class SessionSender:
    """Session numbers are below `sessions_max`; `words_size_max` bounds the unsent bytes of say()."""

    def __cinit__(self, uint32_t sessions_max, uint32_t consumers_max, *, int64_t gather_ns, size_t words_size_max):
        cdef uint32_t session, consumer
        self._epoll = -1
        self._sessions_max = sessions_max
        self._consumers_max = consumers_max
        self._gather_ns = gather_ns
        self._words_size_max = words_size_max
        self._buffers = [None] * sessions_max
        self.next_due_ns = INT64_MAX
        self._lines = <Line *>PyMem_Calloc(max(1, sessions_max), sizeof(Line))
        self._waiting = <uint32_t *>PyMem_Calloc(max(1, sessions_max), sizeof(uint32_t))
        self._sessions = <uint32_t *>PyMem_Calloc(max(1, consumers_max), sizeof(uint32_t))
        if self._lines is NULL or self._waiting is NULL or self._sessions is NULL:
            raise MemoryError
        for session in range(sessions_max):
            self._lines[session].fd = -1
        for consumer in range(consumers_max):
            self._sessions[consumer] = NO_SESSION
        self._epoll = epoll_create1(EPOLL_CLOEXEC)
        if self._epoll < 0:
            raise LocalProtocolError("cannot create an epoll descriptor", hint="raise the limit of open files")

    def __dealloc__(self):
        cdef uint32_t session
        if self._lines is not NULL:
            for session in range(self._sessions_max):
                free(self._lines[session].left)
        PyMem_Free(self._lines)
        PyMem_Free(self._waiting)
        PyMem_Free(self._sessions)
        if self._epoll >= 0:
            close(self._epoll)

    def fileno(self) -> int:
        """Readable when a full socket has room again."""
        return self._epoll

    cdef Line *line_of(self, uint32_t session) except NULL:
        if session >= self._sessions_max or self._lines[session].fd < 0:
            raise LocalProtocolError(f"unknown session {session}")
        return &self._lines[session]

    # Opening and closing

    def open(self, uint32_t session, int fd) -> None:
        """Open a session on a non-blocking socket. The owner closes the socket after shut()."""
        if session >= self._sessions_max or self._lines[session].fd >= 0:
            raise LocalProtocolError(f"session {session} cannot be opened")
        cdef Line *line = &self._lines[session]
        line.fd = fd
        line.queue = NULL
        line.is_blocked = line.is_ending = line.is_over = False
        line.due_ns = line.sent_ns = line.stuck_ns = 0

    def attach(self, uint32_t session, uint32_t consumer, SessionBuffer buffer not None, Framing framing) -> None:
        """Also send the events of this consumer's buffer."""
        cdef Line *line = self.line_of(session)
        if consumer >= self._consumers_max or line.queue is not NULL:
            raise LocalProtocolError(f"consumer {consumer} cannot be attached to session {session}")
        self._buffers[session] = buffer
        self._sessions[consumer] = session
        line.consumer = consumer
        line.queue = &buffer.queue
        line.framing = framing

    def detach(self, uint32_t consumer) -> None:
        """Release the consumer's number. No effect if the consumer has no session here."""
        if consumer < self._consumers_max and self._sessions[consumer] != NO_SESSION:
            self.let_go(self._sessions[consumer])

    def shut(self, uint32_t session) -> None:
        """Send nothing more, not even the unsent rest."""
        cdef Line *line = self.line_of(session)
        epoll_ctl(self._epoll, EPOLL_CTL_DEL, line.fd, NULL)  # an error means that the socket was never blocked
        line.fd = -1
        self.let_go(session)
        forget_left(line)
        self._buffers[session] = None

    # Sending

    def say(self, uint32_t session, const uint8_t[::1] data not None, int64_t now_ns) -> None:
        """Send these bytes, complete frames, before any event that has not been sent yet."""
        cdef Line *line = self.line_of(session)
        if line.is_over or data.shape[0] == 0:
            return
        if line.left_size + data.shape[0] > self._words_size_max + frame_size_max:
            raise LimitError(f"{line.left_size} unsent bytes wait for a session that does not read")
        if not keep(line, &data[0], data.shape[0]):
            raise MemoryError
        with nogil:
            self.carry(session, now_ns)

    def finish(self, uint32_t session, int64_t now_ns) -> None:
        """Send the unsent rest, then shut down this direction of the connection. No more events are sent."""
        cdef Line *line = self.line_of(session)
        line.is_ending = True
        self.let_go(session)
        self.carry(session, now_ns)

    def notice(self, consumers, int64_t now_ns) -> list:
        """Note that the buffers of these consumers have events. Return the consumers without a session here."""
        cdef uint32_t consumer
        others = []
        for consumer in consumers:
            if consumer < self._consumers_max and self._sessions[consumer] != NO_SESSION:
                self.note(self._sessions[consumer], now_ns)
            else:
                others.append(consumer)
        return others

    def run(self, int64_t now_ns) -> None:
        """Send the data that is due, and data that waited for room, up to a limit per call so that other sessions
        get their turn. If more is due, next_due_ns is not later than now."""
        with nogil:
            self.make_room(now_ns)
            self.carry_due(now_ns)

    # State of sessions

    def stuck(self, int64_t before_ns) -> list:
        """Return the sessions whose sockets have accepted nothing since before that time although data waits; each
        with its consumer, or None."""
        cdef uint32_t session
        return [
            (session, None if self._lines[session].queue is NULL else self._lines[session].consumer)
            for session in range(self._sessions_max)
            if self._lines[session].fd >= 0 and 0 < self._lines[session].stuck_ns < before_ns
        ]

    def is_over(self, uint32_t session) -> bool:
        """True if the session can send nothing more: the socket failed, or was shut down after finish()."""
        return self.line_of(session).is_over

    # Without Python

    cdef void let_go(self, uint32_t session) noexcept:
        """Release the consumer's buffer. The consumer's number may belong to another consumer by now."""
        cdef Line *line = &self._lines[session]
        if line.queue is not NULL and self._sessions[line.consumer] == session:
            self._sessions[line.consumer] = NO_SESSION
        line.queue = NULL

    cdef void note(self, uint32_t session, int64_t now_ns) noexcept nogil:
        cdef Line *line = &self._lines[session]
        if line.fd < 0 or line.queue is NULL or line.is_over or line.is_blocked:
            return
        line.due_ns = line.sent_ns + self._gather_ns
        if line.due_ns > now_ns and line.queue.is_urgent:
            line.due_ns = now_ns
        self.next_due_ns = min(self.next_due_ns, line.due_ns)
        if not line.is_waiting:
            line.is_waiting = True
            self.queue_up(session)

    cdef void queue_up(self, uint32_t session) noexcept nogil:
        self._waiting[(self._waiting_first + self._waiting_count) % self._sessions_max] = session
        self._waiting_count += 1

    cdef void carry_due(self, int64_t now_ns) noexcept nogil:
        """Serve waiting sessions in order, up to SESSIONS_PER_RUN per call. A session that is not due yet goes to
        the end."""
        cdef uint32_t looked_at, session, waiting = self._waiting_count
        cdef int carried = 0
        cdef Line *line
        if now_ns < self.next_due_ns:
            return
        self.next_due_ns = INT64_MAX
        for looked_at in range(waiting):
            if carried == SESSIONS_PER_RUN:
                self.next_due_ns = now_ns
                return
            session = self._waiting[self._waiting_first]
            self._waiting_first = (self._waiting_first + 1) % self._sessions_max
            self._waiting_count -= 1
            line = &self._lines[session]
            if line.fd >= 0 and line.due_ns > now_ns:
                self.next_due_ns = min(self.next_due_ns, line.due_ns)
                self.queue_up(session)
                continue
            line.is_waiting = False
            self.carry(session, now_ns)
            carried += 1

    cdef void carry(self, uint32_t session, int64_t now_ns) noexcept nogil:
        """Send as much as the socket accepts."""
        cdef Line *line = &self._lines[session]
        if line.fd < 0 or line.is_over or line.is_blocked:
            return
        if line.left_size and not self.send_left(session, now_ns):
            return
        if line.is_ending:
            shutdown(line.fd, SHUT_WR)
            line.is_over = True
        elif line.queue is not NULL:
            self.send_events(session, now_ns)

    cdef bint send_left(self, uint32_t session, int64_t now_ns) noexcept nogil:
        """Send the rest of a frame. True if nothing is left."""
        cdef Line *line = &self._lines[session]
        cdef ssize_t sent
        while line.left_size:
            sent = send(line.fd, line.left + line.left_at, line.left_size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                if errno == EINTR:
                    continue
                self.block(session, errno, now_ns)
                return False
            line.left_at += sent
            line.left_size -= sent
            line.stuck_ns = 0
            self.bytes += sent
        forget_left(line)
        return True

    cdef void send_events(self, uint32_t session, int64_t now_ns) noexcept nogil:
        cdef Line *line = &self._lines[session]
        cdef uint8_t header[HEADER_SIZE_MAX]
        cdef iovec pieces[2]
        cdef msghdr message
        cdef size_t size, header_size, from_header, from_events
        cdef ssize_t sent
        memset(&message, 0, sizeof(message))
        message.msg_iov, message.msg_iovlen = &pieces[0], 2
        while line.queue.begin < line.queue.end:
            size = whole_events(line.queue, frame_size_max)
            header_size = put_header(header, line.framing, size)
            pieces[0].iov_base, pieces[0].iov_len = &header[0], header_size
            pieces[1].iov_base, pieces[1].iov_len = line.queue.data + line.queue.begin, size
            sent = sendmsg(line.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                if errno == EINTR:
                    continue
                self.block(session, errno, now_ns)
                return
            line.stuck_ns = 0
            line.sent_ns = now_ns
            self.frames += 1
            self.bytes += sent
            from_header = min(<size_t>sent, header_size)
            from_events = sent - from_header
            if <size_t>sent < header_size + size:
                if not (
                    keep(line, header + from_header, header_size - from_header)
                    and keep(line, line.queue.data + line.queue.begin + from_events, size - from_events)
                ):
                    line.is_over = True  # without memory the frame cannot be finished, nor the session
                    shutdown(line.fd, SHUT_WR)
                    return
            queue_consume(line.queue, size)
            if line.left_size:
                self.block(session, EAGAIN, now_ns)
                return

    cdef void block(self, uint32_t session, int error, int64_t now_ns) noexcept nogil:
        """Wait for room: the kernel reports when a full socket accepts data. If the socket failed, its reader
        notices."""
        cdef Line *line = &self._lines[session]
        cdef epoll_event event
        if error != EAGAIN:
            line.is_over = True
            return
        event.events = EPOLLOUT | EPOLLONESHOT
        event.data.u64 = session
        if epoll_ctl(self._epoll, EPOLL_CTL_MOD, line.fd, &event) and epoll_ctl(
            self._epoll, EPOLL_CTL_ADD, line.fd, &event
        ):
            line.is_over = True
            return
        line.is_blocked = True
        if line.stuck_ns == 0:
            line.stuck_ns = now_ns

    cdef void make_room(self, int64_t now_ns) noexcept nogil:
        """Serve sockets that have room again; more than ROOM_BATCH wait for the next turn."""
        cdef epoll_event events[ROOM_BATCH]
        cdef int count = epoll_wait(self._epoll, &events[0], ROOM_BATCH, 0), index
        for index in range(count):
            self._lines[events[index].data.u64].is_blocked = False
            self.carry(<uint32_t>events[index].data.u64, now_ns)
