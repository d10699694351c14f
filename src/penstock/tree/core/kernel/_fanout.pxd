"""An agent's links, legs and wants in the data path."""

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
    """Frames that a link may bring besides control frames; any other frame ends the link."""
    NOTHING = 0
    PACKETS = 1     # live blocks, and blocks of legs: from a parent or a peer
    INFO = 2        # the infostream: from an agent
    PUBLISHED = 4   # blocks of a publisher

cpdef enum LinkClass:
    """What happens to a child that does not keep up."""
    LOSSLESS = 0    # its legs leave live; it fetches what it missed when it reads again
    CONFLATING = 1  # it gets the newest message of each topic
    DISCONNECT = 2  # its link ends

cdef enum:
    BATCH_MAX = 512  # packets matched at a time
    NO_SLOT = 0xFFFFFFFF
    PARTIAL_KEPT = 4_096  # memory that a link keeps between frames
    CONFLATE_FROM = 256  # number of packets that may wait for a conflating link before newer ones replace them
    NOTED_MAX = 256  # unread control frames of a link, above which it must wait
    NOTED_SIZE_MAX = 65_536  # and their size


cdef enum Verdict:  # the result for a packet
    NEW
    SKIPPED
    NOT_YET  # of a term that the stream has not reached
    BAD


cdef struct Leg:
    uint32_t number  # the child's number; 0: the row is free
    uint32_t slot  # of its link
    uint32_t next  # the link's next leg, plus 1
    bint is_live
    Stream *stream
    uint64_t after  # the leg gets packets after this sequence


cdef struct Want:
    uint32_t leg
    const Terms *terms  # NULL: all messages on its topics


cdef class Fanout:
    cdef Mutex mutex
    cdef readonly uint64_t tree_id
    cdef History history
    cdef Link *link_table
    cdef uint32_t links_max
    cdef uint32_t *ready_slots  # links with data that Python sends
    cdef uint32_t ready_count
    cdef uint64_t ready_total  # number ever added
    cdef uint32_t *lane_slots  # links that the lane must check
    cdef uint32_t lane_count
    cdef uint32_t *held_slots  # links that wait until Python has read their notes
    cdef uint32_t held_count
    cdef Leg *legs
    cdef uint32_t legs_max
    cdef Want *wants  # by subscriber of the table
    cdef uint32_t wants_max
    cdef object table
    cdef Notes notes
    cdef bint is_origin  # the agent is the root: packets of streams from links are dropped
    cdef Intake intake          # of a root
    cdef uint32_t waiting_count  # links that wait for the intake
    cdef int64_t now_ns  # receive time of the current bytes; 0: unknown
    cdef int wakeup_fd               # an eventfd that wakes the lane; -1: there is no lane
    cdef bint is_lane_asleep
    cdef bint is_corked  # another thread is about to send: the lane is not woken
    cdef uint64_t control_size_max
    cdef Matcher _matcher
    cdef object _view
    cdef uint64_t _queue_packets_max
    cdef uint64_t _conflate_from
    cdef uint32_t _topics_waiting_max
    cdef uint64_t _guard  # queued packets up to this place in the history are safe from being overwritten
    cdef uint64_t _marks
    # The packets being distributed
    cdef MessageView _rows[BATCH_MAX]
    cdef Stream *_row_streams[BATCH_MAX]
    cdef uint64_t _row_sequences[BATCH_MAX]
    cdef uint32_t _row_starts[BATCH_MAX]
    cdef uint32_t _row_sizes[BATCH_MAX]
    # Objects opened by Python
    cdef object _free_wants
    cdef object _free_legs
    cdef object _free_slots
    cdef dict _slots  # by link
    cdef dict _leg_rows  # by (link, leg)
    cdef dict _leg_wants        # by row: [(subscriber, topics, condition)]
    cdef dict _publishers  # by id: the slot of the link whose messages the intake accepts
    cdef dict _allowed  # by that slot: the Matcher of the topics that it may publish on
    cdef dict _selections  # by row, for legs that are being fetched

    # All of these need the mutex. release() wakes the lane if there is a note.
    cdef void release(self) noexcept
    cdef void mark_ready(self, uint32_t slot) noexcept nogil
    cdef void forget_ready(self, uint32_t slot) noexcept nogil
    cdef void end(self, uint32_t slot, uint32_t fault) noexcept nogil
    cdef void stop_link(self, uint32_t slot) noexcept nogil

    # Accept bytes of the link's frames; or, for a link that was stopped, the kept bytes.
    cdef int accept_bytes(self, uint32_t slot, const uint8_t *data, uint64_t size) except -1 nogil
    cdef int resume_link(self, uint32_t slot) except -1 nogil

    # Count a note for the link; with too many unread notes, the link is held.
    cdef void count_note(self, uint32_t slot, uint64_t size) noexcept nogil
    cdef int resume_held(self) except -1 nogil

    # The intake was opened, or closed for good: publishers no longer wait for it.
    cdef int resume_waiting(self) except -1 nogil

    # Return the number of new packets; `taken` is where it stopped: at the end, at an invalid packet, or at one of a
    # newer term unless `is_any_term`.
    cdef int64_t absorb_packets(
        self, uint32_t slot, bint is_any_term, const uint8_t *data, uint32_t size, uint32_t *taken
    ) except -1 nogil

    cdef int accept_partial(self, uint32_t slot) except -1 nogil
    cdef int accept_frames(self, uint32_t slot, const uint8_t *data, uint64_t size, uint64_t *taken) except -1 nogil
    cdef int accept_frame(self, uint32_t slot, const uint8_t *frame, uint32_t size) except -1 nogil
    cdef bint accept_published(self, uint32_t slot, const uint8_t *packets, uint32_t size) except? -1 nogil
    cdef bint has_to_wait_for_intake(self, uint32_t slot, uint8_t kind) noexcept nogil
    cdef void wait_for_intake(self, uint32_t slot) noexcept nogil
    cdef uint32_t sequence_published(self, uint32_t slot, const uint8_t *packets, uint32_t size) except? 0xFFFFFFFF nogil
    cdef void acknowledge(self, uint32_t slot) noexcept nogil
    cdef int accept_block(self, uint32_t slot, const uint8_t *packets, uint32_t size) except -1 nogil
    cdef Verdict check_packet(
        self, uint32_t slot, bint is_any_term, const uint8_t *data, uint32_t at, uint32_t size, uint32_t row
    ) noexcept nogil
    cdef Verdict check_sequence(self, uint32_t slot, bint is_any_term, const PacketView *packet, uint32_t row) noexcept nogil
    cdef int distribute(self, uint32_t slot, const uint8_t *data, uint32_t size, uint32_t count) except -1 nogil
    cdef void offer_to(self, const Want *want, uint32_t slot, const uint8_t *data, uint32_t row, uint64_t place) noexcept nogil
    cdef void offer(self, uint32_t slot, uint64_t place, uint32_t size) noexcept nogil
    cdef void evict_slow_links(self, uint32_t size) noexcept nogil
    cdef void leave_live(self, uint32_t slot) noexcept nogil
    cdef void mark_waiting(self, const Run *run, uint64_t mark) noexcept nogil
    cdef void mark_packet(self, uint64_t place, uint64_t mark) noexcept nogil

    # Methods for Python
    cdef Stream *stream_of(self, stream) except NULL
    cdef uint32_t slot_of(self, link) except? 0xFFFFFFFF
    cdef uint32_t row_of(self, link, leg) except? 0xFFFFFFFF
    cdef int drop_leg(self, link, leg) except -1
    cdef list add_wants(self, uint32_t row, wants)
    cdef int drop_wants(self, list rows) except -1
    cdef int drop_publisher(self, uint32_t slot) except -1
    cdef bytes past(self, const Stream *stream, uint64_t after)
    cdef bytes choose(self, uint32_t row, const uint8_t[::1] packets, uint64_t size_max, uint64_t *through)
