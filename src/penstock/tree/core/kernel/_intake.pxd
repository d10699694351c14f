"""At a root: what a publisher may go on with without Python."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._history cimport History, Stream
from penstock.tree.core.kernel._tail cimport TailMemory
from penstock.wire._codec cimport MessageView, PacketView

cdef enum:
    ROWS_MAX = 512              # packets that are matched at a time
    INTERVAL_NS = 2_000_000     # between two times that Python is told


cdef enum:
    INTAKE_CLOSED       # publishers' blocks are Python's
    INTAKE_WAITS        # they wait: it will be opened soon
    INTAKE_OPEN


cdef struct Publisher:  # of a link
    uint64_t id         # 0: what it sends is Python's to judge
    uint64_t through    # its last number that was taken
    uint64_t untold     # messages taken that take_out() has not given
    void *allowed       # the Matcher of what it may publish; NULL: everything


cdef class Intake:
    cdef uint8_t state          # of INTAKE_...
    cdef uint64_t tree_id
    cdef uint32_t term
    cdef int64_t wall_offset_ns
    cdef int64_t due_ns         # when Python is to be told what was taken; 0: nothing was
    cdef int64_t next_ns        # and not before
    cdef bint is_told
    cdef TailMemory tail
    cdef const uint8_t *fresh   # what take() made, in the tail
    cdef uint32_t fresh_size
    cdef Matcher _topics
    cdef PacketView _packets[ROWS_MAX]
    cdef MessageView _messages[ROWS_MAX]
    cdef uint8_t *_extensions   # of the message that is being made

    # How many bytes of these packets were taken: those before the first that is out of the ordinary. What became of
    # them is `fresh`, which is to be distributed before anything else is done with their streams.
    cdef uint32_t take(
        self, Publisher *publisher, History history, const uint8_t *data, uint32_t size, int64_t now_ns
    ) except? 0xFFFFFFFF nogil
    cdef uint32_t gather(self, const uint8_t *data, uint32_t size, uint32_t at) noexcept nogil
    cdef bint take_row(
        self, Publisher *publisher, History history, const uint8_t *data, uint32_t row, int64_t now_ns
    ) noexcept nogil
    cdef Stream *stream_for(self, History history, uint32_t row) noexcept nogil

    # Whether Python is to be told now. Then it counts as told.
    cdef bint is_due(self, int64_t now_ns) noexcept nogil
