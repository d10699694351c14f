"""The tables of a router and their common operations; see _tables.pxd."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from penstock.assured.core.router._containers cimport map_free, push, queue_forget_publisher
from penstock.assured.core.router._log_writer cimport LogWriter
from penstock.assured.core.router._publishers cimport PublisherTable
from penstock.assured.core.router._record_cache cimport RecordCache
from penstock.assured.core.router._replication_state cimport ReplicationState
from penstock.assured.wire._layout cimport OUTCOME_FULL

from penstock.base.errors import LocalProtocolError


cdef class Tables:
    """`seed` is random, so that nobody can choose colliding ids. `cache_size` is the size of the cache of the newest
    messages. The other limits are those of RouterConfig; `replicate_by`: 0 endpoints, 1 publishers, 2 topics."""

    def __cinit__(
        self, uint64_t seed, *, uint64_t cache_size, uint64_t section_size_max, uint64_t publisher_count_max,
        uint64_t message_count_max, uint64_t payload_size_max, uint64_t unsettled_max, uint64_t unsettled_bytes_max,
        bint keeps_unmatched, bint refuses_unmatched, int replicate_by
    ):
        self.ids.seed = seed
        self.publishers = PublisherTable(seed + 1, publisher_count_max)
        self.cache = RecordCache(cache_size)
        self.log = LogWriter(section_size_max)
        self.message_count_max = message_count_max
        self.payload_size_max = payload_size_max
        self.unsettled_max = unsettled_max
        self.unsettled_bytes_max = unsettled_bytes_max
        self.keeps_unmatched = keeps_unmatched
        self.refuses_unmatched = refuses_unmatched
        self.replicate_by = replicate_by
        self.message_end = self.entry_end = self.endpoint_end = self.flow_end = 1
        self.next_id = 1
        self.is_recovering = True
        self.replication = ReplicationState()

    def __dealloc__(self):
        cdef uint32_t place
        for place in range(self.message_block_count):
            free(self.message_blocks[place])
        for place in range(self.entry_block_count):
            free(self.entry_blocks[place])
        for place in range(1, self.endpoint_end):
            if self.endpoints[place] is not NULL:
                free(self.endpoints[place].flows)
                free(self.endpoints[place])
        for place in range(1, self.flow_end):
            free(self.flows[place].output.data)
        map_free(&self.ids)
        for each in (<uint64_t>self.message_blocks, <uint64_t>self.entry_blocks, <uint64_t>self.endpoints,
                     <uint64_t>self.flows, <uint64_t>self.waiting.items, <uint64_t>self.group.items, <uint64_t>self.ready.items, <uint64_t>self.dirty_flows.items,
                     <uint64_t>self.destinations.items, <uint64_t>self.held.items,
                     <uint64_t>self.delayed.items, <uint64_t>self.mentioned.items):
            free(<void *><uint64_t>each)

    @property
    def memory_bytes(self):
        """Size of messages, entries and the map of ids, which grows with queued messages."""
        return (
            <uint64_t>self.message_block_count * BLOCK_PLACES * sizeof(Message)
            + <uint64_t>self.entry_block_count * BLOCK_PLACES * sizeof(Entry)
            + self.ids.capacity * 12
        )

    @property
    def waiting_count(self):
        """Number of messages that wait for the disk."""
        return self.waiting.end - self.waiting.first

    @property
    def is_holding(self):
        """True if messages of transactions wait for the standby before they are delivered."""
        return self.held.count > 0

    # Ids and time

    cdef uint64_t take_id(self) noexcept:
        """Return the id of a new message."""
        self.next_id += 1
        return self.next_id - 1

    cdef void return_ids(self, uint64_t count) noexcept:
        """The last `count` ids were not used."""
        self.next_id -= count

    cpdef void skip_ids(self, uint64_t through) noexcept:
        """Ids up to this one are taken; new messages get higher ones."""
        self.next_id = max(self.next_id, through + 1)

    cpdef void set_time(self, int64_t wall_ns) noexcept:
        """Set the wall-clock time of all events until the next call."""
        self.wall_ns = wall_ns

    def refuse(self, bint is_refusing):
        """Set whether new messages are refused because the disk accepts no data."""
        self.is_refusing = is_refusing

    # Endpoints

    cdef void new_stamp(self) noexcept:
        """Begin a walk over endpoints in which each counts once."""
        self.stamp += 1

    cdef bint is_first(self, Endpoint *endpoint) noexcept:
        """True if the walk visits this endpoint for the first time."""
        cdef bint is_met = endpoint.stamp == self.stamp
        endpoint.stamp = self.stamp
        return not is_met

    def set_endpoint(
        self, uint32_t number, *, bint is_exclusive, bint gives_up_when_full, uint8_t treatment, uint32_t dead_to,
        uint16_t deliveries_max, uint64_t messages_max, uint64_t bytes_max, int64_t age_ns_max, uint64_t live_from,
        uint64_t own_through
    ):
        """Create or change an endpoint."""
        cdef Endpoint *endpoint
        cdef Endpoint **larger
        cdef uint32_t end
        if number == 0:
            raise LocalProtocolError("endpoints are numbered from 1")
        if number >= self.endpoint_end:
            end = max(2 * self.endpoint_end, number + 1)
            larger = <Endpoint **>realloc(self.endpoints, end * sizeof(Endpoint *))
            if larger is NULL:
                raise MemoryError
            memset(larger + (self.endpoint_end if self.endpoints is not NULL else 0), 0,
                   (end - (self.endpoint_end if self.endpoints is not NULL else 0)) * sizeof(Endpoint *))
            self.endpoints = larger
            self.endpoint_end = end
        if self.endpoints[number] is NULL:
            self.endpoints[number] = <Endpoint *>calloc(1, sizeof(Endpoint))
            if self.endpoints[number] is NULL:
                raise MemoryError
        endpoint = self.endpoints[number]
        endpoint.is_used = True
        endpoint.is_defined = True
        endpoint.number = number
        endpoint.is_exclusive = is_exclusive
        endpoint.gives_up_when_full = gives_up_when_full
        endpoint.treatment = treatment
        endpoint.dead_to = dead_to
        endpoint.deliveries_max = deliveries_max
        endpoint.messages_max = messages_max
        endpoint.bytes_max = bytes_max
        endpoint.age_ns_max = age_ns_max
        endpoint.live_from = live_from
        endpoint.own_through = own_through
        self.endpoint_highest = max(self.endpoint_highest, number)
        self.note_ready(endpoint)

    def endpoint_numbers(self, uint32_t number):
        """Counters of an endpoint, by name."""
        cdef Endpoint *endpoint = self.endpoint_of(number)
        if endpoint is NULL:
            raise LocalProtocolError(f"there is no endpoint {number}")
        return {
            "messages": endpoint.count, "bytes": endpoint.bytes, "queued": endpoint.queued,
            "flows": endpoint.flow_count, "accepted": endpoint.accepted, "delivered": endpoint.delivered,
            "settled": endpoint.settled, "given_up": endpoint.given_up, "replayed": endpoint.replayed,
            "expired": endpoint.expired, "overflowed": endpoint.overflowed, "redelivered": endpoint.redelivered,
            "begun": endpoint.begun, "brought": endpoint.brought, "removed": endpoint.removed,
            "stuck": endpoint.lists[STUCK_LIST].first != 0,
        }

    cdef Endpoint *endpoint_of(self, uint32_t number) noexcept:
        if number == 0 or number >= self.endpoint_end or self.endpoints is NULL or self.endpoints[number] is NULL:
            return NULL
        return self.endpoints[number] if self.endpoints[number].is_used else NULL

    cdef Endpoint *expected_endpoint(self, uint32_t number) except NULL:
        """Return the endpoint of a message in the log, whose definition may follow: cleaning logs definitions again,
        after messages."""
        if self.endpoint_of(number) is NULL:
            self.set_endpoint(
                number, is_exclusive=False, gives_up_when_full=False, treatment=0, dead_to=0, deliveries_max=0,
                messages_max=0, bytes_max=0, age_ns_max=0, live_from=0, own_through=0
            )
            self.endpoints[number].is_defined = False
        return self.endpoints[number]

    def undefined_endpoints(self):
        """Numbers of endpoints in the log without a definition: they were deleted."""
        return [number for number in range(1, self.endpoint_end)
                if self.endpoint_of(number) is not NULL and not self.endpoints[number].is_defined]

    cdef int note_ready(self, Endpoint *endpoint) except -1:
        if endpoint.is_ready:
            return 0
        push(&self.ready, endpoint.number)
        endpoint.is_ready = True
        return 0

    # Publishers

    def open_publisher(self, uint64_t publisher, uint64_t link):
        """Return the handle of a publisher, which is on this link from now on."""
        cdef uint32_t handle = self.publishers.handle_of(publisher)
        if handle == 0:
            handle = self.make_publisher(publisher)
        self.publishers.at(handle).link = link
        return handle

    cdef uint32_t make_publisher(self, uint64_t id) except 0:
        """Create a publisher. If there is no room, the publisher that has been away longest is forgotten."""
        cdef uint32_t handle = 0
        if id == 0:
            raise LocalProtocolError("invalid publisher id 0")
        if self.publishers.count >= self.publishers.count_max:
            handle = self.publishers.forget_oldest()
            queue_forget_publisher(&self.waiting, handle)
            self.replication.forget_publisher(handle)
        return self.publishers.add(id, handle, self.wall_ns)

    cdef int acknowledge(self, uint32_t handle, uint64_t number, uint8_t outcome) except -1:
        cdef bint is_full = outcome == OUTCOME_FULL
        return self.publishers.acknowledge(
            handle, number, outcome, self.full_endpoint if is_full else 0, self.full_limit if is_full else 0
        )

    def take_mentions(self):
        """Return [(link, endpoint)] of the endpoints that deliveries refer to."""
        cdef uint64_t index
        if self.mentioned.count == 0:
            return ()
        found = [(self.flows[self.mentioned.items[2 * index]].link, self.mentioned.items[2 * index + 1])
                 for index in range(self.mentioned.count // 2)]
        self.mentioned.count = 0
        return found

    cdef Flow *flow_of(self, uint32_t handle, uint64_t link) noexcept:
        if handle == 0 or handle >= self.flow_end or not self.flows[handle].is_used:
            return NULL
        return self.flows + handle if self.flows[handle].link == link else NULL
