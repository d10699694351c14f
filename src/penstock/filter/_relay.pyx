"""The data thread's fast path: packets that come in order are received, forwarded and sent without Python and its lock.

Whatever is not of that kind is for Python: run() returns, and the core goes on in the midst of the batch.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

import os

from penstock.filter._dispatch cimport Dispatcher
from penstock.filter._forward cimport TROUBLE_FULL, TROUBLE_NONE, Forwarder, raise_trouble
from penstock.middleware._inorder cimport InOrder
from penstock.net._udp cimport Inlet, udp_monotonic_ns, udp_pause
from penstock.shm._ring_reader cimport RingReader
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._outbox cimport Outbox

cdef enum:
    FOR_NOBODY = 0
    FOR_PYTHON = 1

cdef int64_t RING_SLICE_NS = 1_000_000 # rings wake nobody who sleeps


cdef class Relay:
    """From an inlet, and from publishers' rings, to a dispatcher. One thread uses it, and alone uses all of them."""

    def __cinit__(
        self, Inlet inlet not None, InOrder in_order not None, Forwarder forwarder not None, Dispatcher dispatcher not None
    ):
        self._inlet = inlet
        self._in_order = in_order
        self._forwarder = forwarder
        self._dispatcher = dispatcher
        self._ring_batch = DatagramBatch(inlet.batch.capacity)
        self._rings = []
        self.batch = inlet.batch
        in_order.make_room(inlet.batch.capacity)

    def __dealloc__(self):
        PyMem_Free(self._sources)

    def read_from(self, rings not None) -> None:
        """Take packets from these rings as well: open readers, each with the key of the socket that its publisher
        sends from. One that is to be closed must be left out first."""
        cdef Source *sources = <Source *>PyMem_Calloc(len(rings) + 1, sizeof(Source))
        cdef RingReader ring
        if sources is NULL:
            raise MemoryError
        PyMem_Free(self._sources)
        self._sources = sources
        self._source_count = 0
        self._rings = list(rings)
        for ring, key in self._rings:
            ring.check_open()
            sources[self._source_count].ring = <PyObject *>ring
            sources[self._source_count].key = key
            self._source_count += 1

    def run(self, int64_t wake_ns, bint spin) -> bool:
        """Relay until that time (CLOCK_MONOTONIC), or until the inlet's bell was rung, or until there is something for
        Python. Then it is true: the datagrams of `batch` from `start` on were received at `now_ns`. It also returns
        when something is wrong with a ring; reading it says what.

        What is in the outbox must have been sent.
        """
        cdef int status
        self._inlet.check_open()
        with nogil:
            status = self.loop(wake_ns, spin)
        if status < 0:
            raise OSError(-status, os.strerror(-status))
        return status == FOR_PYTHON

    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil:
        cdef int64_t patience_ns
        cdef int received, read = 0
        self.now_ns = udp_monotonic_ns()
        while True:
            patience_ns = wake_ns - self.now_ns
            if self._source_count:
                read = self.read_rings()
                if read < 0:
                    return -1 - read
                patience_ns = 0 if spin or read else min(patience_ns, RING_SLICE_NS)
            received = self._inlet.fill(patience_ns, spin)
            self.now_ns = udp_monotonic_ns()
            if received < 0:
                return received
            if received and self.pass_on(self._inlet.batch):
                with gil:
                    self.batch = self._inlet.batch
                return FOR_PYTHON
            if self.now_ns >= wake_ns or self._inlet.is_rung():
                return FOR_NOBODY
            if received == 0 and read == 0:
                if self._source_count == 0:
                    return FOR_NOBODY # somebody has rung
                udp_pause()

    cdef int read_rings(self) except? -1 nogil:
        """Packets that the rings had; or -1 less what loop() is to return."""
        cdef int index, count, total = 0
        for index in range(self._source_count):
            count = (<RingReader>self._sources[index].ring).fill(self._ring_batch, self._sources[index].key)
            if count < 0:
                return -1 - FOR_NOBODY
            if count and self.pass_on(self._ring_batch):
                with gil:
                    self.batch = self._ring_batch
                return -1 - FOR_PYTHON
            total += count
        return total

    cdef bint pass_on(self, DatagramBatch batch) except -1 nogil:
        """Forward what comes in order, and pass over copies of what has come; whether that was not all."""
        cdef Py_ssize_t count
        self.start = 0
        while self.start < batch.count:
            self._in_order.clear()
            count = self._in_order.take_rows(batch, self.start, self.now_ns)
            if count:
                self.forward(batch, self._in_order, self._forwarder.outbox)
            else:
                count = self._in_order.count_known(batch, self.start)
                self.copies += count
            if count == 0:
                return True
            self.start += count
        return False

    cdef int forward(self, DatagramBatch batch, InOrder taken, Outbox outbox) except -1 nogil:
        """Forward what was taken, through the outbox, and send it."""
        cdef uint32_t first
        cdef int64_t total = 0, done
        cdef int trouble
        while total < taken._packet_count:
            first = taken._packets[total].message_start
            done = 0
            self._forwarder.matcher.match(batch.data, batch._view, taken._messages + first, taken._message_count - first)
            trouble = self._forwarder.forward_rows(
                batch.data, taken._packets + total, taken._packet_count - total, taken._messages, &done
            )
            self._dispatcher.send_rows(outbox)
            outbox.reset()
            total += done
            if trouble != TROUBLE_NONE and trouble != TROUBLE_FULL:
                with gil:
                    raise_trouble(trouble, taken._packets + total)
        return 0
