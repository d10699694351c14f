"""Settlement of deliveries, and removal of messages: settled, returned, dead-lettered."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._containers cimport bytes_reserve
from penstock.assured.wire._layout cimport (
    RUN_SIZE,
    SETTLE_ACKNOWLEDGED,
    SETTLE_HEAD_SIZE,
    SETTLE_REJECTED,
    SETTLE_RETURNED,
    Run,
    SettleHead,
)
from penstock.assured.core.router._messages cimport (
    entry_free,
    entry_of,
    flow_remove,
    list_append,
    message_by_id,
    queue_append,
    queue_remove,
    queue_return,
)
from penstock.assured.core.router._records cimport (
    DEAD_SIZE,
    ENTRY_DEAD,
    ENTRY_REDELIVERED,
    ENTRY_REPLAYED,
    ENTRY_WHY_MASK,
    ENTRY_WHY_SHIFT,
    ID_RUN_SIZE,
    RECORD_DEAD,
    RECORD_RETURNED,
    RECORD_SETTLED,
    RETURNED_SIZE,
    SETTLED_HEAD_SIZE,
    WHY_DELIVERIES,
    WHY_EXPIRED,
    WHY_REJECTED,
    DeadRecord,
    IdRun,
    ReturnedRecord,
    SettledHead,
)
from penstock.assured.core.router._mirroring cimport is_mirrored
from penstock.assured.core.router._replication_state cimport ITEM_MESSAGE, ITEM_REMOVED, moved_to
from penstock.assured.core.router._tables cimport (
    MESSAGE_AS_MATCHED,
    MESSAGE_REPLICATED,
    MESSAGE_SENT,
    STATE_HELD,
    STATE_IN_FLIGHT,
    STATE_QUEUED,
    STATE_STUCK,
    STUCK_LIST,
    Endpoint,
    Entry,
    Flow,
    Message,
    Tables,
    entry_at,
    message_at,
)

from penstock.base.errors import RemoteProtocolError


cdef enum:
    RUNS_MAX = 65_536  # per record: a megabyte, while the journal accepts sixteen


cdef class Settlement:
    def __dealloc__(self):
        free(self.runs.data)

    cdef int add(self, uint64_t id) except -1:
        cdef IdRun *last
        if self.count:
            last = <IdRun *>(self.runs.data + self.runs.size - ID_RUN_SIZE)
            if last.last + 1 == id:
                last.last = id
                return 0
        bytes_reserve(&self.runs, ID_RUN_SIZE)
        last = <IdRun *>(self.runs.data + self.runs.size)
        last.first = last.last = id
        self.runs.size += ID_RUN_SIZE
        self.count += 1
        return 0

    cdef int log(self, Tables tables, uint32_t endpoint, uint8_t flags) except -1:
        cdef SettledHead head
        cdef uint8_t *record
        cdef uint32_t done = 0
        while done < self.count:
            memset(&head, 0, sizeof(SettledHead))
            head.kind = RECORD_SETTLED
            head.flags = flags
            head.count = min(self.count - done, <uint32_t>RUNS_MAX)
            head.size = SETTLED_HEAD_SIZE + head.count * ID_RUN_SIZE
            head.endpoint = endpoint
            record = tables.log.room(head.size, tables.wall_ns)
            memcpy(record, &head, SETTLED_HEAD_SIZE)
            memcpy(record + SETTLED_HEAD_SIZE, self.runs.data + <uint64_t>done * ID_RUN_SIZE, head.count * ID_RUN_SIZE)
            done += head.count
        return 0


cdef class Settling:
    """A checked SETTLE frame and its flow; `endpoint` 0: none."""

    cdef readonly uint32_t flow
    cdef readonly uint32_t transaction
    cdef readonly uint32_t endpoint
    cdef const uint8_t[::1] view
    cdef uint64_t runs_at
    cdef uint32_t count
    cdef uint64_t span  # number of ids in all runs

    def __cinit__(self, Tables tables not None, uint64_t link, data not None, uint64_t at):
        cdef SettleHead head
        cdef Run run
        cdef uint32_t index
        cdef uint64_t before = 0, length
        cdef Flow *flow
        self.view = data
        memcpy(&head, &self.view[at], SETTLE_HEAD_SIZE)
        self.flow = head.flow
        self.transaction = head.transaction
        self.runs_at = at + SETTLE_HEAD_SIZE
        self.count = head.count
        flow = tables.flow_of(head.flow, link)
        self.endpoint = 0 if flow is NULL else flow.endpoint
        for index in range(self.count):
            run = self.run(index)
            if (index and run.first <= before) or run.what > SETTLE_REJECTED:
                raise RemoteProtocolError("the runs of a SETTLE frame are not in order")
            before = run.last
            length = run.last - run.first + 1
            self.span = self.span + length if length and self.span + length > self.span else ~<uint64_t>0

    cdef Run run(self, uint32_t index) noexcept:
        cdef Run run
        memcpy(&run, &self.view[self.runs_at + index * RUN_SIZE], RUN_SIZE)
        return run

    cdef uint8_t what_of(self, uint64_t id) noexcept:
        """The settlement of an id; 0: in no run."""
        cdef uint32_t low = 0, high = self.count, middle
        cdef Run run
        while low < high:
            middle = (low + high) // 2
            run = self.run(middle)
            if id > run.last:
                low = middle + 1
            elif id < run.first:
                high = middle
            else:
                return run.what
        return 0

    def entries(self, Tables tables not None) -> tuple:
        """Return (ids, settlements) of the messages in flight that the frame has, as arrays."""
        cdef Flow *flow = tables.flows + self.flow
        cdef uint32_t place, index
        cdef uint64_t id, count = 0
        cdef uint8_t what
        cdef Run run
        ids = numpy.empty(flow.unsettled, numpy.uint64)
        whats = numpy.empty(flow.unsettled, numpy.uint8)
        cdef uint64_t[::1] id_view = ids
        cdef uint8_t[::1] what_view = whats
        if self.span <= 4 * <uint64_t>flow.unsettled + 64:
            for index in range(self.count):
                run = self.run(index)
                for id in range(run.first, run.last + 1):
                    if in_flight(tables, id, self.endpoint, self.flow):
                        id_view[count] = id
                        what_view[count] = run.what
                        count += 1
        else:
            place = flow.entries.first
            while place:
                id = message_at(tables, entry_at(tables, place).message).id
                what = self.what_of(id)
                if what and entry_at(tables, place).state == STATE_IN_FLIGHT:
                    id_view[count] = id
                    what_view[count] = what
                    count += 1
                place = entry_at(tables, place).next
        return ids[:count], whats[:count]


cdef uint32_t in_flight(Tables tables, uint64_t id, uint32_t endpoint, uint32_t flow) noexcept:
    cdef uint32_t place = message_by_id(tables, id)
    if place:
        place = entry_of(tables, place, endpoint)
        if place and entry_at(tables, place).state == STATE_IN_FLIGHT and entry_at(tables, place).flow == flow:
            return place
    return 0


def settle(
    Tables tables not None, uint32_t endpoint, const uint64_t[::1] ids not None, const uint8_t[::1] whats not None
) -> None:
    """Settle these messages of an endpoint, in flight or held, and log it."""
    cdef Settlement settlement = Settlement()
    cdef Py_ssize_t index
    cdef uint32_t place, hint = 0
    cdef Endpoint *owner = tables.endpoint_of(endpoint)
    if owner is NULL:
        return
    for index in range(ids.shape[0]):
        place = message_by_id(tables, ids[index])
        place = entry_of(tables, place, endpoint) if place else 0
        if place == 0 or entry_at(tables, place).flow == 0:
            continue
        if whats[index] == SETTLE_ACKNOWLEDGED:
            settlement.add(ids[index])
            entry_free(tables, place)
            owner.settled += 1
            tables.settled_total += 1
        elif whats[index] == SETTLE_RETURNED:
            hint = give_back(tables, place, hint)
        else:
            flow_remove(tables, place)
            give_up(tables, place, WHY_REJECTED)
    settlement.log(tables, endpoint, 0)
    tables.note_ready(owner)  # its flows have room
    if tables.stuck_count and not tables.log.is_grouping:
        retry_stuck(tables, endpoint)  # perhaps also for dead letters of others


def treatment_settled(Tables tables not None, uint32_t endpoint, const uint64_t[::1] ids not None) -> int:
    """The highest treatment of these messages of an endpoint, whose settlement is sent to the standby."""
    cdef uint8_t treatment = 0
    cdef uint64_t id
    cdef uint32_t place
    if tables.endpoint_of(endpoint) is NULL or not is_mirrored(tables, endpoint):
        return 0
    for id in ids:
        place = message_by_id(tables, id)
        if place:
            treatment = max(treatment, message_at(tables, place).treatment)
    return treatment


def hold(Tables tables not None, uint32_t endpoint, const uint64_t[::1] ids not None) -> None:
    """Hold messages in flight that a transaction settles: they stay in place until it ends."""
    cdef uint64_t id
    for id in ids:
        entry_at(tables, entry_of(tables, message_by_id(tables, id), endpoint)).state = STATE_HELD


def log_settled(Tables tables not None, uint32_t endpoint, const uint64_t[::1] ids not None) -> None:
    """Log that an endpoint no longer has these messages."""
    cdef Settlement settlement = Settlement()
    cdef uint64_t id
    for id in ids:
        settlement.add(id)
    settlement.log(tables, endpoint, 0)


def drop(Tables tables not None, uint32_t endpoint, const uint64_t[::1] ids not None) -> None:
    """Drop messages that the active router's endpoint no longer has."""
    cdef uint64_t id
    cdef uint32_t place
    log_settled(tables, endpoint, ids)
    for id in ids:
        place = message_by_id(tables, id)
        place = entry_of(tables, place, endpoint) if place else 0
        if place:
            tables.endpoints[endpoint].removed += 1
            entry_free(tables, place)


cdef uint32_t give_back(Tables tables, uint32_t place, uint32_t hint) except? 0:
    """Return the entry from its flow to its queue; or remove it, if it was delivered often enough. Return a hint for
    the next one."""
    cdef Entry *entry = entry_at(tables, place)
    cdef const Endpoint *endpoint = tables.endpoints[entry.endpoint]
    flow_remove(tables, place)
    tables.returned_total += 1
    if endpoint.deliveries_max and entry.deliveries >= endpoint.deliveries_max:
        give_up(tables, place, WHY_DELIVERIES)
        return hint
    if endpoint.deliveries_max:  # the count must survive a crash
        log_returned(tables, endpoint.number, entry.deliveries, message_at(tables, entry.message).id)
    return queue_return(tables, place, hint)


cdef int log_returned(Tables tables, uint32_t endpoint, uint32_t deliveries, uint64_t id) except -1:
    cdef ReturnedRecord record = ReturnedRecord(RECORD_RETURNED, 0, 0, RETURNED_SIZE, endpoint, deliveries, id)
    memcpy(tables.log.room(RETURNED_SIZE, tables.wall_ns), &record, RETURNED_SIZE)
    return 0


# Dead letters


cdef bint is_expired(Tables tables, uint32_t place) noexcept:
    cdef const Entry *entry = entry_at(tables, place)
    cdef const Message *message = message_at(tables, entry.message)
    cdef const Endpoint *endpoint = tables.endpoints[entry.endpoint]
    if message.expires_ns and tables.wall_ns >= message.expires_ns and not entry.flags & ENTRY_DEAD:
        return True
    return endpoint.age_ns_max and tables.wall_ns - message.published_ns >= endpoint.age_ns_max


cdef int give_up(Tables tables, uint32_t place, uint8_t why) except -1:
    return give_up_to(tables, place, tables.endpoints[entry_at(tables, place).endpoint].dead_to, why)


cdef int give_up_to(Tables tables, uint32_t place, uint32_t dead_to, uint8_t why) except -1:
    cdef Entry *entry = entry_at(tables, place)
    cdef Endpoint *endpoint = tables.endpoints[entry.endpoint]
    cdef Endpoint *target = tables.endpoint_of(dead_to)
    cdef const Message *message = message_at(tables, entry.message)
    cdef uint64_t size = message.content_size
    if dead_to and (
        target is NULL or target.count >= target.messages_max or target.bytes + size > target.bytes_max
    ):
        entry.state = STATE_STUCK
        entry.flags = <uint8_t>(entry.flags & ~ENTRY_WHY_MASK | why << ENTRY_WHY_SHIFT)
        entry.given_up_by = endpoint.number
        list_append(tables, &endpoint.lists[STUCK_LIST], place)
        endpoint.queued += 1
        tables.stuck_count += 1
        return 0
    log_dead(tables, endpoint.number, dead_to, message.id, why, 0)
    endpoint.given_up += 1
    endpoint.expired += why == WHY_EXPIRED
    tables.given_up_total += 1
    if target is NULL:
        tables.discarded_total += 1
    if target is NULL or entry_of(tables, entry.message, target.number):
        entry.state = STATE_QUEUED  # in no list: nothing else to leave
        entry_free(tables, place)
        return 0
    rehome(tables, place, target, why)
    return queue_append(tables, place)


cdef void rehome(Tables tables, uint32_t place, Endpoint *target, uint8_t why) noexcept:
    """Move the entry to the target endpoint, in none of its lists."""
    cdef Entry *entry = entry_at(tables, place)
    cdef Endpoint *endpoint = tables.endpoints[entry.endpoint]
    cdef uint64_t size = message_at(tables, entry.message).content_size
    message_at(tables, entry.message).flags &= ~<uint8_t>MESSAGE_AS_MATCHED
    if tables.replication.is_streaming:
        stream_moved(tables, message_at(tables, entry.message), endpoint.number, target.number, why)
    endpoint.count -= 1
    endpoint.bytes -= size
    if entry.flags & ENTRY_REPLAYED:
        endpoint.replayed -= 1
    target.count += 1
    target.bytes += size
    target.accepted += 1
    entry.endpoint = target.number
    entry.deliveries = 0
    entry.given_up_by = endpoint.number
    entry.flags = <uint8_t>(ENTRY_DEAD | why << ENTRY_WHY_SHIFT | (entry.flags & ENTRY_REDELIVERED))


cdef void stream_moved(Tables tables, const Message *message, uint32_t source, uint32_t target, uint8_t why) noexcept:
    """Send the move to the standby, as far as it has the messages of the two endpoints."""
    if is_mirrored(tables, source):
        if message.flags & MESSAGE_SENT:
            tables.replication.push(
                message.id, moved_to(target, why) if is_mirrored(tables, target) else 0, source, ITEM_REMOVED
            )
    elif message.flags & MESSAGE_REPLICATED and is_mirrored(tables, target):
        tables.replication.push(message.id, 0, 0, ITEM_MESSAGE)


cdef int log_dead(Tables tables, uint32_t source, uint32_t target, uint64_t id, uint8_t why, uint8_t flags) except -1:
    cdef DeadRecord record
    memset(&record, 0, sizeof(DeadRecord))
    record.kind = RECORD_DEAD
    record.flags = flags
    record.why = why
    record.size = DEAD_SIZE
    record.source = source
    record.target = target
    record.id = id
    memcpy(tables.log.room(DEAD_SIZE, tables.wall_ns), &record, DEAD_SIZE)
    return 0


def sweep(Tables tables not None, uint32_t budget) -> None:
    """Check `budget` entries, continuing where the last call stopped, and remove expired ones; retry dead letters
    that had no room."""
    cdef uint32_t place
    if tables.stuck_count:
        retry_stuck(tables, 0)
    for _ in range(min(budget, tables.entry_end - 1)):
        tables.sweep_at = tables.sweep_at + 1 if tables.sweep_at + 1 < tables.entry_end else 1
        place = tables.sweep_at
        if entry_at(tables, place).state == STATE_QUEUED and is_expired(tables, place):
            tables.expired_total += 1
            queue_remove(tables, place)
            give_up(tables, place, WHY_EXPIRED)


cdef int retry_stuck(Tables tables, uint32_t target) except -1:
    """Retry dead letters for this endpoint; 0: for any."""
    cdef uint32_t number, place, last
    cdef Endpoint *endpoint
    for number in range(1, tables.endpoint_end):
        endpoint = tables.endpoint_of(number)
        if endpoint is NULL or (target and endpoint.dead_to != target):
            continue
        last = endpoint.lists[STUCK_LIST].last
        while last:
            place = endpoint.lists[STUCK_LIST].first
            queue_remove(tables, place)
            give_up(tables, place, (entry_at(tables, place).flags & ENTRY_WHY_MASK) >> ENTRY_WHY_SHIFT)
            if place == last or endpoint.lists[STUCK_LIST].last == place:  # there is still no room
                break
    return 0
