"""A timing wheel of one level: entries are numbers below a bound, each on the wheel at most once.

Time is cut into slots of half a millisecond. An entry comes out when the end of its slot has passed: never before it is
due, at most a slot later. What is due beyond the wheel's turn waits in its last slot and is put forward when that comes
round. Insertion and removal take constant time and allocate nothing.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cpdef enum:
    SLOT_NS = 500_000
    SLOT_COUNT = 4096       # a power of two: two seconds
    SLOT_WORDS = 64         # of bits, one for each slot


cdef struct WheelEntry:
    int64_t due_ns
    uint32_t next           # numbers plus one; 0: none
    uint32_t previous
    uint32_t slot           # plus one; 0: not on the wheel


cdef class TimingWheel:
    cdef readonly uint32_t entries_max
    cdef readonly uint32_t count
    cdef int64_t done       # the last slot, counted from time 0, that has been emptied
    cdef uint8_t **_entries  # where the first one is now
    cdef uint32_t _stride   # bytes from one to the next
    cdef uint8_t *_own
    cdef uint32_t[SLOT_COUNT] heads
    cdef uint32_t[SLOT_COUNT] tails
    cdef uint64_t[SLOT_WORDS] filled

    # Its entries are parts of somebody's records, which have room for `entries_max` and may move between calls.
    cdef void lay_over(self, uint8_t **entries, uint32_t stride, uint32_t entries_max) noexcept
    # Puts the entry on the wheel, or moves it if it is there.
    cdef void put(self, uint32_t entry, int64_t due_ns, int64_t now_ns) noexcept nogil
    # Takes it off; nothing happens if it is not there.
    cdef void drop(self, uint32_t entry) noexcept nogil
    cdef bint holds(self, uint32_t entry) noexcept nogil
    # Takes off up to `out_max` entries whose slot is over, in the order of slots; how many.
    cdef uint32_t take_due(self, int64_t now_ns, uint32_t *out, uint32_t out_max) noexcept nogil
    # When the next slot with entries is over; -1: there are none.
    cdef int64_t next_due(self) noexcept nogil
