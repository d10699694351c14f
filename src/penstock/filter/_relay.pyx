"""The data thread's fast path: packets that come in order are received, forwarded and sent without Python and its lock.

Whatever is not of that kind is for Python: run() returns, and the core goes on in the midst of the batch.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

import os

from penstock.filter._dispatch cimport Dispatcher
from penstock.filter._forward cimport TROUBLE_FULL, TROUBLE_NONE, Forwarder, raise_trouble
from penstock.middleware._inorder cimport InOrder
from penstock.net._udp cimport Inlet, udp_monotonic_ns
from penstock.wire._outbox cimport Outbox


cdef class Relay:
    """From an inlet to a dispatcher. Used by one thread, which alone uses all of them."""

    def __cinit__(
        self, Inlet inlet not None, InOrder in_order not None, Forwarder forwarder not None, Dispatcher dispatcher not None
    ):
        self._inlet = inlet
        self._in_order = in_order
        self._forwarder = forwarder
        self._dispatcher = dispatcher
        self._view = inlet.batch._view
        in_order.make_room(inlet.batch.capacity)

    def run(self, int64_t wake_ns, bint spin) -> bool:
        """Relay until that time (CLOCK_MONOTONIC), or until the inlet's bell was rung, or until there is something for
        Python: then it is true, and the batch's datagrams from `start` on were received at `now_ns`.

        What is in the outbox must have been sent.
        """
        cdef int received
        self._inlet.check_open()
        with nogil:
            received = self.loop(wake_ns, spin)
        if received < 0:
            raise OSError(-received, os.strerror(-received))
        return received > 0

    cdef int loop(self, int64_t wake_ns, bint spin) except? -1 nogil:
        """Datagrams in the batch that has something for Python; 0 without, or -errno."""
        cdef int received
        self.now_ns = udp_monotonic_ns()
        while True:
            received = self._inlet.fill(wake_ns - self.now_ns, spin)
            if received <= 0:
                return received
            self.now_ns = udp_monotonic_ns()
            self._in_order.clear()
            self.start = self._in_order.take_rows(self._inlet.batch, 0, self.now_ns)
            if self.start:
                self.forward(self._in_order, self._forwarder.outbox)
            if self.start < received:
                return received
            if self.now_ns >= wake_ns or self._inlet.is_rung():
                return 0

    cdef int forward(self, InOrder taken, Outbox outbox) except -1 nogil:
        """Forward what was taken, through the outbox, and send it."""
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
