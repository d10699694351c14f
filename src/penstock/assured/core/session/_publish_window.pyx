"""A publisher's messages without acknowledgement, kept in wire format so that they can be sent again.

An application's thread adds messages, the loop's thread takes frames and applies acknowledgements. Each call holds the
GIL throughout, and is therefore atomic.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyNumber_Index
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from penstock.assured.wire._frames cimport check_acknowledge
from penstock.assured.wire._layout cimport (
    ACKNOWLEDGE_HEAD_SIZE,
    FRAME_GOOD,
    FRAME_MESSAGES_MAX,
    KIND_PUBLISH,
    LENGTH_SIZE,
    OUTCOME_REFUSED,
    PAYLOAD_SIZE_MAX,
    PRIORITY_MAX,
    PUBLISH_HEAD_SIZE,
    PUBLISHED_HEAD_SIZE,
    RUN_SIZE,
    WINDOW_MAX,
    AcknowledgeHead,
    PublishedHead,
    MESSAGE_RESENT,
    PublishHead,
    Run,
    published_size,
)
from penstock.wire._codec cimport store_u32

from penstock.base import limits
from penstock.base.errors import LimitError, LocalProtocolError, RemoteProtocolError

cdef uint32_t TOPIC_SIZE_MAX = limits.TOPIC_SIZE_MAX

cdef enum:
    OUTCOMES_KEPT = 65_536
    FULL_KEPT = 1_024  # runs of messages for which endpoints had no room
    SLOT_ROOM = 4_096  # memory of a slot above this is freed with its message
    FRAME_SIZE = 262_144  # size of a frame, unless one message is larger


cdef inline object whole(object number):
    """Convert to an integer; a number that would be truncated is refused (TypeError)."""
    return number if PyLong_CheckExact(number) else PyNumber_Index(number)


cdef class PublishWindow:
    """Numbers begin at `first`; at most `messages_max` messages and `bytes_max` bytes are without an outcome."""

    def __cinit__(self, uint32_t messages_max, uint64_t bytes_max, uint64_t first = 1) -> None:
        if not 0 < messages_max <= WINDOW_MAX:
            raise LimitError(f"a window of {messages_max} messages", hint=f"1 to {WINDOW_MAX}")
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.payload_size_max = PAYLOAD_SIZE_MAX
        self.next_number = self.unresolved = self.unsent = first
        self.full = []
        self.slots = <Slot *>calloc(messages_max, sizeof(Slot))
        self.outcomes = <uint8_t *>calloc(OUTCOMES_KEPT, 1)
        if self.slots is NULL or self.outcomes is NULL:
            raise MemoryError

    def __dealloc__(self) -> None:
        cdef uint32_t index
        if self.slots is not NULL:
            for index in range(self.messages_max):
                free(self.slots[index].data)
        free(self.slots)
        free(self.outcomes)

    cdef Slot *slot(self, uint64_t number) noexcept nogil:
        return &self.slots[number % self.messages_max]

    @property
    def room(self) -> int:
        """Number of messages that can be added now; one that exceeds the remaining bytes is accepted alone."""
        if self.waiting_bytes >= self.bytes_max:
            return 0
        return self.messages_max - (self.next_number - self.unresolved)

    @property
    def is_unsent(self) -> bool:
        return self.unsent < self.next_number

    @property
    def unsent_messages(self) -> int:
        return self.next_number - self.unsent

    def begin_at(self, uint64_t first) -> None:
        """Set the first number before the first message: the router has seen lower ones."""
        if self.next_number != self.unresolved:
            raise LocalProtocolError("the first number must be set before the first message")
        self.next_number = self.unresolved = self.unsent = first

    def put(
        self,
        str topic not None,
        bytes payload not None,
        object priority,
        uint8_t flags,
        object model_id,
        object model_version,
        object ttl_ms,
        uint32_t transaction,
    ) -> int:
        """Add a message and return its number; 0 if there is no room."""
        cdef PublishedHead head
        cdef Py_ssize_t topic_size
        cdef const char *text = PyUnicode_AsUTF8AndSize(topic, &topic_size)
        cdef uint64_t payload_size = PyBytes_GET_SIZE(payload)
        cdef uint64_t size, end
        cdef uint8_t *data
        cdef Slot *slot
        if topic_size > TOPIC_SIZE_MAX:
            raise LimitError(f"a topic of {topic_size} bytes", hint=f"at most {TOPIC_SIZE_MAX}")
        if payload_size > self.payload_size_max:
            raise LimitError(
                f"a payload of {payload_size:,} bytes", hint=f"at most {self.payload_size_max:,} (message_bytes_max)"
            )
        head.priority, head.ttl_ms = whole(priority), whole(ttl_ms)
        head.model_id, head.model_version = whole(model_id), whole(model_version)
        if head.priority > PRIORITY_MAX:
            raise LocalProtocolError(f"invalid priority {priority}", hint=f"0 to {PRIORITY_MAX}")
        if self.waiting_bytes >= self.bytes_max or self.next_number - self.unresolved >= self.messages_max:
            return 0
        slot = self.slot(self.next_number)
        size = published_size(<uint32_t>topic_size, payload_size)
        if size > slot.room:
            data = <uint8_t *>realloc(slot.data, size)
            if data is NULL:
                raise MemoryError
            slot.data = data
            slot.room = <uint32_t>size
        slot.size = <uint32_t>size
        slot.outcome = 0
        slot.transaction = transaction
        head.size, head.payload_size, head.topic_size = <uint32_t>size, <uint32_t>payload_size, <uint16_t>topic_size
        head.flags, head.reserved = flags, 0
        memcpy(slot.data, &head, PUBLISHED_HEAD_SIZE)
        memcpy(slot.data + PUBLISHED_HEAD_SIZE, text, topic_size)
        end = PUBLISHED_HEAD_SIZE + topic_size + payload_size
        memcpy(slot.data + PUBLISHED_HEAD_SIZE + topic_size, PyBytes_AS_STRING(payload), payload_size)
        memset(slot.data + end, 0, size - end)
        self.waiting_bytes += size
        self.next_number += 1
        return self.next_number - 1

    def rewind(self) -> None:
        """Prepare for another link: all messages without an outcome are sent again."""
        self.unsent = self.unresolved
        self.committing = 0

    def pass_over(self, uint32_t transaction) -> None:
        """The router on this link has the transaction's messages and its commit: they are not sent again."""
        self.committing = transaction

    def take(self, uint32_t handle) -> bytes:
        """Return frames with all messages that were not sent on this link."""
        cdef uint64_t number, size = 0
        cdef uint64_t first = self.unsent
        cdef bytes frames
        cdef uint8_t *out
        cdef uint8_t *start
        if first >= self.next_number:
            return b""
        frames = PyBytes_FromStringAndSize(NULL, self._frames_size(first))
        start = out = <uint8_t *>PyBytes_AS_STRING(frames)
        while first < self.next_number:
            number = self._frame_end(first, &size)
            if number > first:
                out = self._write_frame(out, handle, first, number, size)
                first = number
            else:
                first += 1  # it has an outcome, or waits for one
        self.unsent = self.next_number
        assert out - start == PyBytes_GET_SIZE(frames)
        return frames

    cdef uint64_t _frame_end(self, uint64_t first, uint64_t *size) noexcept nogil:
        """The number after the last message of a frame that begins with `first`, and the size of its messages."""
        cdef uint64_t number = first
        cdef uint32_t transaction = self.slot(first).transaction
        cdef Slot *slot
        size[0] = 0
        while number < self.next_number and number - first < FRAME_MESSAGES_MAX:
            slot = self.slot(number)
            if slot.outcome or slot.transaction != transaction or (size[0] and size[0] + slot.size > FRAME_SIZE):
                break
            if transaction and transaction == self.committing:
                break
            size[0] += slot.size
            number += 1
        return number

    cdef uint64_t _frames_size(self, uint64_t first) noexcept nogil:
        cdef uint64_t total = 0, size = 0, number
        while first < self.next_number:
            number = self._frame_end(first, &size)
            if number > first:
                total += LENGTH_SIZE + PUBLISH_HEAD_SIZE + size
                first = number
            else:
                first += 1
        return total

    cdef uint8_t *_write_frame(
        self, uint8_t *out, uint32_t handle, uint64_t first, uint64_t after, uint64_t size
    ) noexcept nogil:
        cdef PublishHead head
        cdef Slot *slot
        cdef uint64_t number
        head.kind = KIND_PUBLISH
        head.flags = 0
        head.count = <uint16_t>(after - first)
        head.publisher = handle
        head.transaction = self.slot(first).transaction
        head.reserved = 0
        head.first_number = first
        store_u32(out, <uint32_t>(PUBLISH_HEAD_SIZE + size))
        memcpy(out + LENGTH_SIZE, &head, PUBLISH_HEAD_SIZE)
        out += LENGTH_SIZE + PUBLISH_HEAD_SIZE
        for number in range(first, after):
            slot = self.slot(number)
            memcpy(out, slot.data, slot.size)
            (<PublishedHead *>slot.data).flags |= MESSAGE_RESENT  # in case it is sent again
            out += slot.size
        return out

    def acknowledge(self, const uint8_t[::1] frame not None, dict named not None = {}) -> list:
        """Apply an ACKNOWLEDGE frame without its length; `named` has the endpoints of the numbers in it. Return its
        runs of refused messages: (first, last, outcome)."""
        cdef AcknowledgeHead head
        cdef Run run
        cdef uint32_t index
        if frame.shape[0] == 0 or check_acknowledge(&frame[0], frame.shape[0]) != FRAME_GOOD:
            raise RemoteProtocolError("invalid ACKNOWLEDGE frame")
        memcpy(&head, &frame[0], ACKNOWLEDGE_HEAD_SIZE)
        refused = []
        for index in range(head.count):
            memcpy(&run, &frame[ACKNOWLEDGE_HEAD_SIZE + index * RUN_SIZE], RUN_SIZE)
            if run.endpoint in named:  # before the outcome, which other threads wait for
                self.full.append((run.first, run.last, named[run.endpoint], run.limit))
                del self.full[:-FULL_KEPT]
            if not self.resolve(run.first, run.last, run.what):
                raise RemoteProtocolError(f"numbers {run.first} to {run.last} are acknowledged, and were not sent")
            if run.what >= OUTCOME_REFUSED:
                refused.append((run.first, run.last, run.what))
        return refused

    cdef bint resolve(self, uint64_t first, uint64_t last, uint8_t outcome) noexcept nogil:
        """Set the outcome of messages that have none. False if not all of them were sent on this link."""
        cdef uint64_t number
        if last >= self.unsent:
            return False
        for number in range(max(first, self.unresolved), last + 1):
            self.give(number, outcome)
        self.advance()
        return True

    cdef void give(self, uint64_t number, uint8_t outcome) noexcept nogil:
        cdef Slot *slot = self.slot(number)
        if slot.outcome:
            return
        slot.outcome = self.outcomes[number % OUTCOMES_KEPT] = outcome
        self.answered = max(self.answered, number + 1)
        self.waiting_bytes -= slot.size
        self.refused += outcome >= OUTCOME_REFUSED
        self.told[outcome % OUTCOME_COUNT] += 1
        if slot.room > SLOT_ROOM:
            free(slot.data)
            slot.data = NULL
            slot.room = 0

    cdef void advance(self) noexcept nogil:
        while self.unresolved < self.next_number and self.slot(self.unresolved).outcome:
            self.unresolved += 1
        self.unsent = max(self.unsent, self.unresolved)

    def end_transaction(self, uint32_t transaction, uint8_t outcome) -> None:
        """The transaction was committed or rolled back: that is the outcome of all its messages."""
        cdef uint64_t number
        for number in range(self.unresolved, self.next_number):
            if self.slot(number).transaction == transaction:
                self.give(number, outcome)
        self.advance()

    def outcome_of(self, uint64_t number) -> int:
        """The outcome of a message; 0: none yet. Known until 65,536 later messages have one."""
        if number == 0 or number >= self.next_number or number + OUTCOMES_KEPT <= self.next_number:
            raise LocalProtocolError(f"the outcome of message {number} is not known here")
        return 0 if number >= self.unresolved and not self.slot(number).outcome else self.outcomes[number % OUTCOMES_KEPT]

    def take_outcomes(self, dict awaited not None, object answered not None) -> None:
        """Move what is awaited, by number in ascending order, to `answered` if its message has an outcome: (what, number,
        outcome)."""
        cdef uint64_t number
        cdef list taken = []
        for number in awaited:
            if number >= self.answered:
                break
            if number < self.unresolved or self.slot(number).outcome:
                taken.append(number)
        for number in taken:
            answered.append((awaited.pop(number), number, self.outcomes[number % OUTCOMES_KEPT]))

    def full_endpoint(self, uint64_t number) -> tuple | None:
        """The full endpoint that refused a message, and its exceeded limit; None: unknown."""
        for first, last, endpoint, limit in reversed(self.full):
            if first <= number <= last:
                return endpoint, limit
        return None

    def outcome_counts(self) -> dict:
        """Number of messages by outcome."""
        return {outcome: self.told[outcome] for outcome in range(OUTCOME_COUNT) if self.told[outcome]}
