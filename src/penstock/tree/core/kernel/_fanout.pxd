from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.tree.core.kernel._flow cimport Flow
from penstock.tree.core.kernel._history cimport Stream


cdef class Fanout(Flow):
    cdef list _free_wants
    cdef list _free_legs
    cdef list _free_slots
    cdef dict _slots            # by link
    cdef dict _leg_rows         # by (link, leg)
    cdef dict _leg_wants        # by row: [(subscriber, topics, condition)]
    cdef dict _publishers       # by id: the slot of the link on which the intake takes its messages
    cdef dict _allowed          # by such a slot: the Matcher of what it may publish
    cdef dict _selections       # by row, of legs that are being fetched

    cdef Stream *stream_of(self, stream) except NULL
    cdef uint32_t slot_of(self, link) except? 0xFFFFFFFF
    cdef uint32_t row_of(self, link, leg) except? 0xFFFFFFFF
    cdef int drop_leg(self, link, leg) except -1
    cdef list add_wants(self, uint32_t row, wants)
    cdef int drop_wants(self, list rows) except -1
    cdef int drop_publisher(self, uint32_t slot) except -1
    cdef bytes past(self, const Stream *stream, uint64_t after)
    cdef bytes choose(self, uint32_t row, const uint8_t[::1] packets, uint64_t size_max, uint64_t *through)
