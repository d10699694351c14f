"""Messages and their entries, from creation to removal."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._containers cimport map_get, map_put, map_remove
from penstock.assured.wire._layout cimport WINDOW_MAX
from penstock.assured.core.router._records cimport ENTRY_REPLAYED
from penstock.assured.core.router._mirroring cimport copied_to
from penstock.assured.core.router._replication_state cimport ITEM_REMOVED
from penstock.assured.core.router._log_writer cimport Section
from penstock.assured.core.router._publishers cimport Publisher, bit_of, clear_bit, set_bit
from penstock.assured.core.router._tables cimport (
    BLOCK_BITS,
    BLOCK_PLACES,
    LIST_COUNT,
    MESSAGE_AS_MATCHED,
    MESSAGE_REPLICATED,
    MESSAGE_SENT,
    MESSAGE_STORED,
    STATE_CONSUMED,
    STATE_CONSUMED_THERE,
    STATE_FREE,
    STATE_HELD,
    STATE_IN_FLIGHT,
    STATE_QUEUED,
    STATE_REJECTED,
    STATE_STUCK,
    STATE_WAITING,
    STUCK_LIST,
    Endpoint,
    Entry,
    Flow,
    List,
    Message,
    Tables,
    entry_at,
    message_at,
)


# Messages


cdef uint32_t message_new(Tables tables, uint64_t id) except 0:
    """Create the message, in no section and without entries yet."""
    cdef uint32_t place = tables.message_free
    cdef Message *message
    if place:
        message = message_at(tables, place)
        map_put(&tables.ids, id, place)
        tables.message_free = message.next_in_section
    else:
        place = tables.message_end
        if place >> BLOCK_BITS >= tables.message_block_count:
            tables.message_blocks = <Message **>grow_blocks(
                <void **>tables.message_blocks, &tables.message_block_count, sizeof(Message)
            )
        map_put(&tables.ids, id, place)
        tables.message_end += 1
        message = message_at(tables, place)
    memset(message, 0, sizeof(Message))
    message.id = id
    message.cached_at = ~<uint64_t>0
    tables.message_count += 1
    return place


cdef void **grow_blocks(void **blocks, uint32_t *count, size_t place_size) except NULL:
    cdef void **larger = <void **>realloc(blocks, (count[0] + 1) * sizeof(void *))
    if larger is NULL:
        raise MemoryError
    larger[count[0]] = malloc(BLOCK_PLACES * place_size)
    if larger[count[0]] is NULL:
        raise MemoryError
    count[0] += 1
    return larger


cdef uint32_t message_by_id(Tables tables, uint64_t id) noexcept:
    return map_get(&tables.ids, id)


cdef int message_place(
    Tables tables, uint32_t place, uint64_t sequence, uint32_t record_at, uint32_t record_size
) except -1:
    """The message's record is in the newest section from now on. The cache has room for the record, whatever cache size
    was configured when the record was made: a message that cannot be cached could never be delivered."""
    cdef Message *message = message_at(tables, place)
    cdef Section *section
    if 2 * <uint64_t>record_size > tables.cache.size:
        tables.cache.grow(2 * <uint64_t>record_size)
    leave_section(tables, place)
    message.sequence = sequence
    message.record_at = record_at
    message.record_size = record_size
    message.section = tables.log.newest_section()
    section = tables.log.section(message.section)
    message.previous_in_section = 0
    message.next_in_section = section.first_message
    if section.first_message:
        message_at(tables, section.first_message).previous_in_section = place
    section.first_message = place
    tables.log.add_live(message.section, record_size)
    return 0


cdef void leave_section(Tables tables, uint32_t place) noexcept:
    cdef Message *message = message_at(tables, place)
    cdef Section *section
    if message.section == 0:
        return
    section = tables.log.section(message.section)
    if message.previous_in_section:
        message_at(tables, message.previous_in_section).next_in_section = message.next_in_section
    else:
        section.first_message = message.next_in_section
    if message.next_in_section:
        message_at(tables, message.next_in_section).previous_in_section = message.previous_in_section
    tables.log.remove_live(message.section, message.record_size)
    message.section = 0


cdef void append_by_id(Tables tables, uint32_t place) noexcept:
    """the last replicated message"""
    cdef Message *message = message_at(tables, place)
    message.flags |= MESSAGE_REPLICATED
    message.next_by_id = 0
    message.previous_by_id = tables.replicated_last
    if tables.replicated_last:
        message_at(tables, tables.replicated_last).next_by_id = place
    else:
        tables.replicated_first = place
    tables.replicated_last = place


cdef void message_free(Tables tables, uint32_t place) noexcept:
    """Free a message without entries."""
    cdef Message *message = message_at(tables, place)
    leave_section(tables, place)
    if message.flags & MESSAGE_REPLICATED:
        if message.previous_by_id:
            message_at(tables, message.previous_by_id).next_by_id = message.next_by_id
        else:
            tables.replicated_first = message.next_by_id
        if message.next_by_id:
            message_at(tables, message.next_by_id).previous_by_id = message.previous_by_id
        else:
            tables.replicated_last = message.previous_by_id
    if message.expires_ns:
        tables.expiring_count -= 1
    map_remove(&tables.ids, message.id)
    message.id = 0
    message.next_in_section = tables.message_free
    tables.message_free = place
    tables.message_count -= 1


cdef int message_stored(Tables tables, uint32_t place) except -1:
    """The message is on the disk: its endpoints may deliver it."""
    cdef Message *message = message_at(tables, place)
    cdef uint32_t each = message.entries
    message.flags |= MESSAGE_STORED
    while each:
        if entry_at(tables, each).state == STATE_WAITING:
            queue_append(tables, each)
        each = entry_at(tables, each).sibling
    return 0


# Entries


cdef uint32_t entry_new(Tables tables, uint32_t place, Endpoint *endpoint) except 0:
    """Create the endpoint's entry for the message, in none of the endpoint's lists."""
    cdef uint32_t made = tables.entry_free
    cdef Message *message = message_at(tables, place)
    cdef Entry *entry
    if made:
        tables.entry_free = entry_at(tables, made).next
    else:
        made = tables.entry_end
        if made >> BLOCK_BITS >= tables.entry_block_count:
            tables.entry_blocks = <Entry **>grow_blocks(
                <void **>tables.entry_blocks, &tables.entry_block_count, sizeof(Entry)
            )
        tables.entry_end += 1
    entry = entry_at(tables, made)
    memset(entry, 0, sizeof(Entry))
    message.flags &= ~<uint8_t>MESSAGE_AS_MATCHED
    entry.message = place
    entry.endpoint = endpoint.number
    entry.sibling = message.entries
    entry.state = STATE_WAITING
    message.entries = made
    endpoint.count += 1
    endpoint.bytes += message.content_size
    tables.entry_count += 1
    return made


cdef uint32_t entry_of(Tables tables, uint32_t place, uint32_t endpoint) noexcept:
    """The endpoint's entry for the message; 0: there is none."""
    cdef uint32_t each = message_at(tables, place).entries
    while each and entry_at(tables, each).endpoint != endpoint:
        each = entry_at(tables, each).sibling
    return each


cdef uint32_t consumed_entry(Tables tables, uint32_t endpoint, uint64_t id) noexcept:
    cdef uint32_t place = message_by_id(tables, id)
    place = entry_of(tables, place, endpoint) if place else 0
    if place and entry_at(tables, place).state in (STATE_CONSUMED, STATE_CONSUMED_THERE, STATE_REJECTED):
        return place
    return 0


cdef void entry_free(Tables tables, uint32_t place) noexcept:
    """Free an entry that is in no list of its endpoint; it is removed from its flow here."""
    cdef Entry *entry = entry_at(tables, place)
    cdef Endpoint *endpoint = tables.endpoints[entry.endpoint]
    cdef Message *message = message_at(tables, entry.message)
    cdef uint32_t *link = &message.entries
    if entry.state == STATE_IN_FLIGHT or entry.state == STATE_HELD:
        flow_remove(tables, place)
    if tables.replication.is_streaming and message.flags & MESSAGE_SENT and copied_to(tables, place) and (
        entry.state != STATE_CONSUMED # the record of the transaction includes this
    ):
        tables.replication.push(message.id, 0, entry.endpoint, ITEM_REMOVED)
    message.flags &= ~<uint8_t>MESSAGE_AS_MATCHED
    while link[0] != place:
        link = &entry_at(tables, link[0]).sibling
    link[0] = entry.sibling
    endpoint.count -= 1
    endpoint.bytes -= message.content_size
    if entry.flags & ENTRY_REPLAYED:
        endpoint.replayed -= 1
    if message.entries == 0 and message.flags & MESSAGE_STORED:
        message_free(tables, entry.message)
    entry.state = STATE_FREE
    entry.next = tables.entry_free
    tables.entry_free = place
    tables.entry_count -= 1


cdef void flow_remove(Tables tables, uint32_t place) noexcept:
    """The entry is no longer in flight."""
    cdef Entry *entry = entry_at(tables, place)
    cdef Flow *flow = tables.flows + entry.flow
    list_remove(tables, &flow.entries, place)
    flow.unsettled -= 1
    flow.unsettled_bytes -= message_at(tables, entry.message).content_size
    entry.flow = 0


# Lists


cdef void list_append(Tables tables, List *entries, uint32_t place) noexcept:
    cdef Entry *entry = entry_at(tables, place)
    entry.next = 0
    entry.previous = entries.last
    if entries.last:
        entry_at(tables, entries.last).next = place
    else:
        entries.first = place
    entries.last = place


cdef void list_insert(Tables tables, List *entries, uint32_t place, uint32_t before) noexcept:
    cdef Entry *entry = entry_at(tables, place)
    cdef Entry *after = entry_at(tables, before)
    entry.next = before
    entry.previous = after.previous
    if after.previous:
        entry_at(tables, after.previous).next = place
    else:
        entries.first = place
    after.previous = place


cdef void list_remove(Tables tables, List *entries, uint32_t place) noexcept:
    cdef Entry *entry = entry_at(tables, place)
    if entry.previous:
        entry_at(tables, entry.previous).next = entry.next
    else:
        entries.first = entry.next
    if entry.next:
        entry_at(tables, entry.next).previous = entry.previous
    else:
        entries.last = entry.previous


cdef int queue_append(Tables tables, uint32_t place) except -1:
    """Append to the endpoint's queue of the entry's priority."""
    cdef Entry *entry = entry_at(tables, place)
    cdef Endpoint *endpoint = tables.endpoints[entry.endpoint]
    list_append(tables, &endpoint.lists[message_at(tables, entry.message).priority], place)
    entry.state = STATE_QUEUED
    endpoint.queued += 1
    return tables.note_ready(endpoint)


cdef uint32_t queue_return(Tables tables, uint32_t place, uint32_t hint) except 0:
    """Insert by message id. `hint` is the previous result, whose id is likely to be lower: returning many entries then
    costs one walk."""
    cdef Entry *entry = entry_at(tables, place)
    cdef Endpoint *endpoint = tables.endpoints[entry.endpoint]
    cdef uint8_t priority = message_at(tables, entry.message).priority
    cdef uint64_t id = message_at(tables, entry.message).id
    cdef List *queue = &endpoint.lists[priority]
    cdef uint32_t at = queue.first
    cdef const Message *other
    if hint and entry_at(tables, hint).endpoint == entry.endpoint and entry_at(tables, hint).state == STATE_QUEUED:
        other = message_at(tables, entry_at(tables, hint).message)
        if other.priority == priority and other.id < id:
            at = hint
    while at and message_at(tables, entry_at(tables, at).message).id < id:
        at = entry_at(tables, at).next
    if at:
        list_insert(tables, queue, place, at)
    else:
        list_append(tables, queue, place)
    entry.state = STATE_QUEUED
    endpoint.queued += 1
    tables.note_ready(endpoint)
    return place


cdef void queue_remove(Tables tables, uint32_t place) noexcept:
    """Remove the entry from its list; the caller sets its state."""
    cdef Entry *entry = entry_at(tables, place)
    cdef Endpoint *endpoint = tables.endpoints[entry.endpoint]
    if entry.state == STATE_STUCK:
        list_remove(tables, &endpoint.lists[STUCK_LIST], place)
        tables.stuck_count -= 1
    else:
        list_remove(tables, &endpoint.lists[message_at(tables, entry.message).priority], place)
    endpoint.queued -= 1


# The cache


cdef const uint8_t *cached(Tables tables, const Message *message) noexcept:
    """The message's record, or NULL if it is only in the journal."""
    return tables.cache.get(message.cached_at)


cdef void cache_put(Tables tables, Message *message, const uint8_t *record, uint32_t size) noexcept:
    """A record that is longer than the cache stays in the journal."""
    if size <= tables.cache.size:
        message.cached_at = tables.cache.put(record, size)


# The numbers of publishers


cdef bint is_known(const Publisher *publisher, uint64_t number) noexcept:
    if number > publisher.highest:
        return False
    return number + WINDOW_MAX <= publisher.highest or bit_of(publisher.had, number)


cdef void remember(Publisher *publisher, uint64_t number) noexcept:
    cdef uint64_t each, first
    if number > publisher.highest:
        first = publisher.highest + 1
        if number - publisher.highest > WINDOW_MAX:
            first = number - WINDOW_MAX + 1
        for each in range(first, number + 1):
            clear_bit(publisher.had, each)
            clear_bit(publisher.pending, each)
        publisher.highest = number
    if number + WINDOW_MAX > publisher.highest:
        set_bit(publisher.had, number)


# Whole endpoints


def delete_endpoint(Tables tables not None, uint32_t number):
    """Delete an endpoint without flows, including its messages."""
    cdef Endpoint *endpoint = tables.endpoint_of(number)
    cdef uint32_t place
    if endpoint is NULL:
        return
    empty_endpoint(tables, number)
    if endpoint.count: # entries that wait for the disk are in no list
        for place in range(1, tables.entry_end):
            if entry_at(tables, place).state != STATE_FREE and entry_at(tables, place).endpoint == number:
                entry_free(tables, place)
    if endpoint.is_ready:
        endpoint.is_used = False
        return # the next walk over the list finds that it was deleted
    free(endpoint.flows)
    free(endpoint)
    tables.endpoints[number] = NULL


def empty_endpoint(Tables tables not None, uint32_t number):
    """Delete queued messages that are not in flight. Return their number."""
    cdef Endpoint *endpoint = tables.endpoint_of(number)
    cdef uint32_t place, following
    cdef int index
    cdef uint64_t count = 0
    if endpoint is NULL:
        return 0
    for index in range(LIST_COUNT):
        place = endpoint.lists[index].first
        while place:
            following = entry_at(tables, place).next
            queue_remove(tables, place)
            entry_free(tables, place)
            place = following
            count += 1
    endpoint.removed += count
    return count


def endpoint_ids(Tables tables not None, uint32_t number):
    """Ids of queued messages that are not in flight, as an array."""
    cdef Endpoint *endpoint = tables.endpoint_of(number)
    cdef uint32_t place
    found = []
    if endpoint is not NULL:
        for index in range(LIST_COUNT):
            place = endpoint.lists[index].first
            while place:
                found.append(message_at(tables, entry_at(tables, place).message).id)
                place = entry_at(tables, place).next
    return numpy.array(found, dtype=numpy.uint64)

