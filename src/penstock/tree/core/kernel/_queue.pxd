"""The queue of one link, in the order of sending: runs of packets in the history, control frames (made elsewhere), and
for a conflating link the newest packet on each topic.

Only the places of packets are queued. A run is contiguous in the history, so the kernel can send it in one piece; a
link
with all packets has one run, however long.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.tree.core.kernel._history cimport History
from penstock.tree.core.kernel._newest cimport Newest

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef enum:
    PIECES_MAX = 128  # maximum number sent in one call, including block headers
    HEADERS_MAX = 64


cdef struct Run:
    uint64_t place
    uint32_t size
    uint32_t count  # packets; 0: control frames, which are stored elsewhere


cdef struct Queue:
    Run *runs  # a ring
    uint64_t capacity  # a power of two, or 0
    uint64_t begin
    uint64_t end
    uint64_t packets  # number of waiting packets
    uint64_t bytes  # waiting bytes, including control frames
    uint64_t last_place  # of the last packet put
    uint8_t *control
    uint64_t control_begin
    uint64_t control_end
    uint64_t control_capacity
    Newest newest  # waiting packets that are the newest on their topics, besides those in runs


cdef struct Pieces:  # the next pieces to send
    iovec pieces[PIECES_MAX]
    uint8_t headers[HEADERS_MAX][16]
    int count
    int headers_used
    uint64_t size
    uint64_t packets
    uint64_t control  # bytes of control frames among them


cdef void queue_init(Queue *queue) noexcept nogil
cdef void queue_free(Queue *queue) noexcept nogil
cdef bint queue_put(Queue *queue, uint64_t place, uint32_t size) noexcept nogil

# Queue control frames behind everything, or else before the waiting newest packets; False without memory.
cdef bint queue_control(Queue *queue, const uint8_t *data, uint64_t size, bint is_behind) noexcept nogil

# Take from the front what makes whole frames of at most `size_max` bytes, but at least one frame if any waits. The
# pieces stay in place until queue_sent(), before which neither the queue nor the history may change.
cdef void queue_take(Queue *queue, History history, uint64_t size_max, Pieces *pieces) noexcept nogil
cdef void queue_sent(Queue *queue, const Pieces *pieces) noexcept nogil

# Drop the packets, keep the control frames.
cdef void queue_drop_packets(Queue *queue) noexcept nogil

# The place of the first waiting packet; False if there is none.
cdef bint queue_front(const Queue *queue, uint64_t *place) noexcept nogil


cdef inline Run *run_at(const Queue *queue, uint64_t position) noexcept nogil:
    return &queue.runs[position & (queue.capacity - 1)]


cdef inline bint queue_is_empty(const Queue *queue) noexcept nogil:
    return queue.begin == queue.end and queue.newest.count == 0
