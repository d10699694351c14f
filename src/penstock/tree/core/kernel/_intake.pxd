"""At a root: the state with which publishers' messages are sequenced without Python."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._history cimport History, Stream
from penstock.tree.core.kernel._tail cimport TailMemory
from penstock.wire._codec cimport MessageView, PacketView

cdef enum:
    ROWS_MAX = 512  # packets matched at a time
    INTERVAL_NS = 2_000_000  # time between two reports to Python


cdef enum:
    INTAKE_CLOSED  # publishers' blocks are handled by Python
    INTAKE_WAITS  # publishers wait: it will be opened soon
    INTAKE_OPEN


cdef struct Publisher:  # of a link
    uint64_t id  # 0: Python handles its blocks
    uint64_t through  # its last number that was taken
    uint64_t untold  # taken messages that take_out() has not returned
    uint64_t acknowledged  # the last number that was acknowledged here
    void *allowed  # the Matcher of the topics that it may publish on; NULL: all


cdef class Intake:
    cdef uint8_t state          # of INTAKE_...
    cdef uint64_t tree_id
    cdef uint32_t term
    cdef int64_t wall_offset_ns
    cdef int64_t due_ns  # time of the next report to Python; 0: nothing to report
    cdef int64_t next_ns  # and not earlier
    cdef bint is_told
    cdef TailMemory tail
    cdef const uint8_t *fresh  # the output of take(), in the tail
    cdef uint32_t fresh_size
    cdef Matcher _topics
    cdef PacketView _packets[ROWS_MAX]
    cdef MessageView _messages[ROWS_MAX]
    cdef uint8_t *_extensions  # of the message under construction
    cdef uint8_t *_frame  # of an acknowledgement, with its number at `_number_at`
    cdef uint32_t frame_size  # 0: the tail alone does not suffice for an acknowledgement
    cdef uint32_t _number_at

    # Return the number of bytes taken of these packets: those before the first exceptional one. The result is `fresh`,
    # which must be distributed before anything else is done with their streams.
    cdef uint32_t take(
        self, Publisher *publisher, History history, const uint8_t *data, uint32_t size, int64_t now_ns
    ) except? 0xFFFFFFFF nogil
    cdef uint32_t gather(self, const uint8_t *data, uint32_t size, uint32_t at) noexcept nogil
    cdef bint take_row(
        self, Publisher *publisher, History history, const uint8_t *data, uint32_t row, int64_t now_ns
    ) noexcept nogil
    cdef Stream *stream_for(self, History history, uint32_t row) noexcept nogil

    # The frame that acknowledges a publisher's messages up to a number. Good until the next call.
    cdef const uint8_t *acknowledge(self, uint64_t through, uint32_t *size) noexcept nogil

    # True if a report to Python is due. Then it counts as made.
    cdef bint is_due(self, int64_t now_ns) noexcept nogil
