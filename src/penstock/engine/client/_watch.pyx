"""Watch: a queue of changed records without duplicates, and their notification filter.

The caller passes times: `now_ns` of a monotonic clock, `wall_ns` since 1970.

Reported slots form a list, ordered by the time of their last report. Slots that were reported too recently are at its
end, from `_resting` on: a slot that changes meanwhile waits there, and is queued at its time. The first slot of the
list is the next one to be repeated because of `at_least_every`. All operations take constant time.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from penstock.engine.client._fields cimport MASK_WORDS, FieldTable, compare_fields, has_moved
from penstock.engine.client._store cimport RecordState, RecordStore
from penstock.shm._memory cimport load_acquire
from penstock.shm._region cimport (
    PARTS_MAX,
    RECORD_WITHDRAWN,
    STATE_COHERENT,
    STATE_NEVER_WRITTEN,
    Head,
    State,
    take_soon,
)

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError


cdef class Watch:
    """Watches admitted records of a store. Without configure(), every change is reported."""

    def __cinit__(self, RecordStore store not None):
        cdef uint64_t count = store.geometry.record_count
        self.store = store
        self._slots = <Slot *>calloc(count, sizeof(Slot))
        self._queue = <uint32_t *>calloc(count, sizeof(uint32_t))
        self._told = <uint8_t *>calloc(count, store.geometry.payload_size)
        if self._slots is NULL or self._queue is NULL or self._told is NULL:
            raise MemoryError
        self._first = self._last = self._resting = NOWHERE
        self._can_pass = True
        self._open_ns, self._close_ns = INT64_MIN, INT64_MAX

    def __dealloc__(self):
        free(self._slots)
        free(self._queue)
        free(self._told)

    def configure(self, rule not None) -> None:
        """Replace the filter. Earlier reports and pending changes stay."""
        cdef FieldTable table = self.store.table
        cdef uint64_t[MASK_WORDS] fields
        moves = rule.moves_in(table.model)
        if len(moves) > MOVES_MAX:
            raise ConfigurationError(f"the filter has {len(moves)} moves, the limit is {MOVES_MAX}")
        names = rule.fields_in(table.model)
        memset(fields, 0, sizeof(fields))
        for name in names:
            number = table.number(name)
            fields[<uint32_t>number >> 6] |= <uint64_t>1 << (number & 63)
        interval_ns = int(NS_PER_SECOND / rule.per_second) if rule.per_second else 0
        every_ns = int(rule.at_least_every * NS_PER_SECOND)
        memcpy(self._fields, fields, sizeof(fields))
        self._has_fields = bool(names)
        self._can_pass = rule.can_pass(table.model)
        self._move_count = <uint32_t>len(moves)
        for at, (name, limit, is_share) in enumerate(moves):
            self._moves[<uint32_t>at].field = table.number(name)
            self._moves[<uint32_t>at].limit = limit
            self._moves[<uint32_t>at].is_share = is_share
        self._interval_ns, self._every_ns = interval_ns, every_ns
        self._resting = self._first

    def set_session(self, int64_t open_ns, int64_t close_ns) -> None:
        """Set the period in which changes are reported, by the wall clock."""
        self._open_ns, self._close_ns = open_ns, close_ns

    def admit(self, slot) -> None:
        """Watch the record of this slot; it is reported when it has a value."""
        cdef uint32_t place = <uint32_t>self.store.place(slot)
        if not self._slots[place].is_ours:
            self._slots[place].is_ours = True
            self.touch(place)

    def expel(self, slot) -> None:
        """Stop watching the slot."""
        cdef uint32_t place = <uint32_t>self.store.place(slot)
        if self._slots[place].is_told:
            self.unlink(place)
        self._slots[place].is_ours = self._slots[place].is_changed = self._slots[place].is_told = False
        self._slots[place].seen = 0

    def notice(self, slot) -> None:
        """The record was written."""
        self.touch(<uint32_t>self.store.place(slot))

    def look(self) -> int:
        """Check every record, because notices were lost. Return the number of records written since their last
        check."""
        cdef uint32_t slot
        cdef uint64_t found = 0
        for slot in range(<uint32_t>self.store.geometry.record_count):
            if self._slots[slot].is_ours and load_acquire(
                self.store.geometry.records + slot * self.store.geometry.stride
            ) > self._slots[slot].seen:
                self.touch(slot)
                found += 1
        return found

    def next(self, int64_t now_ns, int64_t wall_ns) -> tuple | None:
        """Return the slot and record of the next report; None if there is none now."""
        cdef uint64_t left
        cdef uint32_t slot
        cdef RecordState state
        cdef bint is_open = self._can_pass and self._open_ns <= wall_ns < self._close_ns
        self.store.place(0)
        self.wake(now_ns)
        left = self._queue_count
        while left:
            left -= 1
            slot = self.pop()
            if not self._slots[slot].is_changed or self.is_resting(slot, now_ns):
                continue
            self._slots[slot].is_changed = False
            if is_open:
                state = self.tell(slot, now_ns, False)
                if state is not None:
                    return slot, state
        if self._every_ns and is_open and self._first != NOWHERE:
            slot = self._first
            if self._slots[slot].told_ns + self._every_ns <= now_ns:
                state = self.tell(slot, now_ns, True)
                if state is not None:
                    return slot, state
        return None

    def next_deadline_ns(self, int64_t now_ns, int64_t wall_ns) -> int | None:
        """Return the time for the next call of next() if no record is written; None if there is none."""
        cdef int64_t deadline_ns = INT64_MAX
        if not self._can_pass:
            return None
        if self._resting != NOWHERE and self._interval_ns:
            deadline_ns = self._slots[self._resting].told_ns + self._interval_ns
        if self._first != NOWHERE and self._every_ns:
            deadline_ns = min(deadline_ns, self._slots[self._first].told_ns + self._every_ns)
        if wall_ns >= self._close_ns or deadline_ns == INT64_MAX:
            return None
        return max(deadline_ns, now_ns + self._open_ns - wall_ns) if wall_ns < self._open_ns else deadline_ns

    cdef void touch(self, uint32_t slot) noexcept:
        if self._slots[slot].is_ours:
            self._slots[slot].is_changed = True
            if not self._slots[slot].is_queued:
                self.push(slot)

    cdef void wake(self, int64_t now_ns) noexcept:
        """Queue changed slots whose rest has ended."""
        cdef uint32_t slot
        while self._resting != NOWHERE:
            slot = self._resting
            if self.is_resting(slot, now_ns):
                return
            self._resting = self._slots[slot].after
            if self._slots[slot].is_changed and not self._slots[slot].is_queued:
                self.push(slot)

    cdef bint is_resting(self, uint32_t slot, int64_t now_ns) noexcept:
        return self._slots[slot].is_told and self._slots[slot].told_ns + self._interval_ns > now_ns

    cdef RecordState tell(self, uint32_t slot, int64_t now_ns, bint is_due):
        """Return the record and mark it as reported, if it can be read and passes the filter or is due."""
        cdef Head head
        cdef uint64_t[PARTS_MAX] part_generations
        cdef uint32_t size = self.store.geometry.payload_size
        cdef uint8_t *told = self._told + <uint64_t>slot * size
        cdef bytes payload = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t *now = <uint8_t *>PyBytes_AS_STRING(payload)
        cdef State state = take_soon(self.store.geometry, slot, now, &head, part_generations)
        if state != STATE_COHERENT:
            if state != STATE_NEVER_WRITTEN:  # the record is being written all the time: retry later
                self.unavailable += 1
                self.touch(slot)
            return None
        self._slots[slot].seen = head.generation
        self.store.empty(now, &head)
        if head.merged & <uint32_t>RECORD_WITHDRAWN:
            if not self._slots[slot].is_told:
                return None  # the withdrawn record was never reported
        elif self._slots[slot].is_told and not is_due and not self.passes(told, now):
            self.withheld += 1
            return None
        memcpy(told, now, size)
        if self._slots[slot].is_told:
            self.unlink(slot)
        self._slots[slot].is_changed = False
        self._slots[slot].is_told = True
        self._slots[slot].told_ns = now_ns
        self.link(slot)
        return self.store.absorb(slot, payload, &head)

    cdef bint passes(self, const uint8_t *before, const uint8_t *after) noexcept:
        cdef uint64_t[MASK_WORDS] mask
        cdef uint32_t at
        cdef bint has_one = False
        cdef FieldTable table = self.store.table
        if self._has_fields:
            compare_fields(table.places, table.count, before, after, mask)
            for at in range(MASK_WORDS):
                has_one = has_one or mask[at] & self._fields[at]
            if not has_one:
                return False
        for at in range(self._move_count):
            if has_moved(table.places, &self._moves[at], before, after):
                return True
        return self._move_count == 0

    cdef void push(self, uint32_t slot) noexcept:
        cdef uint64_t count = self.store.geometry.record_count
        self._queue[(self._queue_head + self._queue_count) % count] = slot
        self._queue_count += 1
        self._slots[slot].is_queued = True

    cdef uint32_t pop(self) noexcept:
        cdef uint32_t slot = self._queue[self._queue_head]
        self._queue_head = (self._queue_head + 1) % self.store.geometry.record_count
        self._queue_count -= 1
        self._slots[slot].is_queued = False
        return slot

    cdef void link(self, uint32_t slot) noexcept:
        """Append to the list as the last reported slot."""
        self._slots[slot].before, self._slots[slot].after = self._last, NOWHERE
        if self._last == NOWHERE:
            self._first = slot
        else:
            self._slots[self._last].after = slot
        self._last = slot
        if self._resting == NOWHERE:
            self._resting = slot

    cdef void unlink(self, uint32_t slot) noexcept:
        cdef uint32_t before = self._slots[slot].before, after = self._slots[slot].after
        if before == NOWHERE:
            self._first = after
        else:
            self._slots[before].after = after
        if after == NOWHERE:
            self._last = before
        else:
            self._slots[after].before = before
        if self._resting == slot:
            self._resting = after
