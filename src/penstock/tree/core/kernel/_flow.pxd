"""An agent's links, legs and wants as the data path sees them; _flow.pyx says what it does with packets."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.filter.core.kernel._condition cimport Terms
from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._history cimport History, Stream
from penstock.tree.core.kernel._intake cimport Intake
from penstock.tree.core.kernel._link cimport Link
from penstock.tree.core.kernel._notes cimport Notes
from penstock.tree.core.kernel._queue cimport Run
from penstock.wire._codec cimport MessageView, PacketView

cdef extern from "penstock/tree/core/kernel/mutex.h" nogil:
    ctypedef struct Mutex:
        uint32_t depth
    int mutex_init(Mutex *mutex)
    void mutex_destroy(Mutex *mutex)
    void mutex_acquire(Mutex *mutex)
    void mutex_release(Mutex *mutex)
    void mutex_give_way(Mutex *mutex)

cpdef enum Brings:
    """What may come on a link besides control frames; anything else ends it."""
    NOTHING = 0
    PACKETS = 1     # live blocks, and blocks of legs: from a parent or a peer
    INFO = 2        # the infostream: from an agent
    PUBLISHED = 4   # blocks of a publisher

cpdef enum LinkClass:
    """What becomes of a child that does not keep up."""
    LOSSLESS = 0    # it leaves live, and fetches what it missed when it reads again
    CONFLATING = 1  # it gets the newest on each topic
    DISCONNECT = 2  # it is cut off

cdef enum:
    BATCH_MAX = 512         # packets that are matched at a time
    NO_SLOT = 0xFFFFFFFF
    PARTIAL_KEPT = 4_096    # bytes of memory that a link keeps when no frame is under way
    CONFLATE_FROM = 256     # packets that may wait for a conflating link before newer ones take their places, at most
    NOTED_MAX = 256         # control frames of a link that Python has not seen, after which it has to wait
    NOTED_SIZE_MAX = 65_536 # and their bytes


cdef enum Verdict:          # about a packet
    NEW
    PASSED_OVER
    NOT_YET                 # of a term that the stream is not in yet
    BAD


cdef struct Leg:
    uint32_t number         # the child's; 0: the row is free
    uint32_t slot           # of its link
    uint32_t next           # of the link, plus 1
    bint is_live
    Stream *stream
    uint64_t after          # it gets what comes after this sequence


cdef struct Want:
    uint32_t leg
    const Terms *terms      # NULL: all messages on its topics


cdef class Flow:
    cdef Mutex mutex
    cdef readonly uint64_t tree_id
    cdef History history
    cdef Link *linked
    cdef uint32_t links_max
    cdef uint32_t *ready_slots  # links that have something to send, for Python to take
    cdef uint32_t ready_count
    cdef uint64_t ready_total   # ever put into it
    cdef uint32_t *lane_slots   # and those for the lane, or that it has to look at
    cdef uint32_t lane_count
    cdef uint32_t *held_slots   # links that have to wait for Python
    cdef uint32_t held_count
    cdef Leg *legs
    cdef uint32_t legs_max
    cdef Want *wants            # by subscriber of the table
    cdef uint32_t wants_max
    cdef object table
    cdef Notes notes
    cdef bint is_origin         # packets of streams begin here: what links bring of them is not taken
    cdef Intake intake          # of a root
    cdef uint32_t waiting_count # links that wait for it
    cdef int64_t now_ns         # when what is being taken in came; 0: nobody said
    cdef int bell               # an eventfd that wakes the lane; -1: there is no lane
    cdef bint is_lane_asleep
    cdef bint is_corked          # somebody else is about to send: the lane is not woken
    cdef uint64_t words_size_max
    cdef Matcher _matcher
    cdef object _view
    cdef uint64_t _queue_packets_max
    cdef uint64_t _conflate_from
    cdef uint32_t _topics_waiting_max
    cdef uint64_t _guard        # up to this place of the history no queue's front is written over
    cdef uint64_t _marks
    # the packets that are being passed on
    cdef MessageView _rows[BATCH_MAX]
    cdef Stream *_row_streams[BATCH_MAX]
    cdef uint64_t _row_sequences[BATCH_MAX]
    cdef uint32_t _row_starts[BATCH_MAX]
    cdef uint32_t _row_sizes[BATCH_MAX]

    # All with the mutex. And what is noted wakes the lane: release().
    cdef void release(self) noexcept
    cdef void mark_ready(self, uint32_t slot) noexcept nogil
    cdef void forget_ready(self, uint32_t slot) noexcept nogil
    cdef void end(self, uint32_t slot, uint32_t fault) noexcept nogil
    cdef void silence(self, uint32_t slot) noexcept nogil

    # Bytes of the link's frames.
    cdef int take_in(self, uint32_t slot, const uint8_t *data, uint64_t size) except -1 nogil
    cdef int go_on(self, uint32_t slot) except -1 nogil

    # Something of the link was noted for Python; of too much, it has to wait.
    cdef void was_noted(self, uint32_t slot, uint64_t size) noexcept nogil
    cdef int go_on_held(self) except -1 nogil

    # Of publishers that wait for the intake: it is as it is to be for them.
    cdef int go_on_waiting(self) except -1 nogil

    # How many of these packets were new; `taken` is where it stopped: at the end, at one that is bad, or at one of a
    # newer term, unless `is_any_term`.
    cdef int64_t absorb_packets(
        self, uint32_t slot, bint is_any_term, const uint8_t *data, uint32_t size, uint32_t *taken
    ) except -1 nogil

    cdef int take_partial(self, uint32_t slot) except -1 nogil
    cdef int take_frames(self, uint32_t slot, const uint8_t *data, uint64_t size, uint64_t *taken) except -1 nogil
    cdef int take_frame(self, uint32_t slot, const uint8_t *frame, uint32_t size) except -1 nogil
    cdef bint take_published(self, uint32_t slot, const uint8_t *packets, uint32_t size) except? -1 nogil
    cdef bint must_wait(self, uint32_t slot, uint8_t kind) noexcept nogil
    cdef void wait_for_intake(self, uint32_t slot) noexcept nogil
    cdef uint32_t give_places(self, uint32_t slot, const uint8_t *packets, uint32_t size) except? 0xFFFFFFFF nogil
    cdef int take_block(self, uint32_t slot, const uint8_t *packets, uint32_t size) except -1 nogil
    cdef Verdict judge(
        self, uint32_t slot, bint is_any_term, const uint8_t *data, uint32_t at, uint32_t size, uint32_t row
    ) noexcept nogil
    cdef Verdict judge_place(self, uint32_t slot, bint is_any_term, const PacketView *packet, uint32_t row) noexcept nogil
    cdef int pass_on(self, uint32_t slot, const uint8_t *data, uint32_t size, uint32_t count) except -1 nogil
    cdef void pass_to(self, const Want *want, uint32_t slot, const uint8_t *data, uint32_t row, uint64_t place) noexcept nogil
    cdef void offer(self, uint32_t slot, uint64_t place, uint32_t size) noexcept nogil
    cdef void make_way(self, uint32_t size) noexcept nogil
    cdef void leave_live(self, uint32_t slot) noexcept nogil
    cdef void mark_waiting(self, const Run *run, uint64_t mark) noexcept nogil
    cdef void mark_packet(self, uint64_t place, uint64_t mark) noexcept nogil
