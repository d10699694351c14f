"""Frames of a link: split from the byte stream, checked, encoded and decoded for Python.

Compiled code uses _layout.pxd directly, after the checks here.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from penstock.assured.wire._layout cimport (
    ACKNOWLEDGE_HEAD_SIZE,
    CREDIT_SIZE,
    DELIVER_HEAD_SIZE,
    DELIVERED_HEAD_SIZE,
    FRAME_COUNT,
    FRAME_GOOD,
    FRAME_KIND,
    FRAME_LENGTH,
    FRAME_MESSAGES_MAX,
    FRAME_RUNS_MAX,
    FRAME_SHORT,
    FRAME_SIZE_MAX,
    FRAME_VALUE,
    KIND_ACKNOWLEDGE,
    KIND_CONTROL,
    KIND_CREDIT,
    KIND_DELIVER,
    KIND_PUBLISH,
    KIND_SETTLE,
    LENGTH_SIZE,
    PAYLOAD_SIZE_MAX,
    PRIORITY_MAX,
    PUBLISH_HEAD_SIZE,
    PUBLISHED_HEAD_SIZE,
    RUN_SIZE,
    SETTLE_HEAD_SIZE,
    AcknowledgeHead,
    Credit,
    DeliveredHead,
    DeliverHead,
    FrameError,
    PublishedHead,
    PublishHead,
    Run,
    SettleHead,
    delivered_size,
    published_size,
)
from penstock.wire._codec cimport load_u16, load_u32, store_u32

from penstock.base import limits
from penstock.base.errors import LimitError, LocalProtocolError, RemoteProtocolError

cdef uint32_t TOPIC_SIZE_MAX = limits.TOPIC_SIZE_MAX

WHAT_IS_WRONG = {
    FRAME_SHORT: "it ends within its header",
    FRAME_KIND: "unknown kind",
    FRAME_COUNT: "the number of its parts is wrong",
    FRAME_LENGTH: "the sizes of its parts are wrong",
    FRAME_VALUE: "it has an invalid value",
}


# Checks


cdef FrameError check_publish(const uint8_t *frame, uint64_t size) noexcept nogil:
    cdef PublishHead head
    cdef PublishedHead each
    cdef uint64_t at = PUBLISH_HEAD_SIZE
    cdef uint32_t index
    if size < PUBLISH_HEAD_SIZE:
        return FRAME_SHORT
    memcpy(&head, frame, PUBLISH_HEAD_SIZE)
    if head.count == 0 or head.count > FRAME_MESSAGES_MAX:
        return FRAME_COUNT
    if head.first_number == 0 or head.first_number > (<uint64_t>1 << 62):
        return FRAME_VALUE
    for index in range(head.count):
        if size - at < PUBLISHED_HEAD_SIZE:
            return FRAME_COUNT
        memcpy(&each, frame + at, PUBLISHED_HEAD_SIZE)
        if each.size > size - at or each.payload_size > PAYLOAD_SIZE_MAX or each.topic_size > TOPIC_SIZE_MAX:
            return FRAME_LENGTH
        if each.size != published_size(each.topic_size, each.payload_size):
            return FRAME_LENGTH
        if each.priority > PRIORITY_MAX:
            return FRAME_VALUE
        at += each.size
    return FRAME_GOOD if at == size else FRAME_COUNT


cdef FrameError check_deliver(const uint8_t *frame, uint64_t size) noexcept nogil:
    cdef DeliverHead head
    cdef DeliveredHead each
    cdef uint64_t at = DELIVER_HEAD_SIZE
    cdef uint32_t index
    if size < DELIVER_HEAD_SIZE:
        return FRAME_SHORT
    memcpy(&head, frame, DELIVER_HEAD_SIZE)
    if head.count == 0 or head.count > FRAME_MESSAGES_MAX:
        return FRAME_COUNT
    for index in range(head.count):
        if size - at < DELIVERED_HEAD_SIZE:
            return FRAME_COUNT
        memcpy(&each, frame + at, DELIVERED_HEAD_SIZE)
        if each.size > size - at or each.payload_size > PAYLOAD_SIZE_MAX or each.topic_size > TOPIC_SIZE_MAX:
            return FRAME_LENGTH
        if each.size != delivered_size(each.topic_size, each.payload_size):
            return FRAME_LENGTH
        if each.priority > PRIORITY_MAX:
            return FRAME_VALUE
        at += each.size
    return FRAME_GOOD if at == size else FRAME_COUNT


cdef FrameError check_runs(const uint8_t *runs, uint32_t count, uint64_t size, bint must_rise) noexcept nogil:
    cdef Run run
    cdef uint32_t index
    cdef uint64_t last = 0
    if count == 0 or count > FRAME_RUNS_MAX or size != <uint64_t>count * RUN_SIZE:
        return FRAME_COUNT
    for index in range(count):
        memcpy(&run, runs + index * RUN_SIZE, RUN_SIZE)
        if run.first > run.last or run.what == 0 or (must_rise and index and run.first <= last):
            return FRAME_VALUE
        last = run.last
    return FRAME_GOOD


cdef FrameError check_acknowledge(const uint8_t *frame, uint64_t size) noexcept nogil:
    if size < ACKNOWLEDGE_HEAD_SIZE:
        return FRAME_SHORT
    return check_runs(frame + ACKNOWLEDGE_HEAD_SIZE, load_u16(frame + 2), size - ACKNOWLEDGE_HEAD_SIZE, False)


cdef FrameError check_settle(const uint8_t *frame, uint64_t size) noexcept nogil:
    if size < SETTLE_HEAD_SIZE:
        return FRAME_SHORT
    return check_runs(frame + SETTLE_HEAD_SIZE, load_u16(frame + 2), size - SETTLE_HEAD_SIZE, True)


cdef FrameError check_credit(const uint8_t *frame, uint64_t size) noexcept nogil:
    if size < CREDIT_SIZE:
        return FRAME_SHORT
    return FRAME_GOOD if size == CREDIT_SIZE else FRAME_LENGTH


cdef FrameError check_frame(const uint8_t *frame, uint64_t size) noexcept nogil:
    if size == 0:
        return FRAME_SHORT
    if frame[0] == KIND_PUBLISH:
        return check_publish(frame, size)
    if frame[0] == KIND_ACKNOWLEDGE:
        return check_acknowledge(frame, size)
    if frame[0] == KIND_DELIVER:
        return check_deliver(frame, size)
    if frame[0] == KIND_SETTLE:
        return check_settle(frame, size)
    if frame[0] == KIND_CREDIT:
        return check_credit(frame, size)
    return FRAME_KIND


# Out of a byte stream


cdef class FrameSplitter:
    """Splits a link's byte stream: a control message as its payload, consecutive data frames as one piece, with their
    lengths. Buffers an incomplete frame.

    A frame that is empty or larger than `size_max` makes the stream unusable as soon as its length has arrived:
    `failure` is set, and nothing more is returned.
    """

    def __init__(self, uint32_t size_max = FRAME_SIZE_MAX) -> None:
        self.size_max = size_max
        self.failure = ""
        self.kept = bytearray()
        self.awaited = 0

    @property
    def is_between(self) -> bool:
        """True at a frame boundary."""
        return not self.kept and not self.failure

    def allow_more(self) -> None:
        """Accept all frames, from a peer that has been authenticated."""
        self.size_max = FRAME_SIZE_MAX

    def feed(self, bytes data not None) -> list:
        """Return pairs in order: True for data, and the bytes."""
        cdef bytes whole = data
        cdef const uint8_t *start
        cdef uint64_t size, at = 0, run = 0
        cdef uint64_t length
        if self.failure:
            return []
        if self.kept:
            self.kept += data
            if <uint64_t>len(self.kept) < self.awaited:
                return []
            whole = bytes(self.kept)
            self.kept = bytearray()
        start = <const uint8_t *>PyBytes_AS_STRING(whole)
        size = len(whole)
        found = []
        self.awaited = LENGTH_SIZE
        while size - at >= LENGTH_SIZE:
            length = load_u32(start + at)
            if length == 0 or length > self.size_max:
                self.failure = f"a frame of {length} bytes (1 to {self.size_max} are allowed)"
                break
            if size - at - LENGTH_SIZE < length:
                self.awaited = LENGTH_SIZE + length
                break
            if start[at + LENGTH_SIZE] >= KIND_CONTROL:
                if at > run:
                    found.append((True, whole[run:at]))
                found.append((False, whole[at + LENGTH_SIZE:at + LENGTH_SIZE + length]))
                run = at + LENGTH_SIZE + length
            at += LENGTH_SIZE + length
        if at > run:
            found.append((True, whole if run == 0 and at == size else whole[run:at]))
        if at < size and not self.failure:
            self.kept += whole[at:]
        return found


cdef const uint8_t *begin(const uint8_t[::1] frames) noexcept:
    return &frames[0] if frames.shape[0] else NULL


def check_frames(const uint8_t[::1] frames not None) -> int:
    """Return the number of data frames in these bytes. Raises RemoteProtocolError if one is invalid."""
    cdef const uint8_t *start = begin(frames)
    cdef uint64_t size = frames.shape[0], at = 0, length
    cdef FrameError error
    count = 0
    while at < size:
        length = load_u32(start + at) if size - at >= LENGTH_SIZE else 0
        if length == 0 or length > size - at - LENGTH_SIZE:
            raise RemoteProtocolError("these bytes are not whole frames, one after another")
        error = check_frame(start + at + LENGTH_SIZE, length)
        if error != FRAME_GOOD:
            raise RemoteProtocolError(
                f"frame {count} is of kind {start[at + LENGTH_SIZE]}: {WHAT_IS_WRONG[error]}"
            )
        at += LENGTH_SIZE + length
        count += 1
    return count


def frames_in(const uint8_t[::1] frames not None) -> list:
    """Return each data frame: its kind, its publisher or flow, and the frame without its length. Only the length and
    this part of the header are checked; raises RemoteProtocolError if they are incomplete."""
    cdef const uint8_t *start = begin(frames)
    cdef uint64_t size = frames.shape[0], at = 0, length
    found = []
    while at < size:
        length = load_u32(start + at) if size - at >= LENGTH_SIZE else 0
        if length < 8 or length > size - at - LENGTH_SIZE:
            raise RemoteProtocolError("these bytes are not whole data frames, one after another")
        at += LENGTH_SIZE
        found.append((start[at], load_u32(start + at + 4), piece(start + at, length)))
        at += length
    return found


# Encoding and decoding for Python


cdef bytes framed(uint64_t size, uint8_t **out):
    """Return a buffer for a frame of this size, with its length written."""
    if size > FRAME_SIZE_MAX:
        raise LimitError(f"a frame of {size} bytes", hint=f"at most {FRAME_SIZE_MAX}")
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, LENGTH_SIZE + size)
    out[0] = <uint8_t *>PyBytes_AS_STRING(frame)
    store_u32(out[0], <uint32_t>size)
    out[0] += LENGTH_SIZE
    return frame


cdef int check_content(bytes topic, bytes payload, uint32_t priority) except -1:
    if len(topic) > TOPIC_SIZE_MAX:
        raise LimitError(f"a topic of {len(topic)} bytes", hint=f"at most {TOPIC_SIZE_MAX}")
    if len(payload) > PAYLOAD_SIZE_MAX:
        raise LimitError(f"a payload of {len(payload)} bytes", hint=f"at most {PAYLOAD_SIZE_MAX}")
    if priority > PRIORITY_MAX:
        raise LocalProtocolError(f"invalid priority {priority}", hint=f"0 to {PRIORITY_MAX}")
    return 0


cdef void put_content(uint8_t *out, uint64_t head_size, uint64_t size, bytes topic, bytes payload) noexcept:
    cdef uint64_t topic_size = len(topic), payload_size = len(payload), end = head_size + topic_size + payload_size
    memcpy(out + head_size, PyBytes_AS_STRING(topic), topic_size)
    memcpy(out + head_size + topic_size, PyBytes_AS_STRING(payload), payload_size)
    memset(out + end, 0, size - end)


def encode_publish(uint32_t publisher, uint64_t first_number, messages not None, *, uint32_t transaction = 0) -> bytes:
    """A frame with these Published."""
    cdef uint64_t size = PUBLISH_HEAD_SIZE
    cdef PublishHead head
    cdef PublishedHead each
    cdef uint8_t *out = NULL
    cdef bytes topic, payload
    for message in messages:
        check_content(message.topic, message.payload, message.priority)
        size += published_size(<uint32_t>len(message.topic), len(message.payload))
    if not 0 < len(messages) <= FRAME_MESSAGES_MAX:
        raise LimitError(f"{len(messages)} messages in a frame", hint=f"1 to {FRAME_MESSAGES_MAX}")
    cdef bytes frame = framed(size, &out)
    head = PublishHead(KIND_PUBLISH, 0, <uint16_t>len(messages), publisher, transaction, 0, first_number)
    memcpy(out, &head, PUBLISH_HEAD_SIZE)
    out += PUBLISH_HEAD_SIZE
    for message in messages:
        topic, payload = message.topic, message.payload
        size = published_size(<uint32_t>len(topic), len(payload))
        each = PublishedHead(
            <uint32_t>size, <uint32_t>len(payload), <uint16_t>len(topic), message.priority, message.flags,
            message.model_id, message.model_version, message.ttl_ms, 0
        )
        memcpy(out, &each, PUBLISHED_HEAD_SIZE)
        put_content(out, PUBLISHED_HEAD_SIZE, size, topic, payload)
        out += size
    return frame


def encode_deliver(uint32_t flow, messages not None) -> bytes:
    """A frame with these Delivered."""
    cdef uint64_t size = DELIVER_HEAD_SIZE
    cdef DeliverHead head
    cdef DeliveredHead each
    cdef uint8_t *out = NULL
    cdef bytes topic, payload
    for message in messages:
        check_content(message.topic, message.payload, message.priority)
        size += delivered_size(<uint32_t>len(message.topic), len(message.payload))
    if not 0 < len(messages) <= FRAME_MESSAGES_MAX:
        raise LimitError(f"{len(messages)} messages in a frame", hint=f"1 to {FRAME_MESSAGES_MAX}")
    cdef bytes frame = framed(size, &out)
    head = DeliverHead(KIND_DELIVER, 0, <uint16_t>len(messages), flow)
    memcpy(out, &head, DELIVER_HEAD_SIZE)
    out += DELIVER_HEAD_SIZE
    for message in messages:
        topic, payload = message.topic, message.payload
        size = delivered_size(<uint32_t>len(topic), len(payload))
        each = DeliveredHead(
            <uint32_t>size, <uint32_t>len(payload), <uint16_t>len(topic), message.priority, message.flags,
            message.model_id, message.model_version, message.deliveries, message.given_up_by,
            message.id, message.published_ns, message.publisher, message.number
        )
        memcpy(out, &each, DELIVERED_HEAD_SIZE)
        put_content(out, DELIVERED_HEAD_SIZE, size, topic, payload)
        out += size
    return frame


cdef bytes with_runs(const void *head, uint64_t head_size, runs, uint8_t **out):
    cdef Run run
    if not 0 < len(runs) <= FRAME_RUNS_MAX:
        raise LimitError(f"{len(runs)} runs in a frame", hint=f"1 to {FRAME_RUNS_MAX}")
    cdef bytes frame = framed(head_size + len(runs) * RUN_SIZE, out)
    memcpy(out[0], head, head_size)
    out[0] += head_size
    for first, last, what, *full in runs:
        memset(&run, 0, RUN_SIZE)
        run.first, run.last, run.what = first, last, what
        if full:
            run.limit, run.endpoint = full
        memcpy(out[0], &run, RUN_SIZE)
        out[0] += RUN_SIZE
    return frame


def encode_acknowledge(uint32_t publisher, runs not None) -> bytes:
    """Encode a frame with these runs: (first number, last number, outcome), for a full endpoint also its limit and
    number."""
    cdef AcknowledgeHead head = AcknowledgeHead(KIND_ACKNOWLEDGE, 0, <uint16_t>len(runs), publisher)
    cdef uint8_t *out = NULL
    return with_runs(&head, ACKNOWLEDGE_HEAD_SIZE, runs, &out)


def encode_settle(uint32_t flow, runs not None, *, uint32_t transaction = 0) -> bytes:
    """Encode a frame with these runs: (first id, last id, settlement)."""
    cdef SettleHead head = SettleHead(KIND_SETTLE, 0, <uint16_t>len(runs), flow, transaction, 0)
    cdef uint8_t *out = NULL
    return with_runs(&head, SETTLE_HEAD_SIZE, runs, &out)


def encode_credit(uint32_t flow, uint64_t total) -> bytes:
    cdef Credit credit = Credit(KIND_CREDIT, 0, 0, flow, total)
    cdef uint8_t *out = NULL
    cdef bytes frame = framed(CREDIT_SIZE, &out)
    memcpy(out, &credit, CREDIT_SIZE)
    return frame


cdef list runs_of(const uint8_t *at, uint32_t count):
    cdef Run run
    cdef uint32_t index
    found = []
    for index in range(count):
        memcpy(&run, at + index * RUN_SIZE, RUN_SIZE)
        found.append((run.first, run.last, run.what, run.limit, run.endpoint))
    return found


cdef bytes piece(const uint8_t *at, uint64_t size):
    return PyBytes_FromStringAndSize(<const char *>at, size)


cdef tuple publish_of(const uint8_t *frame):
    cdef PublishHead head
    cdef PublishedHead each
    cdef uint32_t index
    cdef const uint8_t *at = frame + PUBLISH_HEAD_SIZE
    memcpy(&head, frame, PUBLISH_HEAD_SIZE)
    messages = []
    for index in range(head.count):
        memcpy(&each, at, PUBLISHED_HEAD_SIZE)
        messages.append((
            piece(at + PUBLISHED_HEAD_SIZE, each.topic_size),
            piece(at + PUBLISHED_HEAD_SIZE + each.topic_size, each.payload_size),
            each.priority, each.flags, each.model_id, each.model_version, each.ttl_ms,
        ))
        at += each.size
    return KIND_PUBLISH, head.publisher, head.transaction, head.first_number, messages


cdef tuple deliver_of(const uint8_t *frame):
    cdef DeliverHead head
    cdef DeliveredHead each
    cdef uint32_t index
    cdef const uint8_t *at = frame + DELIVER_HEAD_SIZE
    memcpy(&head, frame, DELIVER_HEAD_SIZE)
    messages = []
    for index in range(head.count):
        memcpy(&each, at, DELIVERED_HEAD_SIZE)
        messages.append((
            each.id,
            piece(at + DELIVERED_HEAD_SIZE, each.topic_size),
            piece(at + DELIVERED_HEAD_SIZE + each.topic_size, each.payload_size),
            each.priority, each.flags, each.model_id, each.model_version, each.deliveries,
            each.published_ns, each.publisher, each.number, each.given_up_by,
        ))
        at += each.size
    return KIND_DELIVER, head.flow, messages


def take_apart(const uint8_t[::1] frames not None) -> list:
    """Decode data frames as tuples that begin with their kind; frames.py names their parts. Raises
    RemoteProtocolError."""
    cdef const uint8_t *start = begin(frames)
    cdef const uint8_t *frame
    cdef uint64_t at = 0
    cdef AcknowledgeHead acknowledged
    cdef SettleHead settled
    cdef Credit credit
    check_frames(frames)
    found = []
    while at < <uint64_t>frames.shape[0]:
        frame = start + at + LENGTH_SIZE
        if frame[0] == KIND_PUBLISH:
            found.append(publish_of(frame))
        elif frame[0] == KIND_DELIVER:
            found.append(deliver_of(frame))
        elif frame[0] == KIND_ACKNOWLEDGE:
            memcpy(&acknowledged, frame, ACKNOWLEDGE_HEAD_SIZE)
            runs = runs_of(frame + ACKNOWLEDGE_HEAD_SIZE, acknowledged.count)
            found.append((KIND_ACKNOWLEDGE, acknowledged.publisher, runs))
        elif frame[0] == KIND_SETTLE:
            memcpy(&settled, frame, SETTLE_HEAD_SIZE)
            runs = runs_of(frame + SETTLE_HEAD_SIZE, settled.count)
            found.append((KIND_SETTLE, settled.flow, settled.transaction, runs))
        else:
            memcpy(&credit, frame, CREDIT_SIZE)
            found.append((KIND_CREDIT, credit.flow, credit.total))
        at += LENGTH_SIZE + load_u32(start + at)
    return found
