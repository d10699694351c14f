"""Changes of a router's role.

While it is the standby, its messages are in no queue. When it becomes active, they are queued in the order of their
ids, all of them flagged as possibly delivered before.
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
    EPOCH_BITS = 40  # the lower bits of an id; its epoch is above, odd for the first router


def leave_queues(Tables tables not None) -> None:
    """Become the standby. There are no flows; queued messages wait."""
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
    # acknowledgements are dropped, because publishers go to the other router
    tables.waiting.first = tables.waiting.end
    tables.replication.forget_unreplicated()
    for place in range(1, tables.publishers.end):
        if tables.publishers.at(place) is not NULL:
            memset(tables.publishers.at(place).pending, 0, sizeof(tables.publishers.at(place).pending))
    for place in range(1, tables.message_end):
        if message_at(tables, place).id:
            message_at(tables, place).flags |= MESSAGE_STORED  # or will be, with no publisher waiting
            if message_at(tables, place).entries == 0:
                message_free(tables, place)


def enter_queues(Tables tables not None) -> None:
    """Become active."""
    cdef uint32_t place
    cdef const Message *message
    for place in range(1, tables.entry_end):
        entry_at(tables, place).flags |= ENTRY_REDELIVERED  # the other router may have delivered it
    for place in range(1, tables.message_end):
        message_at(tables, place).flags &= ~<uint8_t>(MESSAGE_REPLICATED | MESSAGE_SENT)
    tables.replicated_first = tables.replicated_last = 0
    finish_recovery(tables)
    # records from the other router are on its disk, too; for transactions of this router, that is not known yet
    for place in range(1, tables.message_end if tables.replication.has_secondary else 1):
        message = message_at(tables, place)
        if message.id and message.flags & MESSAGE_GROUPED and message.treatment != TREATMENT_NONE:
            if (message.id ^ tables.next_id) >> EPOCH_BITS & 1 == 0:
                hold_back(tables, place)
