"""A router becomes active, or stands by.

While it stands by, its messages are in no queue. When it becomes active they are queued in the order of their ids, all of
them flagged as perhaps delivered before.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from penstock.assured.core.router._messages cimport message_free
from penstock.assured.core.router._mirroring cimport forget_held, hold_back
from penstock.assured.core.router._records cimport ENTRY_REDELIVERED, TREATMENT_NONE
from penstock.assured.core.router._tables cimport (
    LIST_COUNT,
    MESSAGE_GROUPED,
    MESSAGE_REPLICATED,
    MESSAGE_SENT,
    MESSAGE_STORED,
    STATE_QUEUED,
    STATE_STUCK,
    STATE_WAITING,
    Endpoint,
    List,
    Message,
    Tables,
    entry_at,
    message_at,
)

from penstock.assured.core.router._recovery import finish_recovery

cdef enum:
    EPOCH_BITS = 40         # of an id: its epoch is above; odd ones are the first router's


def leave_queues(Tables tables not None) -> None:
    """This router stands by from now on; it has no flows. What was queued waits."""
    cdef uint32_t place
    cdef Endpoint *endpoint
    for place in range(1, tables.entry_end):
        if entry_at(tables, place).state == STATE_QUEUED or entry_at(tables, place).state == STATE_STUCK:
            entry_at(tables, place).state = STATE_WAITING
    for place in range(1, tables.endpoint_end):
        endpoint = tables.endpoint_of(place)
        if endpoint is not NULL:
            for index in range(LIST_COUNT):
                endpoint.lists[index] = List(0, 0)
            endpoint.queued = 0
    tables.stuck_count = 0
    forget_held(tables)
    # nobody waits for acknowledgements any more: publishers go to the other router
    tables.waiting.first = tables.waiting.end
    tables.replication.forget_unreplicated()
    for place in range(1, tables.publishers.end):
        if tables.publishers.at(place) is not NULL:
            memset(tables.publishers.at(place).pending, 0, sizeof(tables.publishers.at(place).pending))
    for place in range(1, tables.message_end):
        if message_at(tables, place).id:
            message_at(tables, place).flags |= MESSAGE_STORED # or will be, with nobody waiting for it
            if message_at(tables, place).entries == 0:
                message_free(tables, place)


def enter_queues(Tables tables not None) -> None:
    """This router is active from now on."""
    cdef uint32_t place
    cdef const Message *message
    for place in range(1, tables.entry_end):
        entry_at(tables, place).flags |= ENTRY_REDELIVERED # the other router may have delivered it
    for place in range(1, tables.message_end):
        message_at(tables, place).flags &= ~<uint8_t>(MESSAGE_REPLICATED | MESSAGE_SENT)
    tables.replicated_first = tables.replicated_last = 0
    finish_recovery(tables)
    # what the other router sent is on its disk, too; of transactions that were made here, that is not known yet
    for place in range(1, tables.message_end if tables.replication.has_secondary else 1):
        message = message_at(tables, place)
        if message.id and message.flags & MESSAGE_GROUPED and message.treatment != TREATMENT_NONE:
            if (message.id ^ tables.next_id) >> EPOCH_BITS & 1 == 0:
                hold_back(tables, place)
