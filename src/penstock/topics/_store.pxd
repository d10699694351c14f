"""The memory of an interest table: one hash table of nodes keyed by (parent, kind, key bytes).

Everything is a node: an exact topic, a tag, and each step of each pattern. A node fills one cache line, so that an
exact topic costs two memory accesses: its bucket and its node. Subscribers are stored as codes (see NEGATIVE).

The GIL serialises writers. They hold `lock` only for the few stores that a matcher could see half done; matchers hold
the lock for a chunk of topics. Nodes never move.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "penstock/topics/primitives.h" nogil:
    ctypedef struct TicketLock:
        pass
    void lock_acquire(TicketLock *lock)
    void lock_release(TicketLock *lock)
    uint64_t load_u64(const void *data)
    uint32_t load_u32(const void *data)
    uint64_t fold(uint64_t a, uint64_t b)
    int lowest_bit(uint64_t mask)
    void prefetch(const void *address)
    enum:
        SCAN_SIZE
    uint32_t scan_bytes(const uint8_t *topic, size_t at, size_t size, uint32_t *is_forbidden)
    void *allocate(size_t size, bint is_large)


cpdef enum NodeKind:
    NODE_FREE = 0
    NODE_TOPIC = 1       # key: an exact topic
    NODE_TAG = 2         # key: a tag
    NODE_RANGED = 3      # key: the canonical text of a pattern with ranges; records its subscribers, never matched
    NODE_TALLY = 4       # key: kind and length (or shift); its `children` counts the uses of a bit in the parent's mask
    NODE_ROOT = 8        # this and later kinds are steps of patterns
    NODE_LITERAL = 9     # key: a level
    NODE_PREFIX = 10     # key: a prefix of a level
    NODE_BLOCK = 11      # key: shift (1 byte), value >> shift (8 bytes, little-endian): a block of a numeric range
    NODE_STAR = 12       # one level; no key
    NODE_REST = 13       # one or more levels; no key

cpdef enum:
    NEGATIVE = 0x40000000            # a code is a subscriber, with this bit for a negative interest
    SUBSCRIBER_MAX = 0xFFFFFF
    BLOCK_KEY_SIZE = 9
    LENGTH_MAX = 64                  # maximum bytes of a prefix: bits of a mask

cdef enum:
    SEGMENT_BITS = 15                # 32,768 nodes of 64 bytes: one large page
    SEGMENT_NODES = 1 << SEGMENT_BITS
    SEGMENTS_MAX = 4096
    KEY_INLINE = 40
    STEP_KEY_INLINE = 16
    ROOT = 0                         # also means "no node", because the root is never a child


cdef struct Step:                    # fields of pattern steps only
    uint64_t prefix_lengths          # bit n: some child is a prefix of n + 1 bytes
    uint64_t block_shifts            # bit n: some child is a block of 2**n numbers
    uint32_t star
    uint32_t rest
    uint8_t key[STEP_KEY_INLINE]


cdef union Body:
    Step step
    uint8_t key[KEY_INLINE]          # or a pointer to a longer key


cdef struct Node:                    # 64 bytes
    uint64_t codes                   # 0: none; odd: one code, shifted left; even: a CodeList
    uint32_t parent                  # in a free node: the next free one
    uint32_t children
    uint32_t literals                # number of literal children
    uint16_t key_size
    uint8_t kind
    uint8_t is_ranged                # on a path with a block: codes may repeat, one per interest
    Body body


cdef struct CodeList:                # sorted; negative codes are the largest and hence last
    uint32_t count
    uint32_t capacity
    uint32_t codes[1]                # actual length: `capacity`


cdef struct Bucket:
    uint32_t hash
    uint32_t node                    # 0: empty


cdef struct Index:                   # a hash table of nodes: linear probing, at most 7 of 10 buckets used
    Bucket *buckets                  # 2**bits buckets; the highest bits of a node's hash give its first position
    uint8_t *filter                  # a byte per bucket: bit n is set if a hash for the bucket has next 3 bits n
    uint32_t bits
    uint32_t used


cdef struct Owned:                   # the nodes in which a subscriber has codes; may include nodes that it has left
    uint32_t *nodes
    uint32_t count
    uint32_t capacity


cdef struct Store:
    TicketLock lock
    uint64_t seed_a
    uint64_t seed_b
    Index wholes                     # exact topics and all other nodes that are not steps
    Index steps                      # separate, to stay in the cache: most topics end early on every pattern
    Node *segments[SEGMENTS_MAX]
    uint32_t node_count_made         # nodes ever allocated; freed ones are in the free list
    uint32_t node_count_free
    uint32_t free_first
    uint64_t *stamps                 # per subscriber: the last generation that included it
    Owned *owned                     # per subscriber
    uint32_t subscriber_capacity
    uint64_t generation
    uint64_t interest_count
    uint64_t negative_count          # negative codes in all nodes
    uint64_t revision                # incremented whenever a pattern's step is added or removed
    uint64_t heap_size               # bytes of long keys, code lists and owned lists


cdef Store *store_open(uint64_t seed_a, uint64_t seed_b) except NULL
cdef void store_close(Store *store) noexcept
cdef uint64_t store_size(const Store *store) noexcept
cdef uint32_t child_get(const Store *store, uint32_t parent, uint8_t kind, const uint8_t *key, size_t size) noexcept
cdef uint32_t child_make(Store *store, uint32_t parent, uint8_t kind, const uint8_t *key, size_t size) except 0
cdef void node_release(Store *store, uint32_t index) noexcept
cdef int code_add(Store *store, uint32_t index, uint32_t code) except -1
cdef bint code_remove(Store *store, uint32_t index, uint32_t code) noexcept
cdef list subscriber_remove(Store *store, uint32_t subscriber)
cdef int subscriber_reserve(Store *store, uint32_t subscriber) except -1


cdef inline Node *node_at(const Store *store, uint32_t index) noexcept nogil:
    return store.segments[index >> SEGMENT_BITS] + (index & (SEGMENT_NODES - 1))


cdef inline bint is_step(uint8_t kind) noexcept nogil:
    return kind >= NODE_ROOT


cdef inline const uint8_t *node_key(const Node *node) noexcept nogil:
    if is_step(node.kind):
        if node.key_size <= STEP_KEY_INLINE:
            return node.body.step.key
        return <const uint8_t *>load_u64(node.body.step.key)
    if node.key_size <= KEY_INLINE:
        return node.body.key
    return <const uint8_t *>load_u64(node.body.key)


cdef inline uint64_t hash_bytes(const Store *store, const uint8_t *data, size_t size) noexcept nogil:
    """Hash with the table's seeds, so that colliding topics cannot be chosen without knowing the seeds."""
    cdef uint64_t state = store.seed_a ^ (size * <uint64_t>0x9E3779B97F4A7C15)
    if size > 16:
        while size > 16:
            state = fold(load_u64(data) ^ store.seed_b, load_u64(data + 8) ^ state)
            data += 16
            size -= 16
        # hash the last 16 bytes regardless of the remaining size, which is unpredictable, to avoid a branch
        return fold(load_u64(data + size - 16) ^ store.seed_b, load_u64(data + size - 8) ^ state)
    if size >= 8:
        return fold(load_u64(data) ^ store.seed_b, load_u64(data + size - 8) ^ state)
    if size >= 4:
        return fold(load_u32(data) ^ store.seed_b, load_u32(data + size - 4) ^ state)
    if size:
        return fold((data[0] | data[size >> 1] << 8 | data[size - 1] << 16) ^ store.seed_b, state)
    return fold(store.seed_b, state)


cdef inline uint32_t hash_child(const Store *store, uint32_t parent, uint8_t kind, uint64_t key_hash) noexcept nogil:
    return <uint32_t>(fold(key_hash ^ (<uint64_t>parent << 8 | kind), store.seed_b | 1) >> 32)


cdef inline const Index *index_of(const Store *store, uint8_t kind) noexcept nogil:
    return &store.steps if is_step(kind) else &store.wholes


cdef inline uint32_t bucket_first(const Index *index, uint32_t hash) noexcept nogil:
    return hash >> (32 - index.bits)


cdef inline uint32_t bucket_next(const Index *index, uint32_t position) noexcept nogil:
    return (position + 1) & ((<uint32_t>1 << index.bits) - 1)


cdef inline uint32_t filter_bit(const Index *index, uint32_t hash) noexcept nogil:
    return hash >> (29 - index.bits) & 7


cdef inline uint32_t filter_passes(const Index *index, uint32_t hash) noexcept nogil:
    """Return 0 if no node has this hash, 1 if one may have; reads one byte of a small array."""
    return index.filter[bucket_first(index, hash)] >> filter_bit(index, hash) & 1


cdef inline bint is_equal(const uint8_t *left, const uint8_t *right, size_t size) noexcept nogil:
    """Keys are short, so a call of memcmp would cost more than the comparison."""
    cdef size_t at = 0
    if size >= 8:
        while at + 8 < size:
            if load_u64(left + at) != load_u64(right + at):
                return False
            at += 8
        return load_u64(left + size - 8) == load_u64(right + size - 8)
    if size >= 4:
        return load_u32(left) == load_u32(right) and load_u32(left + size - 4) == load_u32(right + size - 4)
    while at < size:
        if left[at] != right[at]:
            return False
        at += 1
    return True


cdef inline bint node_is(const Node *node, uint32_t parent, uint8_t kind, const uint8_t *key, size_t size) noexcept nogil:
    return (
        node.parent == parent and node.kind == kind and node.key_size == size
        and is_equal(node_key(node), key, size)
    )


cdef inline uint32_t child_find_from(
    const Store *store, const Index *index, uint32_t position,
    uint32_t parent, uint8_t kind, const uint8_t *key, size_t size, uint32_t hash
) noexcept nogil:
    """Return the node with this key, or 0. The loop ends because there are always empty buckets."""
    cdef Bucket bucket = index.buckets[position]
    while bucket.node:
        if bucket.hash == hash and node_is(node_at(store, bucket.node), parent, kind, key, size):
            return bucket.node
        position = bucket_next(index, position)
        bucket = index.buckets[position]
    return 0


cdef inline uint32_t child_find(
    const Store *store, uint32_t parent, uint8_t kind, const uint8_t *key, size_t size, uint32_t hash
) noexcept nogil:
    cdef const Index *index = index_of(store, kind)
    return child_find_from(store, index, bucket_first(index, hash), parent, kind, key, size, hash)
