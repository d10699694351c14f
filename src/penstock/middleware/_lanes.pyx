"""The short way between the cores' fast paths and the sockets, for the driver.

At ten thousand messages a second every step taken in Python costs more than it does in a tight loop, because nothing of
it is in the processor's caches any more. So the steps that nearly every message takes are one compiled call.
"""

from libc.stdint cimport int64_t, uint64_t

from penstock.middleware._inorder cimport InOrder
from penstock.middleware._outgoing cimport OutgoingCursor
from penstock.net._udp cimport Inlet, Outlet, udp_monotonic_ns
from penstock.shm._ring cimport RingWriter
from penstock.shm._ring_reader cimport RingReader
from penstock.wire._messages cimport MessageBatch


cdef int64_t SPIN_SLICE_NS = 50_000
cdef int64_t BLOCK_SLICE_NS = 5_000_000


cdef class ReceivingLane:
    """Receives, and takes what comes in order."""

    cdef Inlet _inlet
    cdef InOrder _in_order
    cdef readonly MessageBatch messages # what came in order at the batch's beginning, if anything did
    cdef readonly int64_t now_ns        # when that was

    def __cinit__(self, Inlet inlet not None, InOrder in_order not None, *_):
        self._inlet = inlet
        self._in_order = in_order

    def receive(self, int64_t timeout_ns, bint spin) -> bool:
        """Whether something came, and all of it in order: then it is in `messages`. Else the batch has what came."""
        if self.fill(timeout_ns, spin) == 0:
            return False
        self.now_ns = udp_monotonic_ns()
        self.messages = self._in_order.begin(self._inlet.batch, self.now_ns)
        return self.messages is not None and self.messages.packet_count_ == self._inlet.batch.count

    cpdef int fill(self, int64_t timeout_ns, bint spin) except -1:
        """Fill the batch with what is there, or comes within the time: how many datagrams."""
        return self._inlet.receive(timeout_ns, spin)


cdef class RingLane(ReceivingLane):
    """The same from a ring in shared memory, whose datagrams are said to come from `source`. The sockets are looked at
    when the ring is empty, and now and then while it is waited for: only repairs come that way."""

    cdef RingReader _ring
    cdef uint64_t _source

    def __cinit__(self, Inlet inlet not None, InOrder in_order not None, RingReader ring not None, uint64_t source):
        self._ring = ring
        self._source = source

    cpdef int fill(self, int64_t timeout_ns, bint spin) except -1:
        cdef int64_t deadline_ns = udp_monotonic_ns() + timeout_ns
        cdef int64_t left_ns = timeout_ns
        cdef int received = self._ring.receive(self._inlet.batch, self._source, 0)
        while received == 0:
            received = self._inlet.receive(0, False)
            if received or left_ns <= 0:
                break
            if self._inlet._is_rung:
                self._inlet._is_rung = False
                break
            received = self._ring.receive(
                self._inlet.batch, self._source, min(left_ns, SPIN_SLICE_NS if spin else BLOCK_SLICE_NS)
            )
            left_ns = deadline_ns - udp_monotonic_ns()
        return received


cdef class PublishingLane:
    """Publishes single messages on one stream, to a ring if there is one, and then to one destination unless it is 0."""

    cdef OutgoingCursor _stream
    cdef Outlet _outlet
    cdef uint64_t _destination
    cdef RingWriter _ring

    def __cinit__(
        self, OutgoingCursor stream not None, Outlet outlet not None, uint64_t destination, RingWriter ring = None
    ):
        self._stream = stream
        self._outlet = outlet
        self._destination = destination
        self._ring = ring

    def publish(self, str topic not None, payload not None, model_id, model_version) -> int:
        """Send the message: 0, or the number of the error that kept it from being sent; -1 when it takes the core."""
        cdef uint64_t sequence = self._stream.publish_one(
            topic, payload, model_id, model_version, udp_monotonic_ns()
        )
        if sequence == 0:
            return -1
        if self._ring is not None:
            self._ring.write_stored(self._stream.kept, sequence, sequence)
        return 0 if self._destination == 0 else self._outlet.send_one_stored(self._destination, self._stream.kept, sequence)
