"""The state of a router in memory: messages, queue entries, endpoints and flows. Publishers, the end of the log, the
record cache and the replication state have their own classes: _publishers.pxd, _log_writer.pxd, _record_cache.pxd,
_replication_state.pxd.

The kernels of this package own the tables: no other code writes their fields. Python and core/pair read them, call
their methods and call the kernels.

    Message   80 bytes    one for each message with an endpoint, or waiting for the disk
    Entry     32 bytes    one for each endpoint of a message; in the endpoint's queue, or in its flow's list when delivered
                          and not settled
    Map       about 17 to 34 bytes for each message: its slot by its id

The content is in the cache (a ring of the newest log records, bounded) or only in the journal. All references are
indices of slots in tables that grow and are reused; slot 0 is never used.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock.assured.core.router._containers cimport Bytes, Map, Numbers, Queue
from penstock.assured.core.router._log_writer cimport LogWriter
from penstock.assured.core.router._publishers cimport PublisherTable
from penstock.assured.core.router._record_cache cimport RecordCache
from penstock.assured.core.router._replication_state cimport ReplicationState

cdef enum:
    BLOCK_BITS = 14
    BLOCK_PLACES = 1 << BLOCK_BITS
    PRIORITIES = 10
    STUCK_LIST = 10  # dead letters of an endpoint that its dead-letter endpoint has no room for
    LIST_COUNT = 11

    STATE_FREE = 0
    STATE_WAITING = 1  # waits for the disk
    STATE_QUEUED = 2
    STATE_IN_FLIGHT = 3
    STATE_HELD = 4  # in flight, and settled by a transaction that has not ended
    STATE_STUCK = 5
    STATE_CONSUMED = 6  # consumed by a transaction that the standby does not have yet; in no list
    STATE_CONSUMED_THERE = 7  # the same, and the standby has the transaction, or does not need it
    STATE_REJECTED = 8  # the same, moved to a dead-letter endpoint, where the standby must have it at once

    MESSAGE_STORED = 1
    MESSAGE_REPLICATED = 2  # in the list by id
    MESSAGE_SENT = 4  # the standby has it or will get it, and is sent its changes
    MESSAGE_GROUPED = 8  # published in a transaction
    MESSAGE_AS_MATCHED = 16  # its endpoints are exactly those that matched


cdef struct Message:
    uint64_t id  # 0: the slot is free
    uint64_t sequence  # of its journal record
    uint64_t cached_at  # in the cache, if still present
    int64_t published_ns
    int64_t expires_ns  # 0: never
    uint32_t record_at  # in the journal record, which may have several
    uint32_t record_size
    uint32_t content_size  # topic and payload
    uint32_t entries  # the first of its entries
    uint32_t section
    uint32_t next_in_section  # in a free slot: the next free one
    uint32_t previous_in_section
    uint32_t next_by_id  # messages to replicate, by id, except those from the log
    uint32_t previous_by_id
    uint8_t priority
    uint8_t treatment
    uint8_t flags
    uint8_t reserved


cdef struct Entry:
    uint32_t message
    uint32_t endpoint
    uint32_t sibling  # the next entry of the same message
    uint32_t next  # in the queue or flow; in a free slot: the next free one; REJECTED: the target
    uint32_t previous
    uint32_t flow  # the flow on which it is in flight
    uint32_t given_up_by  # with ENTRY_DEAD: the source endpoint, if known
    uint16_t deliveries
    uint8_t state
    uint8_t flags  # of a destination; STATE_STUCK: with the reason, with or without ENTRY_DEAD


cdef struct List:
    uint32_t first
    uint32_t last


cdef struct Endpoint:
    bint is_used
    bint is_defined  # in recovery: its definition was found, perhaps after its messages
    bint is_exclusive
    bint gives_up_when_full
    bint is_ready  # in the list of endpoints to deliver
    bint is_fetching  # its next messages are being read from the journal
    bint is_delayed  # its next message is too young for the flows with credit
    int64_t due_ns  # wall-clock time: with is_delayed, when that message is old enough
    bint is_absent  # the standby currently lacks this endpoint: there are no copies
    uint64_t own_through  # messages up to this id may be at this router only
    uint8_t treatment
    uint32_t number
    uint32_t dead_to  # 0: dead letters are discarded
    uint16_t deliveries_max  # 0: unlimited
    uint64_t messages_max
    uint64_t bytes_max
    int64_t age_ns_max  # 0: unlimited
    uint64_t live_from  # while it is filled from the log: only ids below are delivered; otherwise 0
    uint64_t held_first  # transactions that the standby lacks: nothing is delivered from this id on
    uint64_t held_last  # the last message of these; 0: none
    uint64_t count  # entries, in any state
    uint64_t bytes
    uint64_t queued  # of these, those in its lists
    uint64_t replayed  # of these, those from the log
    uint64_t accepted  # so far
    uint64_t delivered
    uint64_t settled
    uint64_t given_up
    uint64_t expired  # of these, expired
    uint64_t overflowed  # moved elsewhere because it was full
    uint64_t redelivered  # of the deliveries
    uint64_t begun  # messages at the start of the router
    uint64_t brought  # messages from the active router, while this one was the standby
    uint64_t removed  # by an operator, or because the active router no longer has it
    List lists[LIST_COUNT]
    uint32_t *flows
    uint32_t flow_count
    uint32_t flow_capacity
    uint32_t turn
    uint64_t stamp  # the last message that was queued here


cdef struct Flow:
    bint is_used
    bint is_dirty  # has frames to send
    uint64_t link
    uint32_t endpoint
    uint32_t unsettled
    uint64_t unsettled_bytes
    uint64_t credit  # total number of allowed deliveries
    int64_t delay_ns  # delay of the consumer's grant: messages are delivered at this age; 0: at once
    uint64_t delivered
    List entries  # delivered and not settled, in the order of delivery
    Bytes output
    uint64_t frame_at  # start of the frame under construction
    uint32_t frame_count


cdef class Tables:
    cdef readonly LogWriter log
    cdef readonly RecordCache cache
    cdef readonly PublisherTable publishers
    cdef readonly ReplicationState replication
    cdef Message **message_blocks
    cdef uint32_t message_end
    cdef uint32_t message_free
    cdef uint32_t message_block_count
    cdef Entry **entry_blocks
    cdef uint32_t entry_end
    cdef uint32_t entry_free
    cdef uint32_t entry_block_count
    cdef Map ids
    cdef Endpoint **endpoints  # by number
    cdef uint32_t endpoint_end
    cdef Flow *flows
    cdef uint32_t flow_end
    cdef Queue waiting  # for the disk
    cdef Numbers group  # the messages of the current group
    cdef Numbers ready  # endpoints
    cdef Numbers held  # endpoints that hold messages back
    cdef Numbers delayed  # endpoints that wait until a message is old enough for a delayed flow
    cdef readonly int64_t delayed_due_ns  # wall-clock time of the first of these; 0: never
    cdef Numbers dirty_flows
    cdef Numbers mentioned  # flow, endpoint: deliveries refer to an endpoint whose name the consumer may not know
    cdef Numbers destinations  # of the message being accepted: endpoint, and the full one or 0
    cdef bint is_overflowing  # one of the matching endpoints is full: the message goes elsewhere
    cdef readonly uint32_t full_endpoint  # that had no room for the last refused message
    cdef readonly uint8_t full_limit  # its exceeded limit
    cdef uint32_t sweep_at
    cdef uint64_t stamp
    cdef uint64_t flow_capacity

    # read by Python
    cdef readonly uint64_t message_count
    cdef readonly uint64_t entry_count
    cdef readonly uint64_t expiring_count  # messages with a time to live
    cdef readonly uint64_t stuck_count
    cdef readonly uint64_t next_id  # of the next message
    cdef readonly uint64_t stored_through  # of the log, on the disk
    cdef readonly int64_t wall_ns  # wall-clock time of this event
    cdef readonly uint64_t message_count_max
    cdef readonly uint64_t payload_size_max
    cdef readonly uint64_t unsettled_max
    cdef readonly uint64_t unsettled_bytes_max
    cdef readonly bint is_recovering  # the log is being read
    cdef readonly uint32_t endpoint_highest  # the highest endpoint number in the log
    cdef readonly bint is_refusing  # the disk accepts no data
    cdef readonly bint keeps_unmatched
    cdef readonly bint refuses_unmatched
    cdef readonly int replicate_by  # 0 endpoints, 1 publishers, 2 topics
    cdef uint32_t replicated_first
    cdef uint32_t replicated_last

    # counters for status and metrics
    cdef readonly uint64_t accepted_total
    cdef readonly uint64_t acknowledged_total
    cdef readonly uint64_t refused_total
    cdef readonly uint64_t known_total
    cdef readonly uint64_t unmatched_total
    cdef readonly uint64_t delivered_total
    cdef readonly uint64_t redelivered_total
    cdef readonly uint64_t settled_total
    cdef readonly uint64_t returned_total
    cdef readonly uint64_t expired_total
    cdef readonly uint64_t given_up_total
    cdef readonly uint64_t discarded_total
    cdef readonly uint64_t moved_total

    cdef uint64_t take_id(self) noexcept
    cdef void return_ids(self, uint64_t count) noexcept
    cpdef void skip_ids(self, uint64_t through) noexcept
    cpdef void set_time(self, int64_t wall_ns) noexcept
    cdef void new_stamp(self) noexcept
    cdef bint is_first(self, Endpoint *endpoint) noexcept
    cdef int note_ready(self, Endpoint *endpoint) except -1
    cdef Endpoint *endpoint_of(self, uint32_t number) noexcept
    cdef Endpoint *expected_endpoint(self, uint32_t number) except NULL
    cdef Flow *flow_of(self, uint32_t handle, uint64_t link) noexcept
    cdef uint32_t make_publisher(self, uint64_t id) except 0
    cdef int acknowledge(self, uint32_t publisher, uint64_t number, uint8_t outcome) except -1


cdef inline Message *message_at(Tables tables, uint32_t place) noexcept:
    return tables.message_blocks[place >> BLOCK_BITS] + (place & (BLOCK_PLACES - 1))


cdef inline Entry *entry_at(Tables tables, uint32_t place) noexcept:
    return tables.entry_blocks[place >> BLOCK_BITS] + (place & (BLOCK_PLACES - 1))
