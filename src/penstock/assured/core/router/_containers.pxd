"""The data structures of a router's tables: growing vectors, rings and maps."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef struct Bytes:  # a growing vector of bytes
    uint8_t *data
    uint64_t size
    uint64_t capacity


cdef enum:
    UNWANTED = 255  # of a message in the log without endpoints: its publisher is told so


cdef struct Waiting:  # waits for the disk, or for the standby
    uint64_t sequence
    uint64_t id
    uint64_t number
    uint32_t message  # 0: no endpoint has it
    uint32_t publisher  # 0: no publisher waits for it
    uint8_t treatment  # a treatment, or UNWANTED


cdef struct Queue:  # a ring of Waiting
    Waiting *items
    uint64_t capacity  # a power of two
    uint64_t first
    uint64_t end


cdef struct Map:  # numbers to places; open addressing
    uint64_t *keys  # 0: empty
    uint32_t *places
    uint64_t capacity  # a power of two
    uint64_t count
    uint64_t seed


cdef struct Numbers:  # a vector of places
    uint32_t *items
    uint64_t count
    uint64_t capacity


cdef int push(Numbers *numbers, uint32_t value) except -1
cdef int bytes_reserve(Bytes *bytes, uint64_t size) except -1
cdef int queue_push(Queue *queue, const Waiting *item) except -1
cdef void queue_forget_publisher(Queue *queue, uint32_t handle) noexcept  # remove a publisher's entries
cdef uint32_t map_get(const Map *map, uint64_t key) noexcept
cdef int map_put(Map *map, uint64_t key, uint32_t place) except -1
cdef void map_remove(Map *map, uint64_t key) noexcept
cdef void map_free(Map *map) noexcept


cdef inline Waiting *queue_at(const Queue *queue, uint64_t position) noexcept:
    return queue.items + (position & (queue.capacity - 1))
