"""Flows: queued messages are delivered with credit, and return settled or unsettled."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._containers cimport Bytes, Numbers, bytes_reserve, push
from penstock.assured.wire._layout cimport (
    DELIVER_HEAD_SIZE,
    DELIVERED_HEAD_SIZE,
    DELIVERY_REDELIVERED,
    DELIVERY_REPLAYED,
    FRAME_MESSAGES_MAX,
    KIND_DELIVER,
    LENGTH_SIZE,
    Credit,
    DeliveredHead,
    DeliverHead,
    delivered_size,
)
from penstock.assured.core.router._messages cimport cached, list_append, queue_remove
from penstock.assured.core.router._records cimport (
    ENTRY_DEAD,
    ENTRY_REDELIVERED,
    ENTRY_REPLAYED,
    ENTRY_WHY_MASK,
    MESSAGE_HEAD_SIZE,
    WHY_EXPIRED,
    MessageHead,
    content_at,
)
from penstock.assured.core.router._settling cimport give_back, give_up, is_expired
from penstock.assured.core.router._tables cimport (
    PRIORITIES,
    STATE_IN_FLIGHT,
    Endpoint,
    Entry,
    Flow,
    Message,
    Tables,
    entry_at,
    message_at,
)
from penstock.wire._codec cimport store_u32

from penstock.base.errors import LimitError

cdef enum:
    FRAME_SIZE_GOOD = 131_072  # size at which a frame is sent and another begun


# Flows


def open_flow(
    Tables tables not None, uint64_t link, uint32_t number, uint64_t credit, uint32_t flows_max, int64_t delay_ns = 0
) -> int:
    """Open a flow of an existing endpoint and return its handle. The flow gets messages that were stored at least
    `delay_ns` ago."""
    cdef Endpoint *endpoint = tables.endpoints[number]
    cdef uint32_t handle, capacity
    cdef Flow *flows
    cdef Flow *flow
    cdef uint32_t *larger
    for handle in range(1, tables.flow_end):
        if not tables.flows[handle].is_used and not tables.flows[handle].is_dirty:
            break
    else:
        handle = tables.flow_end
        if handle > flows_max:
            raise LimitError(f"{flows_max} flows are open already", hint="raise flows_max")
        if handle >= tables.flow_capacity:
            capacity = max(<uint32_t>64, 2 * <uint32_t>tables.flow_capacity)
            flows = <Flow *>realloc(tables.flows, capacity * sizeof(Flow))
            if flows is NULL:
                raise MemoryError
            tables.flows = flows
            tables.flow_capacity = capacity
        memset(tables.flows + handle, 0, sizeof(Flow))
        tables.flow_end += 1
    if endpoint.flow_count == endpoint.flow_capacity:
        capacity = max(<uint32_t>4, 2 * endpoint.flow_capacity)
        larger = <uint32_t *>realloc(endpoint.flows, capacity * sizeof(uint32_t))
        if larger is NULL:
            raise MemoryError
        endpoint.flows = larger
        endpoint.flow_capacity = capacity
    endpoint.flows[endpoint.flow_count] = handle
    endpoint.flow_count += 1
    flow = tables.flows + handle
    flow.is_used = True
    flow.link = link
    flow.endpoint = number
    flow.credit = credit
    flow.delay_ns = delay_ns
    flow.delivered = 0
    tables.note_ready(endpoint)
    return handle


def close_flow(Tables tables not None, uint32_t handle, uint64_t link, uint64_t read) -> int:
    """Close a flow: unsettled messages return to the queue; the first `read` deliveries were seen by a consumer.
    Return the number of its endpoint, or 0 if there is no such flow."""
    cdef Flow *flow = tables.flow_of(handle, link)
    cdef Endpoint *endpoint
    cdef uint32_t index, hint = 0, place
    if flow is NULL:
        return 0
    endpoint = tables.endpoints[flow.endpoint]
    if read < flow.delivered:
        take_back(tables, flow, flow.delivered - read)
    while flow.entries.first:
        hint = give_back(tables, flow.entries.first, hint)
    for index in range(endpoint.flow_count):
        if endpoint.flows[index] == handle:
            break
    endpoint.flow_count -= 1
    for place in range(index, endpoint.flow_count):
        endpoint.flows[place] = endpoint.flows[place + 1]
    flow.is_used = False
    flow.output.size = 0
    flow.frame_count = 0
    tables.note_ready(endpoint)
    return endpoint.number


cdef void take_back(Tables tables, const Flow *flow, uint64_t count) noexcept:
    """Undo the last `count` deliveries, which no consumer has seen. None of them is settled, and they are the last
    unsettled ones. They stay flagged, because others may have been delivered before them."""
    cdef uint32_t place = flow.entries.last
    cdef Entry *entry
    while place and count:
        entry = entry_at(tables, place)
        entry.flags |= ENTRY_REDELIVERED
        if entry.deliveries:
            entry.deliveries -= 1
        place = entry.previous
        count -= 1


def active_flow(Tables tables not None, uint32_t number) -> tuple:
    """(handle, link) of the flow on which an exclusive endpoint delivers; (0, 0): none."""
    cdef Endpoint *endpoint = tables.endpoints[number]
    handle = endpoint.flows[0] if endpoint.flow_count else 0
    return handle, (tables.flows[endpoint.flows[0]].link if endpoint.flow_count else 0)


def flows_of(Tables tables not None, uint32_t number) -> list:
    """[(handle, link)] of all flows of an endpoint."""
    cdef Endpoint *endpoint = tables.endpoints[number]
    return [
        (endpoint.flows[index], tables.flows[endpoint.flows[index]].link) for index in range(endpoint.flow_count)
    ]


def give_credit(Tables tables not None, uint64_t link, const uint8_t[::1] data not None, uint64_t at) -> None:
    """Apply a CREDIT frame, which never reduces credit."""
    cdef Credit credit
    cdef Flow *flow
    memcpy(&credit, &data[at], sizeof(Credit))
    flow = tables.flow_of(credit.flow, link)
    if flow is not NULL and credit.total > flow.credit:
        flow.credit = credit.total
        tables.note_ready(tables.endpoints[flow.endpoint])


# Delivery


def deliver_ready(Tables tables not None, uint32_t fetch_count_max, uint64_t fetch_size_max) -> tuple:
    """Deliver messages. Return [(link, frames)], and what must be read first: [(endpoint, ids, sequences)]."""
    cdef uint64_t index = 0
    cdef uint32_t number, handle
    cdef Endpoint *endpoint
    sends = []
    fetches = []
    wake_delayed(tables)
    while index < tables.ready.count:  # moving messages may make others ready
        number = tables.ready.items[index]
        index += 1
        endpoint = tables.endpoints[number]
        endpoint.is_ready = False
        if not endpoint.is_used:  # the endpoint was deleted in the meantime
            free(endpoint.flows)
            free(endpoint)
            tables.endpoints[number] = NULL
            continue
        if endpoint.is_fetching:
            continue
        if deliver(tables, endpoint):
            endpoint.is_fetching = True
            fetches.append((number, *missing(tables, endpoint, fetch_count_max, fetch_size_max)))
    tables.ready.count = 0
    for index in range(tables.dirty_flows.count):
        handle = tables.dirty_flows.items[index]
        tables.flows[handle].is_dirty = False
        if tables.flows[handle].output.size:
            sends.append((tables.flows[handle].link, take_output(tables.flows + handle)))
    tables.dirty_flows.count = 0
    return sends, fetches


cdef bint deliver(Tables tables, Endpoint *endpoint) except -1:
    """Deliver the endpoint's messages. True if the next one must be read from the journal."""
    cdef int priority = PRIORITIES - 1
    cdef uint32_t place, handle
    cdef const uint8_t *record
    cdef const Message *message
    cdef int64_t wait_ns, due_ns = 0
    while priority >= 0:
        place = endpoint.lists[priority].first
        if place == 0 or is_held(endpoint, message_at(tables, entry_at(tables, place).message).id):
            priority -= 1
            continue
        if is_expired(tables, place):
            tables.expired_total += 1
            queue_remove(tables, place)
            give_up(tables, place, WHY_EXPIRED)
            continue
        message = message_at(tables, entry_at(tables, place).message)
        handle = next_flow(tables, endpoint, tables.wall_ns - message.published_ns)
        if handle == 0:
            wait_ns = shortest_delay(tables, endpoint)
            if wait_ns < 0:  # no flow has credit
                break
            # The message is too young for the flows with credit. These see the queue as it was: older messages of lower
            # priorities are in it, this one is not.
            if due_ns == 0 or message.published_ns + wait_ns < due_ns:
                due_ns = message.published_ns + wait_ns
            priority -= 1
            continue
        record = cached(tables, message)
        if record is NULL:
            return True
        endpoint.turn += 1
        hand_out(tables, endpoint, handle, place, record)
        priority = PRIORITIES - 1
        due_ns = 0
    if due_ns:
        delay(tables, endpoint, due_ns)
    return False


cdef int delay(Tables tables, Endpoint *endpoint, int64_t due_ns) except -1:
    """Check the endpoint again when its next message is old enough."""
    endpoint.due_ns = due_ns
    if tables.delayed_due_ns == 0 or due_ns < tables.delayed_due_ns:
        tables.delayed_due_ns = due_ns
    if not endpoint.is_delayed:
        push(&tables.delayed, endpoint.number)
        endpoint.is_delayed = True
    return 0


cdef int wake_delayed(Tables tables) except -1:
    """Mark endpoints as ready whose next message has become old enough."""
    cdef uint64_t index, count = 0
    cdef uint32_t number
    cdef Endpoint *endpoint
    if tables.delayed_due_ns == 0 or tables.wall_ns < tables.delayed_due_ns:
        return 0
    tables.delayed_due_ns = 0
    for index in range(tables.delayed.count):
        number = tables.delayed.items[index]
        endpoint = tables.endpoint_of(number)
        if endpoint is NULL:  # it was deleted meanwhile
            continue
        if tables.wall_ns >= endpoint.due_ns:
            endpoint.is_delayed = False
            tables.note_ready(endpoint)
            continue
        if tables.delayed_due_ns == 0 or endpoint.due_ns < tables.delayed_due_ns:
            tables.delayed_due_ns = endpoint.due_ns
        tables.delayed.items[count] = number
        count += 1
    tables.delayed.count = count
    return 0


cdef bint is_held(const Endpoint *endpoint, uint64_t id) noexcept:
    """True if the message is held back, with all later messages of its priority."""
    return (endpoint.live_from and id >= endpoint.live_from) or (endpoint.held_last and id >= endpoint.held_first)


cdef uint32_t next_flow(Tables tables, Endpoint *endpoint, int64_t age_ns) noexcept:
    """The flow for a message of this age; 0: none now."""
    cdef uint32_t index, handle
    if endpoint.is_exclusive:
        return endpoint.flows[0] if endpoint.flow_count and may_have(tables, endpoint.flows[0], age_ns) else 0
    for index in range(endpoint.flow_count):
        handle = endpoint.flows[(endpoint.turn + index) % endpoint.flow_count]
        if may_have(tables, handle, age_ns):
            endpoint.turn += index
            return handle
    return 0


cdef int64_t shortest_delay(Tables tables, const Endpoint *endpoint) noexcept:
    """The shortest delay of the flows with credit; -1: there are none."""
    cdef int64_t shortest = -1
    cdef uint32_t index
    cdef const Flow *flow
    for index in range(min(endpoint.flow_count, <uint32_t>1) if endpoint.is_exclusive else endpoint.flow_count):
        flow = tables.flows + endpoint.flows[index]
        if can_take(tables, endpoint.flows[index]) and (shortest < 0 or flow.delay_ns < shortest):
            shortest = flow.delay_ns
    return shortest


cdef bint may_have(Tables tables, uint32_t handle, int64_t age_ns) noexcept:
    return (tables.flows[handle].delay_ns == 0 or age_ns >= tables.flows[handle].delay_ns) and can_take(tables, handle)


cdef bint can_take(Tables tables, uint32_t handle) noexcept:
    cdef const Flow *flow = tables.flows + handle
    return (
        flow.delivered < flow.credit and flow.unsettled < tables.unsettled_max
        and (flow.unsettled == 0 or flow.unsettled_bytes < tables.unsettled_bytes_max)
    )


cdef int hand_out(
    Tables tables, Endpoint *endpoint, uint32_t handle, uint32_t place, const uint8_t *record
) except -1:
    cdef Entry *entry = entry_at(tables, place)
    cdef Flow *flow = tables.flows + handle
    cdef MessageHead head
    cdef DeliveredHead out
    cdef uint8_t *at
    cdef uint64_t size, content_size
    memcpy(&head, record, MESSAGE_HEAD_SIZE)
    content_size = <uint64_t>head.topic_size + head.payload_size
    size = delivered_size(head.topic_size, head.payload_size)
    at = frame_room(tables, handle, size)
    memset(&out, 0, sizeof(DeliveredHead))
    out.size = <uint32_t>size
    out.payload_size = head.payload_size
    out.topic_size = head.topic_size
    out.priority = head.priority
    if entry.deliveries or entry.flags & ENTRY_REDELIVERED:
        out.flags |= DELIVERY_REDELIVERED
        endpoint.redelivered += 1
        tables.redelivered_total += 1
    if entry.flags & ENTRY_REPLAYED:
        out.flags |= DELIVERY_REPLAYED
    if entry.flags & ENTRY_DEAD:
        out.flags |= entry.flags & ENTRY_WHY_MASK
        out.given_up_by = entry.given_up_by
        if entry.given_up_by:
            mention(tables, handle, entry.given_up_by)
    out.model_id = head.model_id
    out.model_version = head.model_version
    out.deliveries = entry.deliveries
    out.id = head.id
    out.published_ns = head.published_ns
    out.publisher = head.publisher
    out.number = head.number
    memcpy(at, &out, DELIVERED_HEAD_SIZE)
    memcpy(at + DELIVERED_HEAD_SIZE, record + content_at(&head), content_size)
    memset(at + DELIVERED_HEAD_SIZE + content_size, 0, size - DELIVERED_HEAD_SIZE - content_size)
    queue_remove(tables, place)
    entry.state = STATE_IN_FLIGHT
    entry.flow = handle
    if entry.deliveries < 65_535:
        entry.deliveries += 1
    list_append(tables, &flow.entries, place)
    flow.unsettled += 1
    flow.unsettled_bytes += content_size
    flow.delivered += 1
    endpoint.delivered += 1
    tables.delivered_total += 1
    return 0


cdef int mention(Tables tables, uint32_t handle, uint32_t endpoint) except -1:
    """Send the endpoint's name to the consumer."""
    cdef const Numbers *mentioned = &tables.mentioned
    if mentioned.count and mentioned.items[mentioned.count - 2] == handle:
        if mentioned.items[mentioned.count - 1] == endpoint:
            return 0
    push(&tables.mentioned, handle)
    return push(&tables.mentioned, endpoint)


cdef uint8_t *frame_room(Tables tables, uint32_t handle, uint64_t size) except NULL:
    """Make room for a message in the flow's frame, or in a new one."""
    cdef Flow *flow = tables.flows + handle
    cdef Bytes *output = &flow.output
    cdef DeliverHead head
    bytes_reserve(output, LENGTH_SIZE + DELIVER_HEAD_SIZE + size)
    if not flow.is_dirty:
        push(&tables.dirty_flows, handle)
        flow.is_dirty = True
    if flow.frame_count == FRAME_MESSAGES_MAX or output.size - flow.frame_at > FRAME_SIZE_GOOD or output.size == 0:
        end_frame(flow)
        flow.frame_at = output.size
        flow.frame_count = 0
        head = DeliverHead(KIND_DELIVER, 0, 0, handle)
        memcpy(output.data + output.size + LENGTH_SIZE, &head, DELIVER_HEAD_SIZE)
        output.size += LENGTH_SIZE + DELIVER_HEAD_SIZE
    flow.frame_count += 1
    output.size += size
    return output.data + output.size - size


cdef void end_frame(Flow *flow) noexcept:
    """Write the frame's length and count, which are final now."""
    cdef uint8_t *frame = flow.output.data + flow.frame_at
    cdef uint16_t count = <uint16_t>flow.frame_count
    if flow.output.size and flow.frame_count:
        store_u32(frame, <uint32_t>(flow.output.size - flow.frame_at - LENGTH_SIZE))
        memcpy(frame + LENGTH_SIZE + 2, &count, sizeof(count))


cdef bytes take_output(Flow *flow):
    end_frame(flow)
    frames = PyBytes_FromStringAndSize(<const char *>flow.output.data, flow.output.size)
    flow.output.size = 0
    flow.frame_count = 0
    flow.frame_at = 0
    return frames


cdef tuple missing(Tables tables, Endpoint *endpoint, uint32_t count_max, uint64_t size_max):
    """(ids, sequences) of the endpoint's next messages that are not in the cache, as many as fit it. Messages that
    are held back or too young are skipped: they would evict each other from the cache, and earlier ones would never
    be read."""
    cdef int64_t delay_ns = shortest_delay(tables, endpoint)
    cdef int priority
    cdef uint32_t place
    cdef uint64_t size = 0
    cdef const Message *message
    ids = []
    sequences = []
    size_max = min(size_max, tables.cache.size // 2)
    for priority in range(PRIORITIES - 1, -1, -1):
        place = endpoint.lists[priority].first
        while place and len(ids) < count_max and (size < size_max or not ids):
            message = message_at(tables, entry_at(tables, place).message)
            if is_held(endpoint, message.id) or (delay_ns > 0 and tables.wall_ns - message.published_ns < delay_ns):
                break
            if cached(tables, message) is NULL:
                ids.append(message.id)
                sequences.append(message.sequence)
                size += message.record_size
            place = entry_at(tables, place).next
    return numpy.array(ids, numpy.uint64), numpy.unique(numpy.array(sequences, numpy.uint64))


def end_fetch(Tables tables not None, uint32_t number) -> None:
    """The endpoint's read request has ended, with success or not."""
    cdef Endpoint *endpoint = tables.endpoint_of(number)
    if endpoint is not NULL:
        endpoint.is_fetching = False
        tables.note_ready(endpoint)
