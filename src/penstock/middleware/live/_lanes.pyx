"""The driver's fast path between the cores' fast paths and the sockets.

At ten thousand messages a second every step taken in Python costs more than it does in a tight loop, because nothing of
it is in the processor's caches any more. So the steps that nearly every message takes are one compiled call.
"""

from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
    WAIT_LOCK,
)
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from penstock.middleware.core._inorder cimport InOrder
from penstock.middleware.core._outgoing cimport OutgoingCursor
from penstock.net._udp cimport Inlet, Outlet, udp_monotonic_ns
from penstock.shm._memory cimport fetch_ahead, sleep_ns
from penstock.shm._ring cimport RingWriter
from penstock.shm._ring_reader cimport RingReader
from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._messages cimport MessageBatch

from penstock.base.errors import OverrunError, ProducerGoneError, RingClosedError
from penstock.middleware.core.events import Deliver, DeliverBatch
from penstock.model import Message

DELIVERIES = (Deliver, DeliverBatch)  # a tuple, because a union would be evaluated for every message

cdef PyTypeObject *message_type = <PyTypeObject *>Message

cdef int64_t SPIN_SLICE_NS = 50_000
cdef int64_t BLOCK_SLICE_NS = 5_000_000
cdef double NS_PER_S = 1e9
cdef double FOR_EVER_S = 1e9
cdef int64_t NEVER_NS = INT64_MAX // 2


cdef class ReceivingLane:
    """Receives, and takes what comes in order. With `gather_ns`, who blocks lets more of it gather, once some has come:
    one wake-up in that time is enough."""

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
        """Fill the batch with datagrams that are there, or arrive in time. Return their number."""
        self._inlet.batch.is_from_ring = False
        return self._inlet.receive(timeout_ns, spin)


cdef class RingLane(ReceivingLane):
    """The same from a ring in shared memory, whose datagrams are said to come from `source`. The sockets are looked at
    when the ring is empty, and now and then while it is waited for: only repairs come that way. When it can be read no
    further, `lost` is called with the reason."""

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
        """What came, waiting at most `timeout` seconds, or for ever: possibly nothing, when time was up.

        A DeliverBatch and its messages are good until the next call.
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
    """The messages of a receiver, one after the other, for ever. Between the arrival of one that comes in order and the
    caller there is no step in Python."""

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

    cdef int publish(self, str topic, payload, model_id, model_version) except -2:
        """Send the message. Return 0 or the errno of a failed send, or -1 if the core must send the message."""
        cdef OutgoingCursor stream = self._stream
        cdef uint64_t sequence = stream.pack_one(topic, payload, model_id, model_version)
        cdef int error = 0
        if sequence == 0:
            return -1
        if self._ring is not None:
            self._ring.write_stored(stream.kept, sequence, sequence)
        if self._destination:
            error = self._outlet.send_one_stored(self._destination, stream.kept, sequence)
        stream.break_silence(udp_monotonic_ns())
        fetch_ahead(stream.kept.data + stream.kept.write_at, stream.kept.place(sequence).size)
        return error


cdef class Turn:
    """A lock, for Python's `with` and for compiled code. The interpreter's lock is held by whoever takes or gives it, so
    while nobody else wants it, it is a flag; who has to wait does so at `_bell`."""

    cdef bint _is_taken
    cdef bint _is_rung
    cdef int _waiting
    cdef PyThread_type_lock _bell # held until it is rung

    def __cinit__(self):
        self._bell = PyThread_allocate_lock()
        if self._bell is NULL:
            raise MemoryError
        PyThread_acquire_lock(self._bell, WAIT_LOCK)

    def __dealloc__(self):
        if self._bell is not NULL:
            PyThread_release_lock(self._bell)
            PyThread_free_lock(self._bell)

    def __enter__(self):
        self.take()

    def __exit__(self, *_):
        self.give()

    cdef void take(self) noexcept:
        while self._is_taken:
            self._waiting += 1
            with nogil:
                PyThread_acquire_lock(self._bell, WAIT_LOCK)
            self._is_rung = False
            self._waiting -= 1
        self._is_taken = True

    cdef void give(self) noexcept:
        self._is_taken = False
        if self._waiting and not self._is_rung:
            self._is_rung = True
            PyThread_release_lock(self._bell)


cdef class LanePublisher:
    """A publisher's short way for single messages: those of a group that has a lane take no step in Python. `turn` is
    had by whoever uses the publisher's core or its lanes. With a map (`groups`) every topic has its own group."""

    cdef readonly Turn turn
    cdef object _group
    cdef object _groups
    cdef PublishingLane _lane # of the only group, without a map
    cdef dict _lanes          # of all groups that have a lane

    def __init__(self, group not None, groups):
        self.turn = Turn()
        self._group = group
        self._groups = groups
        self._lanes = {}

    def open_lane(self, group not None, PublishingLane lane not None) -> None:
        self._lanes[group] = lane
        if self._groups is None:
            self._lane = lane

    def has_lane(self, group) -> bool:
        return group in self._lanes

    def close_lanes(self) -> None:
        self._lane = None
        self._lanes.clear()

    def publish(self, str topic not None, payload not None, *, model_id = 0, model_version = 0) -> None:
        """Send one message now. A Message of a model brings its model's id and version."""
        cdef PublishingLane lane
        cdef int error = -1
        if PyObject_TypeCheck(payload, message_type):
            model_id, model_version = payload.model.id, payload.version
        self.turn.take()
        try:
            group = self._group if self._groups is None else self._groups.group_of(topic)
            lane = self._lane if self._groups is None else self._lanes.get(group)
            if lane is not None:
                error = lane.publish(topic, payload, model_id, model_version)
            if error < 0:
                self.publish_by_core(group, topic, payload, model_id, model_version)
            elif error > 0:
                self.note_unsent(1, error)
        finally:
            self.turn.give()
