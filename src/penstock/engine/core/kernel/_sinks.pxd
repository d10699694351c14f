from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.engine.core.kernel._event cimport METERED, UPDATE, Head


cdef struct Drain:          # consumers whose queues were waited for and have room again
    uint32_t *consumers
    uint32_t count


cdef struct Queue:          # bytes that wait to be sent, first in first out
    uint8_t *data
    uint64_t capacity       # of the memory
    uint64_t capacity_max
    uint64_t begin
    uint64_t end
    Drain *drain            # whom to tell when bytes have been taken; NULL
    uint32_t consumer
    bint is_waited_for
    bint is_drained         # the consumer is in the drain
    bint is_urgent          # something waits besides updates of the metered class


cdef inline void queue_tell(Queue *queue) noexcept nogil:
    """Have the consumer looked at."""
    queue.is_waited_for = False
    if not queue.is_drained:
        queue.is_drained = True
        queue.drain.consumers[queue.drain.count] = queue.consumer
        queue.drain.count += 1


# Room for `size` more bytes in one piece at the queue's end, or NULL: full, or out of memory.
cdef uint8_t *queue_reserve(Queue *queue, uint32_t size) noexcept nogil

cdef inline void queue_extend(Queue *queue, const Head *head, uint32_t size) noexcept nogil:
    """The event of this head was written into the room that was reserved."""
    queue.end += size
    queue.is_urgent |= head.kind != UPDATE or head.cls != METERED


# The first `size` bytes have been taken.
cdef void queue_consume(Queue *queue, uint64_t size) noexcept nogil


cdef class Drained:
    cdef Drain drain


cdef class SessionBuffer:
    cdef Queue queue
    cdef Drained drained    # keeps what the queue points to

    cdef int attach(self, Drained drained, uint32_t consumer) except -1
    cdef void detach(self) noexcept
