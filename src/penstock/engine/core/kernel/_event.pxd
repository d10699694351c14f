"""The layout of an event of the distribution engine; docs/reference/protocol/distribution.md has a drawing.

Only this file defines the layout in numbers. Compiled code cimports it, Python imports the same names from
penstock.engine.core.kernel._event.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cpdef enum EventKind:
    """The kind of an event."""
    DEFINE = 1  # an item's number, topic, model, and slot in a region; precedes its other events
    REFRESH = 2  # the item's current record
    UPDATE = 3  # the record after one or more updates
    RECEIPT = 4  # updates that this consumer did not get
    REMOVE = 5  # the consumer no longer gets the item
    LIVE = 6  # all refreshes of a subscription have been sent
    NOTICE = 7  # the item's record in the consumer's region was written
    WITHDRAW = 8  # the item has no current record: the session of its last one has ended
    SESSION = 9  # a session of a source stream began or ended


cpdef enum TransmissionClass:
    """The delivery class of an item."""
    CRITICAL = 1  # every update, in order
    ADAPTIVE = 2  # the newest record whenever there is room
    METERED = 3  # a limited number of updates per second


cpdef enum EventFlag:
    AFTER_OVERRUN = 1  # a refresh that repairs a loss
    REPLAYED = 2  # an update from the history
    NONCONFLATABLE = 4  # no update of the item may be merged
    AS_REFRESH = 8  # a withdrawal in place of a refresh


cpdef enum ReceiptCause:
    """The reason why a consumer did not get updates."""
    OVERRUN = 1  # it was overrun, and the history is too short
    SLOW = 2  # its session read events too slowly for the history
    UPSTREAM = 3  # they did not reach this node
    SATURATED = 4  # the node's output could not keep up with its input


cpdef enum:
    EVENT_ITEM_AT = 0
    EVENT_KIND_AT = 4
    EVENT_CLASS_AT = 5
    EVENT_FLAGS_AT = 6
    EVENT_NUMBER_AT = 8
    EVENT_VERSION_AT = 16
    EVENT_STARTED_AT = 24
    EVENT_MERGED_AT = 32
    EVENT_MODEL_ID_AT = 36
    EVENT_MODEL_VERSION_AT = 38
    EVENT_BODY_SIZE_AT = 40
    EVENT_SLOT_AT = 44
    EVENT_HEAD_SIZE = 48
    EVENT_PADDING = 8

    RECEIPT_FIRST_AT = 0
    RECEIPT_LAST_AT = 8
    RECEIPT_CAUSE_AT = 16
    RECEIPT_SIZE = 24
    LIVE_SUBSCRIPTION_AT = 0
    LIVE_SIZE = 8


cdef enum:
    ITEM_ALL = 0xFFFFFFFF  # the item number in events about all items of the consumer; ALL_ITEMS in Python
    SLOT_NONE = 0xFFFFFFFF  # the item's record is in no region; NO_SLOT in Python


cdef struct Head:
    uint32_t item
    uint8_t kind
    uint8_t cls
    uint16_t flags
    uint64_t number
    uint64_t version
    int64_t started_ns
    uint32_t merged
    uint16_t model_id
    uint16_t model_version
    uint32_t body_size
    uint32_t slot  # in UPDATE and REFRESH: the session of the record (engine/core/session_events.py), 0 if unknown


# The size of an event with this body size.
cdef inline uint32_t event_size(uint32_t body_size) noexcept nogil:
    return EVENT_HEAD_SIZE + ((body_size + EVENT_PADDING - 1) & ~<uint32_t>(EVENT_PADDING - 1))


cdef inline void write_event(uint8_t *out, const Head *head, const void *body) noexcept nogil:
    """Write head, body and padding: event_size(head.body_size) bytes."""
    cdef uint32_t end = EVENT_HEAD_SIZE + head.body_size
    memcpy(out, head, EVENT_HEAD_SIZE)
    if head.body_size:
        memcpy(out + EVENT_HEAD_SIZE, body, head.body_size)
    while end & (EVENT_PADDING - 1):
        out[end] = 0
        end += 1


# Read the event at the beginning of `data`. Return its size, or 0 if there is no complete event.
cdef uint32_t read_head(const uint8_t *data, uint64_t size, Head *head) noexcept nogil
