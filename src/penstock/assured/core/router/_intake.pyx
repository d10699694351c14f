"""Published messages: checked, accepted or refused, logged, queued, and acknowledged when they are on the disk."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._containers cimport UNWANTED, Waiting, push, queue_at, queue_push
from penstock.assured.wire._frames cimport check_frame
from penstock.assured.wire._layout cimport (
    FRAME_GOOD,
    LENGTH_SIZE,
    LIMIT_BYTES,
    LIMIT_MESSAGES,
    MESSAGE_RESENT,
    MESSAGE_WANTS_ASYNC,
    MESSAGE_WANTS_SYNC,
    OUTCOME_ASYNC,
    OUTCOME_BAD_TOPIC,
    OUTCOME_DEGRADED,
    OUTCOME_DISK,
    OUTCOME_FULL,
    OUTCOME_KNOWN,
    OUTCOME_LIMIT,
    OUTCOME_NO_ENDPOINT,
    OUTCOME_NOT_ENTITLED,
    OUTCOME_REFUSED,
    OUTCOME_STORED,
    OUTCOME_SYNC,
    OUTCOME_TOO_LARGE,
    OUTCOME_UNMATCHED,
    PUBLISH_HEAD_SIZE,
    PUBLISHED_HEAD_SIZE,
    WINDOW_MAX,
    PublishedHead,
    PublishHead,
)
from penstock.assured.core.router._messages cimport (
    append_by_id,
    cache_put,
    entry_new,
    is_known,
    message_free,
    message_new,
    message_place,
    message_stored,
    remember,
)
from penstock.assured.core.router._parts cimport MessageParts
from penstock.assured.core.router._records cimport (
    DESTINATION_SIZE,
    ENTRY_DEAD,
    ENTRY_REDELIVERED,
    ENTRY_WHY_SHIFT,
    MESSAGE_HEAD_SIZE,
    MESSAGE_TOGETHER,
    RECORD_MESSAGE,
    TREATMENT_ASYNC,
    TREATMENT_NONE,
    TREATMENT_SYNC,
    WHY_OVERFLOWED,
    Destination,
    MessageHead,
    message_record_size,
)
from penstock.assured.core.router._mirroring cimport is_at_absent, release_held
from penstock.assured.core.router._replication_state cimport ITEM_MESSAGE, ReplicationState
from penstock.assured.core.router._publishers cimport Publisher, bit_of, clear_bit, set_bit
from penstock.assured.core.router._tables cimport (
    MESSAGE_AS_MATCHED,
    MESSAGE_GROUPED,
    MESSAGE_STORED,
    Endpoint,
    Message,
    Tables,
    entry_at,
    message_at,
)
from penstock.topics._match cimport DEPTH_MAX, topic_scan
from penstock.wire._codec cimport load_u32

from penstock.base.errors import RemoteProtocolError

cdef int64_t NS_PER_MS = 1_000_000


def frames_of(const uint8_t[::1] data not None) -> list:
    """Return [(kind, offset, size)] of the data frames in a buffer. Raise RemoteProtocolError if one is invalid."""
    cdef uint64_t size = data.shape[0], at = 0, length
    found = []
    while at < size:
        length = load_u32(&data[at]) if size - at >= LENGTH_SIZE else 0
        if length == 0 or length > size - at - LENGTH_SIZE:
            raise RemoteProtocolError("incomplete data frame")
        at += LENGTH_SIZE
        if check_frame(&data[at], length) != FRAME_GOOD:
            raise RemoteProtocolError(f"invalid data frame of kind {data[at]}")
        found.append((data[at], at, length))
        at += length
    return found


cdef class PublishBatch(MessageParts):
    """The messages of a checked PUBLISH frame."""

    cdef PublishHead head

    def __cinit__(self, data not None, uint64_t at):
        cdef PublishedHead each
        cdef uint32_t index
        self.data = data
        self.view = data
        memcpy(&self.head, &self.view[at], PUBLISH_HEAD_SIZE)
        self.allot(self.head.count)
        at += PUBLISH_HEAD_SIZE
        for index in range(self.head.count):
            memcpy(&each, &self.view[at], PUBLISHED_HEAD_SIZE)
            self.place(
                index, <uint32_t>at + PUBLISHED_HEAD_SIZE, each.topic_size, each.payload_size, each.model_id,
                each.model_version,
            )
            at += each.size

    @property
    def publisher(self):
        return self.head.publisher

    @property
    def transaction(self):
        return self.head.transaction

    @property
    def first_number(self):
        return self.head.first_number

    @property
    def content_size(self):
        return int(self.topic_sizes.sum(dtype=numpy.uint64) + self.payload_sizes.sum(dtype=numpy.uint64))


def accept(
    Tables tables not None,
    PublishBatch batch not None,
    const uint64_t[::1] offsets not None,
    const uint32_t[::1] subscribers not None,
    const uint32_t[::1] endpoints not None,
    const uint8_t[::1] entitled = None,
    const uint8_t[::1] treatments = None,
) -> int:
    """Accept the messages of a batch with a known publisher. Message i goes to the endpoints of
    subscribers[offsets[i]:offsets[i + 1]]; endpoints[subscriber] is the endpoint's number.

    Each message is logged, or acknowledged at once with its obstacle. In a group nothing is acknowledged, and the
    first obstacle is returned; otherwise 0.
    """
    cdef uint32_t handle = batch.head.publisher, index
    cdef uint64_t number = batch.head.first_number
    cdef const uint32_t *found = &subscribers[0] if subscribers.shape[0] else NULL
    cdef const uint32_t *owners = &endpoints[0]
    cdef Wanted wanted
    cdef uint8_t outcome
    for index in range(batch.head.count):
        wanted.subscribers = found + offsets[index]
        wanted.count = offsets[index + 1] - offsets[index]
        wanted.endpoints = owners
        wanted.is_entitled = entitled is None or entitled[index] != 0
        wanted.by_topic = treatments[index] if treatments is not None else 0
        outcome = accept_one(tables, handle, number + index, &batch.view[0] + batch._topic_offsets[index], &wanted)
        if outcome and tables.log.is_grouping:
            return outcome
    return 0


cdef uint8_t accept_one(
    Tables tables, uint32_t handle, uint64_t number, const uint8_t *topic, const Wanted *wanted
) except 255:
    cdef Publisher *publisher = tables.publishers.at(handle)
    cdef PublishedHead head
    cdef uint8_t outcome
    memcpy(&head, topic - PUBLISHED_HEAD_SIZE, PUBLISHED_HEAD_SIZE)
    outcome = judge(tables, publisher, number, &head, topic)
    if outcome == 0 and not wanted.is_entitled:
        outcome = OUTCOME_NOT_ENTITLED
    if outcome == 0:
        outcome = choose(tables, &head, wanted)
    if outcome == OUTCOME_UNMATCHED and tables.log.is_grouping:
        outcome = 0  # part of the transaction's record, and acknowledged with it
    if outcome == 0:
        take(tables, handle, number, &head, topic, wanted.by_topic)
    elif tables.log.is_grouping:
        pass
    elif outcome != OUTCOME_KNOWN:
        tables.unmatched_total += outcome == OUTCOME_UNMATCHED
        tables.refused_total += outcome >= OUTCOME_REFUSED
        tables.acknowledge(handle, number, outcome)
    else:
        tables.known_total += 1
        if is_settled(publisher, number):
            if (
                tables.replication.has_secondary
                and treatment_wanted(tables, head.flags, wanted) == TREATMENT_SYNC
                and is_at_both(tables, wanted)
            ):
                wait_again(tables, handle, number)
            else:
                tables.acknowledge(handle, number, OUTCOME_KNOWN)
    return outcome


cdef inline bint is_settled(const Publisher *publisher, uint64_t number) noexcept:
    """True if a known number was acknowledged, or would be if its publisher had been connected."""
    return number + WINDOW_MAX <= publisher.highest or not bit_of(publisher.pending, number)


cdef uint8_t treatment_wanted(Tables tables, uint8_t flags, const Wanted *wanted) noexcept:
    """The treatment that a repeated message would get now."""
    cdef uint8_t treatment = TREATMENT_NONE
    cdef uint64_t position
    cdef const Endpoint *endpoint
    if tables.replicate_by != 0:
        return treatment_of(tables, flags, wanted.by_topic)
    for position in range(wanted.count):
        endpoint = wanted_endpoint(tables, wanted, position)
        if endpoint is not NULL:
            treatment = max(treatment, endpoint.treatment)
    return treatment


cdef bint is_at_both(Tables tables, const Wanted *wanted) noexcept:
    """True if the standby has every matching endpoint too. If none matches now, the message may have been published
    when others did."""
    cdef uint64_t position
    cdef const Endpoint *endpoint
    for position in range(wanted.count):
        endpoint = wanted_endpoint(tables, wanted, position)
        if endpoint is not NULL and endpoint.is_absent:
            return False
    return wanted.count > 0


cdef int wait_again(Tables tables, uint32_t handle, uint64_t number) except -1:
    """A synchronous message is stored here, but perhaps not at the standby: if the standby has everything by now, it
    has the message."""
    cdef Waiting waiting = Waiting(tables.log.sequence(), tables.next_id - 1, number, 0, handle, TREATMENT_SYNC)
    if number + WINDOW_MAX > tables.publishers.at(handle).highest:
        set_bit(tables.publishers.at(handle).pending, number)
    tables.accepted_total += 1  # acknowledged like a new message
    return queue_push(&tables.waiting, &waiting)


cdef uint8_t judge(
    Tables tables, const Publisher *publisher, uint64_t number, const PublishedHead *head, const uint8_t *topic
) noexcept:
    """The obstacle to a message, independent of its endpoints; 0: none."""
    cdef uint8_t ends[DEPTH_MAX]
    if is_known(publisher, number):
        return OUTCOME_KNOWN
    if tables.is_refusing:
        return OUTCOME_DISK
    if head.payload_size > tables.payload_size_max:
        return OUTCOME_TOO_LARGE
    if head.topic_size == 0 or not topic_scan(topic, head.topic_size, ends):
        return OUTCOME_BAD_TOPIC
    if tables.message_count >= tables.message_count_max:
        return OUTCOME_LIMIT
    return 0


cdef inline Endpoint *wanted_endpoint(Tables tables, const Wanted *wanted, uint64_t position) noexcept:
    return tables.endpoint_of(wanted.endpoints[wanted.subscribers[position]])


cdef uint8_t choose(Tables tables, const PublishedHead *head, const Wanted *wanted) except 255:
    """Fill tables.destinations with the endpoints of a message, each once; or return the obstacle."""
    cdef uint64_t content_size = <uint64_t>head.topic_size + head.payload_size
    cdef uint64_t position
    cdef Endpoint *endpoint
    cdef Endpoint *target
    tables.stamp += 1
    tables.destinations.count = 0
    tables.is_overflowing = False
    for position in range(wanted.count):
        endpoint = wanted_endpoint(tables, wanted, position)
        if endpoint is NULL or endpoint.stamp == tables.stamp:
            continue
        if not is_full(endpoint, content_size):
            endpoint.stamp = tables.stamp
            push_destination(tables, endpoint.number, 0)
            continue
        if not endpoint.gives_up_when_full:
            return full(tables, endpoint)
        tables.is_overflowing = True
        endpoint.overflowed += 1
        tables.given_up_total += 1
        target = tables.endpoint_of(endpoint.dead_to)
        if target is NULL:
            return full(tables, endpoint)
        if is_full(target, content_size):
            return full(tables, target)
        if target.stamp != tables.stamp:
            target.stamp = tables.stamp
            push_destination(tables, target.number, endpoint.number)
    if tables.destinations.count or tables.keeps_unmatched and not tables.refuses_unmatched:
        return 0
    return OUTCOME_NO_ENDPOINT if tables.refuses_unmatched else OUTCOME_UNMATCHED


cdef inline int push_destination(Tables tables, uint32_t endpoint, uint32_t given_up_by) except -1:
    push(&tables.destinations, endpoint)
    return push(&tables.destinations, given_up_by)


cdef inline bint is_full(const Endpoint *endpoint, uint64_t content_size) noexcept:
    return endpoint.count >= endpoint.messages_max or endpoint.bytes + content_size > endpoint.bytes_max


cdef inline uint8_t full(Tables tables, const Endpoint *endpoint) noexcept:
    tables.full_endpoint = endpoint.number
    tables.full_limit = LIMIT_MESSAGES if endpoint.count >= endpoint.messages_max else LIMIT_BYTES
    return OUTCOME_FULL


cdef uint8_t treatment_of(Tables tables, uint8_t flags, uint8_t by_topic) noexcept:
    cdef uint8_t treatment = TREATMENT_NONE
    cdef uint64_t index
    if tables.replicate_by == 2:
        return by_topic
    if tables.replicate_by == 1:
        if flags & MESSAGE_WANTS_SYNC:
            return TREATMENT_SYNC
        return TREATMENT_ASYNC if flags & MESSAGE_WANTS_ASYNC else TREATMENT_NONE
    for index in range(tables.destinations.count // 2):
        treatment = max(treatment, tables.endpoints[tables.destinations.items[2 * index]].treatment)
    return treatment


cdef int take(
    Tables tables, uint32_t handle, uint64_t number, const PublishedHead *published, const uint8_t *topic, uint8_t by_topic
) except -1:
    """Store a message without obstacles."""
    cdef Publisher *publisher = tables.publishers.at(handle)
    cdef MessageHead head
    cdef Waiting waiting
    memset(&head, 0, sizeof(MessageHead))
    head.kind = RECORD_MESSAGE
    head.priority = published.priority
    head.flags = published.flags & MESSAGE_RESENT  # another router may have delivered it before it could report that
    if tables.log.is_grouping:
        head.flags |= MESSAGE_TOGETHER
    head.treatment = treatment_of(tables, published.flags, by_topic)
    head.payload_size = published.payload_size
    head.topic_size = published.topic_size
    head.id = tables.take_id()
    head.publisher = publisher.id
    head.number = number
    head.published_ns = tables.wall_ns
    head.expires_ns = tables.wall_ns + published.ttl_ms * NS_PER_MS if published.ttl_ms else 0
    head.model_id = published.model_id
    head.model_version = published.model_version
    waiting.message = keep_message(tables, &head, topic, topic + published.topic_size)
    if waiting.message and not tables.is_overflowing:
        message_at(tables, waiting.message).flags |= MESSAGE_AS_MATCHED
    if tables.replication.is_streaming and waiting.message and (
        tables.log.is_grouping or head.treatment != TREATMENT_NONE
    ):
        tables.replication.push(head.id, number, handle, ITEM_MESSAGE)
        if head.treatment == TREATMENT_SYNC:
            tables.replication.note_awaited()
    waiting.sequence = tables.log.sequence()
    waiting.id = head.id
    waiting.number = number
    waiting.treatment = head.treatment
    waiting.publisher = handle
    if tables.log.is_grouping:
        push(&tables.group, waiting.message)
        tables.accepted_total += 1
        return queue_push(&tables.waiting, &waiting)
    remember(publisher, number)
    set_bit(publisher.pending, number)
    if waiting.message:
        tables.accepted_total += 1
    else:
        tables.unmatched_total += 1
        waiting.treatment = UNWANTED
    return queue_push(&tables.waiting, &waiting)


cdef uint32_t keep_message(
    Tables tables, MessageHead *head, const uint8_t *topic, const uint8_t *payload
) except? 0:
    cdef uint64_t index, count = tables.destinations.count // 2
    cdef uint32_t size = <uint32_t>message_record_size(count, head.topic_size, head.payload_size)
    cdef uint8_t *record = tables.log.room(size, tables.wall_ns)
    cdef uint8_t *at = record + MESSAGE_HEAD_SIZE
    cdef uint32_t place = 0, entry
    cdef Message *message = NULL
    cdef Destination destination
    memset(&destination, 0, DESTINATION_SIZE)
    head.size = size
    head.destination_count = <uint16_t>count
    memcpy(record, head, MESSAGE_HEAD_SIZE)
    if count:
        place = message_new(tables, head.id)
        message = message_at(tables, place)
        message.published_ns = head.published_ns
        message.expires_ns = head.expires_ns
        message.content_size = head.topic_size + head.payload_size
        message.priority = head.priority
        message.treatment = head.treatment
        if head.flags & MESSAGE_TOGETHER:
            message.flags |= MESSAGE_GROUPED
        if head.expires_ns:
            tables.expiring_count += 1
        message_place(
            tables, place, tables.log.sequence(), tables.log.offset_in_record(record), size
        )
        if head.treatment != TREATMENT_NONE:
            append_by_id(tables, place)
    for index in range(count):
        destination.endpoint = tables.destinations.items[2 * index]
        destination.given_up_by = tables.destinations.items[2 * index + 1]
        destination.flags = ENTRY_DEAD | WHY_OVERFLOWED << ENTRY_WHY_SHIFT if destination.given_up_by else 0
        if head.flags & MESSAGE_RESENT:
            destination.flags |= ENTRY_REDELIVERED
        memcpy(at, &destination, DESTINATION_SIZE)
        at += DESTINATION_SIZE
        entry = entry_new(tables, place, tables.endpoints[destination.endpoint])
        entry_at(tables, entry).flags = <uint8_t>destination.flags
        entry_at(tables, entry).given_up_by = destination.given_up_by
        tables.endpoints[destination.endpoint].accepted += 1
    memcpy(at, topic, head.topic_size)
    at += head.topic_size
    memcpy(at, payload, head.payload_size)
    at += head.payload_size
    memset(at, 0, record + size - at)
    if count:
        cache_put(tables, message, record, size)
    return place


def settle_numbers(Tables tables not None, uint32_t handle, uint64_t first, uint32_t count, uint8_t outcome) -> None:
    """Acknowledge messages that are not stored."""
    for number in range(first, first + count):
        tables.acknowledge(handle, number, outcome)


# On the disk


cpdef int stored(Tables tables, uint64_t through) except -1:
    """Records up to this number are on the disk: their messages may be delivered, and are acknowledged unless they
    must wait for the standby."""
    cdef Waiting *waiting
    cdef bint is_copied
    tables.stored_through = max(tables.stored_through, through)
    while tables.waiting.first < tables.waiting.end:
        waiting = queue_at(&tables.waiting, tables.waiting.first)
        if waiting.sequence > through:
            return 0
        if waiting.message:
            message_stored(tables, waiting.message)
            if message_at(tables, waiting.message).entries == 0:  # its endpoints were deleted meanwhile
                message_free(tables, waiting.message)
        if waiting.treatment == TREATMENT_SYNC:
            tables.replication.await_copy(waiting)
        elif waiting.publisher and waiting.treatment == UNWANTED:
            clear_bit(tables.publishers.at(waiting.publisher).pending, waiting.number)
            tables.acknowledge(waiting.publisher, waiting.number, OUTCOME_UNMATCHED)
        elif waiting.publisher:
            is_copied = (
                tables.replication.has_secondary
                and waiting.treatment == TREATMENT_ASYNC
                and not is_at_absent(tables, waiting.id)
            )
            tell(tables, waiting, OUTCOME_ASYNC if is_copied else OUTCOME_STORED)
        tables.waiting.first += 1
    return 0


cpdef int replicated(Tables tables, uint64_t through_id, uint8_t outcome) except -1:
    """Synchronous messages up to this id no longer wait for the standby: acknowledge them with this outcome.
    Messages of endpoints that the standby lacks are excluded: they are on one disk only, whatever the standby has
    stored."""
    cdef ReplicationState state = tables.replication
    cdef Waiting waiting
    cdef uint64_t end = state.unreplicated_end()
    cdef bint is_uncopied
    release_held(tables, through_id)
    while state.take_unreplicated(end, through_id, &waiting):
        is_uncopied = outcome == OUTCOME_SYNC and waiting.message != 0 and is_at_absent(tables, waiting.id)
        if is_uncopied:
            state.note_absent_met()
        if is_uncopied and state.waits_for_absent:
            state.await_copy(&waiting)  # after those that need not wait with it
        elif waiting.publisher:
            tell(tables, &waiting, OUTCOME_DEGRADED if is_uncopied else outcome)
    return 0


cdef int tell(Tables tables, const Waiting *waiting, uint8_t outcome) except -1:
    clear_bit(tables.publishers.at(waiting.publisher).pending, waiting.number)
    tables.acknowledged_total += 1
    return tables.acknowledge(waiting.publisher, waiting.number, outcome)
