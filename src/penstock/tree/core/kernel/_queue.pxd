"""What waits for one link: runs of packets in the history, control frames (made by others), and of a conflating
link the newest packet on each topic. In the order in which it is to be sent.

Of packets only their places wait. A run is packets that lie one after another in the history, so it is one piece for
the kernel to take; a link that wants everything has one run, whatever it is behind.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.tree.core.kernel._history cimport History
from penstock.tree.core.kernel._newest cimport Newest

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef enum:
    PIECES_MAX = 128        # that are sent with one call, block headers among them
    HEADERS_MAX = 64


cdef struct Run:
    uint64_t place
    uint32_t size
    uint32_t count          # packets; 0: control frames, which lie elsewhere


cdef struct Queue:
    Run *runs               # a ring
    uint64_t capacity       # a power of two, or 0
    uint64_t begin
    uint64_t end
    uint64_t packets        # that wait
    uint64_t bytes          # that wait, control frames too
    uint64_t last_place     # of the packet that was put last
    uint8_t *control
    uint64_t control_begin
    uint64_t control_end
    uint64_t control_capacity
    Newest newest           # packets that wait as the newest on their topics, besides those in runs


cdef struct Pieces:         # what is sent next
    iovec pieces[PIECES_MAX]
    uint8_t headers[HEADERS_MAX][16]
    int count
    int headers_used
    uint64_t size
    uint64_t packets
    uint64_t control        # bytes of control frames among them


cdef void queue_init(Queue *queue) noexcept nogil
cdef void queue_free(Queue *queue) noexcept nogil
cdef bint queue_put(Queue *queue, uint64_t place, uint32_t size) noexcept nogil

# Words, behind everything, or if not, before the packets that wait as newest; False without memory.
cdef bint queue_control(Queue *queue, const uint8_t *data, uint64_t size, bint is_behind) noexcept nogil

# Take from the front what makes whole frames of at most `size_max` bytes, but at least one frame if any waits. The
# pieces lie where they were until queue_sent(), before which nothing else is done with the queue or the history.
cdef void queue_take(Queue *queue, History history, uint64_t size_max, Pieces *pieces) noexcept nogil
cdef void queue_sent(Queue *queue, const Pieces *pieces) noexcept nogil

# Drop the packets, keep the control frames.
cdef void queue_drop_packets(Queue *queue) noexcept nogil

# The place of the first packet that waits; False if none does.
cdef bint queue_front(const Queue *queue, uint64_t *place) noexcept nogil


cdef inline Run *run_at(const Queue *queue, uint64_t position) noexcept nogil:
    return &queue.runs[position & (queue.capacity - 1)]


cdef inline bint queue_is_empty(const Queue *queue) noexcept nogil:
    return queue.begin == queue.end and queue.newest.count == 0
