"""The unread deliveries of a flow, and the application's unsent settlements.

The loop's thread adds frames and takes settlements, the application's threads do the opposite. Each call holds the GIL
throughout, and is therefore atomic.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from penstock.assured.wire._frames cimport check_deliver
from penstock.assured.wire._layout cimport (
    DELIVER_HEAD_SIZE,
    DELIVERED_HEAD_SIZE,
    DELIVERY_REDELIVERED,
    DELIVERY_REPLAYED,
    DELIVERY_WHY_SHIFT,
    FRAME_GOOD,
    FRAME_RUNS_MAX,
    KIND_SETTLE,
    LENGTH_SIZE,
    RUN_SIZE,
    SETTLE_HEAD_SIZE,
    DeliveredHead,
    Run,
    SettleHead,
)
from penstock.wire._codec cimport load_u16, store_u32

from penstock.base.errors import RemoteProtocolError

cdef tuple DEAD_REASONS = ("", "rejected", "deliveries_max", "expired", "overflowed", "", "", "")


cdef class Delivery:
    """A message of an endpoint. `is_redelivered`: it may have been delivered before. `opened` is the opening of its
    flow: after another opening, the message cannot be settled, and is redelivered. In a dead-letter endpoint,
    `dead_reason` is the reason and `dead_from` the endpoint that it came from."""

    def __repr__(self) -> str:
        flags = " redelivered" if self.is_redelivered else ""
        return f"<Delivery {self.id:#x} {self.topic} {len(self.payload)} bytes{flags}>"


    def ack(self) -> None:
        """Accept the message: the router deletes it."""
        self.source.ack(self)

    def nack(self) -> None:
        """Return the message to the queue: it is delivered again, to any consumer."""
        self.source.nack(self)

    def reject(self) -> None:
        """Move the message to the dead-letter endpoint."""
        self.source.reject(self)


cdef Delivery delivery_of(const uint8_t *at, uint32_t opened, object source, dict named):
    cdef DeliveredHead head
    cdef Delivery made = Delivery.__new__(Delivery)
    cdef const char *topic = <const char *>at + DELIVERED_HEAD_SIZE
    memcpy(&head, at, DELIVERED_HEAD_SIZE)
    made.id = head.id
    made.topic = PyUnicode_DecodeUTF8(topic, head.topic_size, "replace")
    made.payload = PyBytes_FromStringAndSize(topic + head.topic_size, head.payload_size)
    made.priority = head.priority
    made.is_redelivered = (head.flags & DELIVERY_REDELIVERED) != 0
    made.is_replayed = (head.flags & DELIVERY_REPLAYED) != 0
    made.deliveries = head.deliveries
    made.model_id = head.model_id
    made.model_version = head.model_version
    made.published_ns = head.published_ns
    made.publisher = head.publisher
    made.number = head.number
    made.opened = opened
    made.source = source
    made.dead_reason = made.dead_from = ""
    if head.flags >> DELIVERY_WHY_SHIFT:
        made.dead_reason = DEAD_REASONS[head.flags >> DELIVERY_WHY_SHIFT & 7]
        giver = named.get(head.given_up_by)
        if giver is not None:
            made.dead_from = giver.name
    return made


cdef class Inbox:
    """The deliveries of one flow."""

    def __init__(self) -> None:
        self.named = {}
        self.reopen(0)

    def reopen(self, uint32_t opened) -> None:
        """The flow was opened again: unread messages will be delivered again."""
        self.opened = opened
        self.frames = []
        self.frame = 0
        self.at = self.left = 0
        self.waiting = self.came = 0

    def feed(self, bytes frame not None) -> None:
        """Add a DELIVER frame without its length."""
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(frame)
        if check_deliver(data, PyBytes_GET_SIZE(frame)) != FRAME_GOOD:
            raise RemoteProtocolError("invalid DELIVER frame")
        self.frames.append(frame)
        self.waiting += load_u16(data + 2)
        self.came += load_u16(data + 2)

    def next(self) -> Delivery | None:
        """The next message; None if there is none now."""
        cdef bytes frame
        cdef const uint8_t *data
        cdef DeliveredHead head
        if self.waiting == 0:
            return None
        if self.left == 0:
            if self.at:
                self.frame += 1
            if self.frame >= 64:  # read frames are released together
                del self.frames[: self.frame]
                self.frame = 0
            self.at = DELIVER_HEAD_SIZE
            frame = <bytes>self.frames[self.frame]
            self.left = load_u16(<const uint8_t *>PyBytes_AS_STRING(frame) + 2)
        frame = <bytes>self.frames[self.frame]
        data = <const uint8_t *>PyBytes_AS_STRING(frame) + self.at
        memcpy(&head, data, DELIVERED_HEAD_SIZE)
        self.at += head.size
        self.left -= 1
        self.waiting -= 1
        return delivery_of(data, self.opened, self.source, self.named)

    def end(self) -> int:
        """Stop reading. Return the number of received messages that were read."""
        cdef uint64_t read = self.came - self.waiting
        self.reopen(self.opened)
        return read

    def take(self, uint32_t count_max) -> list:
        """Return up to `count_max` of the next messages."""
        found = []
        while self.waiting and <uint32_t>len(found) < count_max:
            found.append(self.next())
        return found


cdef struct Entry:
    Run run
    uint32_t transaction


cdef class Settlements:
    """Settlements of a flow's messages, in runs of consecutive ids with equal settlements."""

    def __dealloc__(self) -> None:
        free(self.runs)

    cdef int grow(self) except -1:
        cdef uint32_t room = max(<uint32_t>64, 2 * self.room)
        cdef uint8_t *runs = <uint8_t *>realloc(self.runs, room * sizeof(Entry))
        if runs is NULL:
            raise MemoryError
        self.runs = runs
        self.room = room
        return 0

    def reopen(self, uint32_t opened) -> None:
        """The flow was opened again: unsent settlements are void."""
        self.opened = opened
        self.count = 0
        self.settled = 0

    def add(self, Delivery delivery not None, uint8_t what, uint32_t transaction) -> bool:
        """Add a settlement. False if it was settled before, or belongs to an earlier opening of the flow: then it is
        delivered again."""
        cdef Entry *last
        if delivery.is_settled or delivery.opened != self.opened:
            return False
        delivery.is_settled = True
        self.settled += 1
        if self.count:
            last = <Entry *>self.runs + (self.count - 1)
            if last.run.last + 1 == delivery.id and last.run.what == what and last.transaction == transaction:
                last.run.last = delivery.id
                return True
        if self.count == self.room:
            self.grow()
        last = <Entry *>self.runs + self.count
        last.run = Run(delivery.id, delivery.id, what, 0, 0, 0)
        last.transaction = transaction
        self.count += 1
        return True

    @property
    def is_waiting(self) -> bool:
        return self.count > 0

    def take(self, uint32_t handle) -> bytes:
        """Return frames with all settlements. Runs rise within a frame; a new frame begins where they do not."""
        cdef Entry *entries = <Entry *>self.runs
        cdef uint32_t index, first = 0, frame_count = 0
        cdef uint8_t *out
        cdef bytes frames
        if self.count == 0:
            return b""
        for index in range(self.count):
            frame_count += self._begins(index, first)
            first = index if self._begins(index, first) else first
        frames = PyBytes_FromStringAndSize(
            NULL, frame_count * (LENGTH_SIZE + SETTLE_HEAD_SIZE) + <uint64_t>self.count * RUN_SIZE
        )
        out = <uint8_t *>PyBytes_AS_STRING(frames)
        first = 0
        for index in range(1, self.count + 1):
            if index == self.count or self._begins(index, first):
                out = write_settle(out, handle, entries + first, index - first)
                first = index
        self.count = 0
        return frames

    cdef bint _begins(self, uint32_t index, uint32_t first) noexcept nogil:
        """True if a frame begins with this run, while the current frame began with `first`."""
        cdef Entry *entries = <Entry *>self.runs
        return (
            index == 0
            or index - first >= FRAME_RUNS_MAX
            or entries[index].transaction != entries[index - 1].transaction
            or entries[index].run.first <= entries[index - 1].run.last
        )


cdef uint8_t *write_settle(uint8_t *out, uint32_t handle, const Entry *entries, uint32_t count) noexcept nogil:
    cdef SettleHead head
    cdef uint32_t index
    head.kind = KIND_SETTLE
    head.flags = 0
    head.count = <uint16_t>count
    head.flow = handle
    head.transaction = entries[0].transaction
    head.reserved = 0
    store_u32(out, SETTLE_HEAD_SIZE + count * RUN_SIZE)
    memcpy(out + LENGTH_SIZE, &head, SETTLE_HEAD_SIZE)
    out += LENGTH_SIZE + SETTLE_HEAD_SIZE
    for index in range(count):
        memcpy(out, &entries[index].run, RUN_SIZE)
        out += RUN_SIZE
    return out
