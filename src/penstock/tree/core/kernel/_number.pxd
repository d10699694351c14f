from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.filter.core.kernel._matching cimport Matcher
from penstock.wire._codec cimport MessageView, PacketView

cdef enum:
    ROWS_MAX = 512  # packets matched at a time


cdef class Numbering:
    cdef readonly uint32_t term
    cdef uint64_t _tree_id
    cdef dict _last  # by stream
    cdef Matcher _topics
    cdef Matcher _allowed
    cdef PacketView _packets[ROWS_MAX]
    cdef MessageView _messages[ROWS_MAX]
    cdef uint8_t *_extensions  # of the message under construction
    cdef uint8_t *_out
    cdef uint64_t _out_size
    cdef uint64_t _out_capacity
    cdef uint32_t _stream  # stream of the last message,
    cdef uint64_t _stream_last  # and its sequence

    cdef uint32_t gather(self, const uint8_t *data, uint32_t size, uint32_t *at) except? 1
    cdef str judge(self, uint32_t row, uint64_t publisher_id, uint64_t through)
    cdef uint32_t stream_for(self, uint32_t row) noexcept
    cdef bint begin_stream(self, uint32_t stream)
    cdef uint32_t make(self, const uint8_t *data, uint32_t row, int64_t time_ns) except 0
