"""Growing vectors, rings and maps, for compiled code only."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

cdef enum:
    CAPACITY_MIN = 64


cdef int push(Numbers *numbers, uint32_t value) except -1:
    cdef uint64_t capacity
    cdef uint32_t *items
    if numbers.count == numbers.capacity:
        capacity = max(2 * numbers.capacity, <uint64_t>CAPACITY_MIN)
        items = <uint32_t *>realloc(numbers.items, capacity * sizeof(uint32_t))
        if items is NULL:
            raise MemoryError
        numbers.items = items
        numbers.capacity = capacity
    numbers.items[numbers.count] = value
    numbers.count += 1
    return 0


cdef int bytes_reserve(Bytes *bytes, uint64_t size) except -1:
    """Make room for `size` more bytes."""
    cdef uint64_t capacity
    cdef uint8_t *data
    if bytes.capacity - bytes.size >= size:
        return 0
    capacity = max(2 * bytes.capacity, bytes.size + size, <uint64_t>CAPACITY_MIN)
    data = <uint8_t *>realloc(bytes.data, capacity)
    if data is NULL:
        raise MemoryError
    bytes.data = data
    bytes.capacity = capacity
    return 0


cdef int queue_push(Queue *queue, const Waiting *item) except -1:
    cdef uint64_t capacity, position
    cdef Waiting *items
    if queue.end - queue.first == queue.capacity:
        capacity = max(2 * queue.capacity, <uint64_t>CAPACITY_MIN)
        items = <Waiting *>calloc(capacity, sizeof(Waiting))
        if items is NULL:
            raise MemoryError
        for position in range(queue.first, queue.end):
            items[position & (capacity - 1)] = queue.items[position & (queue.capacity - 1)]
        free(queue.items)
        queue.items = items
        queue.capacity = capacity
    queue.items[queue.end & (queue.capacity - 1)] = item[0]
    queue.end += 1
    return 0


cdef void queue_forget_publisher(Queue *queue, uint32_t handle) noexcept:
    cdef uint64_t position
    for position in range(queue.first, queue.end):
        if queue_at(queue, position).publisher == handle:
            queue_at(queue, position).publisher = 0


cdef inline uint64_t map_home(const Map *map, uint64_t key) noexcept:
    """Keyed with a secret seed, so that nobody can choose colliding keys."""
    key = (key ^ map.seed) * <uint64_t>0x9E3779B97F4A7C15
    key = (key ^ (key >> 29)) * <uint64_t>0xBF58476D1CE4E5B9
    return (key ^ (key >> 32)) & (map.capacity - 1)


cdef uint32_t map_get(const Map *map, uint64_t key) noexcept:
    """Return the place of a key; 0: unknown."""
    cdef uint64_t position
    if map.count == 0:
        return 0
    position = map_home(map, key)
    while map.keys[position]:
        if map.keys[position] == key:
            return map.places[position]
        position = (position + 1) & (map.capacity - 1)
    return 0


cdef int map_grow(Map *map) except -1:
    cdef Map larger
    cdef uint64_t position
    larger.capacity = max(2 * map.capacity, <uint64_t>CAPACITY_MIN)
    larger.seed = map.seed
    larger.count = 0
    larger.keys = <uint64_t *>calloc(larger.capacity, sizeof(uint64_t))
    larger.places = <uint32_t *>calloc(larger.capacity, sizeof(uint32_t))
    if larger.keys is NULL or larger.places is NULL:
        free(larger.keys)
        free(larger.places)
        raise MemoryError
    for position in range(map.capacity):
        if map.keys[position]:
            map_set(&larger, map.keys[position], map.places[position])
    map_free(map)
    map[0] = larger
    return 0


cdef inline void map_set(Map *map, uint64_t key, uint32_t place) noexcept:
    """Insert a new key. There must be room."""
    cdef uint64_t position = map_home(map, key)
    while map.keys[position]:
        position = (position + 1) & (map.capacity - 1)
    map.keys[position] = key
    map.places[position] = place
    map.count += 1


cdef int map_put(Map *map, uint64_t key, uint32_t place) except -1:
    """Insert a new key, which is not 0."""
    if 10 * (map.count + 1) > 7 * map.capacity:
        map_grow(map)
    map_set(map, key, place)
    return 0


cdef void map_remove(Map *map, uint64_t key) noexcept:
    """Remove a key. Displaced keys after it move up, so that no marker is needed."""
    cdef uint64_t mask = map.capacity - 1
    cdef uint64_t hole, position
    if map.count == 0:
        return
    hole = map_home(map, key)
    while map.keys[hole] != key:
        if map.keys[hole] == 0:
            return
        hole = (hole + 1) & mask
    position = hole
    while True:
        position = (position + 1) & mask
        if map.keys[position] == 0:
            break
        if ((position - map_home(map, map.keys[position])) & mask) >= ((position - hole) & mask):
            map.keys[hole] = map.keys[position]
            map.places[hole] = map.places[position]
            hole = position
    map.keys[hole] = 0
    map.count -= 1


cdef void map_free(Map *map) noexcept:
    free(map.keys)
    free(map.places)
    map.keys = NULL
    map.places = NULL
    map.capacity = 0
    map.count = 0
