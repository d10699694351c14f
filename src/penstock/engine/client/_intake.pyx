"""Intake: takes events from a ring or a message, checks them, drops duplicates, converts prices.

Its output is a block of complete events, each of an item that was defined before, without duplicates: the next layer
reads it without further checks. The input comes from a node that may be broken or hostile: invalid events raise
RemoteProtocolError, and updates of undefined items are dropped and counted.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from penstock.base._crc32c cimport crc32c_initialise
from penstock.engine.core.kernel._event cimport (
    AS_REFRESH,
    CRITICAL,
    DEFINE,
    EVENT_HEAD_SIZE,
    ITEM_ALL,
    LIVE,
    NOTICE,
    RECEIPT,
    REFRESH,
    REMOVE,
    SESSION,
    UPDATE,
    WITHDRAW,
    Head,
    read_head,
)
from penstock.engine.client._fields cimport FieldTable, convert_prices
from penstock.shm._memory cimport Mapping
from penstock.shm._ring cimport STATE_BLANK, STATE_EVENT, State, look, take_event
from penstock.shm._ring_reader cimport RingReader
from penstock.topics._predicate cimport Program

from penstock.base.errors import LocalProtocolError, RemoteProtocolError

crc32c_initialise()

cdef enum:
    ITEMS_FIRST = 1024
    BLOCK = 256 * 1024

BLOCK_SIZE = BLOCK
"""Size of the events that are taken at a time, not counting the last one."""


cdef inline bint is_known(const Head *head, uint64_t version) noexcept nogil:
    """True if an event is a duplicate. An older refresh is not, because its producer may have restarted its
    versions."""
    if head.version == 0 or version == 0:
        return False
    if head.kind == REFRESH or head.kind == WITHDRAW and head.flags & AS_REFRESH:
        return head.version == version
    return head.version <= version


cdef class Intake:
    """The intake of one consumer. `learn(model_id, version)` is called once for each model of a defined item; it
    returns the fields whose prices are converted and the condition that records must match, each None if there is
    none."""

    def __cinit__(self, uint64_t items_max, learn not None):
        self._items_max = items_max
        self._learn = learn
        self._plans = {}

    def __dealloc__(self):
        free(self._items)
        free(self._block)

    def take(self, RingReader ring not None, int64_t timeout_ns) -> bytes:
        """Return the events that are in the ring or arrive within the timeout; empty if there are none. Raises the
        errors of RingReader.read()."""
        cdef uint32_t size = 0
        cdef State state
        cdef Mapping mapping = ring._mapping  # another thread may close it
        self._size = 0
        state = ring.wait(timeout_ns)
        if state == STATE_BLANK:
            return b""
        self.reserve(BLOCK + ring._cursor.event_size_max)
        while self._size < BLOCK:
            state = look(&ring._cursor, &size)
            if state == STATE_EVENT:
                state = take_event(&ring._cursor, self._block + self._size, size)
            if state != STATE_EVENT:
                break
            self._size += size
        if self._size == 0 and state != STATE_BLANK:
            raise ring.error(state)
        return self.sifted()

    def load(self, data not None) -> bytes:
        """Return the events of a message, after the same checks."""
        cdef Py_buffer content
        PyObject_GetBuffer(data, &content, PyBUF_SIMPLE)
        try:
            self.reserve(content.len)
            self._size = content.len
            if self._size:
                memcpy(self._block, content.buf, self._size)
        finally:
            PyBuffer_Release(&content)
        return self.sifted()

    def forget(self) -> None:
        """Forget all items and versions, because the node was restarted."""
        if self._item_count:
            memset(self._items, 0, self._item_count * sizeof(Item))
        self.last_number = 0

    cdef int reserve(self, uint64_t size) except -1:
        cdef uint8_t *block
        if size > self._capacity:
            block = <uint8_t *>realloc(self._block, size)
            if block is NULL:
                raise MemoryError
            self._block, self._capacity = block, size
        return 0

    cdef bytes sifted(self):
        cdef Head head
        cdef uint64_t at = 0, kept = 0
        cdef uint32_t size
        while at < self._size:
            size = read_head(self._block + at, self._size - at, &head)
            if size == 0:
                raise RemoteProtocolError(f"byte {at} of {self._size} does not begin an event")
            self.events += 1
            if self.keeps(&head, self._block + at):
                if kept != at:
                    memmove(self._block + kept, self._block + at, size)
                kept += size
            at += size
        return PyBytes_FromStringAndSize(<const char *>self._block, kept)

    cdef bint keeps(self, const Head *head, uint8_t *event) except -1:
        if head.kind == DEFINE:
            self.define(head)
            return True
        if head.kind == SESSION:
            self.last_number = max(self.last_number, head.number)
            return True
        if head.kind == LIVE or head.kind == RECEIPT and head.item == <uint32_t>ITEM_ALL:
            return True
        if head.item >= self._item_count or not self._items[head.item].is_defined:
            self.undefined += 1
            return False
        if head.kind == REMOVE:
            self._items[head.item].is_defined = False
            self._items[head.item].version = 0
        if head.kind != REFRESH and head.kind != UPDATE and head.kind != WITHDRAW:
            return head.kind != NOTICE
        if head.model_id != self._items[head.item].model_id:
            raise RemoteProtocolError(f"item {head.item} has an event of model {head.model_id}, but was defined with another one")
        if (head.kind == UPDATE or head.kind == WITHDRAW) and head.cls == CRITICAL and head.number > self.last_number:
            self.last_number = head.number
        if is_known(head, self._items[head.item].version):
            self.duplicates += 1
            return False
        self._items[head.item].version = head.version
        return head.kind == WITHDRAW or self.shapes(head, event + EVENT_HEAD_SIZE)

    cdef int define(self, const Head *head) except -1:
        cdef uint64_t count
        cdef Item *items
        if head.item >= self._items_max:
            raise RemoteProtocolError(f"item {head.item} exceeds the limit of {self._items_max} items")
        if head.item >= self._item_count:
            count = min(self._items_max, max(<uint64_t>ITEMS_FIRST, 2 * (<uint64_t>head.item + 1)))
            items = <Item *>realloc(self._items, count * sizeof(Item))
            if items is NULL:
                raise MemoryError
            memset(items + self._item_count, 0, (count - self._item_count) * sizeof(Item))
            self._items, self._item_count = items, count
        if head.model_id not in self._plans:
            self._plans[head.model_id] = self._learn(head.model_id, head.model_version)
        if not self._items[head.item].is_defined or self._items[head.item].model_id != head.model_id:
            self._items[head.item].version = 0
        self._items[head.item].is_defined = True
        self._items[head.item].model_id = head.model_id
        return 0

    cdef bint shapes(self, const Head *head, uint8_t *body) except -1:
        """True if a record matches the condition of its model; then its prices are converted."""
        cdef tuple plan = self._plans[head.model_id]
        cdef FieldTable table = plan[0]
        cdef Program condition = plan[1]
        if condition is not None and not condition.accepts(body, head.body_size):
            self.filtered += 1
            return False
        if table is not None:
            convert_prices(table.places, table.count, body, head.body_size)
        return True


def count_records(bytes block not None) -> dict:
    """Count the records in a block of an Intake, by model id and version."""
    cdef Head head
    cdef uint64_t at = 0, size = len(block)
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(block)
    cdef uint32_t taken
    cdef dict counts = {}
    while at < size:
        taken = read_head(start + at, size - at, &head)
        if taken == 0:
            raise LocalProtocolError(f"byte {at} of {size} does not begin an event", hint="only an Intake makes blocks")
        if head.kind == REFRESH or head.kind == UPDATE:
            key = head.model_id, head.model_version
            counts[key] = counts.get(key, 0) + 1
        at += taken
    return counts


def gather_records(bytes block not None, uint16_t model_id, uint8_t[:, ::1] rows not None) -> int:
    """Fill rows with the records of a model that have a row's size, in order. Return their number."""
    cdef Head head
    cdef uint64_t at = 0, size = len(block), count = 0
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(block)
    cdef uint32_t taken = 1
    while at < size and count < <uint64_t>rows.shape[0] and taken:
        taken = read_head(start + at, size - at, &head)
        if (head.kind == REFRESH or head.kind == UPDATE) and head.model_id == model_id:
            if head.body_size == <uint64_t>rows.shape[1]:
                memcpy(&rows[count, 0], start + at + EVENT_HEAD_SIZE, head.body_size)
                count += 1
        at += taken
    return count


def split_block(bytes block not None) -> tuple:
    """Split a block into records and other events, each in order."""
    cdef Head head
    cdef uint64_t at = 0, size = len(block)
    cdef uint64_t[2] filled
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(block)
    cdef uint8_t *records = <uint8_t *>malloc(2 * size + 1)
    cdef uint32_t taken = 1
    cdef bint is_note
    if records is NULL:
        raise MemoryError
    filled[0], filled[1] = 0, 0
    try:
        while at < size and taken:
            taken = read_head(start + at, size - at, &head)
            is_note = head.kind != REFRESH and head.kind != UPDATE
            memcpy(records + is_note * size + filled[is_note], start + at, taken)
            filled[is_note] += taken
            at += taken
        return (
            PyBytes_FromStringAndSize(<const char *>records, filled[0]),
            PyBytes_FromStringAndSize(<const char *>records + size, filled[1]),
        )
    finally:
        free(records)
