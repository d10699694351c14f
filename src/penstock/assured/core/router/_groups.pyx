"""Transactions: everything that one publishes and settles is one record of the log (REPL-10).

A pair executes a synchronous transaction completely at both routers, or at neither. At the active router nothing of it
is final before the standby has it: messages that it published are held back (_mirroring.hold_back), and messages that
it consumed leave their flow, but stay with the endpoint as CONSUMED. confirm() makes it final. A router that was
replaced before that undoes it (_receiving.resolve), because its successor never executed it.

    replication.consumed     (transaction's id, endpoint, ids, the settlement of each, and the target of each rejected one: as
                             decided then and sent to the standby); also from the log, after a start
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._containers cimport Waiting, map_get, queue_at
from penstock.assured.wire._layout cimport SETTLE_ACKNOWLEDGED, SETTLE_REJECTED, SETTLE_RETURNED, WINDOW_MAX
from penstock.assured.core.router._messages cimport (
    append_by_id,
    cached,
    consumed_entry,
    entry_free,
    entry_of,
    flow_remove,
    message_by_id,
    remember,
)
from penstock.assured.core.router._records cimport (
    LOG_RECORD_SIZE_MAX,
    RECORD_TRANSACTION,
    TRANSACTION_HEAD_SIZE,
    TREATMENT_SYNC,
    WHEN_COPIED,
    WHY_REJECTED,
    MessageHead,
    TransactionHead,
)
from penstock.assured.core.router._settling cimport Settlement, give_back, give_up_to, log_dead, log_returned, retry_stuck
from penstock.assured.core.router._mirroring cimport hold_back, is_at_absent, is_mirrored, target_now
from penstock.assured.core.router._replication_state cimport ITEM_BEGIN, ITEM_END, ITEM_REMOVED, moved_to
from penstock.assured.core.router._publishers cimport Publisher, set_bit
from penstock.assured.core.router._tables cimport (
    MESSAGE_REPLICATED,
    MESSAGE_STORED,
    STATE_CONSUMED,
    STATE_CONSUMED_THERE,
    STATE_REJECTED,
    STATE_WAITING,
    Endpoint,
    Entry,
    Message,
    Tables,
    entry_at,
    message_at,
)

from penstock.base.errors import LocalProtocolError


def begin_group(Tables tables not None, uint64_t publisher, uint32_t transaction) -> None:
    begin_record(tables, publisher, transaction)
    tables.group.count = 0
    if tables.replication.is_streaming:
        tables.replication.push(publisher, transaction, 0, ITEM_BEGIN)


cdef int begin_record(Tables tables, uint64_t publisher, uint32_t transaction) except -1:
    cdef TransactionHead head
    memset(&head, 0, sizeof(TransactionHead))
    head.kind = RECORD_TRANSACTION
    head.publisher = publisher
    head.transaction = transaction
    memcpy(tables.log.room(TRANSACTION_HEAD_SIZE, tables.wall_ns), &head, TRANSACTION_HEAD_SIZE)
    tables.log.begin_group()
    return 0


def group_size(Tables tables not None) -> int:
    """Size of the group so far."""
    return tables.log.group_size()


def group_treatment(Tables tables not None) -> int:
    """The highest treatment of the messages that it publishes; -1: none."""
    cdef uint64_t position
    cdef int treatment = -1
    for position in range(tables.waiting.end - tables.group.count, tables.waiting.end):
        treatment = max(treatment, <int>queue_at(&tables.waiting, position).treatment)
    return treatment


def end_group(Tables tables not None, uint8_t treatment, uint64_t transaction_id) -> int:
    """Make the group effective, with this treatment for all its messages. Return its sequence number."""
    cdef TransactionHead head
    cdef Waiting *waiting
    cdef Publisher *publisher
    cdef uint64_t position
    memcpy(&head, tables.log.group(), TRANSACTION_HEAD_SIZE)
    close_group(tables, &head, treatment, transaction_id)
    if tables.replication.is_streaming:
        tables.replication.push(tables.log.sequence(), transaction_id, treatment, ITEM_END)
        if treatment == TREATMENT_SYNC:
            tables.replication.note_awaited()
    for position in range(tables.waiting.end - tables.group.count, tables.waiting.end):
        waiting = queue_at(&tables.waiting, position)
        waiting.treatment = treatment
        if waiting.message:
            treat(tables, waiting.message, treatment)
            if treatment == TREATMENT_SYNC and tables.replication.has_secondary:
                hold_back(tables, waiting.message)
        remember(tables.publishers.at(waiting.publisher), waiting.number)
        set_bit(tables.publishers.at(waiting.publisher).pending, waiting.number)
    publisher = tables.publishers.at(tables.publishers.handle_of(head.publisher))
    publisher.transaction, publisher.treatment, publisher.is_at_one = head.transaction, treatment, False
    publisher.first_id, publisher.last_id = transaction_id - tables.group.count + 1, transaction_id
    return tables.log.sequence()


def last_transaction(Tables tables not None, uint64_t publisher_id) -> tuple:
    """Of a publisher: ((first id, last id) of its last transaction's messages, True if some of them may be at one
    router only). If the log has the transaction but not its content, this is True while the standby lacks endpoints."""
    cdef const Publisher *publisher = tables.publishers.at(tables.publishers.handle_of(publisher_id))
    is_at_one = publisher.is_at_one or (publisher.last_id == 0 and tables.replication.absent_count > 0)
    return (max(1, publisher.first_id), publisher.last_id), bool(is_at_one)


def is_at_one(Tables tables not None, uint64_t first_id, uint64_t last_id) -> bool:
    """True if some of the messages in this range of ids are in endpoints that the standby lacks. Ranges from the log
    or the standby are not searched further than the maximum size of a transaction."""
    cdef uint64_t id = first_id
    while id <= last_id and id - first_id < WINDOW_MAX:
        if is_at_absent(tables, id):
            return True
        id += 1
    return False


cdef int close_group(Tables tables, TransactionHead *head, uint8_t treatment, uint64_t id) except -1:
    cdef uint32_t size = tables.log.group_size()
    if size > LOG_RECORD_SIZE_MAX:
        raise LocalProtocolError(f"a transaction of {size} bytes")
    head.size, head.treatment, head.id = size, treatment, id
    memcpy(tables.log.group(), head, TRANSACTION_HEAD_SIZE)
    tables.log.end_group()
    return 0


cdef void treat(Tables tables, uint32_t place, uint8_t treatment) noexcept:
    """Give a message the treatment of its transaction, in the log and in the cache."""
    cdef Message *message = message_at(tables, place)
    cdef const uint8_t *record = cached(tables, message)
    if message.treatment == treatment:
        return
    message.treatment = treatment
    (<MessageHead *>(tables.log.group() + message.record_at)).treatment = treatment
    if record is not NULL:
        (<MessageHead *>record).treatment = treatment
    if not message.flags & MESSAGE_REPLICATED:
        append_by_id(tables, place)


def undo_group(Tables tables not None) -> None:
    """Undo the group. It must contain only messages."""
    cdef uint64_t index
    cdef uint32_t place, entry, following
    for index in range(tables.group.count):
        place = tables.group.items[tables.group.count - 1 - index]
        if place:
            message_at(tables, place).flags |= MESSAGE_STORED  # so that it is freed with its last entry
            entry = message_at(tables, place).entries
            while entry:
                following = entry_at(tables, entry).sibling
                tables.endpoints[entry_at(tables, entry).endpoint].accepted -= 1
                entry_free(tables, entry)
                entry = following
    tables.replication.undo_transaction()
    tables.waiting.end -= tables.group.count
    tables.return_ids(tables.group.count)
    tables.accepted_total -= tables.group.count
    tables.log.undo_group()


# Messages consumed by a synchronous transaction, until the standby has it


def consume(
    Tables tables not None, uint64_t transaction_id, uint32_t endpoint, const uint64_t[::1] ids not None,
    const uint8_t[::1] whats not None
) -> None:
    """Within a group: settle these held messages of an endpoint as requested, as far as that is still possible; log
    and stream it."""
    cdef Settlement settlement = Settlement()
    cdef Py_ssize_t index
    cdef uint32_t place, hint = 0
    cdef uint64_t target
    cdef Entry *entry
    cdef Endpoint *owner = tables.endpoint_of(endpoint)
    if owner is NULL:
        return
    consumed, said, targets = [], [], []
    for index in range(ids.shape[0]):
        place = message_by_id(tables, ids[index])
        place = entry_of(tables, place, endpoint) if place else 0
        if place == 0 or entry_at(tables, place).flow == 0:
            continue
        if whats[index] == SETTLE_RETURNED:  # as without the transaction
            hint = give_back(tables, place, hint)
            continue
        entry = entry_at(tables, place)
        flow_remove(tables, place)
        target = 0
        if whats[index] == SETTLE_ACKNOWLEDGED:
            settlement.add(ids[index])
        else:
            log_dead(tables, endpoint, owner.dead_to, ids[index], WHY_REJECTED, WHEN_COPIED)
            if owner.dead_to and is_mirrored(tables, owner.dead_to):
                target = moved_to(owner.dead_to, WHY_REJECTED)
        entry.state = STATE_CONSUMED_THERE
        if tables.replication.is_streaming and is_mirrored(tables, endpoint):
            if message_at(tables, entry.message).flags & MESSAGE_REPLICATED:
                entry.state = STATE_CONSUMED
                tables.replication.push(ids[index], target, endpoint, ITEM_REMOVED)
        consumed.append(ids[index])
        said.append(whats[index])
        targets.append(owner.dead_to if whats[index] != SETTLE_ACKNOWLEDGED else 0)
    settlement.log(tables, endpoint, WHEN_COPIED)
    if consumed:
        entries = numpy.array(consumed, numpy.uint64), numpy.array(said, numpy.uint8), numpy.array(targets, numpy.uint32)
        tables.replication.add_consumed(transaction_id, endpoint, *entries)
    tables.note_ready(owner)  # its flows have room


def confirm(Tables tables not None, uint64_t through_id) -> None:
    """The standby has all transactions up to this id, or does not need them."""
    if tables.replication.consumed:
        for _, endpoint, ids, whats, targets in tables.replication.take_consumed(through_id):
            let_go(tables, endpoint, ids, whats, targets)


cdef int let_go(
    Tables tables, uint32_t endpoint, const uint64_t[::1] ids, const uint8_t[::1] whats, const uint32_t[::1] targets
) except -1:
    cdef Settlement settlement = Settlement()
    cdef Py_ssize_t index
    cdef uint32_t place
    cdef Endpoint *owner = tables.endpoint_of(endpoint)
    if owner is NULL:
        return 0
    for index in range(ids.shape[0]):
        place = consumed_entry(tables, endpoint, ids[index])
        if place == 0:
            continue
        if whats[index] == SETTLE_ACKNOWLEDGED:
            settlement.add(ids[index])
            entry_free(tables, place)
            owner.settled += 1
            tables.settled_total += 1
        else:
            give_up_to(tables, place, target_now(tables, endpoint, targets[index]), WHY_REJECTED)
    settlement.log(tables, endpoint, 0)
    if tables.stuck_count:
        retry_stuck(tables, endpoint)
    return 0


cdef int tell_consumed(Tables tables) except -1:
    """List messages consumed by transactions that the standby may lack in their final state: removed, or moved to
    another endpoint. Nothing of such transactions is streamed any more."""
    cdef uint32_t place
    cdef uint64_t id
    cdef uint8_t what
    for _, endpoint, ids, whats, targets in tables.replication.consumed:
        for id, what, target in zip(ids.tolist(), whats.tolist(), targets.tolist()):
            place = consumed_entry(tables, endpoint, id)
            if place:
                is_moved = what == SETTLE_REJECTED and is_mirrored(tables, endpoint)
                entry_at(tables, place).state = STATE_REJECTED if is_moved else STATE_CONSUMED_THERE
                entry_at(tables, place).next = target_now(tables, endpoint, target)
    return 0


cdef int return_consumed(Tables tables, uint32_t place) except -1:
    """The transaction that consumed this entry was undone: the entry is undelivered again."""
    cdef Entry *entry = entry_at(tables, place)
    entry.state = STATE_WAITING
    return log_returned(tables, entry.endpoint, entry.deliveries, message_at(tables, entry.message).id)


def log_consumed(Tables tables not None) -> None:
    """Log consumed messages again, before the old records are dropped."""
    cdef TransactionHead head
    cdef Settlement settlement
    cdef const Endpoint *owner
    cdef Py_ssize_t index
    cdef const uint64_t[::1] ids
    cdef const uint8_t[::1] whats
    cdef const uint32_t[::1] targets
    for transaction_id, endpoint, each_ids, each_whats, each_targets in tables.replication.consumed:
        owner = tables.endpoint_of(endpoint)
        if owner is NULL:
            continue
        begin_record(tables, 0, 0)
        ids, whats, targets = each_ids, each_whats, each_targets
        settlement = Settlement()
        for index in range(ids.shape[0]):
            if consumed_entry(tables, endpoint, ids[index]) == 0:
                continue
            if whats[index] == SETTLE_ACKNOWLEDGED:
                settlement.add(ids[index])
            else:
                log_dead(tables, endpoint, targets[index], ids[index], WHY_REJECTED, WHEN_COPIED)
        settlement.log(tables, endpoint, WHEN_COPIED)
        memcpy(&head, tables.log.group(), TRANSACTION_HEAD_SIZE)
        close_group(tables, &head, TREATMENT_SYNC, transaction_id)
