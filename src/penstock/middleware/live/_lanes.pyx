"""The driver's fast path between the cores' fast paths and the sockets.

At ten thousand messages a second, every step in Python costs more than in a tight loop, because its code and data have
left the processor's caches. So the steps of nearly every message are one compiled call.
"""

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from libc.stdint cimport int64_t, uint64_t

import os

from penstock.middleware.core._inorder cimport InOrder
from penstock.middleware.core._outgoing cimport OutgoingCursor
from penstock.middleware.core._requests cimport RequestGate
from penstock.net._burst cimport NEVER_NS, Burst, Flushable, Flusher, Turn
from penstock.net._udp cimport Inlet, Outlet, udp_monotonic_ns
from penstock.shm._memory cimport fetch_ahead, sleep_ns
from penstock.shm._ring cimport RingWriter
from penstock.shm._ring_reader cimport RingReader
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._messages cimport MessageBatch

from penstock.base.clock import NS_PER_US
from penstock.base.errors import LocalProtocolError, OverrunError, ProducerGoneError, RingClosedError
from penstock.middleware.core.events import Deliver, DeliverBatch
from penstock.model import Message

DELIVERIES = (Deliver, DeliverBatch)  # a tuple, because a union would be evaluated for every message

FLUSHER = "penstock-flusher"

cdef PyTypeObject *message_type = <PyTypeObject *>Message

cdef int64_t SPIN_SLICE_NS = 50_000
cdef int64_t BLOCK_SLICE_NS = 5_000_000
cdef double NS_PER_S = 1e9
cdef double FOR_EVER_S = 1e9


cdef class ReceivingLane:
    """Receives datagrams, and delivers those in order. With `gather_ns`, a waiting thread lets more datagrams arrive
    after the first: one wake-up in that time is enough."""

    cdef Inlet _inlet
    cdef InOrder _in_order
    cdef int64_t _gather_ns
    cdef bint _is_gathering             # datagrams have arrived, and the batch has room left
    cdef readonly MessageBatch messages # the messages in order at the batch's beginning, or None
    cdef readonly int64_t now_ns        # the receive time of `messages`

    def __cinit__(self, Inlet inlet not None, InOrder in_order not None, *_, int64_t gather_ns = 0):
        self._inlet = inlet
        self._in_order = in_order
        self._gather_ns = gather_ns

    cpdef bint receive(self, int64_t timeout_ns, bint spin) except -1:
        """Return True if datagrams arrived, all in order: their messages are in `messages`. Else the batch has the
        datagrams."""
        cdef DatagramBatch batch = self._inlet.batch
        self.messages = None # while no packets wait
        if self._is_gathering and not spin:
            with nogil:
                sleep_ns(min(self._gather_ns, timeout_ns))
        self._is_gathering = False
        if self.fill(timeout_ns, spin) == 0:
            return False
        self._is_gathering = self._gather_ns > 0 and batch.count < batch.capacity
        self.now_ns = udp_monotonic_ns()
        self.messages = self._in_order.begin(batch, self.now_ns)
        return self.messages is not None and self.messages.packet_count_ == batch.count

    cpdef int fill(self, int64_t timeout_ns, bint spin) except -1:
        """Fill the batch with datagrams that are available, or arrive in time. Return their number."""
        self._inlet.batch.is_from_ring = False
        return self._inlet.receive(timeout_ns, spin)


cdef class RingLane(ReceivingLane):
    """Reads datagrams from a ring in shared memory; `source` is their source address. The sockets, which only receive
    repairs, are read when the ring is empty, and from time to time during a wait. `lost` is called with the reason when
    the ring can no longer be read."""

    cdef RingReader _ring
    cdef uint64_t _source
    cdef object _lost

    def __cinit__(
        self, Inlet inlet not None, InOrder in_order not None, RingReader ring not None, uint64_t source, lost not None,
        *, int64_t gather_ns = 0,
    ):
        self._ring = ring
        self._source = source
        self._lost = lost

    cpdef int fill(self, int64_t timeout_ns, bint spin) except -1:
        try:
            return self.fill_or_fail(timeout_ns, spin)
        except (OverrunError, ProducerGoneError, RingClosedError) as error:
            self._inlet.batch.clear()
            self._lost(error)
            return 0

    cdef int fill_or_fail(self, int64_t timeout_ns, bint spin) except -1:
        cdef int64_t deadline_ns = udp_monotonic_ns() + timeout_ns
        cdef int64_t left_ns = timeout_ns
        cdef int received = self._ring.receive(self._inlet.batch, self._source, 0)
        self._inlet.batch.is_from_ring = True
        while received == 0:
            received = self._inlet.receive(0, False)
            if received or left_ns <= 0:
                self._inlet.batch.is_from_ring = False
                break
            if self._inlet._is_rung:
                self._inlet._is_rung = False
                break
            received = self._ring.receive(
                self._inlet.batch, self._source, min(left_ns, SPIN_SLICE_NS if spin else BLOCK_SLICE_NS)
            )
            left_ns = deadline_ns - udp_monotonic_ns()
        return received


cdef class LaneReceiver:
    """A receiver's fast path: packets in order are delivered without Python, unless other work is due.

    The subclass has the methods for other work: do_due_work() at the time of next_due_ns(), or after notice();
    take_rest() if some datagrams were out of order; take() if datagrams are lost on purpose (`is_lossy`).
    """

    cdef public ReceivingLane lane
    cdef public object choose # selects the wanted items from the received ones; None: all
    cdef readonly bint spin
    cdef bint _is_lossy
    cdef bint _is_noticed
    cdef int64_t _due_ns

    def __init__(self, ReceivingLane lane not None, *, bint spin, bint is_lossy):
        self.lane = lane
        self.spin = spin
        self._is_lossy = is_lossy
        self._is_noticed = True

    def notice(self) -> None:
        """Note that work may be due. May be called in any thread; a waiting thread notices when the inlet is woken."""
        self._is_noticed = True

    def receive(self, timeout = None) -> list:
        """Return the received messages and events; wait at most `timeout` seconds, or without a limit. The result is
        empty after a timeout.

        A DeliverBatch and its messages are valid until the next call.
        """
        cdef double seconds = FOR_EVER_S if timeout is None else timeout
        cdef int64_t deadline_ns = NEVER_NS
        if seconds < FOR_EVER_S:
            deadline_ns = udp_monotonic_ns() + <int64_t>(max(seconds, 0.0) * NS_PER_S)
        received = self.wait_until(deadline_ns)
        return [DeliverBatch(self.lane.messages)] if received is None else received

    def __iter__(self):
        """Iterate over messages without end; losses are only counted. receive() reports everything."""
        return MessageIterator(self)

    cdef list wait_until(self, int64_t deadline_ns):
        """Return None if all packets were in order (`lane.messages`), else the received items; an empty list on
        timeout."""
        cdef int64_t now_ns = udp_monotonic_ns()
        cdef int64_t wait_ns
        cdef ReceivingLane lane
        cdef list received
        while True:
            received = self.work_and_set_due(now_ns) if self._is_noticed or now_ns >= self._due_ns else None
            if not received:
                lane = self.lane
                wait_ns = max(min(self._due_ns, deadline_ns) - now_ns, 0)
                if self._is_lossy:
                    received = self.take() if lane.fill(wait_ns, self.spin) else None
                elif lane.receive(wait_ns, self.spin):
                    if self.choose is None:
                        return None
                    received = [DeliverBatch(lane.messages)]
                elif lane._inlet.batch.count:
                    received = self.take_rest(lane.messages, lane.now_ns)
            if received and self.choose is not None:
                received = self.choose(received)
            if received:
                return received
            now_ns = udp_monotonic_ns()
            if now_ns >= deadline_ns:
                return []

    cdef list work_and_set_due(self, int64_t now_ns):
        self._is_noticed = False # reset before the work: a notice during the work counts next time
        try:
            received = self.do_due_work(now_ns)
        except BaseException:
            self._is_noticed = True
            raise
        due_ns = self.next_due_ns()
        self._due_ns = NEVER_NS if due_ns is None else due_ns
        return received


cdef class MessageIterator:
    """Iterates over the messages of a receiver, without end. An in-order message reaches the caller without a step in
    Python."""

    cdef LaneReceiver _receiver
    cdef list _messages
    cdef Py_ssize_t _next

    def __cinit__(self, LaneReceiver receiver not None):
        self._receiver = receiver
        self._messages = []

    def __iter__(self):
        return self

    def __next__(self):
        cdef MessageBatch batch
        cdef Py_ssize_t index
        cdef list received
        while self._next == len(self._messages):
            received = self._receiver.wait_until(NEVER_NS)
            batch = self._receiver.lane.messages
            if received is not None:
                self._messages = [
                    message for each in received if isinstance(each, DELIVERIES) for message in each.messages
                ]
            elif batch.message_count_ == 1:
                return batch.read_message(0)
            else:
                self._messages = [batch.read_message(index) for index in range(batch.message_count_)]
            self._next = 0
        self._next += 1
        return self._messages[self._next - 1]


cdef class PublishingLane:
    """Sends the packets of one stream: to a ring if there is one, and then to one destination unless it is 0."""

    cdef OutgoingCursor _stream
    cdef Outlet _outlet
    cdef uint64_t _destination
    cdef RingWriter _ring
    cdef int64_t _oldest_ns  # the time of the oldest waiting message; NEVER_NS: none waits
    cdef int _unsent         # packets that could not be sent
    cdef int _last_error
    cdef int _unwritten      # packets that the ring could not take

    def __cinit__(
        self, OutgoingCursor stream not None, Outlet outlet not None, uint64_t destination, RingWriter ring = None
    ):
        self._stream = stream
        self._outlet = outlet
        self._destination = destination
        self._ring = ring
        self._oldest_ns = NEVER_NS

    cdef bint publish(self, str topic, payload, model_id, model_version) except -1:
        """Send the message now, in a packet of its own. Return False if the core must send the message."""
        cdef OutgoingCursor stream = self._stream
        cdef uint64_t sequence = stream.pack_one(topic, payload, model_id, model_version)
        cdef int error
        if sequence == 0:
            return False
        if self._ring is not None:
            self._ring.write_stored(stream.kept, sequence, sequence)
        if self._destination:
            error = self._outlet.send_one_stored(self._destination, stream.kept, sequence)
            if error:
                self._unsent += 1
                self._last_error = error
        stream.break_silence(udp_monotonic_ns())
        fetch_ahead(stream.kept.data + stream.kept.write_at, stream.kept.place(sequence).size)
        return True

    cdef bint append(self, str topic, payload, model_id, model_version, int64_t now_ns) except -1:
        """Let the message wait. Return False if the core must send the message."""
        if not self._stream.append_one(topic, payload, model_id, model_version):
            return False
        if self._oldest_ns == NEVER_NS:
            self._oldest_ns = now_ns
        return True

    cdef void send_complete(self, int64_t now_ns) noexcept nogil:
        """Send the complete packets; the newest message, of `now_ns`, may go on waiting."""
        if self._stream.unsent == 0:
            self._stream.close_packet()
        self.send(now_ns)
        self._oldest_ns = now_ns if self._stream.packer._packet.count else NEVER_NS

    cdef void send_all(self, int64_t now_ns) noexcept nogil:
        """Send all messages that wait."""
        self._stream.close_packet()
        self.send(now_ns)
        self._oldest_ns = NEVER_NS

    cdef void send(self, int64_t now_ns) noexcept nogil:
        cdef uint64_t last = self._stream.kept.next_sequence - 1
        cdef uint64_t first = last + 1 - self._stream.unsent
        cdef int error
        if self._stream.unsent == 0:
            return
        self._stream.unsent = 0
        if self._ring is not None:
            self._unwritten += self._ring.put_stored(self._stream.kept, first, last)
        if self._destination:
            error = self._outlet.send_range(self._destination, self._stream.kept, first, last, &self._unsent)
            if error:
                self._last_error = error
        self._stream.break_silence(now_ns)


cdef class LanePublisher(Flushable):
    """A publisher's fast path for single messages: messages of a group with a lane need no step in Python. The `turn`
    protects the publisher's core and its lanes. With a map (`groups`) every topic has its own group."""

    cdef object _group
    cdef object _groups
    cdef PublishingLane _lane # of the only group, without a map
    cdef dict _lanes          # of all groups that have a lane
    cdef void **_all          # the same lanes
    cdef Py_ssize_t _count
    cdef Py_ssize_t _waiting  # lanes with messages that wait
    cdef Flusher _flusher
    cdef readonly int64_t wakes_ns       # when serve() looks at the clock again
    cdef public int64_t service_due_ns   # the deadline of the core, except for keep-alives
    cdef public bint is_stopped          # serve() returns

    def __init__(self, group not None, groups, *_, int64_t linger_us = 0):
        Flushable.__init__(self, Burst(linger_us * NS_PER_US))
        self._group = group
        self._groups = groups
        self._lanes = {}
        self._flusher = Flusher(self, FLUSHER)
        self.service_due_ns = NEVER_NS

    def __dealloc__(self):
        PyMem_Free(self._all)

    def open_lane(self, group not None, PublishingLane lane not None) -> None:
        """Call with the turn taken."""
        cdef void **more = <void **>PyMem_Realloc(self._all, (self._count + 1) * sizeof(void *))
        if more is NULL:
            raise MemoryError
        self._all = more
        self._all[self._count] = <void *>lane
        self._lanes[group] = lane
        self._count += 1
        if self._groups is None:
            self._lane = lane

    def has_lane(self, group) -> bool:
        return group in self._lanes

    def close_lanes(self) -> None:
        """Send waiting messages, and leave later ones to the core. Call with the turn taken."""
        self.flush_lanes()
        self._lane = None
        self._count = 0
        self._lanes.clear()

    @property
    def has_waiting(self) -> bool:
        """True if messages of a burst wait for further messages."""
        return self._waiting > 0

    def stop_flusher(self) -> None:
        """Call without the turn."""
        self._flusher.stop()

    def leave_to_parent(self) -> None:
        """After a fork, in the child: waiting messages belong to the parent, and another thread may have had the
        turn."""
        self.turn = Turn()
        self._flusher = Flusher(self, FLUSHER)
        self._lane = None
        self._count = self._waiting = 0
        self._lanes.clear()

    def flush(self) -> None:
        """Send the messages of a burst that wait for further messages."""
        self.turn.take()
        try:
            self.flush_lanes()
        finally:
            self.turn.give()

    cpdef int flush_lanes(self) except -1:
        """flush() with the turn taken."""
        if self._waiting:
            with nogil:
                self.send_lanes(udp_monotonic_ns())
        self.report_unsent()
        return 0

    def publish(self, str topic not None, payload not None, *, model_id = 0, model_version = 0) -> None:
        """Send one message. It is sent at once, unless it belongs to a burst, whose messages may wait for linger_us. A
        Message of a model sets the model's id and version."""
        cdef PublishingLane lane
        cdef int64_t now_ns = udp_monotonic_ns()
        if PyObject_TypeCheck(payload, message_type):
            model_id, model_version = payload.model.id, payload.version
        self.turn.take()
        try:
            group = self._group if self._groups is None else self._groups.group_of(topic)
            lane = self._lane if self._groups is None else self._lanes.get(group)
            if self.burst.joins(now_ns):
                if lane is not None and self.append(lane, topic, payload, model_id, model_version, now_ns):
                    return
            elif self._waiting == 0:
                if lane is not None and lane.publish(topic, payload, model_id, model_version):
                    if lane._unsent:
                        self.report_unsent()
                    self.burst.end_call(udp_monotonic_ns())
                    return
            elif lane is not None and self.append(lane, topic, payload, model_id, model_version, now_ns):
                self.flush_lanes()
                self.burst.end_call(udp_monotonic_ns())
                return
            self.flush_lanes()
            self.publish_by_core(group, topic, payload, model_id, model_version)
            self.burst.end_call(udp_monotonic_ns())
        finally:
            self.turn.give()

    cdef bint append(
        self, PublishingLane lane, str topic, payload, model_id, model_version, int64_t now_ns
    ) except -1:
        """Let the message wait, and send messages that waited long enough. False if the core must send the message."""
        cdef bint was_waiting = lane._oldest_ns < NEVER_NS
        if not lane.append(topic, payload, model_id, model_version, now_ns):
            return False
        self.burst.end_call(now_ns)
        if not was_waiting:
            self._waiting += 1
        if self.burst.is_due(lane._oldest_ns, now_ns) or lane._stream.has_no_room():
            with nogil:
                lane.send_complete(now_ns)
                now_ns = udp_monotonic_ns()
            self.burst.end_call(now_ns)
            if lane._oldest_ns == NEVER_NS:
                self._waiting -= 1
            if lane._unsent or lane._unwritten:
                self.report_unsent()
        self._flusher.wake()
        return True

    cdef int64_t flush_due(self, int64_t now_ns) noexcept nogil:
        cdef Py_ssize_t index
        cdef int64_t oldest_ns = NEVER_NS
        if self._waiting:
            for index in range(self._count):
                if now_ns - (<PublishingLane>self._all[index])._oldest_ns >= self.burst.linger_ns:
                    (<PublishingLane>self._all[index]).send_all(now_ns)
                    self._waiting -= 1
                oldest_ns = min(oldest_ns, (<PublishingLane>self._all[index])._oldest_ns)
        return self.burst.look_ns(oldest_ns, now_ns)

    cdef void send_lanes(self, int64_t now_ns) noexcept nogil:
        cdef Py_ssize_t index
        for index in range(self._count):
            if (<PublishingLane>self._all[index])._oldest_ns < NEVER_NS:
                (<PublishingLane>self._all[index]).send_all(now_ns)
        self._waiting = 0

    cdef int report_unsent(self) except -1:
        """Count the packets that the lanes could not send. Call with the turn taken."""
        cdef PublishingLane lane
        for lane in self._lanes.values():
            if lane._unsent:
                count, lane._unsent = lane._unsent, 0
                self.note_unsent(count, lane._last_error)
            if lane._unwritten:
                count, lane._unwritten = lane._unwritten, 0
                raise LocalProtocolError(f"{count} packets are not in the ring: it is closed, or they are too large")
        return 0

    def serve(self, Inlet inlet not None, RequestGate gate not None, int64_t slice_ns) -> None:
        """Wait until the inlet's batch has requests that the gate has admitted, something else is due, or
        `is_stopped`. Without the GIL, and without a step in Python meanwhile."""
        cdef int received = 0
        while received == 0 and not self.is_stopped:
            inlet.check_open()
            with nogil:
                received = self.wait(inlet, gate, slice_ns)
            if received < 0:
                raise OSError(-received, os.strerror(-received))
            if inlet.batch.count == 0:
                return
            gate.admit_authentic(inlet.batch, udp_monotonic_ns())
            received = <int>inlet.batch.count

    cdef int wait(self, Inlet inlet, RequestGate gate, int64_t slice_ns) except? -1 nogil:
        """The number of datagrams in the batch; 0 when something is due or `is_stopped`, or -errno."""
        cdef int64_t now_ns, due_ns
        cdef int received
        while True:
            now_ns = udp_monotonic_ns()
            due_ns = self.due_ns()
            inlet.batch.count = 0
            if now_ns >= due_ns or self.is_stopped:
                return 0
            self.wakes_ns = min(due_ns, now_ns + slice_ns)
            received = inlet.fill(self.wakes_ns - now_ns, False)
            if received < 0:
                return received
            if received:
                gate.admit_rows(inlet.batch, udp_monotonic_ns())
                if inlet.batch.count:
                    return <int>inlet.batch.count

    cdef int64_t due_ns(self) noexcept nogil:
        """The next deadline of the core, keep-alives included."""
        cdef int64_t due_ns = self.service_due_ns
        cdef Py_ssize_t index
        for index in range(self._count):
            due_ns = min(due_ns, (<PublishingLane>self._all[index])._stream.keep_alive_deadline_ns)
        return due_ns
