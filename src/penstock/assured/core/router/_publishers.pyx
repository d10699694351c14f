"""The known publishers; _publishers.pxd describes their state."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from penstock.assured.core.router._containers cimport map_free, map_get, map_put, map_remove, push
from penstock.assured.wire._layout cimport (
    ACKNOWLEDGE_HEAD_SIZE,
    FRAME_RUNS_MAX,
    KIND_ACKNOWLEDGE,
    LENGTH_SIZE,
    OUTCOME_REFUSED,
    RUN_SIZE,
    AcknowledgeHead,
    Run,
)
from penstock.wire._codec cimport store_u32

from penstock.base.errors import LimitError, LocalProtocolError


cdef class PublisherTable:
    """`seed` is random, so that nobody can choose colliding ids. Above `count_max`, a disconnected publisher is
    forgotten."""

    def __cinit__(self, uint64_t seed, uint64_t count_max):
        self._ids.seed = seed
        self.count_max = count_max
        self.end = 1

    def __dealloc__(self):
        cdef uint32_t handle
        for handle in range(1, self.end):
            if self._publishers[handle] is not NULL:
                free(self._publishers[handle].runs)
                free(self._publishers[handle])
        map_free(&self._ids)
        free(self._publishers)
        free(self._dirty.items)

    # Known publishers

    cdef Publisher *at(self, uint32_t handle) noexcept:
        return self._publishers[handle]

    cdef Publisher *on_link(self, uint32_t handle, uint64_t link) noexcept:
        if handle == 0 or handle >= self.end or self._publishers[handle] is NULL:
            return NULL
        return self._publishers[handle] if self._publishers[handle].link == link else NULL

    cdef uint32_t handle_of(self, uint64_t id) noexcept:
        return map_get(&self._ids, id)

    cdef uint32_t add(self, uint64_t id, uint32_t handle, int64_t wall_ns) except 0:
        """Add an unknown publisher; `handle` is one that forget_oldest() gave, or 0. Returns its handle."""
        cdef Publisher **larger
        cdef Publisher *publisher
        cdef uint32_t capacity
        if handle == 0:
            handle = self.end
            if handle >= self._capacity:
                capacity = max(<uint32_t>64, 2 * self._capacity)
                larger = <Publisher **>realloc(self._publishers, capacity * sizeof(Publisher *))
                if larger is NULL:
                    raise MemoryError
                self._publishers = larger
                self._capacity = capacity
            self._publishers[handle] = NULL
            self.end += 1
        publisher = <Publisher *>calloc(1, sizeof(Publisher))
        if publisher is NULL:
            raise MemoryError
        publisher.id = id
        publisher.away_since_ns = wall_ns
        map_put(&self._ids, id, handle)
        self._publishers[handle] = publisher
        self.count += 1
        return handle

    cdef uint32_t forget_oldest(self) except 0:
        """Forget the publisher that has been disconnected longest; returns its handle, which is free."""
        cdef uint32_t handle, oldest = 0
        for handle in range(1, self.end):
            if self._publishers[handle] is not NULL and self._publishers[handle].link == 0 and (
                oldest == 0 or self._publishers[handle].away_since_ns < self._publishers[oldest].away_since_ns
            ):
                oldest = handle
        if oldest == 0:
            raise LimitError(f"{self.count} publishers are here already", hint="raise publishers_max")
        map_remove(&self._ids, self._publishers[oldest].id)
        free(self._publishers[oldest].runs)
        free(self._publishers[oldest])
        self._publishers[oldest] = NULL
        self.count -= 1
        return oldest

    def close(self, uint32_t handle, int64_t wall_ns):
        """The publisher's link is closed; its unsent acknowledgements are dropped."""
        cdef Publisher *publisher = self._publishers[handle]
        publisher.link = 0
        publisher.away_since_ns = wall_ns
        publisher.run_count = 0

    def state(self, uint32_t handle, uint64_t link):
        """(id, highest number, last transaction, its treatment) of the publisher with this handle on this link, or
        None."""
        cdef Publisher *publisher = self.on_link(handle, link)
        if publisher is NULL:
            return None
        return publisher.id, publisher.highest, publisher.transaction, publisher.treatment

    def owner(self, uint64_t publisher):
        """The hash of the name of the client that owns the publisher; 0: not known."""
        cdef uint32_t handle = map_get(&self._ids, publisher)
        return self._publishers[handle].owner if handle else 0

    def link(self, uint64_t publisher):
        """(handle, link) of a known publisher; link 0: it is not connected."""
        cdef uint32_t handle = map_get(&self._ids, publisher)
        return handle, (self._publishers[handle].link if handle else 0)

    # Acknowledgements

    cdef int acknowledge(
        self, uint32_t handle, uint64_t number, uint8_t outcome, uint32_t endpoint, uint8_t limit
    ) except -1:
        """Acknowledge to the publisher, if it is connected; sent with the next frames. `endpoint` is the full one and
        `limit` its limit; or 0."""
        cdef Publisher *publisher = self._publishers[handle]
        cdef AckRun *run
        cdef uint32_t capacity
        self._outcomes[outcome % OUTCOME_COUNT] += 1
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
            push(&self._dirty, handle)
        return 0

    def outcome_counts(self):
        """{outcome: number of acknowledged messages}."""
        return {outcome: self._outcomes[outcome] for outcome in range(OUTCOME_COUNT) if self._outcomes[outcome]}

    def take_acknowledgements(self):
        """Remove and return the acknowledgements: [(link, frames, full endpoints in them)]."""
        cdef uint64_t index
        cdef uint32_t handle, done
        cdef Publisher *publisher
        found = []
        for index in range(self._dirty.count):
            handle = self._dirty.items[index]
            publisher = self._publishers[handle]
            if publisher is NULL:
                continue
            publisher.is_dirty = False
            done = 0
            while done < publisher.run_count:
                count = min(publisher.run_count - done, <uint32_t>FRAME_RUNS_MAX)
                frame = acknowledge_frame(handle, publisher.runs + done, count)
                full = full_endpoints(publisher.runs + done, count)
                found.append((publisher.link, frame, full))
                done += count
            publisher.run_count = 0
        self._dirty.count = 0
        return found

    cdef bytes take_only(self, uint64_t link):
        """The frame, if the only acknowledgements are one run of accepted messages for a publisher of this link;
        otherwise None, and nothing is removed."""
        cdef uint32_t handle
        cdef Publisher *publisher
        if self._dirty.count != 1:
            return None
        handle = self._dirty.items[0]
        publisher = self._publishers[handle]
        if publisher is NULL or publisher.link != link or publisher.run_count != 1:
            return None
        if publisher.runs[0].outcome >= OUTCOME_REFUSED:
            return None
        frame = acknowledge_frame(handle, publisher.runs, 1)
        publisher.is_dirty = False
        publisher.run_count = 0
        self._dirty.count = 0
        return frame


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
