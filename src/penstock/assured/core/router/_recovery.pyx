"""Reading of the log: recovery after a start, and replay into a new endpoint."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._cleaning cimport move
from penstock.assured.core.router._containers cimport map_get
from penstock.assured.wire._layout cimport SETTLE_ACKNOWLEDGED, SETTLE_REJECTED, WINDOW_MAX
from penstock.assured.core.router._messages cimport (
    append_by_id,
    cache_put,
    entry_free,
    entry_new,
    entry_of,
    message_by_id,
    message_free,
    message_new,
    message_place,
    message_stored,
    queue_return,
    remember,
)
from penstock.assured.core.router._records cimport (
    AT_ONE,
    DEAD_SIZE,
    DESTINATION_SIZE,
    ENTRY_CONSUMED,
    ENTRY_DEAD,
    ENTRY_REDELIVERED,
    ENTRY_REPLAYED,
    ENTRY_WHY_MASK,
    ENTRY_WHY_SHIFT,
    ID_RUN_SIZE,
    MESSAGE_HEAD_SIZE,
    MESSAGE_TOGETHER,
    PUBLISHER_HEAD_SIZE,
    RECORD_DEAD,
    RECORD_ENDPOINT,
    RECORD_EPOCH,
    RECORD_MESSAGE,
    OWNER_SIZE,
    RECORD_MOVED,
    RECORD_OWNER,
    RECORD_RETURNED,
    RECORD_SETTLED,
    RECORD_TRANSACTION,
    RETURNED_SIZE,
    SETTLED_HEAD_SIZE,
    TRANSACTION_HEAD_SIZE,
    TREATMENT_NONE,
    UNDONE,
    WHEN_COPIED,
    WINDOW_WORDS,
    DeadRecord,
    Destination,
    IdRun,
    MessageHead,
    OwnerRecord,
    PublisherHead,
    RecordHead,
    ReturnedRecord,
    SettledHead,
    TransactionHead,
    check_record,
    content_at,
)
from penstock.assured.core.router._mirroring cimport is_mirrored
from penstock.assured.core.router._replication_state cimport ITEM_MESSAGE
from penstock.assured.core.router._publishers cimport Publisher
from penstock.assured.core.router._tables cimport (
    MESSAGE_GROUPED,
    MESSAGE_REPLICATED,
    MESSAGE_STORED,
    STATE_CONSUMED_THERE,
    STATE_WAITING,
    Endpoint,
    Message,
    Tables,
    entry_at,
    message_at,
)
from penstock.journal.core._log cimport RecordRow

from penstock.base.errors import JournalCorruptError


# Recovery


def recover_rows(
    Tables tables not None, const uint8_t[::1] data not None, const RecordRow[::1] rows not None, Py_ssize_t start
) -> int:
    """Apply the records of a journal's batch, from a row on. Stops before the record of an endpoint or an epoch.
    Returns that row, or the number of rows."""
    cdef Py_ssize_t index
    cdef const uint8_t *record
    for index in range(start, rows.shape[0]):
        if rows[index].size == 0:
            raise damaged(rows[index].sequence)
        record = &data[rows[index].offset]
        if check_record(record, rows[index].size) != rows[index].size:
            raise damaged(rows[index].sequence)
        if record[0] == RECORD_ENDPOINT or record[0] == RECORD_EPOCH:
            return index
        pass_row(tables, &rows[index])
        recover_record(tables, record, rows[index].sequence, 0)
    return rows.shape[0]


def pass_row_of(Tables tables not None, const RecordRow[::1] rows not None, Py_ssize_t index) -> None:
    """Account for a record that Python has applied."""
    pass_row(tables, &rows[index])


cdef object damaged(uint64_t sequence):
    return JournalCorruptError(f"record {sequence} is not a record of a router's log", hint="is it another journal?")


cdef int pass_row(Tables tables, const RecordRow *row) except -1:
    """The record is the newest of the log from now on."""
    return tables.log.recovered(row.sequence, row.size, row.timestamp_ns)


cdef int recover_record(Tables tables, const uint8_t *record, uint64_t sequence, uint32_t at) except -1:
    """`record` is at offset `at` of the journal's record."""
    cdef uint8_t kind = record[at]
    if kind == RECORD_MESSAGE or kind == RECORD_MOVED:
        return recover_message(tables, record + at, sequence, at)
    if kind == RECORD_SETTLED:
        return recover_consumed(tables, record, at) if is_consumed(record, at) else recover_settled(tables, record + at)
    if kind == RECORD_DEAD:
        return recover_consumed(tables, record, at) if is_consumed(record, at) else recover_dead(tables, record + at)
    if kind == RECORD_TRANSACTION:
        return recover_transaction(tables, record, sequence)
    if kind == RECORD_RETURNED:
        return recover_returned(tables, record + at)
    if kind == RECORD_OWNER:
        return recover_owner(tables, record)
    return recover_publisher(tables, record, sequence)


cdef inline bint is_consumed(const uint8_t *record, uint32_t at) noexcept:
    return at > 0 and record[at + 1] & WHEN_COPIED != 0


cdef Publisher *known_publisher(Tables tables, uint64_t id) except NULL:
    cdef uint32_t handle = tables.publishers.handle_of(id)
    if handle == 0:
        handle = tables.make_publisher(id)
    return tables.publishers.at(handle)


cdef int recover_message(Tables tables, const uint8_t *record, uint64_t sequence, uint32_t at) except -1:
    cdef MessageHead head
    cdef Destination destination
    cdef uint32_t place, index, entry
    cdef Endpoint *endpoint
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    if head.kind == RECORD_MESSAGE:
        remember(known_publisher(tables, head.publisher), head.number)
    tables.skip_ids(head.id)
    place = message_by_id(tables, head.id)
    if place: # this record replaces all earlier ones
        message_at(tables, place).flags &= ~<uint8_t>MESSAGE_STORED
        while message_at(tables, place).entries:
            remove(tables, message_at(tables, place).entries)
    for index in range(head.destination_count):
        memcpy(&destination, record + MESSAGE_HEAD_SIZE + index * DESTINATION_SIZE, DESTINATION_SIZE)
        endpoint = tables.endpoint_of(destination.endpoint)
        if endpoint is NULL and tables.is_recovering and destination.endpoint:
            endpoint = tables.expected_endpoint(destination.endpoint)
        if endpoint is NULL:
            continue
        if place == 0:
            place = recovered_place(tables, &head)
        entry = entry_new(tables, place, endpoint)
        endpoint.brought += 1
        entry_at(tables, entry).deliveries = destination.deliveries
        entry_at(tables, entry).flags = <uint8_t>destination.flags & ~<uint8_t>ENTRY_CONSUMED | ENTRY_REDELIVERED
        entry_at(tables, entry).given_up_by = destination.given_up_by
        if destination.flags & ENTRY_CONSUMED:
            entry_at(tables, entry).state = STATE_CONSUMED_THERE
        if destination.flags & ENTRY_REPLAYED:
            endpoint.replayed += 1
    if place == 0:
        return 0
    message_at(tables, place).flags |= MESSAGE_STORED
    if message_at(tables, place).entries:
        message_place(tables, place, sequence, at, head.size)
    else:
        message_free(tables, place)
    return 0


cdef uint32_t recovered_place(Tables tables, const MessageHead *head) except 0:
    cdef uint32_t place = message_new(tables, head.id)
    cdef Message *message = message_at(tables, place)
    message.published_ns = head.published_ns
    message.expires_ns = head.expires_ns
    message.content_size = head.topic_size + head.payload_size
    message.priority = head.priority
    message.treatment = head.treatment
    if head.flags & MESSAGE_TOGETHER:
        message.flags |= MESSAGE_GROUPED
    if head.expires_ns:
        tables.expiring_count += 1
    return place


cdef int recover_settled(Tables tables, const uint8_t *record) except -1:
    cdef SettledHead head
    cdef IdRun run
    cdef uint32_t index, place
    cdef uint64_t id
    memcpy(&head, record, SETTLED_HEAD_SIZE)
    for index in range(head.count):
        memcpy(&run, record + SETTLED_HEAD_SIZE + index * ID_RUN_SIZE, ID_RUN_SIZE)
        if run.first > run.last:
            continue
        if head.flags & UNDONE:
            tables.replication.add_undone(run.first, run.last)
            continue
        if run.last - run.first >= tables.message_count: # of any length: bounded by the number of messages
            for place in range(1, tables.message_end):
                if run.first <= message_at(tables, place).id <= run.last:
                    settle_entry(tables, place, head.endpoint)
            continue
        for id in range(run.first, run.last + 1):
            settle_entry(tables, message_by_id(tables, id), head.endpoint)
    return 0


cdef void settle_entry(Tables tables, uint32_t message, uint32_t endpoint) noexcept:
    cdef uint32_t entry = entry_of(tables, message, endpoint) if message else 0
    if entry:
        remove(tables, entry)


cdef int recover_dead(Tables tables, const uint8_t *record) except -1:
    cdef DeadRecord dead
    cdef uint32_t message, source, moved
    cdef Endpoint *target
    memcpy(&dead, record, sizeof(DeadRecord))
    message = message_by_id(tables, dead.id)
    source = entry_of(tables, message, dead.source) if message else 0
    if source == 0:
        return 0
    target = tables.endpoint_of(dead.target)
    if target is NULL and tables.is_recovering and dead.target:
        target = tables.expected_endpoint(dead.target)
    if target is not NULL and entry_of(tables, message, dead.target) == 0:
        moved = entry_new(tables, message, target)
        target.brought += 1
        entry_at(tables, moved).given_up_by = dead.source
        entry_at(tables, moved).flags = <uint8_t>(
            ENTRY_DEAD | ENTRY_REDELIVERED | dead.why << ENTRY_WHY_SHIFT & ENTRY_WHY_MASK
        )
    remove(tables, source)
    return 0


cdef int recover_consumed(Tables tables, const uint8_t *record, uint32_t at) except -1:
    """Apply a transaction that the other router may not have."""
    cdef TransactionHead head
    cdef SettledHead settled
    cdef DeadRecord dead
    cdef IdRun run
    cdef uint64_t id
    cdef uint32_t index
    ids = []
    memcpy(&head, record, TRANSACTION_HEAD_SIZE)
    if record[at] == RECORD_DEAD:
        memcpy(&dead, record + at, DEAD_SIZE)
        if consume_entry(tables, dead.source, dead.id):
            ids.append(dead.id)
        tables.replication.add_consumed(head.id, dead.source, *said(ids, SETTLE_REJECTED, dead.target))
        return 0
    memcpy(&settled, record + at, SETTLED_HEAD_SIZE)
    for index in range(settled.count):
        memcpy(&run, record + at + SETTLED_HEAD_SIZE + index * ID_RUN_SIZE, ID_RUN_SIZE)
        if run.last - run.first < WINDOW_MAX: # transactions have no longer runs
            for id in range(run.first, run.last + 1):
                if consume_entry(tables, settled.endpoint, id):
                    ids.append(id)
    tables.replication.add_consumed(head.id, settled.endpoint, *said(ids, SETTLE_ACKNOWLEDGED, 0))
    return 0


cdef bint consume_entry(Tables tables, uint32_t endpoint, uint64_t id) noexcept:
    cdef uint32_t place = message_by_id(tables, id)
    place = entry_of(tables, place, endpoint) if place else 0
    if place:
        entry_at(tables, place).state = STATE_CONSUMED_THERE
        tables.endpoint_of(endpoint).delivered += 1 # earlier; final when the other router has it
    return place != 0


cdef tuple said(list ids, uint8_t what, uint32_t target):
    count = len(ids)
    return numpy.array(ids, numpy.uint64), numpy.full(count, what, numpy.uint8), numpy.full(count, target, numpy.uint32)


cdef int recover_returned(Tables tables, const uint8_t *record) except -1:
    cdef ReturnedRecord returned
    cdef uint32_t place
    memcpy(&returned, record, RETURNED_SIZE)
    place = message_by_id(tables, returned.id)
    place = entry_of(tables, place, returned.endpoint) if place else 0
    if place:
        entry_at(tables, place).deliveries = <uint16_t>returned.deliveries
        if entry_at(tables, place).state == STATE_CONSUMED_THERE:
            entry_at(tables, place).state = STATE_WAITING
            tables.replication.forget_consumed(returned.endpoint, returned.id)
    return 0


cdef int recover_owner(Tables tables, const uint8_t *record) except -1:
    cdef OwnerRecord owner
    memcpy(&owner, record, OWNER_SIZE)
    known_publisher(tables, owner.publisher).owner = owner.owner
    return 0


cdef void remove(Tables tables, uint32_t place) noexcept:
    """Apply a record that the endpoint no longer has a message."""
    tables.endpoints[entry_at(tables, place).endpoint].removed += 1
    entry_free(tables, place)


cdef int recover_transaction(Tables tables, const uint8_t *record, uint64_t sequence) except -1:
    cdef TransactionHead head
    cdef RecordHead inner
    cdef MessageHead message
    cdef Publisher *publisher = NULL
    cdef uint32_t at = TRANSACTION_HEAD_SIZE
    memcpy(&head, record, TRANSACTION_HEAD_SIZE)
    tables.skip_ids(head.id)
    if head.publisher:
        publisher = known_publisher(tables, head.publisher)
        publisher.transaction, publisher.treatment = head.transaction, head.treatment
        publisher.is_at_one = head.flags & AT_ONE
        publisher.first_id, publisher.last_id = head.id + 1, head.id
    while at < head.size:
        memcpy(&inner, record + at, sizeof(RecordHead))
        if head.publisher and inner.kind == RECORD_MESSAGE:
            memcpy(&message, record + at, MESSAGE_HEAD_SIZE)
            publisher.first_id = min(publisher.first_id, message.id)
        recover_record(tables, record, sequence, at)
        at += inner.size
    return 0


cdef int recover_publisher(Tables tables, const uint8_t *record, uint64_t sequence) except -1:
    """Apply a publisher's complete state, which includes all earlier records."""
    cdef PublisherHead head
    cdef Publisher *publisher
    memcpy(&head, record, PUBLISHER_HEAD_SIZE)
    publisher = known_publisher(tables, head.publisher)
    publisher.highest = head.highest
    if publisher.transaction != head.transaction:
        publisher.first_id = publisher.last_id = 0
    publisher.transaction, publisher.treatment = head.transaction, head.treatment
    publisher.is_at_one = head.flags & AT_ONE
    publisher.owner = head.owner
    publisher.mark_sequence = sequence
    if head.word_count:
        memcpy(publisher.had, record + PUBLISHER_HEAD_SIZE, WINDOW_WORDS * 8)
    else:
        memset(publisher.had, 0xFF, WINDOW_WORDS * 8)
    return 0


cdef struct IdPlace:
    uint64_t id
    uint32_t place


cdef int compare_ids(const void *left, const void *right) noexcept nogil:
    cdef uint64_t a = (<const IdPlace *>left).id, b = (<const IdPlace *>right).id
    return (a > b) - (a < b)


def finish_recovery(Tables tables not None) -> None:
    """All records are applied: queue the messages, in the order of their ids."""
    cdef uint64_t count = 0, index
    cdef uint32_t place
    cdef IdPlace *found = <IdPlace *>malloc((tables.message_count + 1) * sizeof(IdPlace))
    if found is NULL:
        raise MemoryError
    try:
        for place in range(1, tables.message_end):
            if message_at(tables, place).id:
                found[count] = IdPlace(message_at(tables, place).id, place)
                count += 1
        qsort(found, count, sizeof(IdPlace), compare_ids)
        for index in range(count):
            message_stored(tables, found[index].place)
            if message_at(tables, found[index].place).treatment != TREATMENT_NONE:
                append_by_id(tables, found[index].place)
    finally:
        free(found)
    if not tables.is_recovering: # it was the standby, and its accounts continue
        return
    tables.is_recovering = False
    for place in range(1, tables.endpoint_end):
        if tables.endpoint_of(place) is not NULL: # its account begins here
            tables.endpoints[place].begun = tables.endpoints[place].count
            tables.endpoints[place].brought = tables.endpoints[place].removed = 0


# Replay


def messages_in(const uint8_t[::1] data not None, const RecordRow[::1] rows not None) -> numpy.ndarray:
    """Return the messages among these records and the positions of their parts, as an array of MESSAGE_DTYPE."""
    cdef Py_ssize_t index
    cdef uint32_t at, end
    cdef uint8_t treatment
    cdef RecordHead head
    found = []
    for index in range(rows.shape[0]):
        at = rows[index].offset
        end = at + rows[index].size
        if rows[index].size == 0 or check_record(&data[at], rows[index].size) != rows[index].size:
            raise damaged(rows[index].sequence)
        treatment = 0
        if data[at] == RECORD_TRANSACTION:
            treatment = (<const TransactionHead *>&data[at]).treatment # of all records in it
            at += TRANSACTION_HEAD_SIZE
        while at < end:
            memcpy(&head, &data[at], sizeof(RecordHead))
            if head.kind == RECORD_MESSAGE or head.kind == RECORD_MOVED:
                found.append(row_of(&data[at], at, treatment))
            at += head.size
    return numpy.array(found, MESSAGE_DTYPE)


MESSAGE_DTYPE = numpy.dtype(
    [
        ("offset", "u4"), ("is_moved", "u1"), ("treatment", "u1"), ("id", "u8"), ("published_ns", "i8"), ("topic_offset", "u4"),
        ("topic_size", "u2"), ("payload_offset", "u4"), ("payload_size", "u4"), ("model_id", "u2"),
        ("model_version", "u2"),
    ]
)


cdef tuple row_of(const uint8_t *record, uint32_t at, uint8_t treatment):
    cdef MessageHead head
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    topic_at = at + content_at(&head)
    return (at, head.kind == RECORD_MOVED, max(head.treatment, treatment), head.id, head.published_ns, topic_at, head.topic_size,
            topic_at + head.topic_size, head.payload_size, head.model_id, head.model_version)


def replay_into(
    Tables tables not None, uint32_t number, const uint8_t[::1] data not None, const uint32_t[::1] offsets not None,
    bint is_again
) -> int:
    """Queue messages, whose records begin at these places, to an endpoint that does not have them yet. Return their
    number. `is_again`: the endpoint may have delivered them before."""
    cdef Endpoint *endpoint = tables.endpoint_of(number)
    cdef MessageHead head
    cdef uint32_t offset, place, entry, hint = 0
    cdef int count = 0
    for offset in offsets:
        memcpy(&head, &data[offset], MESSAGE_HEAD_SIZE)
        place = message_by_id(tables, head.id)
        if place and entry_of(tables, place, number):
            continue
        if place == 0:
            place = recovered_place(tables, &head)
            message_at(tables, place).flags |= MESSAGE_STORED
            if head.treatment != TREATMENT_NONE:
                append_by_id(tables, place)
        entry = entry_new(tables, place, endpoint)
        entry_at(tables, entry).flags = ENTRY_REPLAYED | ENTRY_REDELIVERED if is_again else ENTRY_REPLAYED
        endpoint.replayed += 1
        endpoint.accepted += 1
        if (
            tables.replication.is_streaming
            and message_at(tables, place).flags & MESSAGE_REPLICATED
            and is_mirrored(tables, number)
        ):
            tables.replication.push(head.id, 0, 0, ITEM_MESSAGE)
        hint = queue_return(tables, entry, hint)
        move(tables, place, &data[offset])
        if head.size < tables.cache.size // 4:
            cache_put(tables, message_at(tables, place), &data[offset], head.size)
        count += 1
    return count
