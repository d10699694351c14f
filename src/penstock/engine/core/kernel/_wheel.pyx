"""The timing wheel for metered pairs; _wheel.pxd describes it."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from penstock.base.errors import LimitError, LocalProtocolError

cdef extern from *:
    int trailing_zeros "__builtin_ctzll"(unsigned long long word) nogil

cdef enum:
    TURN = 4095  # maximum distance of an entry from `done`: it must not be in the slot being emptied
    OUT_MAX = 1024


cdef class TimingWheel:
    """Entries are numbers below `entries_max`. Time is an argument of each call; a time before the latest one counts as the latest."""

    def __cinit__(self, uint32_t entries_max):
        if entries_max == 0xFFFFFFFF:
            raise LimitError(f"a wheel cannot hold {entries_max} entries")
        self._own = <uint8_t *>calloc(<size_t>entries_max + 1, sizeof(WheelEntry))
        if self._own is NULL:
            raise MemoryError
        self.lay_over(&self._own, sizeof(WheelEntry), entries_max)

    def __dealloc__(self):
        free(self._own)

    def __len__(self):
        return self.count

    def __contains__(self, uint32_t entry):
        return entry < self.entries_max and bool(self.holds(entry))

    def insert(self, uint32_t entry, int64_t due_ns, int64_t now_ns) -> None:
        """Insert the entry, or move it."""
        _check(self, entry)
        self.put(entry, due_ns, now_ns)

    def remove(self, uint32_t entry) -> None:
        """Remove the entry, if it is on the wheel."""
        _check(self, entry)
        self.drop(entry)

    def expire(self, int64_t now_ns, uint32_t count_max=OUT_MAX) -> list[int]:
        """Remove entries of expired slots, at most `count_max`, in the order of slots."""
        cdef uint32_t[OUT_MAX] out
        cdef uint32_t index, count = self.take_due(now_ns, out, min(count_max, OUT_MAX))
        return [out[index] for index in range(count)]

    @property
    def next_due_ns(self) -> int | None:
        """The earliest time at which an entry may expire."""
        cdef int64_t due_ns = self.next_due()
        return None if due_ns < 0 else due_ns

    cdef void lay_over(self, uint8_t **entries, uint32_t stride, uint32_t entries_max) noexcept:
        self._entries, self._stride, self.entries_max = entries, stride, entries_max

    cdef bint holds(self, uint32_t entry) noexcept nogil:
        return _at(self, entry).slot != 0

    cdef void put(self, uint32_t entry, int64_t due_ns, int64_t now_ns) noexcept nogil:
        if _at(self, entry).slot:
            _unlink(self, entry)
        if self.count == 0:
            self.done = max(self.done, now_ns // SLOT_NS)  # an empty wheel may not have been advanced
        _at(self, entry).due_ns = due_ns
        _link(self, entry)

    cdef void drop(self, uint32_t entry) noexcept nogil:
        if _at(self, entry).slot:
            _unlink(self, entry)

    cdef uint32_t take_due(self, int64_t now_ns, uint32_t *out, uint32_t out_max) noexcept nogil:
        cdef int64_t tick, tick_now = now_ns // SLOT_NS
        cdef uint32_t entry, count = 0
        while self.done < tick_now and count < out_max:
            tick = _next_filled(self)
            if tick < 0 or tick > tick_now:
                self.done = tick_now
                break
            self.done = tick - 1
            while self.heads[tick % SLOT_COUNT] and count < out_max:
                entry = self.heads[tick % SLOT_COUNT] - 1
                _unlink(self, entry)
                if _tick_of(_at(self, entry).due_ns) <= tick:
                    out[count] = entry
                    count += 1
                else:
                    _link(self, entry)
            if not self.heads[tick % SLOT_COUNT]:
                self.done = tick
        return count

    cdef int64_t next_due(self) noexcept nogil:
        cdef int64_t tick = _next_filled(self)
        return tick if tick < 0 else tick * SLOT_NS


cdef int _check(TimingWheel wheel, uint32_t entry) except -1:
    if entry >= wheel.entries_max:
        raise LocalProtocolError(f"entry {entry} is not below {wheel.entries_max}")
    return 0


cdef inline WheelEntry *_at(TimingWheel wheel, uint32_t entry) noexcept nogil:
    return <WheelEntry *>(wheel._entries[0] + <size_t>entry * wheel._stride)


cdef inline int64_t _tick_of(int64_t due_ns) noexcept nogil:
    """The slot at whose end the time has passed; times are not negative."""
    return due_ns // SLOT_NS + (due_ns % SLOT_NS != 0) if due_ns > 0 else 0


cdef inline void _link(TimingWheel wheel, uint32_t entry) noexcept nogil:
    cdef int64_t tick = _tick_of(_at(wheel, entry).due_ns)
    cdef uint32_t slot
    tick = min(max(tick, wheel.done + 1), wheel.done + TURN)
    slot = tick % SLOT_COUNT
    _at(wheel, entry).slot = slot + 1
    _at(wheel, entry).next = 0
    _at(wheel, entry).previous = wheel.tails[slot]
    if wheel.tails[slot]:
        _at(wheel, wheel.tails[slot] - 1).next = entry + 1
    else:
        wheel.heads[slot] = entry + 1
        wheel.filled[slot // 64] |= <uint64_t>1 << slot % 64
    wheel.tails[slot] = entry + 1
    wheel.count += 1


cdef inline void _unlink(TimingWheel wheel, uint32_t entry) noexcept nogil:
    cdef WheelEntry *place = _at(wheel, entry)
    cdef uint32_t slot = place.slot - 1
    if place.previous:
        _at(wheel, place.previous - 1).next = place.next
    else:
        wheel.heads[slot] = place.next
    if place.next:
        _at(wheel, place.next - 1).previous = place.previous
    else:
        wheel.tails[slot] = place.previous
    if not wheel.heads[slot]:
        wheel.filled[slot // 64] &= ~(<uint64_t>1 << slot % 64)
    place.slot = 0
    wheel.count -= 1


cdef int64_t _next_filled(TimingWheel wheel) noexcept nogil:
    """The next slot with entries, counted from time 0; -1 if the wheel is empty."""
    cdef uint32_t first = (wheel.done + 1) % SLOT_COUNT, step, word_at, slot
    cdef uint64_t word
    if wheel.count == 0:
        return -1
    for step in range(SLOT_WORDS + 1):
        word_at = (first // 64 + step) % SLOT_WORDS
        word = wheel.filled[word_at]
        if step == 0:
            word &= ~<uint64_t>0 << first % 64
        if word:
            slot = word_at * 64 + trailing_zeros(word)
            return wheel.done + 1 + (slot - first + SLOT_COUNT) % SLOT_COUNT
    return -1
