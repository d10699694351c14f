"""The tables of a router, and the few things that all who use them do; _tables.pxd says what is in them."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._containers cimport (
    bytes_reserve,
    map_free,
    map_get,
    map_put,
    map_remove,
    push,
)
from penstock.assured.wire._layout cimport (
    ACKNOWLEDGE_HEAD_SIZE,
    FRAME_RUNS_MAX,
    KIND_ACKNOWLEDGE,
    LENGTH_SIZE,
    OUTCOME_FULL,
    RUN_SIZE,
    AcknowledgeHead,
    Run,
)
from penstock.wire._codec cimport store_u32

from penstock.base.errors import LimitError, LocalProtocolError


cdef class Tables:
    """`seed` is chance, so that nobody can choose ids that collide; `cache_size` bytes hold the newest messages."""

    def __cinit__(self, uint64_t seed, uint64_t cache_size):
        self.ids.seed = seed
        self.publisher_ids.seed = seed + 1
        self.cache_size = cache_size // 8 * 8
        self.cache = <uint8_t *>malloc(self.cache_size) # the system gives the memory as it is used
        if self.cache is NULL:
            raise MemoryError
        self.message_end = self.entry_end = self.endpoint_end = self.flow_end = self.publisher_end = 1
        self.section_first = 1
        self.next_sequence = 1
        self.next_id = 1
        self.is_recovering = True
        self.consumed = []
        self.undone = []

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
        for place in range(1, self.publisher_end):
            if self.publishers[place] is not NULL:
                free(self.publishers[place].runs)
                free(self.publishers[place])
        map_free(&self.ids)
        map_free(&self.publisher_ids)
        for each in (<uint64_t>self.message_blocks, <uint64_t>self.entry_blocks, <uint64_t>self.endpoints,
                     <uint64_t>self.flows, <uint64_t>self.publishers, <uint64_t>self.waiting.items,
                     <uint64_t>self.unreplicated.items, <uint64_t>self.sections, <uint64_t>self.cache,
                     <uint64_t>self.log.data, <uint64_t>self.log_offsets, <uint64_t>self.log_sizes,
                     <uint64_t>self.group.items, <uint64_t>self.ready.items, <uint64_t>self.dirty_flows.items,
                     <uint64_t>self.dirty_publishers.items, <uint64_t>self.destinations.items,
                     <uint64_t>self.stream.data, <uint64_t>self.held.items,
                     <uint64_t>self.delayed.items, <uint64_t>self.mentioned.items):
            free(<void *><uint64_t>each)

    @property
    def memory_bytes(self):
        """Of messages, entries and the map of ids: what grows with what is queued."""
        return (
            <uint64_t>self.message_block_count * BLOCK_PLACES * sizeof(Message)
            + <uint64_t>self.entry_block_count * BLOCK_PLACES * sizeof(Entry)
            + self.ids.capacity * 12
        )

    @property
    def waiting_count(self):
        """Messages that wait for the disk."""
        return self.waiting.end - self.waiting.first

    @property
    def unreplicated_count(self):
        """Messages whose acknowledgement waits for the secondary."""
        return self.unreplicated.end - self.unreplicated.first

    @property
    def is_holding(self):
        """Whether messages of transactions wait for the secondary, before they are delivered."""
        return self.held.count > 0

    # Endpoints

    def set_endpoint(
        self, uint32_t number, *, bint is_exclusive, bint gives_up_when_full, uint8_t treatment, uint32_t dead_to,
        uint16_t deliveries_max, uint64_t messages_max, uint64_t bytes_max, int64_t age_ns_max, uint64_t live_from,
        uint64_t own_through
    ):
        """Make an endpoint, or change one."""
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
        """What an endpoint has and has done, by name."""
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
        """Of a message in the log. Its definition may follow: cleaning logs definitions again, behind messages."""
        if self.endpoint_of(number) is NULL:
            self.set_endpoint(
                number, is_exclusive=False, gives_up_when_full=False, treatment=0, dead_to=0, deliveries_max=0,
                messages_max=0, bytes_max=0, age_ns_max=0, live_from=0, own_through=0
            )
            self.endpoints[number].is_defined = False
        return self.endpoints[number]

    def undefined_endpoints(self):
        """Numbers of those that the log speaks of without having their definition: they were deleted."""
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
        """The handle of a publisher, which is on this link from now on."""
        cdef uint32_t handle = map_get(&self.publisher_ids, publisher)
        if handle == 0:
            handle = self.make_publisher(publisher)
        self.publishers[handle].link = link
        return handle

    def close_publisher(self, uint32_t handle):
        cdef Publisher *publisher = self.publishers[handle]
        publisher.link = 0
        publisher.away_since_ns = self.wall_ns
        publisher.run_count = 0

    def publisher_state(self, uint32_t handle, uint64_t link):
        """(id, highest number, last transaction, its treatment) of the publisher with this handle on this link, or
        None."""
        cdef Publisher *publisher = self.publisher_of(handle, link)
        if publisher is NULL:
            return None
        return publisher.id, publisher.highest, publisher.transaction, publisher.treatment

    def publisher_owner(self, uint64_t publisher):
        """What stands for the name of the client that has it; 0: not known."""
        cdef uint32_t handle = map_get(&self.publisher_ids, publisher)
        return self.publishers[handle].owner if handle else 0

    def publisher_link(self, uint64_t publisher):
        """(handle, link) of a publisher that is known; link 0: it is away."""
        cdef uint32_t handle = map_get(&self.publisher_ids, publisher)
        return handle, (self.publishers[handle].link if handle else 0)

    cdef Publisher *publisher_of(self, uint32_t handle, uint64_t link) noexcept:
        if handle == 0 or handle >= self.publisher_end or self.publishers[handle] is NULL:
            return NULL
        return self.publishers[handle] if self.publishers[handle].link == link else NULL

    cdef uint32_t make_publisher(self, uint64_t id) except 0:
        cdef uint32_t handle = 1
        cdef Publisher **larger
        cdef Publisher *publisher
        cdef uint32_t capacity
        if id == 0:
            raise LocalProtocolError("0 is no publisher's id")
        if self.publisher_count >= self.publishers_max:
            handle = self.forget_publisher()
        else:
            handle = self.publisher_end
        if handle == self.publisher_end:
            if self.publisher_end >= self.publisher_capacity:
                capacity = max(<uint32_t>64, 2 * self.publisher_capacity)
                larger = <Publisher **>realloc(self.publishers, capacity * sizeof(Publisher *))
                if larger is NULL:
                    raise MemoryError
                self.publishers = larger
                self.publisher_capacity = capacity
            self.publishers[handle] = NULL
            self.publisher_end += 1
        publisher = <Publisher *>calloc(1, sizeof(Publisher))
        if publisher is NULL:
            raise MemoryError
        publisher.id = id
        publisher.away_since_ns = self.wall_ns
        map_put(&self.publisher_ids, id, handle)
        self.publishers[handle] = publisher
        self.publisher_count += 1
        return handle

    cdef uint32_t forget_publisher(self) except 0:
        """Make room: the one that was away longest is forgotten, with nothing of it waiting."""
        cdef uint32_t place, oldest = 0
        cdef uint64_t position
        for place in range(1, self.publisher_end):
            if self.publishers[place] is not NULL and self.publishers[place].link == 0 and (
                oldest == 0 or self.publishers[place].away_since_ns < self.publishers[oldest].away_since_ns
            ):
                oldest = place
        if oldest == 0:
            raise LimitError(f"{self.publisher_count} publishers are here already", hint="raise publishers_max")
        for position in range(self.waiting.first, self.waiting.end):
            if self.waiting.items[position & (self.waiting.capacity - 1)].publisher == oldest:
                self.waiting.items[position & (self.waiting.capacity - 1)].publisher = 0
        for position in range(self.unreplicated.first, self.unreplicated.end):
            if self.unreplicated.items[position & (self.unreplicated.capacity - 1)].publisher == oldest:
                self.unreplicated.items[position & (self.unreplicated.capacity - 1)].publisher = 0
        map_remove(&self.publisher_ids, self.publishers[oldest].id)
        free(self.publishers[oldest].runs)
        free(self.publishers[oldest])
        self.publishers[oldest] = NULL
        self.publisher_count -= 1
        return oldest

    cdef int acknowledge(self, uint32_t handle, uint64_t number, uint8_t outcome) except -1:
        """Tell the publisher, if it is here, when acknowledgements are taken."""
        cdef Publisher *publisher = self.publishers[handle]
        cdef AckRun *run
        cdef uint32_t capacity
        cdef uint32_t endpoint = self.full_endpoint if outcome == OUTCOME_FULL else 0
        cdef uint8_t limit = self.full_limit if outcome == OUTCOME_FULL else 0
        self.outcomes[outcome % OUTCOME_COUNT] += 1
        if publisher.link == 0:
            return 0
        if publisher.run_count:
            run = publisher.runs + publisher.run_count - 1
            if run.last + 1 == number and run.outcome == outcome and run.endpoint == endpoint and run.limit == limit:
                run.last = number
                return 0
        if publisher.run_count == publisher.run_capacity:
            capacity = max(<uint32_t>16, 2 * publisher.run_capacity)
            run = <AckRun *>realloc(publisher.runs, capacity * sizeof(AckRun))
            if run is NULL:
                raise MemoryError
            publisher.runs = run
            publisher.run_capacity = capacity
        publisher.runs[publisher.run_count] = AckRun(number, number, outcome, limit, endpoint)
        publisher.run_count += 1
        if not publisher.is_dirty:
            publisher.is_dirty = True
            push(&self.dirty_publishers, handle)
        return 0

    def outcome_counts(self):
        """{outcome: messages} of what publishers were told."""
        return {outcome: self.outcomes[outcome] for outcome in range(OUTCOME_COUNT) if self.outcomes[outcome]}

    def take_acknowledgements(self):
        """[(link, frames, endpoints that are full by them)] of what publishers are to be told."""
        cdef uint64_t index
        cdef uint32_t handle, done
        cdef Publisher *publisher
        found = []
        for index in range(self.dirty_publishers.count):
            handle = self.dirty_publishers.items[index]
            publisher = self.publishers[handle]
            if publisher is NULL:
                continue
            publisher.is_dirty = False
            done = 0
            while done < publisher.run_count:
                count = min(publisher.run_count - done, <uint32_t>FRAME_RUNS_MAX)
                frame = acknowledge_frame(handle, publisher.runs + done, count)
                full = full_endpoints(publisher.runs + done, count) if self.full_endpoint else ()
                found.append((publisher.link, frame, full))
                done += count
            publisher.run_count = 0
        self.dirty_publishers.count = 0
        return found

    def take_mentions(self):
        """[(link, endpoint)] of those that deliveries speak of."""
        cdef uint64_t index
        if self.mentioned.count == 0:
            return ()
        found = [(self.flows[self.mentioned.items[2 * index]].link, self.mentioned.items[2 * index + 1])
                 for index in range(self.mentioned.count // 2)]
        self.mentioned.count = 0
        return found

    # The log

    cdef uint8_t *log_room(self, uint32_t size) except NULL:
        """Room for a record of this size at the end of the log; its sections know of it."""
        cdef uint32_t *larger
        cdef uint64_t capacity
        bytes_reserve(&self.log, size)
        if not self.is_grouping:
            if self.log_rows == self.log_capacity:
                capacity = max(<uint64_t>256, 2 * self.log_capacity)
                larger = <uint32_t *>realloc(self.log_offsets, capacity * sizeof(uint32_t))
                if larger is NULL:
                    raise MemoryError
                self.log_offsets = larger
                larger = <uint32_t *>realloc(self.log_sizes, capacity * sizeof(uint32_t))
                if larger is NULL:
                    raise MemoryError
                self.log_sizes = larger
                self.log_capacity = capacity
            if self.section_count == 0 or (
                self.sections[self.section_count - 1].size >= self.section_size_max
            ):
                self.begin_section(self.next_sequence, self.wall_ns)
            self.log_offsets[self.log_rows] = <uint32_t>self.log.size
            self.log_sizes[self.log_rows] = size
            self.log_rows += 1
            self.next_sequence += 1
        self.sections[self.section_count - 1].size += size
        self.log_size += size
        self.log.size += size
        return self.log.data + self.log.size - size

    cdef uint64_t log_sequence(self) noexcept:
        """Of the record that log_room() gave last, or of the one it is in."""
        return self.next_sequence - 1

    cdef uint32_t record_begin(self) noexcept:
        """Where the newest of the journal's records begins among those that were not taken."""
        return self.log_offsets[self.log_rows - 1]

    cdef int begin_section(self, uint64_t first_sequence, int64_t begun_ns) except -1:
        cdef uint32_t capacity
        cdef Section *larger
        if self.section_count == self.section_capacity:
            capacity = max(<uint32_t>16, 2 * self.section_capacity)
            larger = <Section *>realloc(self.sections, capacity * sizeof(Section))
            if larger is NULL:
                raise MemoryError
            self.sections = larger
            self.section_capacity = capacity
        memset(self.sections + self.section_count, 0, sizeof(Section))
        self.sections[self.section_count].first_sequence = first_sequence
        self.sections[self.section_count].begun_ns = begun_ns
        self.section_count += 1
        return 0

    def append_record(self, bytes record not None):
        """Log a record that was made in Python; returns its sequence number."""
        memcpy(self.log_room(<uint32_t>len(record)), <const uint8_t *>record, len(record))
        return self.log_sequence()

    def take_log(self):
        """(data, offsets, sizes, number of the first) of the records since the last time, or None."""
        cdef uint32_t[::1] view
        if self.log_rows == 0:
            return None
        data = PyBytes_FromStringAndSize(<const char *>self.log.data, self.log.size)
        offsets = numpy.empty(self.log_rows, numpy.uint32)
        sizes = numpy.empty(self.log_rows, numpy.uint32)
        view = offsets
        memcpy(&view[0], self.log_offsets, self.log_rows * sizeof(uint32_t))
        view = sizes
        memcpy(&view[0], self.log_sizes, self.log_rows * sizeof(uint32_t))
        first = self.next_sequence - self.log_rows
        self.log.size = 0
        self.log_rows = 0
        return data, offsets, sizes, first

    @property
    def log_bytes(self):
        """Bytes of records that were not taken yet."""
        return self.log.size

    @property
    def oldest_section(self):
        """(first sequence, first of the next, messages that live, when the next began, bytes that live), or None if there
        is one only."""
        if self.section_count < 2:
            return None
        return (self.sections[0].first_sequence, self.sections[1].first_sequence, self.sections[0].live_count,
                self.sections[1].begun_ns, self.sections[0].live_size)

    def drop_section(self):
        """The oldest, in which nothing lives."""
        if self.section_count < 2 or self.sections[0].live_count:
            raise LocalProtocolError("the oldest section of the log is in use")
        self.log_size -= self.sections[0].size
        self.section_count -= 1
        self.section_first += 1
        for place in range(self.section_count):
            self.sections[place] = self.sections[place + 1]

    cdef Flow *flow_of(self, uint32_t handle, uint64_t link) noexcept:
        if handle == 0 or handle >= self.flow_end or not self.flows[handle].is_used:
            return NULL
        return self.flows + handle if self.flows[handle].link == link else NULL


cdef bytes acknowledge_frame(uint32_t publisher, const AckRun *runs, uint32_t count):
    cdef uint32_t size = ACKNOWLEDGE_HEAD_SIZE + count * RUN_SIZE
    cdef AcknowledgeHead head = AcknowledgeHead(KIND_ACKNOWLEDGE, 0, <uint16_t>count, publisher)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, LENGTH_SIZE + size)
    cdef uint8_t *out = <uint8_t *><char *>frame
    cdef Run run
    cdef uint32_t index
    store_u32(out, size)
    memcpy(out + LENGTH_SIZE, &head, ACKNOWLEDGE_HEAD_SIZE)
    out += LENGTH_SIZE + ACKNOWLEDGE_HEAD_SIZE
    memset(&run, 0, sizeof(Run))
    for index in range(count):
        run.first, run.last, run.what = runs[index].first, runs[index].last, runs[index].outcome
        run.limit, run.endpoint = runs[index].limit, runs[index].endpoint
        memcpy(out, &run, RUN_SIZE)
        out += RUN_SIZE
    return frame


cdef set full_endpoints(const AckRun *runs, uint32_t count):
    cdef uint32_t index
    return {runs[index].endpoint for index in range(count) if runs[index].endpoint}
