"""Records without endpoints: this router matches the messages with its own interests (REPL-4).

A frame of such records is converted to one with endpoints, in the sender's numbers, and then handled like any other.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from penstock.assured.core.router._containers cimport Bytes, bytes_reserve
from penstock.assured.wire._layout cimport PEER_FRAME_SIZE_MAX, RECORDS_HEAD_SIZE
from penstock.assured.core.router._parts cimport MessageParts
from penstock.assured.core.router._records cimport (
    DESTINATION_SIZE,
    MESSAGE_HEAD_SIZE,
    MESSAGE_TO_MATCH,
    RECORD_MESSAGE,
    RECORD_TRANSACTION,
    TRANSACTION_HEAD_SIZE,
    Destination,
    MessageHead,
    RecordHead,
    check_record,
    message_record_size,
)
from penstock.assured.core.router._mirroring cimport endpoint_mark, is_mirrored
from penstock.assured.core.router._tables cimport Endpoint, Tables

from penstock.base.errors import RemoteProtocolError


cdef inline uint64_t step(const RecordHead *record) noexcept:
    """Records within a transaction are visited too."""
    return TRANSACTION_HEAD_SIZE if record.kind == RECORD_TRANSACTION else record.size


cdef inline bint is_to_match(const RecordHead *record) noexcept:
    return record.kind == RECORD_MESSAGE and record.flags & MESSAGE_TO_MATCH != 0


cdef class Unmatched(MessageParts):
    """The messages of a RECORDS frame without endpoints."""

    def __cinit__(self, data not None):
        cdef RecordHead record
        cdef uint64_t size, at = RECORDS_HEAD_SIZE
        cdef uint32_t count = 0
        self.data = data
        self.view = data
        size = self.view.shape[0]
        if size < RECORDS_HEAD_SIZE or size > PEER_FRAME_SIZE_MAX:
            raise RemoteProtocolError(f"a frame of records has {size} bytes")
        while at < size:  # the whole frame is checked before it is used
            if check_record(&self.view[at], size - at) == 0:
                raise RemoteProtocolError("a RECORDS frame has other records or bytes")
            memcpy(&record, &self.view[at], sizeof(RecordHead))
            at += record.size
        at = RECORDS_HEAD_SIZE
        while at < size:
            memcpy(&record, &self.view[at], sizeof(RecordHead))
            count += is_to_match(&record)
            at += step(&record)
        self.allot(count)
        if count:
            self.look()

    cdef int look(self) except -1:
        cdef MessageHead head
        cdef RecordHead record
        cdef uint64_t size = self.view.shape[0], at = RECORDS_HEAD_SIZE
        cdef uint32_t index = 0
        while at < size:
            memcpy(&record, &self.view[at], sizeof(RecordHead))
            if is_to_match(&record):
                memcpy(&head, &self.view[at], MESSAGE_HEAD_SIZE)
                if head.destination_count:
                    raise RemoteProtocolError("a message to be matched by this router has endpoints already")
                self.place(
                    index, <uint32_t>at + MESSAGE_HEAD_SIZE, head.topic_size, head.payload_size, head.model_id,
                    head.model_version,
                )
                index += 1
            at += step(&record)
        return 0

    def matched(
        self,
        Tables tables not None,
        const uint64_t[::1] offsets not None,
        const uint32_t[::1] subscribers not None,
        const uint32_t[::1] owners not None,
        const uint32_t[::1] there not None,
    ) -> bytes | None:
        """Return the frame with the endpoints; None if the sender has found others. Message i matches
        subscribers[offsets[i]:offsets[i + 1]]; owners[subscriber] is the number of its endpoint here, there[number]
        the sender's number of that endpoint, or 0: endpoints that the sender lacks get no copies."""
        cdef Filling filling = Filling(tables, subscribers, owners, there)
        cdef RecordHead record
        cdef const uint8_t *bytes = &self.view[0]
        cdef uint64_t size = self.view.shape[0], at = RECORDS_HEAD_SIZE, group_at = 0, group_end = 0
        cdef uint32_t index = 0
        filling.copy(bytes, RECORDS_HEAD_SIZE)
        while at < size:
            memcpy(&record, bytes + at, sizeof(RecordHead))
            if record.kind == RECORD_TRANSACTION:
                group_at, group_end = filling.out.size, at + record.size
            if is_to_match(&record):
                if not filling.fill(bytes + at, offsets[index], offsets[index + 1]):
                    return None
                index += 1
            else:
                filling.copy(bytes + at, step(&record))
            at += step(&record)
            if at == group_end:
                filling.set_size(group_at)
        return PyBytes_FromStringAndSize(<const char *>filling.out.data, filling.out.size)


cdef class Filling:
    """A frame under construction."""

    cdef Tables tables
    cdef const uint32_t[::1] subscribers
    cdef const uint32_t[::1] owners
    cdef const uint32_t[::1] there
    cdef Bytes out

    def __cinit__(
        self, Tables tables, const uint32_t[::1] subscribers, const uint32_t[::1] owners, const uint32_t[::1] there
    ):
        self.tables = tables
        self.subscribers = subscribers
        self.owners = owners
        self.there = there

    def __dealloc__(self):
        free(self.out.data)

    cdef uint8_t *room(self, uint64_t size) except NULL:
        if self.out.size + size > PEER_FRAME_SIZE_MAX:
            raise RemoteProtocolError("a frame of records is too large with its endpoints")
        bytes_reserve(&self.out, size)
        self.out.size += size
        return self.out.data + self.out.size - size

    cdef int copy(self, const uint8_t *source, uint64_t size) except -1:
        memcpy(self.room(size), source, size)
        return 0

    cdef int set_size(self, uint64_t at) noexcept:
        """Set the size of the record that begins there and ends here."""
        (<RecordHead *>(self.out.data + at)).size = <uint32_t>(self.out.size - at)
        return 0

    cdef bint fill(self, const uint8_t *record, uint64_t start, uint64_t end) except -1:
        """False: the sender has found others."""
        cdef MessageHead head
        cdef Destination destination
        cdef uint64_t position, begin = self.out.size
        cdef uint32_t number, mark = 0, count = 0
        cdef Endpoint *endpoint
        cdef uint8_t *out
        memcpy(&head, record, MESSAGE_HEAD_SIZE)
        self.room(MESSAGE_HEAD_SIZE)
        self.tables.new_stamp()
        for position in range(start, end):
            number = self.owners[self.subscribers[position]]
            endpoint = self.tables.endpoint_of(number)
            if endpoint is NULL or number >= <uint32_t>self.there.shape[0] or not self.tables.is_first(endpoint):
                continue
            number = self.there[number]
            if number and is_mirrored(self.tables, endpoint.number):
                destination = Destination(number, 0, 0, 0, 0)
                memcpy(self.room(DESTINATION_SIZE), &destination, DESTINATION_SIZE)
                mark += endpoint_mark(number)
                count += 1
        if mark != head.matched:
            return False
        out = self.room(head.size - MESSAGE_HEAD_SIZE)
        memcpy(out, record + MESSAGE_HEAD_SIZE, head.size - MESSAGE_HEAD_SIZE)
        head.flags &= ~<uint8_t>MESSAGE_TO_MATCH
        head.matched = 0
        head.destination_count = <uint16_t>count
        head.size = <uint32_t>message_record_size(count, head.topic_size, head.payload_size)
        memcpy(self.out.data + begin, &head, MESSAGE_HEAD_SIZE)
        return True
