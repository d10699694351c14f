"""Cleaning of the log: live messages of the oldest section, and the state of publishers, are logged again."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._messages cimport cache_put, cached, message_by_id, message_place
from penstock.assured.core.router._records cimport (
    AT_ONE,
    DESTINATION_SIZE,
    ENTRY_CONSUMED,
    MESSAGE_HEAD_SIZE,
    PUBLISHER_HEAD_SIZE,
    OWNER_SIZE,
    RECORD_MOVED,
    RECORD_OWNER,
    RECORD_PUBLISHER,
    WINDOW_WORDS,
    Destination,
    MessageHead,
    OwnerRecord,
    PublisherHead,
    check_record,
    content_at,
    message_record_size,
)
from penstock.assured.core.router._replication_state cimport ITEM_OWNER
from penstock.assured.core.router._publishers cimport Publisher
from penstock.assured.core.router._tables cimport (
    STATE_CONSUMED,
    STATE_CONSUMED_THERE,
    STATE_REJECTED,
    Entry,
    Message,
    Tables,
    entry_at,
    message_at,
)
from penstock.journal.core._log cimport RecordRow


def move_oldest(Tables tables not None, uint32_t count_max, uint64_t size_max) -> tuple:
    """Log messages of the oldest section again if their content is available. Return (ids, sequences) of some of the
    others, as arrays; when both are empty and the section has no live messages, it is clean."""
    cdef uint32_t place = tables.log.section(tables.log.section_first).first_message, following
    cdef const uint8_t *record
    cdef uint64_t size = 0, moved = 0
    ids = []
    sequences = []
    while place and len(ids) < count_max and size < size_max and moved < count_max:
        following = message_at(tables, place).next_in_section
        record = cached(tables, message_at(tables, place))
        size += message_at(tables, place).record_size
        if record is NULL:
            ids.append(message_at(tables, place).id)
            sequences.append(message_at(tables, place).sequence)
        else:
            move(tables, place, record)
            moved += 1
        place = following
    return numpy.array(ids, numpy.uint64), numpy.unique(numpy.array(sequences, numpy.uint64))


cdef int move(Tables tables, uint32_t place, const uint8_t *record) except -1:
    """Log the message in its current state; `record` is any of its records."""
    cdef MessageHead head
    cdef Destination destination
    cdef Entry *entry
    cdef uint32_t each = message_at(tables, place).entries
    cdef uint64_t count = 0, content
    cdef uint8_t *out
    cdef uint8_t *at
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    content = content_at(&head)
    while each:
        count += 1
        each = entry_at(tables, each).sibling
    head.kind = RECORD_MOVED
    head.destination_count = <uint16_t>count
    head.size = <uint32_t>message_record_size(count, head.topic_size, head.payload_size)
    out = tables.log.room(head.size, tables.wall_ns)
    memcpy(out, &head, MESSAGE_HEAD_SIZE)
    at = out + MESSAGE_HEAD_SIZE
    each = message_at(tables, place).entries
    while each:
        entry = entry_at(tables, each)
        destination = Destination(entry.endpoint, entry.deliveries, entry.flags, entry.given_up_by, 0)
        if entry.state in (STATE_CONSUMED, STATE_CONSUMED_THERE, STATE_REJECTED):
            destination.flags |= ENTRY_CONSUMED
        memcpy(at, &destination, DESTINATION_SIZE)
        at += DESTINATION_SIZE
        each = entry.sibling
    memcpy(at, record + content, head.topic_size + head.payload_size)
    at += head.topic_size + head.payload_size
    memset(at, 0, out + head.size - at)
    message_place(tables, place, tables.log.sequence(), 0, head.size)
    tables.moved_total += 1
    return 0


cdef const uint8_t *find_record(
    Tables tables, const Message *message, const uint8_t[::1] data, const RecordRow[::1] rows
) noexcept:
    """The message's record among those that were read, or NULL."""
    cdef Py_ssize_t low = 0, high = rows.shape[0], middle
    cdef const uint8_t *record
    cdef MessageHead head
    while low < high:
        middle = (low + high) // 2
        if rows[middle].sequence < message.sequence:
            low = middle + 1
        else:
            high = middle
    if low == rows.shape[0] or rows[low].sequence != message.sequence or rows[low].size <= message.record_at:
        return NULL
    record = &data[rows[low].offset] + message.record_at
    if check_record(record, rows[low].size - message.record_at) != message.record_size:
        return NULL
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    return record if head.id == message.id else NULL


def take_records(
    Tables tables not None, const uint64_t[::1] ids not None, const uint8_t[::1] data not None,
    const RecordRow[::1] rows not None, bint is_moving
) -> int:
    """Put messages that were read from the journal into the cache; or log them again, if they are still in the
    oldest section. Return the number of messages found."""
    cdef uint64_t id
    cdef uint32_t place
    cdef const uint8_t *record
    cdef int count = 0
    for id in ids:
        place = message_by_id(tables, id)
        if place == 0:
            count += 1  # the message is no longer needed
            continue
        record = find_record(tables, message_at(tables, place), data, rows)
        if record is NULL:
            count += cached(tables, message_at(tables, place)) is not NULL
            continue
        count += 1
        if not is_moving:
            cache_put(tables, message_at(tables, place), record, message_at(tables, place).record_size)
        elif message_at(tables, place).section == tables.log.section_first:
            move(tables, place, record)
    return count


def log_publishers(Tables tables not None, uint64_t before) -> None:
    """Log the state of publishers whose newest such record is older than this one."""
    cdef uint32_t handle
    cdef Publisher *publisher
    cdef PublisherHead head
    for handle in range(1, tables.publishers.end):
        publisher = tables.publishers.at(handle)
        if publisher is NULL or publisher.mark_sequence >= before or publisher.highest + publisher.transaction == 0:
            continue
        head = publisher_head(publisher, publisher.had)
        put_publisher(&head, publisher.had, tables.log.room(head.size, tables.wall_ns))
        publisher.mark_sequence = tables.log.sequence()


def own_publisher(Tables tables not None, uint32_t handle, uint64_t owner) -> None:
    """The publisher belongs to this client from now on, also after a restart and at the other router."""
    cdef Publisher *publisher = tables.publishers.at(handle)
    cdef OwnerRecord record = OwnerRecord(RECORD_OWNER, 0, 0, OWNER_SIZE, publisher.id, owner)
    if publisher.owner == owner:
        return
    publisher.owner = owner
    memcpy(tables.log.room(OWNER_SIZE, tables.wall_ns), &record, OWNER_SIZE)
    if tables.replication.is_streaming:
        tables.replication.push(publisher.id, owner, 0, ITEM_OWNER)


def forget_numbers(Tables tables not None, uint64_t first_sequence) -> None:
    """Forget the state of publishers without records from this one on, and log that."""
    cdef uint32_t handle
    cdef Publisher *publisher
    cdef PublisherHead head
    for handle in range(1, tables.publishers.end):
        publisher = tables.publishers.at(handle)
        if publisher is NULL or publisher.mark_sequence >= first_sequence:
            continue
        if publisher.highest + publisher.transaction + publisher.owner == 0:
            continue
        memset(publisher.had, 0xFF, sizeof(publisher.had))
        publisher.owner = publisher.highest = publisher.transaction = publisher.treatment = 0
        publisher.first_id = publisher.last_id = 0
        publisher.is_at_one = False
        head = publisher_head(publisher, publisher.had)
        put_publisher(&head, publisher.had, tables.log.room(head.size, tables.wall_ns))
        publisher.mark_sequence = tables.log.sequence()


cdef PublisherHead publisher_head(const Publisher *publisher, const uint64_t *had) noexcept:
    cdef PublisherHead head
    cdef uint32_t word
    memset(&head, 0, sizeof(PublisherHead))
    for word in range(WINDOW_WORDS):
        if ~had[word]:
            head.word_count = WINDOW_WORDS
    head.kind = RECORD_PUBLISHER
    head.treatment = publisher.treatment
    head.size = PUBLISHER_HEAD_SIZE + head.word_count * 8
    head.publisher = publisher.id
    head.highest = publisher.highest
    head.transaction = publisher.transaction
    head.owner = publisher.owner
    head.flags = AT_ONE if publisher.is_at_one else 0
    return head


cdef void put_publisher(const PublisherHead *head, const uint64_t *had, uint8_t *out) noexcept:
    memcpy(out, head, PUBLISHER_HEAD_SIZE)
    memcpy(out + PUBLISHER_HEAD_SIZE, had, head.word_count * 8)
