"""Events of the distribution engine, read and made in Python."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.wire._codec cimport load_u32, load_u64

from penstock.base.errors import LocalProtocolError, RemoteProtocolError
from penstock.base.limits import RECORD_SIZE_MAX, TOPIC_SIZE_MAX

assert sizeof(Head) == EVENT_HEAD_SIZE

cdef uint32_t body_size_max = max(RECORD_SIZE_MAX, TOPIC_SIZE_MAX)

ALL_ITEMS = <uint32_t>ITEM_ALL
"""The item of a RECEIPT or LIVE event: all items of the consumer."""

NO_SLOT = <uint32_t>SLOT_NONE
"""The slot of a DEFINE: the item's record is in no region."""

EVENT_SIZE_MAX = event_size(body_size_max)
"""Maximum size of an event: the minimum `event_size_max` of a ring for records of any size."""


cdef uint32_t read_head(const uint8_t *data, uint64_t size, Head *head) noexcept nogil:
    if size < EVENT_HEAD_SIZE:
        return 0
    memcpy(head, data, EVENT_HEAD_SIZE)
    if head.body_size > body_size_max or event_size(head.body_size) > size:
        return 0
    if head.kind == RECEIPT and head.body_size != RECEIPT_SIZE:
        return 0
    if head.kind == LIVE and head.body_size != LIVE_SIZE:
        return 0
    if head.kind == DEFINE and not 1 <= head.body_size <= TOPIC_MAX:
        return 0
    if head.kind == WITHDRAW and head.body_size != 0:
        return 0
    if head.kind == SESSION and not 1 <= head.body_size <= SESSION_MAX:
        return 0
    return event_size(head.body_size) if DEFINE <= head.kind <= SESSION else 0


cdef enum:
    TOPIC_MAX = 255
    SESSION_MAX = 256  # so that the smallest ring of notices has room

assert TOPIC_MAX == TOPIC_SIZE_MAX

SESSION_SIZE_MAX = SESSION_MAX
"""Maximum size of the body of a SESSION event."""


@cython.final
@cython.freelist(256)
cdef class Event:
    """One event: the fields of its head, and its `body` as bytes.

    `cls` is a TransmissionClass, `kind` an EventKind; `merged` is the number of updates that an UPDATE represents.
    """

    cdef Head head
    cdef readonly bytes body

    def __init__(self):
        raise LocalProtocolError("read_events() makes them")

    @property
    def item(self) -> int:
        return self.head.item

    @property
    def kind(self) -> int:
        return self.head.kind

    @property
    def cls(self) -> int:
        return self.head.cls

    @property
    def flags(self) -> int:
        return self.head.flags

    @property
    def number(self) -> int:
        return self.head.number

    @property
    def version(self) -> int:
        return self.head.version

    @property
    def started_ns(self) -> int:
        return self.head.started_ns

    @property
    def merged(self) -> int:
        return self.head.merged

    @property
    def model_id(self) -> int:
        return self.head.model_id

    @property
    def model_version(self) -> int:
        return self.head.model_version

    @property
    def slot(self) -> int:
        return self.head.slot

    @property
    def session_id(self) -> int:
        """The session of the record in an UPDATE or REFRESH (engine/core/session_events.py); 0 if unknown."""
        return self.head.slot if self.head.kind == UPDATE or self.head.kind == REFRESH else 0

    @property
    def topic(self) -> bytes:
        """The topic in a DEFINE event."""
        self.check_kind(DEFINE)
        return self.body

    @property
    def subscription(self) -> int:
        """The subscription in a LIVE event."""
        self.check_kind(LIVE)
        return load_u32(<const uint8_t *>PyBytes_AS_STRING(self.body))

    @property
    def session(self) -> bytes:
        """The session in a SESSION event: a SessionEvent as JSON."""
        self.check_kind(SESSION)
        return self.body

    @property
    def lost(self) -> tuple:
        """The first and last number, and the ReceiptCause, in a RECEIPT event."""
        self.check_kind(RECEIPT)
        cdef const uint8_t *body = <const uint8_t *>PyBytes_AS_STRING(self.body)
        return load_u64(body + RECEIPT_FIRST_AT), load_u64(body + RECEIPT_LAST_AT), body[RECEIPT_CAUSE_AT]

    cdef int check_kind(self, int kind) except -1:
        if self.head.kind != kind:
            raise LocalProtocolError(f"event {self!r} has no such field")
        return 0

    def __repr__(self) -> str:
        return f"<Event kind {self.kind} item {self.item} number {self.number} version {self.version}>"


def read_events(data) -> list:
    """Split a block of complete events. Raises RemoteProtocolError for anything else."""
    cdef Py_buffer buffer
    cdef uint64_t at = 0, size
    cdef uint32_t taken
    cdef Event event
    cdef const uint8_t *start
    events = []
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        start, size = <const uint8_t *>buffer.buf, buffer.len
        while at < size:
            event = Event.__new__(Event)
            taken = read_head(start + at, size - at, &event.head)
            if taken == 0:
                raise RemoteProtocolError(f"byte {at} of {size} does not begin an event")
            event.body = PyBytes_FromStringAndSize(<const char *>start + at + EVENT_HEAD_SIZE, event.head.body_size)
            events.append(event)
            at += taken
    finally:
        PyBuffer_Release(&buffer)
    return events


def make_event(
    EventKind kind, *, uint32_t item, body = b"", uint8_t cls = 0, uint16_t flags = 0, uint64_t number = 0,
    uint64_t version = 0, int64_t started_ns = 0, uint32_t merged = 0, uint16_t model_id = 0,
    uint16_t model_version = 0, uint32_t slot = 0,
) -> bytes:
    """Encode an event, for tests and for other senders than the engine."""
    cdef Head head
    cdef const uint8_t[::1] content = body
    cdef bytes made
    if content.shape[0] > body_size_max:
        raise LocalProtocolError(f"the event's body has {content.shape[0]} bytes, the limit is {body_size_max}")
    head = Head(
        item, kind, cls, flags, number, version, started_ns, merged, model_id, model_version,
        <uint32_t>content.shape[0], slot,
    )
    made = PyBytes_FromStringAndSize(NULL, event_size(head.body_size))
    write_event(<uint8_t *>PyBytes_AS_STRING(made), &head, &content[0] if content.shape[0] else NULL)
    return made
