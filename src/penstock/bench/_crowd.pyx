"""Thousands of WebSocket clients in one process that only read and count: the load of a bench, as lean as it can be."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.unistd cimport close, read

from penstock.engine.core.kernel._event cimport EVENT_HEAD_SIZE, UPDATE, Head, event_size
from penstock.net._epoll cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLLIN,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    send,
)
from penstock.shm._memory cimport monotonic_ns, wall_ns

from penstock.base.errors import LocalProtocolError

cdef enum:
    BATCH = 512
    READ_SIZE = 65_536
    FRAME_HEADER_SIZE_MAX = 10
    OPCODE_BINARY = 2
    OPCODE_PING = 9
    AGE_MS_MAX = 10_000
    WAIT_MS = 20


cdef struct Client:
    int fd
    uint8_t header[FRAME_HEADER_SIZE_MAX]
    uint32_t header_have
    uint8_t opcode
    uint64_t payload_left
    uint8_t head[EVENT_HEAD_SIZE]
    uint32_t head_have
    uint64_t body_left
    uint64_t updates


cdef uint32_t header_need(const Client *client) noexcept nogil:
    if client.header_have < 2:
        return 2
    return 4 if client.header[1] == 126 else 10 if client.header[1] == 127 else 2


cdef class Crowd:
    """Counts what comes from sockets whose WebSocket handshake is done; answers pings."""

    cdef Client *_clients
    cdef readonly uint32_t count
    cdef uint32_t _count_max
    cdef int _epoll
    cdef readonly uint64_t frames, bytes, events, updates, closed, merged
    cdef uint64_t _ages[AGE_MS_MAX + 1]

    def __cinit__(self, uint32_t count_max):
        self._epoll = epoll_create1(EPOLL_CLOEXEC)
        self._count_max = count_max
        self._clients = <Client *>PyMem_Calloc(max(1, count_max), sizeof(Client))
        if self._clients is NULL or self._epoll < 0:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._clients)
        if self._epoll >= 0:
            close(self._epoll)

    def add(self, int fd) -> None:
        cdef epoll_event event
        if self.count == self._count_max:
            raise LocalProtocolError(f"there are {self.count} clients already")
        self._clients[self.count].fd = fd
        event.events = EPOLLIN
        event.data.u64 = self.count
        if epoll_ctl(self._epoll, EPOLL_CTL_ADD, fd, &event):
            raise OSError(errno, "a client's socket cannot be watched")
        self.count += 1

    def run(self, double seconds) -> None:
        """Read for so long."""
        cdef int64_t until_ns = monotonic_ns() + <int64_t>(seconds * 1e9)
        with nogil:
            while monotonic_ns() < until_ns:
                self.turn()

    def reset(self) -> None:
        """Count anew."""
        cdef uint32_t index
        self.frames = self.bytes = self.events = self.updates = self.merged = 0
        for index in range(AGE_MS_MAX + 1):
            self._ages[index] = 0
        for index in range(self.count):
            self._clients[index].updates = 0

    def updates_of_each(self) -> list:
        return [self._clients[index].updates for index in range(self.count)]

    def age_ms(self, double percentile) -> int:
        """How old updates were when they came, since the producer had begun with them."""
        cdef uint64_t seen = 0, wanted = <uint64_t>(self.updates * percentile / 100)
        cdef int age
        for age in range(AGE_MS_MAX + 1):
            seen += self._ages[age]
            if seen >= wanted:
                return age
        return AGE_MS_MAX

    cdef void turn(self) noexcept nogil:
        cdef epoll_event events[BATCH]
        cdef uint8_t data[READ_SIZE]
        cdef int count = epoll_wait(self._epoll, events, BATCH, WAIT_MS), index
        cdef int64_t now_ns = wall_ns()
        cdef ssize_t size
        cdef Client *client
        for index in range(count):
            client = &self._clients[events[index].data.u64]
            size = read(client.fd, data, READ_SIZE)
            if size > 0:
                self.bytes += size
                self.take(client, data, size, now_ns)
            elif size == 0 or errno not in (EAGAIN, EINTR):
                self.closed += 1
                epoll_ctl(self._epoll, EPOLL_CTL_DEL, client.fd, NULL)

    cdef void take(self, Client *client, const uint8_t *data, uint64_t size, int64_t now_ns) noexcept nogil:
        cdef uint64_t at = 0, part
        while at < size:
            if client.payload_left == 0:
                client.header[client.header_have] = data[at]
                client.header_have += 1
                at += 1
                if client.header_have == header_need(client):
                    self.begin_frame(client)
                continue
            part = min(client.payload_left, size - at)
            if client.opcode == OPCODE_BINARY:
                self.take_events(client, data + at, part, now_ns)
            client.payload_left -= part
            at += part

    cdef void begin_frame(self, Client *client) noexcept nogil:
        cdef uint32_t place
        cdef uint64_t length = 0
        client.opcode = client.header[0] & 0x0F
        if client.header_have == 2:
            length = client.header[1]
        for place in range(2, client.header_have):
            length = length << 8 | client.header[place]
        client.header_have = 0
        client.payload_left = length
        if client.opcode == OPCODE_BINARY:
            self.frames += 1
        elif client.opcode == OPCODE_PING:
            send(client.fd, b"\x8A\x80\0\0\0\0", 6, MSG_NOSIGNAL | MSG_DONTWAIT)

    cdef void take_events(self, Client *client, const uint8_t *data, uint64_t size, int64_t now_ns) noexcept nogil:
        cdef uint64_t at = 0, part
        cdef Head head
        while at < size:
            if client.body_left:
                part = min(client.body_left, size - at)
                client.body_left -= part
                at += part
                continue
            part = min(<uint64_t>(EVENT_HEAD_SIZE - client.head_have), size - at)
            memcpy(client.head + client.head_have, data + at, part)
            client.head_have += part
            at += part
            if client.head_have == EVENT_HEAD_SIZE:
                client.head_have = 0
                memcpy(&head, client.head, EVENT_HEAD_SIZE)
                client.body_left = event_size(head.body_size) - EVENT_HEAD_SIZE
                self.events += 1
                if head.kind == UPDATE:
                    self.updates += 1
                    client.updates += 1
                    self.merged += head.merged
                    self._ages[max(0, min(AGE_MS_MAX, (now_ns - head.started_ns) // 1_000_000))] += 1
