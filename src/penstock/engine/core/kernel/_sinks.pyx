"""Buffers in which events wait for a session (TCP, WebSocket) to send them."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove

from penstock.engine.core.kernel._event cimport Head, read_head

from penstock.base.errors import LocalProtocolError
from penstock.engine.core.kernel._event import EVENT_SIZE_MAX

cdef enum:
    CAPACITY_MIN = 4_096  # initial size of a buffer
    CAPACITY_KEPT = 8_192  # maximum size that an empty buffer keeps


cdef uint8_t *queue_reserve(Queue *queue, uint32_t size) noexcept nogil:
    cdef uint64_t used = queue.end - queue.begin
    cdef uint64_t capacity
    cdef void *bigger
    if used + size > queue.capacity_max:
        return NULL
    if queue.end + size > queue.capacity and queue.begin:
        memmove(queue.data, queue.data + queue.begin, used)
        queue.begin = 0
        queue.end = used
    if queue.end + size > queue.capacity:
        capacity = min(queue.capacity_max, max(2 * queue.capacity, max(used + size, <uint64_t>CAPACITY_MIN)))
        bigger = realloc(queue.data, capacity)
        if bigger is NULL:
            return NULL
        queue.data = <uint8_t *>bigger
        queue.capacity = capacity
    return queue.data + queue.end


cdef void queue_consume(Queue *queue, uint64_t size) noexcept nogil:
    queue.begin += size
    if queue.begin == queue.end:
        queue.begin = queue.end = 0
        queue.is_urgent = False
        if queue.capacity > CAPACITY_KEPT:
            free(queue.data)
            queue.data = NULL
            queue.capacity = 0
    if queue.is_waited_for:
        queue_tell(queue)


cdef class DrainList:
    """Consumers whose buffers have room again."""

    def __cinit__(self, uint32_t consumers_max):
        self.drain.consumers = <uint32_t *>malloc((<size_t>consumers_max + 1) * sizeof(uint32_t))
        if self.drain.consumers is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.drain.consumers)


cdef class SessionBuffer:
    """Events of one session, at most `capacity` bytes: the engine writes them, the session's driver takes them.

    Memory is allocated as needed, and a large buffer is freed when it is empty. Only the engine's thread uses it.
    """

    def __cinit__(self, uint64_t capacity):
        if capacity < EVENT_SIZE_MAX:
            raise LocalProtocolError(
                f"a buffer of {capacity} bytes cannot hold every event", hint=f"the minimum is {EVENT_SIZE_MAX} bytes"
            )
        self.queue.capacity_max = capacity

    def __dealloc__(self):
        free(self.queue.data)

    def __len__(self) -> int:
        """Number of bytes in the buffer."""
        return self.queue.end - self.queue.begin

    @property
    def capacity(self) -> int:
        return self.queue.capacity_max

    def take(self, uint64_t size_max = UINT32_MAX) -> bytes:
        """Take complete events from the front, up to `size_max` bytes, but at least one if there is any."""
        cdef Head head
        cdef uint64_t size = 0, waiting = self.queue.end - self.queue.begin
        cdef uint32_t next_size
        if waiting <= size_max:
            size = waiting
        else:
            while size < waiting:
                next_size = read_head(self.queue.data + self.queue.begin + size, waiting - size, &head)
                if size and size + next_size > size_max:
                    break
                size += next_size
        taken = PyBytes_FromStringAndSize(<const char *>self.queue.data + self.queue.begin, size)
        queue_consume(&self.queue, size)
        return taken

    def peek(self, uint64_t skipped = 0) -> bytes:
        """A copy of the bytes after the first `skipped` ones, which stay in the buffer, for observers."""
        cdef uint64_t waiting = self.queue.end - self.queue.begin
        skipped = min(skipped, waiting)
        return PyBytes_FromStringAndSize(<const char *>self.queue.data + self.queue.begin + skipped, waiting - skipped)

    def clear(self) -> None:
        """Discard all events: the session has ended or restarts."""
        queue_consume(&self.queue, self.queue.end - self.queue.begin)

    cdef int attach(self, DrainList drained, uint32_t consumer) except -1:
        if self.drained is not None:
            raise LocalProtocolError("the buffer belongs to another consumer")
        self.drained = drained
        self.queue.drain = &drained.drain
        self.queue.consumer = consumer
        return 0

    cdef void detach(self) noexcept:
        self.queue.is_waited_for = False
        self.queue.is_drained = False
        self.queue.drain = NULL
        self.drained = None
