"""Moves an agent's data between its sockets without Python: received data goes into the fan-out, waiting data is sent.

    lane = Lane(fanout)
    lane.open(link, sock.fileno(), begun)   # from now on only the lane reads and writes this socket
    while True:                             # in the data thread
        if lane.run(timeout_ns):
            ...                             # fanout.notices() or fanout.ready() return the news
    lane.close(link)                        # now its owner can close it

A blocked socket costs nothing: the rest of a frame is kept, positions wait in the link's queue, and the kernel reports
room. One thread calls run(); any thread may call the other methods.

A running thread with data to send need not wake the lane's thread: it calls cork() first, and send() when all data is
queued.
"""

cimport cython
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.unistd cimport close, usleep

import os

from penstock.net._epoll cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    EPOLLERR,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    msghdr,
    recv,
    send,
    sendmsg,
)
from penstock.net._udp cimport udp_monotonic_ns
from penstock.tree.core.kernel._fanout cimport Fanout, mutex_acquire, mutex_give_way, mutex_release
from penstock.tree.core.kernel._link cimport Link, is_stopped
from penstock.tree.core.kernel._notes cimport FAULT_CLOSED, FAULT_CUT, FAULT_MEMORY
from penstock.tree.core.kernel._queue cimport Pieces, iovec, queue_is_empty, queue_sent, queue_take

from penstock.base.errors import LocalProtocolError

cdef enum:
    RECEIVE_SIZE = 262_144
    SEND_SIZE = 262_144
    EVENTS_MAX = 256        # sockets that the kernel reports at a time
    SENDS_MAX = 64          # links served before other threads may have the mutex
    LEFT_KEPT = 4_096       # bytes of memory that an idle link keeps
    NS_PER_MS = 1_000_000
    NOTES_SIZE_MAX = 16_777_216 # bytes of control frames and a publisher's blocks that wait for Python
    NOTES_MAX = 65_536          # and their number
    REST_US = 200
    BELL_KEY = 0xFFFFFFFF   # not the key of any link: slots are fewer


cdef inline uint64_t key_of(uint32_t slot, uint64_t number) noexcept nogil:
    """The key of a socket in events of the kernel; another link in the same slot has another key."""
    return number << 32 | slot


@cython.no_gc_clear
cdef class Lane:
    """The sockets of one fan-out."""

    def __cinit__(self, Fanout fanout not None):
        cdef epoll_event event
        self._epoll = self._bell = -1
        if fanout.wakeup_fd >= 0:
            raise LocalProtocolError("the fan-out has a lane")
        self.fanout = fanout
        self._buffer = <uint8_t *>malloc(RECEIVE_SIZE)
        if self._buffer is NULL:
            raise MemoryError
        self._epoll = epoll_create1(EPOLL_CLOEXEC)
        if self._epoll < 0:
            raise OSError(errno, os.strerror(errno))
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        event.events = EPOLLIN
        event.data.u64 = BELL_KEY
        if epoll_ctl(self._epoll, EPOLL_CTL_ADD, self._bell, &event):
            raise OSError(errno, os.strerror(errno))
        fanout.wakeup_fd = self._bell

    def __dealloc__(self):
        if self.fanout is not None and self.fanout.wakeup_fd == self._bell:
            self.fanout.wakeup_fd = -1
            self.fanout.is_lane_asleep = False
        if self._epoll >= 0:
            close(self._epoll)
        if self._bell >= 0:
            close(self._bell)
        free(self._buffer)

    def open(self, uint64_t link, int fd, const uint8_t[::1] begun = None) -> None:
        """The socket must not block; `begun` are bytes that were already read from it."""
        cdef uint32_t slot
        cdef Link *opened
        cdef epoll_event event
        with self.fanout:
            slot = self.fanout.slot_of(link)
            opened = &self.fanout.link_table[slot]
            if opened.fd >= 0:
                raise LocalProtocolError(f"the lane has link {link} already")
            event.events = EPOLLIN
            event.data.u64 = key_of(slot, opened.number)
            if epoll_ctl(self._epoll, EPOLL_CTL_ADD, fd, &event):
                raise OSError(errno, os.strerror(errno))
            self.fanout.forget_ready(slot)
            opened.fd = fd
            opened.armed = EPOLLIN
            opened.is_blocked = False
            self.fanout.mark_ready(slot)
            if begun is not None and begun.shape[0]:
                self.fanout.now_ns = 0
                with nogil:
                    self.fanout.accept_bytes(slot, &begun[0], begun.shape[0])

    def close(self, uint64_t link) -> None:
        """Stop reading from and writing to the link's socket. No effect if the lane does not have it."""
        cdef uint32_t slot
        cdef Link *closed
        with self.fanout:
            if link not in self.fanout._slots:
                return
            slot = self.fanout.slot_of(link)
            closed = &self.fanout.link_table[slot]
            if closed.fd < 0:
                return
            epoll_ctl(self._epoll, EPOLL_CTL_DEL, closed.fd, NULL)
            self.fanout.forget_ready(slot)
            closed.fd = -1
            free(closed.left)
            closed.left = NULL
            closed.left_begin = closed.left_end = closed.left_capacity = 0

    def wake(self) -> None:
        """Make run() return."""
        self._is_rung = True
        os.eventfd_write(self._bell, 1)

    def cork(self) -> None:
        """Do not wake run() for data queued from now on: the caller calls send() soon."""
        with self.fanout:
            self.fanout.is_corked = True

    def send(self) -> None:
        """Send waiting data in the caller's thread, to a few links; run() sends to the others."""
        with self.fanout:
            self.fanout.is_corked = False
            with nogil:
                self.send_some(SENDS_MAX)

    def run(self, int64_t timeout_ns) -> bool:
        """Move data until the time has passed, wake() was called, or there is news for Python: then the result is True.
        Data can be moved further before the news is handled."""
        cdef int has_more
        with nogil:
            has_more = self.loop(udp_monotonic_ns() + timeout_ns)
        return has_more

    cdef int loop(self, int64_t deadline_ns) except -1 nogil:
        cdef int64_t now_ns, left_ns
        mutex_acquire(&self.fanout.mutex)
        try:
            while True:
                self.send_some(self.fanout.lane_count)
                now_ns = udp_monotonic_ns()
                left_ns = deadline_ns - now_ns
                if self.has_news(now_ns):
                    return True
                if self._is_rung or left_ns <= 0:
                    self._is_rung = False
                    return False
                if self.fanout.notes.bytes > NOTES_SIZE_MAX or self.fanout.notes.count > NOTES_MAX:
                    self.rest()
                else:
                    self.wait(0 if self.fanout.lane_count else min(left_ns, self.untold_in_ns(now_ns)))
        finally:
            mutex_release(&self.fanout.mutex)

    cdef bint has_news(self, int64_t now_ns) noexcept nogil:
        """True once if there is something new for Python."""
        cdef bint is_new = self.fanout.notes.count and self.fanout.notes.total != self._notes_told
        is_new = is_new or (self.fanout.ready_count and self.fanout.ready_total != self._ready_told)
        self._notes_told = self.fanout.notes.total
        self._ready_told = self.fanout.ready_total
        return is_new or (self.fanout.intake is not None and self.fanout.intake.is_due(now_ns))

    cdef int64_t untold_in_ns(self, int64_t now_ns) noexcept nogil:
        """Time until the intake's messages must be reported to Python."""
        cdef int64_t due_ns = 0
        if self.fanout.intake is not None and not self.fanout.intake.is_told:
            due_ns = self.fanout.intake.due_ns
        return max(due_ns - now_ns, <int64_t>0) if due_ns else INT64_MAX

    cdef void rest(self) noexcept nogil:
        """Python has not handled earlier reports: read nothing more until then."""
        mutex_release(&self.fanout.mutex)
        usleep(REST_US)
        mutex_acquire(&self.fanout.mutex)

    cdef int wait(self, int64_t timeout_ns) except -1 nogil:
        """Serve sockets that have data, or have room again."""
        cdef epoll_event events[EVENTS_MAX]
        cdef int index, count
        self.fanout.is_lane_asleep = timeout_ns > 0
        mutex_release(&self.fanout.mutex)
        count = epoll_wait(self._epoll, &events[0], EVENTS_MAX, <int>((timeout_ns + NS_PER_MS - 1) // NS_PER_MS))
        mutex_acquire(&self.fanout.mutex)
        self.fanout.is_lane_asleep = False
        for index in range(count):
            self.look(events[index].data.u64, events[index].events)
            mutex_give_way(&self.fanout.mutex)
        return 0

    cdef int look(self, uint64_t key, uint32_t events) except -1 nogil:
        cdef uint32_t slot = <uint32_t>key
        cdef Link *link
        cdef uint64_t rings
        if key == BELL_KEY:
            read_bell(self._bell, &rings, sizeof(rings))
            return 0
        link = &self.fanout.link_table[slot]
        if slot >= self.fanout.links_max or link.fd < 0 or key_of(slot, link.number) != key:
            return 0
        if events & EPOLLOUT:
            link.is_blocked = False
            self.fanout.mark_ready(slot)
        if link.is_over and events & (EPOLLERR | EPOLLHUP):
            epoll_ctl(self._epoll, EPOLL_CTL_DEL, link.fd, NULL)
            link.is_blocked = True
            link.armed = 0
        elif events & (EPOLLIN | EPOLLERR | EPOLLHUP) and not is_stopped(link):
            self.read(slot)
        return 0

    cdef int read(self, uint32_t slot) except -1 nogil:
        cdef Link *link = &self.fanout.link_table[slot]
        cdef ssize_t size = recv(link.fd, self._buffer, RECEIVE_SIZE, MSG_DONTWAIT)
        if size > 0:
            self.fanout.now_ns = udp_monotonic_ns()
            self.fanout.accept_bytes(slot, self._buffer, size)
        elif size == 0:
            self.fanout.end(slot, FAULT_CUT if link.partial_size else FAULT_CLOSED)
        else:
            self.fail(slot, errno)
        if is_stopped(link):
            self.fanout.mark_ready(slot)
        return 0

    # Sending

    cdef void send_some(self, uint32_t turns) noexcept nogil:
        """Give a bounded number of links one turn each; the others wait for the next turn."""
        cdef uint32_t slots[SENDS_MAX]
        cdef uint32_t count, index
        while turns and self.fanout.lane_count:
            count = min(<uint32_t>SENDS_MAX, min(turns, self.fanout.lane_count))
            turns -= count
            memcpy(slots, self.fanout.lane_slots, count * sizeof(uint32_t))
            self.fanout.lane_count -= count
            memmove(self.fanout.lane_slots, self.fanout.lane_slots + count, self.fanout.lane_count * sizeof(uint32_t))
            for index in range(count):
                self.fanout.link_table[slots[index]].is_ready = False
            for index in range(count):
                self.send_to(slots[index])
            mutex_give_way(&self.fanout.mutex)

    cdef void send_to(self, uint32_t slot) noexcept nogil:
        cdef Link *link = &self.fanout.link_table[slot]
        if not link.is_blocked and self.send_left(slot) and self.send_frames(slot) and not queue_is_empty(&link.queue):
            self.fanout.mark_ready(slot)
        self.arm(slot)

    cdef bint send_left(self, uint32_t slot) noexcept nogil:
        """True if nothing is left."""
        cdef Link *link = &self.fanout.link_table[slot]
        cdef ssize_t sent
        if link.left_begin == link.left_end:
            return True
        sent = send(link.fd, link.left + link.left_begin, link.left_end - link.left_begin, MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            link.is_blocked = True
            self.fail(slot, errno)
            return False
        link.left_begin += sent
        if link.left_begin < link.left_end:
            link.is_blocked = True
            return False
        link.left_begin = link.left_end = 0
        if link.left_capacity > LEFT_KEPT:
            free(link.left)
            link.left = NULL
            link.left_capacity = 0
        return True

    cdef bint send_frames(self, uint32_t slot) noexcept nogil:
        """True if the socket accepted all data; the rest is kept."""
        cdef Link *link = &self.fanout.link_table[slot]
        cdef Pieces pieces
        cdef msghdr message
        cdef ssize_t sent
        queue_take(&link.queue, self.fanout.history, SEND_SIZE, &pieces)
        if pieces.count == 0:
            return True
        message = make_message(&pieces)
        sent = sendmsg(link.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            self.fail(slot, errno)
            sent = 0
        if <uint64_t>sent < pieces.size and not link.is_over:
            link.is_blocked = True
            if not keep_left(link, &pieces, sent):
                self.fanout.end(slot, FAULT_MEMORY)
        queue_sent(&link.queue, &pieces)
        link.packets_out += pieces.packets
        link.bytes_out += pieces.size
        return not link.is_blocked and not link.is_over

    cdef void fail(self, uint32_t slot, int error) noexcept nogil:
        """If the socket only has no room, or no data to read, note that; otherwise the link ends."""
        cdef Link *link = &self.fanout.link_table[slot]
        if error == EAGAIN or error == EINTR:
            return
        self.fanout.end(slot, FAULT_CUT)
        link.is_blocked = True

    cdef void arm(self, uint32_t slot) noexcept nogil:
        """Register the events of interest with the kernel."""
        cdef Link *link = &self.fanout.link_table[slot]
        cdef uint32_t wanted = 0 if is_stopped(link) else EPOLLIN
        cdef epoll_event event
        if link.is_blocked:
            wanted |= EPOLLOUT
        if wanted == link.armed:
            return
        event.events = wanted
        event.data.u64 = key_of(slot, link.number)
        link.armed = wanted
        if epoll_ctl(self._epoll, EPOLL_CTL_MOD, link.fd, &event):
            self.fanout.end(slot, FAULT_CUT)


cdef extern from "<unistd.h>" nogil:
    ssize_t read_bell "read"(int fd, void *data, size_t size)

cdef extern from *:
    """
    #include <sys/socket.h>
    #include <string.h>
    static struct msghdr make_message_of(struct iovec *pieces, int count) {
        struct msghdr message;
        memset(&message, 0, sizeof(message));
        message.msg_iov = pieces;
        message.msg_iovlen = count;
        return message;
    }
    """
    msghdr make_message_of(iovec *pieces, int count) nogil


cdef inline msghdr make_message(Pieces *pieces) noexcept nogil:
    return make_message_of(pieces.pieces, pieces.count)


cdef bint keep_left(Link *link, const Pieces *pieces, uint64_t sent) noexcept nogil:
    """Keep the data that the socket did not accept; False without memory."""
    cdef uint64_t size = pieces.size - sent, skipped
    cdef int index
    cdef void *bigger
    if size > link.left_capacity:
        bigger = realloc(link.left, size)
        if bigger is NULL:
            return False
        link.left = <uint8_t *>bigger
        link.left_capacity = size
    link.left_begin = link.left_end = 0
    for index in range(pieces.count):
        skipped = min(sent, pieces.pieces[index].iov_len)
        sent -= skipped
        size = pieces.pieces[index].iov_len - skipped
        memcpy(link.left + link.left_end, <const uint8_t *>pieces.pieces[index].iov_base + skipped, size)
        link.left_end += size
    return True
