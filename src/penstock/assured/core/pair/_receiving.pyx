"""Handling of the active router's records at the standby: they are logged, and applied to the tables as in recovery.

The messages are in no queue while the router is the standby. When it becomes active, they are queued in the order of
their ids, all of them flagged as possibly delivered before.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._groups cimport return_consumed
from penstock.assured.wire._layout cimport KIND_RECORDS, RECORDS_HEAD_SIZE, SETTLE_ACKNOWLEDGED, RecordsHead
from penstock.assured.core.router._messages cimport cache_put, consumed_entry, message_by_id
from penstock.assured.core.router._records cimport (
    AT_ONE,
    DEAD_SIZE,
    DESTINATION_SIZE,
    ID_RUN_SIZE,
    LOG_RECORD_SIZE_MAX,
    MESSAGE_HEAD_SIZE,
    PUBLISHER_HEAD_SIZE,
    RECORD_DEAD,
    RECORD_MESSAGE,
    RECORD_OWNER,
    RECORD_PUBLISHER,
    RECORD_SETTLED,
    RECORD_TRANSACTION,
    SETTLED_HEAD_SIZE,
    TRANSACTION_HEAD_SIZE,
    TREATMENT_NONE,
    TREATMENT_SYNC,
    UNDONE,
    WHY_REJECTED,
    DeadRecord,
    Destination,
    IdRun,
    MessageHead,
    PublisherHead,
    RecordHead,
    SettledHead,
    TransactionHead,
    check_record,
    content_at,
)
from penstock.assured.core.router._recovery cimport recover_record
from penstock.assured.core.router._mirroring cimport is_mirrored, target_now
from penstock.assured.core.router._settling cimport log_dead
from penstock.assured.core.router._tables cimport (
    MESSAGE_GROUPED,
    STATE_FREE,
    Entry,
    Message,
    Tables,
    entry_at,
    message_at,
)

from penstock.assured.core.router._cleaning import forget_numbers
from penstock.assured.core.router._settling import drop
from penstock.base.errors import RemoteProtocolError

cdef enum:
    DESTINATIONS_MAX = 0xFFFF  # maximum number per record


def apply_records(
    Tables tables not None, const uint8_t[::1] frame not None, const uint32_t[::1] numbers not None
) -> tuple:
    """Apply a RECORDS frame. Return (position, highest id). `numbers[n]` is this router's number of the sender's
    endpoint n; 0: none. Nothing of an invalid frame is applied."""
    cdef RecordsHead head
    cdef RecordHead record
    cdef uint64_t size = frame.shape[0], at = RECORDS_HEAD_SIZE, id_highest = 0
    cdef uint32_t count = 0, length
    cdef uint8_t kind
    if size < RECORDS_HEAD_SIZE:
        raise RemoteProtocolError("a RECORDS frame is too short")
    memcpy(&head, &frame[0], RECORDS_HEAD_SIZE)
    while at < size:
        length = check_record(&frame[at], size - at)
        kind = frame[at]
        if length == 0 or kind not in (RECORD_MESSAGE, RECORD_SETTLED, RECORD_DEAD, RECORD_TRANSACTION, RECORD_OWNER):
            raise RemoteProtocolError("a RECORDS frame has other records or bytes")
        at += length
        count += 1
    if head.kind != KIND_RECORDS or count != head.count:
        raise RemoteProtocolError(f"a RECORDS frame states {head.count} records, but has {count}")
    at = RECORDS_HEAD_SIZE
    while at < size:
        memcpy(&record, &frame[at], sizeof(RecordHead))
        id_highest = max(id_highest, take_in(tables, &frame[at], record.size, numbers))
        at += record.size
    return head.position, id_highest


def take_publishers(Tables tables not None, list frames not None, bint is_lacking) -> None:
    """Take over the active router's knowledge of publishers, and forget all other: a publisher that repeats messages
    which only this router had must not be told that they are known. `frames` are all PUBLISHERS frames.
    `is_lacking`: this router lacks endpoints, to which a transaction that it has not applied may have published."""
    cdef const uint8_t[::1] frame
    cdef RecordHead record
    cdef uint64_t at, size, first_sequence = tables.log.next_sequence
    cdef uint32_t handle
    cdef PublisherHead head
    cdef uint8_t *logged
    cdef bint is_known
    for each in frames:
        frame = each
        size = frame.shape[0]
        at = RECORDS_HEAD_SIZE
        while at < size:
            memcpy(&record, &frame[at], sizeof(RecordHead))
            memcpy(&head, &frame[at], PUBLISHER_HEAD_SIZE)
            if is_lacking and head.transaction:
                handle = tables.publishers.handle_of(head.publisher)
                is_known = handle != 0 and tables.publishers.at(handle).transaction == head.transaction
                head.flags |= AT_ONE if not is_known or tables.publishers.at(handle).is_at_one else 0
            logged = tables.log.room(record.size, tables.wall_ns)
            memcpy(logged, &frame[at], record.size)
            memcpy(logged, &head, PUBLISHER_HEAD_SIZE)
            recover_record(tables, logged, tables.log.sequence(), 0)
            at += record.size
    forget_numbers(tables, first_sequence)


def check_publishers(const uint8_t[::1] frame not None) -> None:
    """Raise RemoteProtocolError unless this is a valid PUBLISHERS frame."""
    cdef uint64_t size = frame.shape[0], at = RECORDS_HEAD_SIZE
    cdef uint32_t length
    while at < size:
        length = check_record(&frame[at], size - at)
        if length == 0 or frame[at] != RECORD_PUBLISHER:
            raise RemoteProtocolError("a PUBLISHERS frame has other records or bytes")
        at += length
    if at != size:
        raise RemoteProtocolError("a PUBLISHERS frame is too short")


cdef uint64_t take_in(
    Tables tables, const uint8_t *record, uint32_t size, const uint32_t[::1] numbers
) except? 0:
    """Apply a record. Return its highest id, or 0."""
    cdef uint8_t *logged
    cdef RecordHead inner
    cdef TransactionHead head
    cdef uint32_t at = TRANSACTION_HEAD_SIZE
    if record[0] == RECORD_MESSAGE:
        logged = log_message(tables, record, size, numbers)
        recover_record(tables, logged, tables.log.sequence(), 0)
        return keep_content(tables, logged)
    logged = tables.log.room(size, tables.wall_ns)
    memcpy(logged, record, size)
    if logged[0] != RECORD_TRANSACTION:
        translate(logged, numbers)
        recover_record(tables, logged, tables.log.sequence(), 0)
        return 0
    while at < size:
        memcpy(&inner, logged + at, sizeof(RecordHead))
        translate(logged + at, numbers)
        at += inner.size
    recover_record(tables, logged, tables.log.sequence(), 0)
    at = TRANSACTION_HEAD_SIZE
    while at < size:
        memcpy(&inner, logged + at, sizeof(RecordHead))
        keep_content(tables, logged + at)
        at += inner.size
    memcpy(&head, logged, TRANSACTION_HEAD_SIZE)
    return head.id


cdef uint8_t *log_message(
    Tables tables, const uint8_t *record, uint32_t size, const uint32_t[::1] numbers
) except NULL:
    """Log a message, including its endpoints here of which the active router has no copies and no knowledge."""
    cdef MessageHead head
    cdef Destination destination
    cdef const Entry *entry
    cdef uint32_t place, each, kept = 0
    cdef uint64_t content
    cdef uint8_t *logged
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    content = content_at(&head)
    place = message_by_id(tables, head.id)
    each = message_at(tables, place).entries if place else 0
    while each:
        kept += is_kept(tables, record, numbers, entry_at(tables, each).endpoint)
        each = entry_at(tables, each).sibling
    if head.destination_count + kept > DESTINATIONS_MAX or size + kept * DESTINATION_SIZE > LOG_RECORD_SIZE_MAX:
        raise RemoteProtocolError(f"a message of {size} bytes goes to {head.destination_count} endpoints")
    logged = tables.log.room(size + kept * DESTINATION_SIZE, tables.wall_ns)
    memcpy(logged, record, content)
    translate(logged, numbers)
    memcpy(logged + content + kept * DESTINATION_SIZE, record + content, size - content)
    if kept == 0:
        return logged
    head.size += kept * DESTINATION_SIZE
    head.destination_count = <uint16_t>(head.destination_count + kept)
    memcpy(logged, &head, MESSAGE_HEAD_SIZE)
    each = message_at(tables, place).entries
    while each:
        entry = entry_at(tables, each)
        if is_kept(tables, record, numbers, entry.endpoint):
            destination = Destination(entry.endpoint, entry.deliveries, entry.flags, entry.given_up_by, 0)
            memcpy(logged + content, &destination, DESTINATION_SIZE)
            content += DESTINATION_SIZE
        each = entry.sibling
    return logged


cdef bint is_kept(Tables tables, const uint8_t *record, const uint32_t[::1] numbers, uint32_t endpoint) noexcept:
    cdef MessageHead head
    cdef Destination destination
    cdef uint32_t index
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    if is_mirrored(tables, endpoint) and head.id > tables.endpoints[endpoint].own_through:
        return False
    for index in range(head.destination_count):
        memcpy(&destination, record + MESSAGE_HEAD_SIZE + index * DESTINATION_SIZE, DESTINATION_SIZE)
        if here(numbers, destination.endpoint) == endpoint:
            return False
    return True


cdef uint64_t keep_content(Tables tables, const uint8_t *record) noexcept:
    cdef MessageHead head
    cdef uint32_t place
    if record[0] != RECORD_MESSAGE:
        return 0
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    place = message_by_id(tables, head.id)
    if place and head.size < tables.cache.size // 4:
        cache_put(tables, message_at(tables, place), record, head.size)
    return head.id


cdef inline uint32_t here(const uint32_t[::1] numbers, uint32_t there) noexcept:
    return numbers[there] if there < <uint32_t>numbers.shape[0] else 0


cdef void translate(uint8_t *record, const uint32_t[::1] numbers) noexcept:
    """Replace the sender's endpoint numbers by this router's."""
    cdef MessageHead message
    cdef SettledHead settled
    cdef DeadRecord dead
    cdef Destination destination
    cdef uint32_t index
    cdef uint8_t *at
    if record[0] == RECORD_MESSAGE:
        memcpy(&message, record, MESSAGE_HEAD_SIZE)
        for index in range(message.destination_count):
            at = record + MESSAGE_HEAD_SIZE + index * DESTINATION_SIZE
            memcpy(&destination, at, DESTINATION_SIZE)
            destination.endpoint = here(numbers, destination.endpoint)
            destination.given_up_by = here(numbers, destination.given_up_by)
            memcpy(at, &destination, DESTINATION_SIZE)
    elif record[0] == RECORD_SETTLED:
        memcpy(&settled, record, sizeof(SettledHead))
        settled.flags = 0
        settled.endpoint = here(numbers, settled.endpoint)
        memcpy(record, &settled, sizeof(SettledHead))
    elif record[0] == RECORD_DEAD:
        memcpy(&dead, record, sizeof(DeadRecord))
        dead.flags = 0
        dead.source = here(numbers, dead.source)
        dead.target = here(numbers, dead.target)
        memcpy(record, &dead, sizeof(DeadRecord))


# Comparison with the active router


def held_ids(Tables tables not None) -> dict:
    """By number of the endpoint: the ids of its replicated messages, ascending, as an array."""
    cdef uint32_t place
    cdef const Message *message
    found = {}
    for place in range(1, tables.entry_end):
        if entry_at(tables, place).state != STATE_FREE:
            message = message_at(tables, entry_at(tables, place).message)
            if message.treatment != TREATMENT_NONE and is_mirrored(tables, entry_at(tables, place).endpoint):
                found.setdefault(entry_at(tables, place).endpoint, []).append(message.id)
    return {number: numpy.sort(numpy.array(ids, numpy.uint64)) for number, ids in found.items()}


def resolve(Tables tables not None, uint64_t through_id) -> None:
    """The active router has this router's transactions up to this id, and never had later ones: messages that those
    consumed are undelivered again."""
    cdef uint32_t endpoint, place
    cdef uint64_t id
    cdef uint8_t what
    cdef DeadRecord dead
    for transaction_id, endpoint, ids, whats, targets in tables.replication.take_consumed(~<uint64_t>0):
        done = []
        for id, what, target in zip(ids.tolist(), whats.tolist(), targets.tolist()):
            place = consumed_entry(tables, endpoint, id)
            if place == 0:
                continue
            if transaction_id > through_id:
                return_consumed(tables, place)
            elif what == SETTLE_ACKNOWLEDGED:
                done.append(id)
            else:
                log_dead(tables, endpoint, target_now(tables, endpoint, target), id, WHY_REJECTED, 0)
                memcpy(&dead, tables.log.last(DEAD_SIZE), DEAD_SIZE)
                recover_record(tables, <const uint8_t *>&dead, tables.log.sequence(), 0)
        if done:
            drop(tables, endpoint, numpy.array(done, numpy.uint64))


def undo(Tables tables not None, uint64_t first_id, uint64_t last_id) -> None:
    """This router's successor never had its synchronous messages in this range of ids, of epochs of this router: log
    that they must not be found again (REPL-13)."""
    cdef SettledHead head
    cdef IdRun run = IdRun(first_id, last_id)
    cdef uint8_t *record
    if (first_id, last_id) in tables.replication.undone:
        return
    memset(&head, 0, sizeof(SettledHead))
    head.kind, head.flags, head.count = RECORD_SETTLED, UNDONE, 1
    head.size = SETTLED_HEAD_SIZE + ID_RUN_SIZE
    record = tables.log.room(head.size, tables.wall_ns)
    memcpy(record, &head, SETTLED_HEAD_SIZE)
    memcpy(record + SETTLED_HEAD_SIZE, &run, ID_RUN_SIZE)
    tables.replication.add_undone(first_id, last_id)


def undone_ids(Tables tables not None, uint64_t after_id, uint64_t before_id) -> dict:
    """By number of the endpoint: messages of synchronous transactions between these ids, in any queue."""
    cdef uint32_t place
    cdef const Message *message
    found = {}
    for place in range(1, tables.entry_end):
        if entry_at(tables, place).state != STATE_FREE:
            message = message_at(tables, entry_at(tables, place).message)
            if message.flags & MESSAGE_GROUPED and message.treatment == TREATMENT_SYNC:
                if after_id < message.id < before_id:
                    found.setdefault(entry_at(tables, place).endpoint, []).append(message.id)
    return {number: numpy.sort(numpy.array(ids, numpy.uint64)) for number, ids in found.items()}


def are_synchronous(Tables tables not None, const uint64_t[::1] ids not None) -> numpy.ndarray:
    """For each of these messages: True if it must be replicated before it is acknowledged."""
    found = numpy.zeros(ids.shape[0], numpy.bool_)
    for index in range(ids.shape[0]):
        found[index] = message_at(tables, message_by_id(tables, ids[index])).treatment == TREATMENT_SYNC
    return found
