"""The active router's records for the standby: messages with their destinations, and changes of sent messages.
Destinations are omitted if the standby matches messages itself (REPL-4).

    replication      its stream has Item after Item, in the order of events: a message was stored, an endpoint has lost one
                     or moved it to another, a transaction begins or ends. 24 bytes each, whatever the message's size; the
                     content is taken from the cache or the journal when the item is sent.

A message that every endpoint has settled before its item is sent is not sent (REPL-9): only its number, so that the
other router knows the number when its publisher repeats it. One that some endpoints have settled is sent without
these.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._cleaning cimport publisher_head, put_publisher
from penstock.assured.core.router._containers cimport Bytes, bytes_reserve
from penstock.assured.wire._layout cimport (
    KIND_PUBLISHERS,
    KIND_RECORDS,
    LENGTH_SIZE,
    PEER_FRAME_SIZE_MAX,
    RECORDS_HEAD_SIZE,
    RecordsHead,
)
from penstock.assured.core.router._groups cimport tell_consumed
from penstock.assured.core.router._messages cimport cached, entry_of, message_by_id
from penstock.assured.core.router._mirroring cimport (
    copied_to,
    endpoint_mark,
    is_at_absent,
    is_mirrored,
    mark_consumed_there,
    mark_sent,
    mark_unsent,
)
from penstock.assured.core.router._records cimport (
    AT_ONE,
    DEAD_SIZE,
    DESTINATION_SIZE,
    ENTRY_DEAD,
    ENTRY_WHY_SHIFT,
    ID_RUN_SIZE,
    MESSAGE_HEAD_SIZE,
    MESSAGE_TO_MATCH,
    OWNER_SIZE,
    RECORD_DEAD,
    RECORD_MESSAGE,
    RECORD_OWNER,
    RECORD_SETTLED,
    RECORD_TRANSACTION,
    SETTLED_HEAD_SIZE,
    TRANSACTION_HEAD_SIZE,
    TREATMENT_NONE,
    TREATMENT_SYNC,
    WHY_REJECTED,
    WINDOW_WORDS,
    DeadRecord,
    Destination,
    IdRun,
    MessageHead,
    OwnerRecord,
    PublisherHead,
    RecordHead,
    SettledHead,
    TransactionHead,
    check_record,
    content_at,
    message_record_size,
)
from penstock.assured.core.router._publishers cimport Publisher
from penstock.assured.core.router._replication_state cimport (
    ITEM_BEGIN,
    ITEM_END,
    ITEM_MESSAGE,
    ITEM_OWNER,
    ITEM_REMOVED,
    Item,
    ReplicationState,
)
from penstock.assured.core.router._tables cimport (
    MESSAGE_AS_MATCHED,
    MESSAGE_STORED,
    STATE_CONSUMED,
    STATE_FREE,
    Entry,
    Message,
    Tables,
    entry_at,
    message_at,
)
from penstock.wire._codec cimport store_u32


def begin_stream(Tables tables not None) -> dict:
    """Stream all events from now on. Return the current state: by number of the endpoint, the ids of its replicated
    messages, ascending, as an array."""
    cdef uint32_t place = tables.replicated_first, each, there
    cdef Message *message
    found = {}
    tell_consumed(tables)
    tables.replication.begin_stream()
    while place:
        message = message_at(tables, place)
        mark_sent(message)  # changes are sent until the other router reports that it lacks the message
        each = message.entries
        while each:
            there = copied_to(tables, each)
            if there:
                found.setdefault(there, []).append(message.id)
            # a copy that is not there stays until this one arrives
            if there and there != entry_at(tables, each).endpoint:
                found.setdefault(entry_at(tables, each).endpoint, []).append(message.id)
            each = entry_at(tables, each).sibling
        place = message.next_by_id
    return {number: numpy.sort(numpy.array(ids, numpy.uint64)) for number, ids in found.items()}


def publisher_frames(Tables tables not None, uint64_t size_max) -> list:
    """Return PUBLISHERS frames of about `size_max` bytes with the state of all publishers. Numbers that wait to be
    acknowledged are omitted: the other router learns of them with their messages, if these are stored at all."""
    cdef Frame frame = Frame()
    cdef PublisherHead head
    cdef const Publisher *publisher
    cdef uint64_t had[WINDOW_WORDS]
    cdef uint32_t handle, word
    frames = []
    frame.room(LENGTH_SIZE + RECORDS_HEAD_SIZE)
    for handle in range(1, tables.publishers.end):
        publisher = tables.publishers.at(handle)
        if publisher is NULL or publisher.highest + publisher.transaction + publisher.owner == 0:
            continue
        for word in range(WINDOW_WORDS):
            had[word] = publisher.had[word] & ~publisher.pending[word]
        head = publisher_head(publisher, had)
        put_publisher(&head, had, frame.room(head.size))
        frame.count += 1
        if frame.out.size > size_max:
            frames.append(frame.taken(KIND_PUBLISHERS, 0))
            frame.out.size = LENGTH_SIZE + RECORDS_HEAD_SIZE
            frame.count = 0
    if frame.count:
        frames.append(frame.taken(KIND_PUBLISHERS, 0))
    return frames


def has_uncopied(Tables tables not None) -> bool:
    """True if an endpoint that the other router lacks has a message that should be synchronous."""
    cdef uint32_t place = tables.replicated_first if tables.replication.absent_count else 0
    while place and not (
        message_at(tables, place).treatment == TREATMENT_SYNC and is_at_absent(tables, message_at(tables, place).id)
    ):
        place = message_at(tables, place).next_by_id
    return place != 0


def uncopied_counts(Tables tables not None) -> dict:
    """By number of the endpoint: the number of its messages that only this router has, because they are not
    replicated."""
    cdef uint32_t place
    cdef const Entry *entry
    found = {}
    for place in range(1, tables.entry_end):
        entry = entry_at(tables, place)
        if entry.state != STATE_FREE and not (
            message_at(tables, entry.message).treatment != TREATMENT_NONE and is_mirrored(tables, entry.endpoint)
        ):
            found[entry.endpoint] = found.get(entry.endpoint, 0) + 1
    return found


def send_missing(Tables tables not None, const uint64_t[::1] ids not None) -> None:
    """The other router lacks these messages: they are sent before all later events."""
    cdef uint64_t id
    cdef uint32_t place
    if ids.shape[0] == 0:
        return
    tables.replication.push_front(&ids[0], ids.shape[0])
    for id in ids:
        place = message_by_id(tables, id)
        if place:
            mark_unsent(message_at(tables, place))


cdef class Frame:
    """A RECORDS frame under construction."""

    cdef Bytes out
    cdef uint32_t count
    cdef uint64_t spared  # bytes of endpoints that the other router adds again
    cdef uint64_t settled_at  # of a SETTLED record at the end that may still grow; 0: none

    def __dealloc__(self):
        free(self.out.data)

    cdef uint8_t *room(self, uint64_t size) except NULL:
        bytes_reserve(&self.out, size)
        self.out.size += size
        return self.out.data + self.out.size - size

    cdef int put_message(self, Tables tables, Message *message, const uint8_t *record) except -1:
        cdef MessageHead head
        cdef Destination destination
        cdef const Entry *entry
        cdef uint16_t why
        cdef uint32_t each = message.entries, mark = 0, there
        cdef uint64_t count = 0, content
        cdef bint is_to_match = message.flags & MESSAGE_AS_MATCHED and 0 < tables.replication.match_from <= message.id
        cdef uint8_t *out
        memcpy(&head, record, MESSAGE_HEAD_SIZE)
        content = content_at(&head)
        while each:
            there = copied_to(tables, each)
            if there:
                count += 1
                mark += endpoint_mark(there)
                is_to_match = is_to_match and there == entry_at(tables, each).endpoint
                is_to_match = is_to_match and entry_at(tables, each).deliveries == 0
            elif is_mirrored(tables, entry_at(tables, each).endpoint):  # consumed at the other router
                is_to_match = False
            each = entry_at(tables, each).sibling
        if is_to_match:
            self.spared += count * DESTINATION_SIZE
            count = 0
            head.flags |= MESSAGE_TO_MATCH
            head.matched = mark
        head.kind = RECORD_MESSAGE
        head.destination_count = <uint16_t>count
        head.size = <uint32_t>message_record_size(count, head.topic_size, head.payload_size)
        out = self.room(head.size)
        memset(out + head.size - 8, 0, 8)
        memcpy(out, &head, MESSAGE_HEAD_SIZE)
        out += MESSAGE_HEAD_SIZE
        each = 0 if is_to_match else message.entries
        while each:
            there = copied_to(tables, each)
            if there:
                entry = entry_at(tables, each)
                destination = Destination(there, entry.deliveries, entry.flags, entry.given_up_by, 0)
                if there != entry.endpoint:  # a transaction has rejected it
                    why = ENTRY_DEAD | WHY_REJECTED << ENTRY_WHY_SHIFT
                    destination = Destination(there, 0, why, entry.endpoint, 0)
                memcpy(out, &destination, DESTINATION_SIZE)
                out += DESTINATION_SIZE
            each = entry_at(tables, each).sibling
        memcpy(out, record + content, head.topic_size + head.payload_size)
        mark_sent(message)
        self.settled_at = 0
        self.count += 1
        return 0

    cdef int put_number(self, Tables tables, const Item *item) except -1:
        """Write the number of a message that no endpoint has any more."""
        cdef MessageHead head
        if item.number == 0 or tables.publishers.at(item.party) is NULL:
            return 0
        memset(&head, 0, sizeof(MessageHead))
        head.kind = RECORD_MESSAGE
        head.size = MESSAGE_HEAD_SIZE
        head.id = item.id
        head.publisher = tables.publishers.at(item.party).id
        head.number = item.number
        memcpy(self.room(MESSAGE_HEAD_SIZE), &head, MESSAGE_HEAD_SIZE)
        self.settled_at = 0
        self.count += 1
        return 0

    cdef int put_removed(self, const Item *item) except -1:
        cdef SettledHead head
        cdef IdRun run
        cdef IdRun *last
        cdef DeadRecord dead
        if item.number:  # the message was moved to another endpoint
            memset(&dead, 0, sizeof(DeadRecord))
            dead.kind, dead.size, dead.source = RECORD_DEAD, DEAD_SIZE, item.party
            dead.target, dead.why, dead.id = <uint32_t>item.number, <uint8_t>(item.number >> 32), item.id
            memcpy(self.room(DEAD_SIZE), &dead, DEAD_SIZE)
            self.settled_at = 0
            self.count += 1
            return 0
        if self.settled_at:
            memcpy(&head, self.out.data + self.settled_at, SETTLED_HEAD_SIZE)
            last = <IdRun *>(self.out.data + self.out.size - ID_RUN_SIZE)
            if head.endpoint == item.party and last.last + 1 == item.id:
                last.last = item.id
                return 0
        if self.settled_at == 0 or head.endpoint != item.party:
            memset(&head, 0, sizeof(SettledHead))
            head.kind, head.size, head.endpoint = RECORD_SETTLED, SETTLED_HEAD_SIZE, item.party
            self.room(SETTLED_HEAD_SIZE)
            self.settled_at = self.out.size - SETTLED_HEAD_SIZE
            self.count += 1
        run.first = run.last = item.id
        memcpy(self.room(ID_RUN_SIZE), &run, ID_RUN_SIZE)
        head.size += ID_RUN_SIZE
        head.count += 1
        memcpy(self.out.data + self.settled_at, &head, SETTLED_HEAD_SIZE)
        return 0

    cdef int put_owner(self, const Item *item) except -1:
        cdef OwnerRecord record = OwnerRecord(RECORD_OWNER, 0, 0, OWNER_SIZE, item.id, item.number)
        memcpy(self.room(OWNER_SIZE), &record, OWNER_SIZE)
        self.settled_at = 0
        self.count += 1
        return 0

    cdef bytes taken(self, uint8_t kind, uint64_t position):
        cdef RecordsHead head = RecordsHead(kind, 0, 0, self.count, position)
        memcpy(self.out.data + LENGTH_SIZE, &head, RECORDS_HEAD_SIZE)
        store_u32(self.out.data, <uint32_t>(self.out.size - LENGTH_SIZE))
        return PyBytes_FromStringAndSize(<const char *>self.out.data, self.out.size)


def next_frame(
    Tables tables not None, uint64_t position, uint64_t size_max, uint32_t fetch_max, const uint8_t[::1] group = None
) -> tuple:
    """Return (frame or None, its position, the last message's id or 0, ids, sequences, sequence): the next frame, of
    about `size_max` bytes; and what must be read from the journal first: messages, or (else 0) the complete record
    of the next transaction, for which the cache has no room. `group` is that record. `position` counts records since
    the begin of the stream."""
    cdef Frame frame = Frame()
    cdef ReplicationState state = tables.replication
    cdef const Item *item
    cdef uint64_t last_id = 0, first = state.first(), group_sequence = 0
    frame.room(LENGTH_SIZE + RECORDS_HEAD_SIZE)
    while first < state.end() and frame.out.size + frame.spared < size_max:
        item = state.item_at(first)
        if item.what == ITEM_BEGIN:
            if not put_group(tables, frame, &first, &last_id, group):
                break
            group = None
            continue
        if item.what == ITEM_MESSAGE:
            if not put_item(tables, frame, item, NULL):
                break
            last_id = max(last_id, item.id)
        elif item.what == ITEM_REMOVED:
            frame.put_removed(item)
        elif item.what == ITEM_OWNER:
            frame.put_owner(item)
        first += sizeof(Item)
    ids, sequences = [], []
    if first < state.end() and frame.out.size + frame.spared < size_max:
        group_sequence = large_group(tables, first)
        if group_sequence == 0:
            ids, sequences = wanted(tables, first, fetch_max)
    state.advance(first)
    position += frame.count
    fetch = numpy.array(ids, numpy.uint64), numpy.unique(numpy.array(sequences, numpy.uint64))
    return (frame.taken(KIND_RECORDS, position) if frame.count else None), position, last_id, *fetch, group_sequence


cdef bint is_wanted(Tables tables, const Message *message) noexcept:
    """True if an endpoint of the other router has the message."""
    cdef uint32_t each = message.entries
    while each and not copied_to(tables, each):
        each = entry_at(tables, each).sibling
    return each != 0


cdef bint is_only_here(Tables tables, const Message *message) noexcept:
    """True if the message has an endpoint of which the other router has no copies."""
    cdef uint32_t each = message.entries
    while each and is_mirrored(tables, entry_at(tables, each).endpoint):
        each = entry_at(tables, each).sibling
    return each != 0


cdef bint put_item(Tables tables, Frame frame, const Item *item, const uint8_t *record) except -1:
    """Write an item. False: it must be read first; or it is not on this router's disk, and parts of it are nowhere
    else: if the other router knew it, it would confirm it to the publisher. `record` is the message's, or NULL: then
    the cache may have it."""
    cdef uint32_t place = message_by_id(tables, item.id)
    if place and not message_at(tables, place).flags & MESSAGE_STORED and is_only_here(tables, message_at(tables, place)):
        return False
    if place == 0 or not is_wanted(tables, message_at(tables, place)):
        frame.put_number(tables, item)
        return True
    if record is NULL:
        record = cached(tables, message_at(tables, place))
    if record is NULL:
        return False
    frame.put_message(tables, message_at(tables, place), record)
    return True


cdef bint put_group(
    Tables tables, Frame frame, uint64_t *first, uint64_t *last_id, const uint8_t[::1] group
) except -1:
    """Write a transaction, completely or not at all. False: a part must be read first; or it has not ended or is not
    on this router's disk: then the other router must not have it, because it could become active and deliver it
    while this one forgets it; or the frame has no room for it."""
    cdef uint64_t at = first[0], begin = frame.out.size, spared = frame.spared, end = group_end(tables, first[0])
    cdef uint64_t group_at = TRANSACTION_HEAD_SIZE
    cdef uint32_t count = frame.count
    cdef const Item *item = tables.replication.item_at(at)
    cdef const Item *last = tables.replication.item_at(end)
    cdef TransactionHead head
    cdef bint is_whole = end < tables.replication.end() and last.id <= tables.stored_through
    if not is_whole:
        return False
    memset(&head, 0, sizeof(TransactionHead))
    head.kind, head.publisher, head.transaction = RECORD_TRANSACTION, item.id, <uint32_t>item.number
    head.treatment, head.id = <uint8_t>last.party, last.number
    frame.room(TRANSACTION_HEAD_SIZE)
    frame.settled_at = 0
    at += sizeof(Item)
    while at < end and is_whole:
        item = tables.replication.item_at(at)
        at += sizeof(Item)
        if item.what == ITEM_REMOVED:
            frame.put_removed(item)
        elif head.treatment != TREATMENT_NONE:
            head.flags |= AT_ONE if is_at_absent(tables, item.id) else 0
            is_whole = put_item(tables, frame, item, record_in(group, &group_at, item.id))
    frame.settled_at = 0
    frame.count = count
    if not is_whole or count and frame.out.size + frame.spared > PEER_FRAME_SIZE_MAX:
        frame.out.size, frame.spared = begin, spared
        return False
    head.size = <uint32_t>(frame.out.size - begin)
    memcpy(frame.out.data + begin, &head, TRANSACTION_HEAD_SIZE)
    frame.count += 1
    told(tables, first[0], end)
    first[0], last_id[0] = end + sizeof(Item), max(last_id[0], head.id)
    return True


cdef const uint8_t *record_in(const uint8_t[::1] group, uint64_t *at, uint64_t id) noexcept:
    """The record of a message in the checked record of its transaction; NULL: there is none from `at` on."""
    cdef MessageHead message
    cdef RecordHead head
    cdef uint64_t begin = at[0]
    if group is None:
        return NULL
    while begin < <uint64_t>group.shape[0]:
        memcpy(&head, &group[begin], sizeof(RecordHead))
        if head.kind == RECORD_MESSAGE:
            memcpy(&message, &group[begin], MESSAGE_HEAD_SIZE)
            if message.id == id:
                at[0] = begin + head.size
                return &group[begin]
        begin += head.size
    return NULL


def is_transaction(const uint8_t[::1] record not None) -> bool:
    """True if this is the complete record of a transaction."""
    cdef uint64_t size = record.shape[0]
    return size >= TRANSACTION_HEAD_SIZE and record[0] == RECORD_TRANSACTION and check_record(&record[0], size) == size


cdef uint64_t large_group(Tables tables, uint64_t at) noexcept:
    """The sequence number of the transaction that begins here, if more of it must be read than the cache has room
    for; otherwise 0."""
    cdef uint64_t end = group_end(tables, at), size = 0
    cdef const Item *item = tables.replication.item_at(at)
    cdef const Item *last = tables.replication.item_at(end)
    cdef uint32_t place
    if item.what != ITEM_BEGIN or end == tables.replication.end() or last.id > tables.stored_through:
        return 0
    while at < end:
        item = tables.replication.item_at(at)
        at += sizeof(Item)
        place = message_by_id(tables, item.id) if item.what == ITEM_MESSAGE else 0
        if place:
            size += message_at(tables, place).record_size
    return last.id if size > tables.cache.size // 4 else 0


cdef uint64_t group_end(Tables tables, uint64_t at) noexcept:
    """The position of the item that ends the transaction, or the end of the stream."""
    while at < tables.replication.end() and tables.replication.item_at(at).what != ITEM_END:
        at += sizeof(Item)
    return at


cdef void told(Tables tables, uint64_t at, uint64_t end) noexcept:
    """Mark the messages that the transaction has consumed as gone at the other router."""
    cdef const Item *item
    cdef uint32_t place
    while at < end:
        item = tables.replication.item_at(at)
        at += sizeof(Item)
        place = message_by_id(tables, item.id) if item.what == ITEM_REMOVED else 0
        place = entry_of(tables, place, item.party) if place else 0
        if place and entry_at(tables, place).state == STATE_CONSUMED:
            mark_consumed_there(entry_at(tables, place))


cdef tuple wanted(Tables tables, uint64_t at, uint32_t count_max):
    """The next messages whose content is only in the journal."""
    cdef const Item *item
    cdef uint32_t place
    cdef uint64_t size = 0
    ids, sequences = [], []
    while at < tables.replication.end() and len(ids) < count_max and size < tables.cache.size // 4:
        item = tables.replication.item_at(at)
        at += sizeof(Item)
        place = message_by_id(tables, item.id) if item.what == ITEM_MESSAGE else 0
        if place and is_wanted(tables, message_at(tables, place)) and cached(tables, message_at(tables, place)) is NULL:
            ids.append(item.id)
            sequences.append(message_at(tables, place).sequence)
            size += message_at(tables, place).record_size
    return ids, sequences
