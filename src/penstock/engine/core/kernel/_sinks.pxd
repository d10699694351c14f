from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.engine.core.kernel._event cimport METERED, UPDATE, Head


cdef struct Drain:  # consumers whose queues have room again
    uint32_t *consumers
    uint32_t count


cdef struct Queue:  # bytes to be sent, first in first out
    uint8_t *data
    uint64_t capacity  # of the memory
    uint64_t capacity_max
    uint64_t begin
    uint64_t end
    Drain *drain  # where the consumer is listed when bytes have been removed; NULL
    uint32_t consumer
    bint is_waited_for
    bint is_drained  # the consumer is in the drain
    bint is_urgent  # other events wait besides metered updates


cdef inline void queue_tell(Queue *queue) noexcept nogil:
    """List the consumer, so that it is served again."""
    queue.is_waited_for = False
    if not queue.is_drained:
        queue.is_drained = True
        queue.drain.consumers[queue.drain.count] = queue.consumer
        queue.drain.count += 1


# Contiguous room for `size` bytes at the queue's end; NULL if the queue is full or memory is exhausted.
cdef uint8_t *queue_reserve(Queue *queue, uint32_t size) noexcept nogil

cdef inline void queue_extend(Queue *queue, const Head *head, uint32_t size) noexcept nogil:
    """Commit the event of this head, which was written into the reserved room."""
    queue.end += size
    queue.is_urgent |= head.kind != UPDATE or head.cls != METERED


# Remove the first `size` bytes.
cdef void queue_consume(Queue *queue, uint64_t size) noexcept nogil


cdef class DrainList:
    cdef Drain drain


cdef class SessionBuffer:
    cdef Queue queue
    cdef DrainList drained  # owner of the Drain that the queue points to

    cdef int attach(self, DrainList drained, uint32_t consumer) except -1
    cdef void detach(self) noexcept
