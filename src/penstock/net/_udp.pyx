"""Sending and receiving datagrams in batches, without the GIL, spinning or blocking."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import os

from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._packets cimport PacketStore, Place

from penstock.base.errors import LocalProtocolError

SOCKETS_MAX = UDP_BATCH
"""Maximum number of sockets of one Inlet."""

cdef enum:
    SPINS_PER_LOOK = 16  # spins between two readings of the clock
    COALESCED_MAX = 65_536
    SPINS_PER_ROUND = 8  # rounds over all sockets but the last, which is read less often

cdef int64_t SIGNAL_CHECK_NS = 50_000_000


cdef class Inlet:
    """Fills one batch from one or more sockets, in one thread at a time.

    With a `bell`, an eventfd, any thread may wake() it. With `coalesces`, the kernel hands over datagrams together
    that a publisher sends together, which is several times faster; a caller that waits for the sockets by other means
    than receive() calls it until it returns 0. An overflow then counts as one, however many datagrams were dropped
    together.
    """

    def __cinit__(self, fds, DatagramBatch batch not None, int bell = -1, *, bint coalesces = False):
        self.batch = batch
        self._bell = bell
        self._coalesces = coalesces
        if coalesces:
            self._coalesced = <uint8_t *>PyMem_Malloc(COALESCED_MAX)
            if self._coalesced is NULL:
                raise MemoryError
        self._calls = <udp_calls *>PyMem_Calloc(1, sizeof(udp_calls))
        if self._calls is NULL:
            raise MemoryError
        self.listen_to(fds)

    def listen_to(self, fds not None) -> None:
        """Use other sockets from the next receive() on."""
        if not 1 <= len(fds) <= SOCKETS_MAX or self.batch.capacity < len(fds):
            raise LocalProtocolError(f"an inlet needs 1 to {SOCKETS_MAX} sockets, and a batch with room for each")
        cdef int index
        before = {self._fds[index]: self._overflows[index] for index in range(self._count)}
        for index, fd in enumerate(fds):
            self._fds[index] = fd
            self._overflows[index] = before.pop(fd, 0)
            if self._coalesces:
                udp_coalesce(fd)
        self._count = len(fds)
        self._overflows_before += sum(before.values())

    def wake(self) -> None:
        """Make the waiting receive(), or else the next one, return at once. May be called in any thread."""
        self._is_rung = True
        os.eventfd_write(self._bell, 1)

    def __dealloc__(self):
        PyMem_Free(self._calls)
        PyMem_Free(self._coalesced)

    def close(self) -> None:
        """Mark the sockets as closed: their descriptors may be reused."""
        self._is_closed = True

    @property
    def overflows(self) -> int:
        """Number of datagrams that the kernel dropped because a socket's buffer was full."""
        cdef int index
        cdef uint64_t total = self._overflows_before
        for index in range(self._count):
            total += self._overflows[index]
        return total

    cpdef int receive(self, int64_t timeout_ns = 0, bint spin = False) except -1:
        """Fill the batch with datagrams that are available or arrive within the timeout. Return their number.

        Spinning occupies a core and returns within a microsecond; blocking waits for the kernel. While spinning, the
        last socket is read less often than the others.
        """
        cdef int received
        self.check_open()
        with nogil:
            received = self.fill(timeout_ns, spin)
        if received < 0:
            self.check_open()
            raise OSError(-received, os.strerror(-received))
        return received

    cdef int check_open(self) except -1:
        if self._is_closed:
            raise LocalProtocolError("receive after close")
        return 0

    cdef int fill(self, int64_t timeout_ns, bint spin) except? -1 nogil:
        cdef int64_t deadline_ns, now_ns, signals_ns
        cdef bint waits_first = self._is_sparse and timeout_ns > 0 and not spin and not self._is_rung
        waits_first = waits_first and self._coalesced_at == self._coalesced_size
        cdef int received = self.drain(0 if waits_first else self._count, False)
        cdef int spins = 0
        cdef bint is_partial
        if received != 0 or timeout_ns <= 0:
            return received
        now_ns = udp_monotonic_ns()
        deadline_ns = now_ns + timeout_ns
        signals_ns = now_ns + SIGNAL_CHECK_NS
        while received == 0 and now_ns < deadline_ns and not self.is_rung():
            if not spin:
                received = udp_wait_or_bell(self._fds, self._count, self._bell, min(deadline_ns, signals_ns) - now_ns)
                if received < 0 and received != -EINTR:
                    break
                if received == -EINTR:
                    signals_ns = now_ns
            if self._is_closed:
                return -EBADF
            is_partial = spin and self._count > 1 and spins % SPINS_PER_ROUND != 0
            received = self.drain(self._count - 1 if is_partial else self._count, spin)
            spins += 1
            if received == 0 and (not spin or spins % SPINS_PER_LOOK == 0):
                now_ns = udp_monotonic_ns()
                if now_ns >= signals_ns:
                    with gil:
                        PyErr_CheckSignals()
                    signals_ns = now_ns + SIGNAL_CHECK_NS
            if spin:
                udp_pause()
        self._is_sparse = received <= 1
        return received

    cdef bint is_rung(self) noexcept nogil:
        if not self._is_rung:  # only a bell that rang is reset: a store could overwrite one that rings now
            return False
        self._is_rung = False
        return True

    cdef int drain(self, int sockets, bint is_single) noexcept nogil:
        """Read the available datagrams of the first `sockets` sockets, a fair share of each, or just one datagram.
        Return their number or -errno.

        A spinning caller wants the first datagram at once; reading more would make the kernel look for a second one.
        """
        cdef size_t stride = self.batch.stride
        cdef Py_ssize_t room, used = 0
        cdef int index, received
        self.batch.count = 0
        self.batch.generation += 1
        if self._coalesces:
            return self.drain_coalesced(sockets, is_single)
        for index in range(sockets):
            room = 1 if is_single else (self.batch.capacity - used) // (sockets - index)
            received = udp_receive(
                self._fds[index], self._calls, self.batch.data + used * stride, stride, <int>room,
                self.batch.sizes + used, self.batch.sources + used, self.batch.arrivals_ns + used,
                &self._overflows[index],
            )
            if received > 0:
                memset(self.batch.sockets + used, index, received)
                used += received
            elif received != -EAGAIN and received != -EINTR and used == 0:
                return received
        self.batch.count = used
        return <int>used

    cdef int drain_coalesced(self, int sockets, bint is_single) noexcept nogil:
        """drain() from sockets whose datagrams the kernel hands over together. After a socket that filled the batch, the
        next one comes first, so that a busy socket does not starve the others."""
        cdef Py_ssize_t room
        cdef int step, index, received
        cdef int first = self._first_socket
        self._first_socket = 0
        if self._coalesced_at < self._coalesced_size:
            self.take_segments()
        for step in range(sockets):
            index = (first + step) % sockets
            room = self.batch.count + (self.batch.capacity - self.batch.count) // (sockets - step)
            while self.batch.count < room and not (is_single and self.batch.count):
                received = udp_receive_coalesced(
                    self._fds[index], self._calls, self._coalesced, COALESCED_MAX, &self._segment_size,
                    &self._coalesced_source, &self._coalesced_arrival_ns, &self._overflows[index],
                )
                if received < 0:
                    if received != -EAGAIN and received != -EINTR and self.batch.count == 0:
                        return received
                    break
                self._coalesced_at = 0
                self._coalesced_size = <uint32_t>received
                self._coalesced_socket = index
                self.take_segments()
        return <int>self.batch.count

    cdef void take_segments(self) noexcept nogil:
        """Copy coalesced datagrams into the batch, as far as there is room; an empty one, too."""
        cdef Py_ssize_t count
        cdef uint32_t size
        while self.batch.count < self.batch.capacity:
            count = self.batch.count
            if count + 1 == self.batch.capacity:
                self._first_socket = self._coalesced_socket + 1
            size = min(self._segment_size, self._coalesced_size - self._coalesced_at)
            memcpy(self.batch.data + count * self.batch.stride, self._coalesced + self._coalesced_at, size)
            self.batch.sizes[count] = size
            self.batch.sources[count] = self._coalesced_source
            self.batch.arrivals_ns[count] = self._coalesced_arrival_ns
            self.batch.sockets[count] = <uint8_t>self._coalesced_socket
            self.batch.count += 1
            self._coalesced_at += size
            if self._coalesced_at == self._coalesced_size:
                return


cdef class Outlet:
    """Sends from one socket, in one thread at a time."""

    def __cinit__(self, int fd):
        self._fd = fd
        self._calls = <udp_calls *>PyMem_Calloc(1, sizeof(udp_calls))
        if self._calls is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._calls)

    def close(self) -> None:
        """The socket is closed: nothing more is sent."""
        self._fd = -1

    def send(self, uint64_t destination, data not None) -> int:
        """Send one datagram. Return 0 or the error number."""
        cdef int error
        cdef Py_buffer content
        PyObject_GetBuffer(data, &content, PyBUF_SIMPLE)
        with nogil:
            error = udp_send_one(self._fd, destination, <const uint8_t *>content.buf, content.len)
        PyBuffer_Release(&content)
        return error

    cdef int send_one_stored(self, uint64_t destination, PacketStore store, uint64_t sequence) noexcept:
        """Send one packet from the store. Return 0 or the error number."""
        cdef int error
        cdef const Place *place = store.place(sequence)
        with nogil:
            error = udp_send_one(self._fd, destination, store.data + place.offset, place.size + store.trailer_size)
        return error

    def send_stored(self, uint64_t destination, PacketStore store not None, uint64_t first, uint64_t last) -> tuple:
        """Send the packets `first` to `last` of a store. Return the number of failures and the last error number.

        A failed packet is skipped; its receivers will request it.
        """
        cdef int unsent = 0
        cdef int last_error
        if not store.next_sequence - store.count <= first <= last < store.next_sequence:
            raise LocalProtocolError(f"the store does not have all packets from {first} to {last}")
        with nogil:
            last_error = self.send_range(destination, store, first, last, &unsent)
        return unsent, last_error

    cdef int send_range(
        self, uint64_t destination, PacketStore store, uint64_t first, uint64_t last, int *unsent
    ) noexcept nogil:
        cdef uint64_t sequence = first
        cdef int count, sent, error
        cdef int last_error = 0
        cdef const Place *place
        while sequence <= last:
            count = 0
            while count < UDP_BATCH and sequence + count <= last:
                place = store.place(sequence + count)
                self._calls.pieces[count].iov_base = store.data + place.offset
                self._calls.pieces[count].iov_len = place.size + store.trailer_size
                count += 1
            sent = udp_send(self._fd, self._calls, destination, count, &error)
            if error:
                last_error = error
                unsent[0] += 1
                sent += 1
            sequence += sent
        return last_error
