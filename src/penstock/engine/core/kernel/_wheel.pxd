"""A timing wheel of one level: entries are numbers below a bound, each on the wheel at most once.

Time is divided into slots of half a millisecond. An entry expires at the end of its slot: never early, at most a slot
late. Entries beyond the wheel's range wait in its last slot and are moved on when that expires. Insertion and removal
take constant time and allocate nothing.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cpdef enum:
    SLOT_NS = 500_000
    SLOT_COUNT = 4096  # a power of two: two seconds
    SLOT_WORDS = 64  # of bits, one for each slot


cdef struct WheelEntry:
    int64_t due_ns
    uint32_t next  # numbers plus one; 0: none
    uint32_t previous
    uint32_t slot  # plus one; 0: not on the wheel


cdef class TimingWheel:
    cdef readonly uint32_t entries_max
    cdef readonly uint32_t count
    cdef int64_t done  # the last expired slot, counted from time 0
    cdef uint8_t **_entries  # current address of the first entry
    cdef uint32_t _stride  # distance between entries in bytes
    cdef uint8_t *_own
    cdef uint32_t[SLOT_COUNT] heads
    cdef uint32_t[SLOT_COUNT] tails
    cdef uint64_t[SLOT_WORDS] filled

    # Use entries that are parts of the caller's records, which have room for `entries_max` and may move between calls.
    cdef void lay_over(self, uint8_t **entries, uint32_t stride, uint32_t entries_max) noexcept
    # Insert the entry, or move it.
    cdef void put(self, uint32_t entry, int64_t due_ns, int64_t now_ns) noexcept nogil
    # Remove the entry, if it is on the wheel.
    cdef void drop(self, uint32_t entry) noexcept nogil
    cdef bint holds(self, uint32_t entry) noexcept nogil
    # Remove up to `out_max` entries of expired slots, in the order of slots. Return their number.
    cdef uint32_t take_due(self, int64_t now_ns, uint32_t *out, uint32_t out_max) noexcept nogil
    # Time when the next slot with entries expires; -1: there are none.
    cdef int64_t next_due(self) noexcept nogil
