"""What a router has in memory: messages, where each is queued, endpoints and flows. Publishers, the end of the log, the
cache of records and what is kept for the other router of a pair have owners of their own: _publishers.pxd,
_log_writer.pxd, _record_cache.pxd, _replication_state.pxd.

The kernels of this package own the tables: nobody else writes their fields. Python and core/pair read them, call their
methods and call the kernels.

    Message   80 bytes    one for each message that some endpoint has, or that waits for the disk
    Entry     32 bytes    one for each endpoint that a message is queued to; in the endpoint's queue, or, delivered and
                          not settled, in its flow's list
    Map       about 17 to 34 bytes for each message: its slot by its id

The content is in the cache (a ring of the newest log records, bounded) or in the journal only. All are numbers of
places in tables that grow and are used again; place 0 is nobody's.
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
    STUCK_LIST = 10                 # of an endpoint: what it gives up and its dead-message queue has no room for
    LIST_COUNT = 11

    STATE_FREE = 0
    STATE_WAITING = 1               # for the disk
    STATE_QUEUED = 2
    STATE_IN_FLIGHT = 3
    STATE_HELD = 4                  # in flight, and settled by a transaction that has not ended
    STATE_STUCK = 5
    STATE_CONSUMED = 6              # by a transaction that the other router is still to be told of; in no list
    STATE_CONSUMED_THERE = 7        # the same, and the other router has been told, or need not be
    STATE_REJECTED = 8              # the same, to a dead-message queue: the other router is to have it there at once

    MESSAGE_STORED = 1
    MESSAGE_REPLICATED = 2          # in the list by id
    MESSAGE_SENT = 4                # the other router has it, or is to have it: it is told what becomes of it
    MESSAGE_GROUPED = 8             # published in a transaction
    MESSAGE_AS_MATCHED = 16         # its endpoints are all that wanted it, and no others


cdef struct Message:
    uint64_t id                     # 0: the place is free
    uint64_t sequence               # of its record in the journal
    uint64_t cached_at              # in the cache, if it is still there
    int64_t published_ns
    int64_t expires_ns              # 0: never
    uint32_t record_at              # in the journal's record, which may have several
    uint32_t record_size
    uint32_t content_size           # topic and payload
    uint32_t entries                # the first of its entries
    uint32_t section
    uint32_t next_in_section        # of a free place: the next free one
    uint32_t previous_in_section
    uint32_t next_by_id             # those to be replicated; by their ids, but for those out of the log
    uint32_t previous_by_id
    uint8_t priority
    uint8_t treatment
    uint8_t flags
    uint8_t reserved


cdef struct Entry:
    uint32_t message
    uint32_t endpoint
    uint32_t sibling                # the next of the same message
    uint32_t next                   # of the queue or the flow; of a free place: the next free one; REJECTED: the target
    uint32_t previous
    uint32_t flow                   # that it is in flight on
    uint32_t given_up_by            # with ENTRY_DEAD: the endpoint, if it is known
    uint16_t deliveries
    uint8_t state
    uint8_t flags                   # of a destination; STATE_STUCK: with the reason, ENTRY_DEAD or not


cdef struct List:
    uint32_t first
    uint32_t last


cdef struct Endpoint:
    bint is_used
    bint is_defined                 # in recovery: its definition was found, perhaps after messages that it has
    bint is_exclusive
    bint gives_up_when_full
    bint is_ready                   # in the list of those to look at
    bint is_fetching                # its next messages are being read from the journal
    bint is_delayed                 # in the list of those whose next message is too young for the flows that have credit
    int64_t due_ns                  # of the wall clock: with is_delayed, when that message is old enough
    bint is_absent                  # the other router has no such endpoint, as it says now: there are no copies
    uint64_t own_through            # what it has up to this id may be nowhere else
    uint8_t treatment
    uint32_t number
    uint32_t dead_to                # 0: what it gives up is discarded
    uint16_t deliveries_max         # 0: any number
    uint64_t messages_max
    uint64_t bytes_max
    int64_t age_ns_max              # 0: any age
    uint64_t live_from              # while it is filled from the log: only ids below are delivered; else 0
    uint64_t held_first             # transactions that the other router has not got: from this id on nothing is delivered
    uint64_t held_last              # the last message of these; 0: there are none
    uint64_t count                  # entries, in whatever state
    uint64_t bytes
    uint64_t queued                 # of these: those in its lists
    uint64_t replayed               # of these: those that came from the log
    uint64_t accepted               # so far
    uint64_t delivered
    uint64_t settled
    uint64_t given_up
    uint64_t expired                # of these: too old
    uint64_t overflowed             # what went elsewhere because it was full
    uint64_t redelivered            # of those delivered
    uint64_t begun                  # what it had when the router was started
    uint64_t brought                # by the active router, while this one stood by
    uint64_t removed                # by an operator, or because the active router has it no more
    List lists[LIST_COUNT]
    uint32_t *flows
    uint32_t flow_count
    uint32_t flow_capacity
    uint32_t turn
    uint64_t stamp                  # the last message that was queued here


cdef struct Flow:
    bint is_used
    bint is_dirty                   # has frames to send
    uint64_t link
    uint32_t endpoint
    uint32_t unsettled
    uint64_t unsettled_bytes
    uint64_t credit                 # deliveries that are allowed in all
    int64_t delay_ns                # of the consumer's grant: messages are delivered when they are so old; 0: at once
    uint64_t delivered
    List entries                    # delivered and not settled, in the order of delivery
    Bytes output
    uint64_t frame_at               # of the frame that is being written
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
    cdef Endpoint **endpoints           # by number
    cdef uint32_t endpoint_end
    cdef Flow *flows
    cdef uint32_t flow_end
    cdef Queue waiting                  # for the disk
    cdef Numbers group                  # the messages that it has so far
    cdef Numbers ready                  # endpoints
    cdef Numbers held                   # endpoints that hold messages back
    cdef Numbers delayed                # endpoints that wait until a message is old enough for a delayed flow
    cdef readonly int64_t delayed_due_ns    # of the wall clock: when the first of these is to be looked at; 0: never
    cdef Numbers dirty_flows
    cdef Numbers mentioned              # flow, endpoint: deliveries speak of it, and the consumer may not know its name
    cdef Numbers destinations           # of the message that is being accepted: endpoint, and the one that is full or 0
    cdef bint is_overflowing            # one of those that want it is full: it goes elsewhere
    cdef readonly uint32_t full_endpoint    # that had no room for the message that was refused last
    cdef readonly uint8_t full_limit        # which of its limits
    cdef uint32_t sweep_at
    cdef uint64_t stamp
    cdef uint64_t flow_capacity

    # what Python reads
    cdef readonly uint64_t message_count
    cdef readonly uint64_t entry_count
    cdef readonly uint64_t expiring_count       # messages with a time to live
    cdef readonly uint64_t stuck_count
    cdef readonly uint64_t next_id                # of the next message
    cdef readonly uint64_t stored_through       # of the log, on the disk
    cdef readonly int64_t wall_ns               # the time of day of this event
    cdef readonly uint64_t message_count_max
    cdef readonly uint64_t payload_size_max
    cdef readonly uint64_t unsettled_max
    cdef readonly uint64_t unsettled_bytes_max
    cdef readonly bint is_recovering              # the log is being read
    cdef readonly uint32_t endpoint_highest     # the highest number of an endpoint that the log has
    cdef readonly bint is_refusing              # the disk takes nothing
    cdef readonly bint keeps_unmatched
    cdef readonly bint refuses_unmatched
    cdef readonly int replicate_by              # 0 endpoints, 1 publishers, 2 topics
    cdef uint32_t replicated_first
    cdef uint32_t replicated_last

    # counted, for status and metrics
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
