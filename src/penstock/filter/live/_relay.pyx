"""The data thread's fast path: packets in order are received, forwarded and sent without Python and the GIL.

For all other packets run() returns, and the core continues in the middle of the batch.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

import os

from penstock.base._crc32c cimport crc32c_initialise
from penstock.filter.live._dispatch cimport Dispatcher
from penstock.filter.core.kernel._forward cimport TROUBLE_FULL, TROUBLE_NONE, Forwarder, raise_trouble
from penstock.middleware.core._inorder cimport InOrder
from penstock.net._udp cimport Inlet, udp_monotonic_ns, udp_pause
from penstock.shm._ring cimport STATE_BLANK, State, look
from penstock.shm._ring_reader cimport RingReader, take_rows
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._outbox cimport Outbox

from penstock.base.errors import LimitError

crc32c_initialise()

cdef enum:
    RING_LOOKS = 128  # checks of the rings per check of the sockets, which takes thirty times as long


cdef class Relay:
    """Relays from an inlet, and from rings of publishers on this host, to a dispatcher. One thread uses all of them."""

    def __cinit__(
        self, Inlet inlet not None, InOrder in_order not None, Forwarder forwarder not None, Dispatcher dispatcher not None
    ):
        self._inlet = inlet
        self._in_order = in_order
        self._forwarder = forwarder
        self._dispatcher = dispatcher
        self._view = inlet.batch._view
        in_order.make_room(inlet.batch.capacity)
        self._lost = -1
        self._names = []
        self._readers = []

    def add_ring(self, name, RingReader reader not None, uint64_t source) -> None:
        """Also read this ring, as if its events were datagrams from `source` (net.udp.address_key). A blocking
        caller notices ring events only with the next datagram or at the end of its wait."""
        if self._ring_count == RINGS_MAX:
            raise LimitError(f"the limit of {RINGS_MAX} rings is reached")
        reader.check_open()
        self._sources[self._ring_count] = RingSource(&reader._cursor, source)
        self._names.append(name)
        self._readers.append(reader)
        self._ring_count += 1

    def remove_ring(self, name) -> None:
        """Remove a ring. Its reader may be closed only after this."""
        cdef int index = self._names.index(name)
        del self._names[index]
        del self._readers[index]
        self._ring_count -= 1
        for index in range(index, self._ring_count):
            self._sources[index] = self._sources[index + 1]

    def run(self, int64_t wake_ns, bint spin) -> bool:
        """Relay until the given time (CLOCK_MONOTONIC), until the inlet's bell was rung, or until a packet needs
        Python. In the last case return True: the batch's datagrams from `start` on were received at `now_ns`.

        The outbox must have been sent before.
        """
        cdef int received
        self._inlet.check_open()
        self._lost = -1
        if self._in_order.authenticator is not None:
            self._in_order.authenticator.update()
        with nogil:
            received = self.loop(wake_ns, spin)
        self.lost_ring = None if self._lost < 0 else self._names[self._lost]
        if received < 0:
            raise OSError(-received, os.strerror(-received))
        return received > 0

    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil:
        """Return the number of datagrams in a batch that needs Python; 0 if none does, or -errno."""
        cdef int received
        self.now_ns = udp_monotonic_ns()
        while True:
            received = self.fill(wake_ns - self.now_ns, spin)
            if received <= 0:
                return received
            self.now_ns = udp_monotonic_ns()
            self._in_order.admit_rows(self._inlet.batch)
            if self.pass_on(self._inlet.batch):
                return received
            if self.now_ns >= wake_ns or self._inlet.is_rung():
                return 0

    cdef int fill(self, int64_t timeout_ns, bint spin) except? -1 nogil:
        """Fill the batch from a ring or from the sockets. Return the number of datagrams, or -errno."""
        cdef int received, turn
        cdef int64_t deadline_ns
        if self._ring_count == 0:
            return self._inlet.fill(timeout_ns, spin)
        deadline_ns = udp_monotonic_ns() + timeout_ns
        if self._ring_batches >= RING_BATCHES_MAX:
            self._ring_batches = 0
            received = self._inlet.fill(0, False)
            if received:
                return received
        while True:
            for turn in range(RING_LOOKS if spin else 1):
                received = self.read_rings(self._inlet.batch)
                if received or self._lost >= 0:
                    self._ring_batches += 1
                    return received
                udp_pause()
            self._ring_batches = 0
            received = self._inlet.fill(0 if spin else timeout_ns, False)
            if received or not spin or udp_monotonic_ns() >= deadline_ns or self._inlet.is_rung():
                return received

    cdef int read_rings(self, DatagramBatch batch) noexcept nogil:
        """Read the next ring with events. Return 0 if all are empty or one cannot be read any more."""
        cdef uint64_t count = 0
        cdef uint32_t size
        cdef State state
        cdef RingSource *ring
        cdef int step, index
        for step in range(self._ring_count):
            index = (self._turn + step) % self._ring_count
            ring = &self._sources[index]
            state = look(ring.cursor, &size)
            if state == STATE_BLANK:
                continue
            batch.generation += 1
            state = take_rows(
                ring.cursor, batch.data, batch.capacity, batch.stride, batch.sizes, &count, is_padded=False
            )
            if count == 0:
                self._lost = index
                return 0
            for step in range(<int>count):
                batch.sources[step] = ring.source
                batch.arrivals_ns[step] = 0
                batch.sockets[step] = 0
            batch.count = count
            self._turn = index + 1
            return <int>count
        return 0

    cdef bint pass_on(self, DatagramBatch batch) except -1 nogil:
        """Forward packets in order and drop duplicates. Return True if other packets remain."""
        cdef Py_ssize_t count
        self.start = 0
        while self.start < batch.count:
            self._in_order.clear()
            count = self._in_order.take_rows(batch, self.start, self.now_ns)
            if count:
                self.forward(self._in_order, self._forwarder.outbox)
            else:
                count = self._in_order.count_known(batch, self.start)
                self.copies += count
            if count == 0:
                return True
            self.start += count
        return False

    cdef int forward(self, InOrder taken, Outbox outbox) except -1 nogil:
        """Forward packets through the outbox and send them."""
        cdef const uint8_t *data = self._inlet.batch.data
        cdef uint32_t first
        cdef int64_t total = 0, done
        cdef int trouble
        while total < taken._packet_count:
            first = taken._packets[total].message_start
            done = 0
            self._forwarder.matcher.match(data, self._view, taken._messages + first, taken._message_count - first)
            trouble = self._forwarder.forward_rows(
                data, taken._packets + total, taken._packet_count - total, taken._messages, &done
            )
            self._dispatcher.send_rows(outbox)
            outbox.reset()
            total += done
            if trouble != TROUBLE_NONE and trouble != TROUBLE_FULL:
                with gil:
                    raise_trouble(trouble, taken._packets + total)
        return 0
