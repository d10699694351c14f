"""The data thread's fast path: packets that come in order are received, forwarded and sent without Python and its lock.

They come from sockets, and from rings of publishers on this host. Whatever is not of that kind is for Python: run()
returns, and the core goes on in the midst of the batch.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

import os

from penstock.filter._dispatch cimport Dispatcher
from penstock.filter._forward cimport TROUBLE_FULL, TROUBLE_NONE, Forwarder, raise_trouble
from penstock.middleware._inorder cimport InOrder
from penstock.net._udp cimport Inlet, udp_monotonic_ns, udp_pause
from penstock.shm._ring cimport STATE_BLANK, STATE_EVENT, State
from penstock.shm._ring_reader cimport RingReader, take_rows
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._outbox cimport Outbox

from penstock.base.errors import LocalProtocolError

cdef enum:
    LOOKS_PER_ROUND = 32 # at the rings, for one at the sockets, which takes ten times as long


cdef class Relay:
    """From an inlet, and from rings, to a dispatcher. Used by one thread, which alone uses all of them."""

    def __cinit__(
        self,
        Inlet inlet not None,
        InOrder in_order not None,
        Forwarder forwarder not None,
        Dispatcher dispatcher not None,
        uint32_t rings_max = 0,
    ):
        self._inlet = inlet
        self._in_order = in_order
        self._forwarder = forwarder
        self._dispatcher = dispatcher
        self._rings_batch = DatagramBatch(inlet.batch.capacity)
        self._readers = []
        self._trouble = STATE_BLANK
        self._rings_max = rings_max
        self._places = <RingPlace *>PyMem_Calloc(max(1, rings_max), sizeof(RingPlace))
        if self._places is NULL:
            raise MemoryError
        in_order.make_room(inlet.batch.capacity)

    def __dealloc__(self):
        PyMem_Free(self._places)

    @property
    def batch(self) -> DatagramBatch:
        """That from which run() returned."""
        return self._rings_batch if self._is_ring else self._inlet.batch

    def read(self, number, RingReader reader not None, uint64_t source_key) -> None:
        """Read a ring as well, whose datagrams are said to come from `source_key`; it is to be closed after forget()."""
        reader.check_open()
        if self._ring_count >= self._rings_max:
            raise LocalProtocolError(f"{self._ring_count} rings are read already")
        self._readers.append((number, reader, source_key))
        self.place_rings()

    def forget(self, number) -> None:
        """Read the ring no longer."""
        self._readers = [each for each in self._readers if each[0] != number]
        self.place_rings()

    def broken(self) -> tuple | None:
        """The number of the ring for which run() returned because it cannot be read on, and why; it is to be forgotten.
        """
        if self._trouble == STATE_BLANK:
            return None
        number, reader, _ = self._readers[self._ring_next]
        if self._trouble == STATE_EVENT:
            return number, LocalProtocolError("a packet in the ring is larger than a datagram")
        return number, (<RingReader>reader).error(self._trouble)

    def run(self, int64_t wake_ns, bint spin) -> bool:
        """Relay until that time (CLOCK_MONOTONIC), or until the inlet's bell was rung or a ring is broken, or until there
        is something for Python: then it is true, and datagrams of `batch` from `start` on were received at `now_ns`.

        What is in the outbox must have been sent.
        """
        cdef int received
        self._inlet.check_open()
        with nogil:
            received = self.loop(wake_ns, spin)
        if received < 0:
            raise OSError(-received, os.strerror(-received))
        return received > 0

    cdef place_rings(self):
        cdef uint32_t index
        cdef RingReader reader
        for index, (_, reader, source_key) in enumerate(self._readers):
            self._places[index] = RingPlace(&reader._cursor, source_key)
        self._ring_count = len(self._readers)
        self._ring_next = 0
        self._trouble = STATE_BLANK

    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil:
        """Datagrams in the batch that has something for Python; 0 without, or -errno."""
        cdef int received
        self.now_ns = udp_monotonic_ns()
        while True:
            received = self.wait(wake_ns, spin)
            if received <= 0:
                return received
            self.now_ns = udp_monotonic_ns()
            if self._is_ring:
                self.take(self._rings_batch)
            else:
                self.take(self._inlet.batch)
            if self.start < received:
                return received
            if self.now_ns >= wake_ns or self._inlet.is_rung():
                return 0

    cdef int wait(self, int64_t wake_ns, bint spin) except? -1 nogil:
        """Datagrams that came, by a ring or not; 0 when the time is over or somebody wants this thread, or -errno."""
        cdef int received, turn
        self._is_ring = False
        if self._ring_count == 0:
            return self._inlet.fill(wake_ns - self.now_ns, spin)
        while True:
            for turn in range(LOOKS_PER_ROUND if spin else 1):
                received = self.read_rings(self._rings_batch)
                if received or self._trouble != STATE_BLANK:
                    return received
                if spin:
                    udp_pause()
            received = self._inlet.fill(0 if spin else wake_ns - self.now_ns, False)
            if received or not spin or self._inlet.is_rung() or udp_monotonic_ns() >= wake_ns:
                return received

    cdef int read_rings(self, DatagramBatch batch) noexcept nogil:
        """Take what is in the next ring that has something."""
        cdef uint32_t turn
        cdef uint64_t count = 0, index
        cdef State state
        for turn in range(self._ring_count):
            self._ring_next = self._ring_next + 1 if self._ring_next + 1 < self._ring_count else 0
            state = take_rows(
                self._places[self._ring_next].cursor, batch.data, batch.capacity, batch.stride, batch.sizes, &count,
                is_padded=False,
            )
            if count:
                break
            if state != STATE_BLANK:
                self._trouble = state
                return 0
        if count:
            self._is_ring = True
            batch.generation += 1
            batch.count = count
            for index in range(count):
                batch.sources[index] = self._places[self._ring_next].source
                batch.arrivals_ns[index] = 0
                batch.sockets[index] = 0
        return <int>count

    cdef int take(self, DatagramBatch batch) except -1 nogil:
        """Forward what comes in order, and pass over copies of it: `start` is the first of the others."""
        cdef Py_ssize_t taken
        self.start = 0
        while True:
            self._in_order.clear()
            taken = self._in_order.take_rows(batch, self.start, self.now_ns)
            if taken:
                self.forward(batch, self._in_order, self._forwarder.outbox)
                self.start += taken
            if self.start == batch.count:
                return 0
            taken = self._in_order.pass_known_rows(batch, self.start)
            if taken == 0:
                return 0
            self.start += taken

    cdef int forward(self, DatagramBatch batch, InOrder taken, Outbox outbox) except -1 nogil:
        """Forward what was taken, through the outbox, and send it."""
        cdef const uint8_t *data = batch.data
        cdef uint32_t first
        cdef int64_t total = 0, done
        cdef int trouble
        while total < taken._packet_count:
            first = taken._packets[total].message_start
            done = 0
            self._forwarder.matcher.match(data, batch._view, taken._messages + first, taken._message_count - first)
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
