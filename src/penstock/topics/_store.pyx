"""Add and remove nodes; see _store.pxd for the memory. _match.pyx matches topics."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memmove, memset

from penstock.base.errors import LimitError

cdef enum:
    INDEX_BITS_FIRST = 8
    INDEX_BITS_MAX = 29
    SUBSCRIBERS_FIRST = 64
    OWNED_FIRST = 4
    LIST_FIRST = 4


cdef Store *store_open(uint64_t seed_a, uint64_t seed_b) except NULL:
    """Create an empty store; close it with store_close()."""
    cdef Store *store = <Store *>malloc(sizeof(Store))
    if store is NULL:
        raise MemoryError
    memset(store, 0, sizeof(Store))
    store.seed_a = seed_a
    store.seed_b = seed_b
    try:
        store.wholes = index_make(INDEX_BITS_FIRST)
        store.steps = index_make(INDEX_BITS_FIRST)
        node_take(store)
    except BaseException:
        store_close(store)
        raise
    memset(store.segments[0], 0, sizeof(Node))
    store.segments[0].kind = NODE_ROOT
    return store


cdef void store_close(Store *store) noexcept:
    cdef Node *node
    cdef uint32_t index, subscriber
    cdef int segment
    for index in range(store.node_count_made):
        node = node_at(store, index)
        free(key_on_heap(node))
        if node.codes and not node.codes & 1:
            free(<void *>node.codes)
    for subscriber in range(store.subscriber_capacity):
        free(store.owned[subscriber].nodes)
    for segment in range(SEGMENTS_MAX):
        free(store.segments[segment])
    free(store.owned)
    free(store.stamps)
    free(store.wholes.buckets)
    free(store.steps.buckets)
    free(store)


cdef uint64_t store_size(const Store *store) noexcept:
    """Return the memory in use in bytes, including free nodes."""
    cdef uint64_t segments = (store.node_count_made + SEGMENT_NODES - 1) >> SEGMENT_BITS
    return (
        sizeof(Store) + index_size(store.wholes.bits) + index_size(store.steps.bits) + segments * SEGMENT_NODES * sizeof(Node)
        + store.subscriber_capacity * (sizeof(uint64_t) + sizeof(Owned)) + store.heap_size
    )


# Nodes


cdef size_t inline_size(uint8_t kind) noexcept:
    return STEP_KEY_INLINE if is_step(kind) else KEY_INLINE


cdef void *key_on_heap(Node *node) noexcept:
    return NULL if node.kind == NODE_FREE or node.key_size <= inline_size(node.kind) else <void *>node_key(node)


cdef uint32_t node_take(Store *store) except? 0:
    """Take a node from the free list, or allocate one."""
    cdef uint32_t index = store.free_first
    if index:
        store.free_first = node_at(store, index).parent
        store.node_count_free -= 1
        return index
    index = store.node_count_made
    cdef uint32_t segment = index >> SEGMENT_BITS
    if segment == SEGMENTS_MAX:
        raise LimitError(f"the interest table exceeds the limit of {SEGMENTS_MAX * SEGMENT_NODES} nodes")
    if store.segments[segment] is NULL:
        # A small table would waste a large page.
        store.segments[segment] = <Node *>allocate(SEGMENT_NODES * sizeof(Node), segment > 0)
        if store.segments[segment] is NULL:
            raise MemoryError
    store.node_count_made += 1
    return index


cdef void node_give_back(Store *store, uint32_t index) noexcept:
    cdef Node *node = node_at(store, index)
    if key_on_heap(node) is not NULL:
        store.heap_size -= node.key_size
        free(key_on_heap(node))
    memset(node, 0, sizeof(Node))
    node.parent = store.free_first
    store.free_first = index
    store.node_count_free += 1


cdef uint32_t node_make(Store *store, uint32_t parent, uint8_t kind, const uint8_t *key, size_t size) except 0:
    """Create a node that is not visible to matchers yet."""
    cdef uint8_t *heap = NULL
    cdef bint is_inline = size <= inline_size(kind)
    if not is_inline:
        heap = <uint8_t *>malloc(size)
        if heap is NULL:
            raise MemoryError
    cdef uint32_t index
    try:
        index = node_take(store)
    except BaseException:
        free(heap)
        raise
    cdef Node *node = node_at(store, index)
    memset(node, 0, sizeof(Node))
    node.parent = parent
    node.kind = kind
    node.key_size = <uint16_t>size
    node.is_ranged = kind == NODE_BLOCK or node_at(store, parent).is_ranged
    cdef uint8_t *place = node.body.key
    if is_step(kind):
        place = node.body.step.key
    if is_inline:
        memcpy(place, key, size)
    else:
        memcpy(heap, key, size)
        memcpy(place, &heap, sizeof(heap))
        store.heap_size += size
    return index


cdef uint32_t child_get(const Store *store, uint32_t parent, uint8_t kind, const uint8_t *key, size_t size) noexcept:
    """Return the child with this key, or 0."""
    if kind == NODE_STAR:
        return node_at(store, parent).body.step.star
    if kind == NODE_REST:
        return node_at(store, parent).body.step.rest
    return child_find(store, parent, kind, key, size, hash_child(store, parent, kind, hash_bytes(store, key, size)))


cdef uint32_t child_make(Store *store, uint32_t parent, uint8_t kind, const uint8_t *key, size_t size) except 0:
    """Find or create the child with this key. Its parent must be in use or be released by the caller."""
    cdef Node *above = node_at(store, parent)
    cdef uint32_t hash = hash_child(store, parent, kind, hash_bytes(store, key, size))
    cdef uint32_t index = child_get(store, parent, kind, key, size)
    if index:
        return index
    index_reserve(store, &store.wholes)
    index_reserve(store, &store.steps)
    index = node_make(store, parent, kind, key, size)
    if kind == NODE_PREFIX or kind == NODE_BLOCK:
        try:
            tally(store, parent, kind, key, size)
        except BaseException:
            node_give_back(store, index)
            raise
    lock_acquire(&store.lock)
    if kind == NODE_STAR:
        above.body.step.star = index
    elif kind == NODE_REST:
        above.body.step.rest = index
    else:
        index_put(index_for(store, kind), hash, index)
        if kind == NODE_LITERAL:
            above.literals += 1
        elif kind == NODE_PREFIX:
            above.body.step.prefix_lengths |= <uint64_t>1 << (size - 1)
        elif kind == NODE_BLOCK:
            above.body.step.block_shifts |= <uint64_t>1 << key[0]
    above.children += 1
    store.revision += is_step(kind)
    lock_release(&store.lock)
    return index


cdef void node_release(Store *store, uint32_t index) noexcept:
    """Free the node if it is unused, then its parent likewise."""
    cdef Node *node = node_at(store, index)
    cdef uint32_t parent
    while index != ROOT and not node.codes and not node.children:
        parent = node.parent
        lock_acquire(&store.lock)
        node_unlink(store, index)
        node_at(store, parent).children -= 1
        store.revision += is_step(node.kind)
        lock_release(&store.lock)
        node_give_back(store, index)
        index = parent
        node = node_at(store, index)


cdef void node_unlink(Store *store, uint32_t index) noexcept:
    cdef Node *node = node_at(store, index)
    cdef Node *above = node_at(store, node.parent)
    if node.kind == NODE_STAR:
        above.body.step.star = 0
        return
    if node.kind == NODE_REST:
        above.body.step.rest = 0
        return
    index_clear(index_for(store, node.kind), node_hash(store, node), index)
    if node.kind == NODE_LITERAL:
        above.literals -= 1
    elif node.kind == NODE_PREFIX:
        if not untally(store, node):
            above.body.step.prefix_lengths &= ~(<uint64_t>1 << (node.key_size - 1))
    elif node.kind == NODE_BLOCK:
        if not untally(store, node):
            above.body.step.block_shifts &= ~(<uint64_t>1 << node_key(node)[0])


# A bit in a node's mask covers any number of children; a tally node counts them, so that the bit is cleared with the
# last one.


cdef (uint8_t, uint8_t) tally_key(uint8_t kind, const uint8_t *key, size_t size) noexcept:
    return kind, (<uint8_t>size if kind == NODE_PREFIX else key[0])


cdef int tally(Store *store, uint32_t parent, uint8_t kind, const uint8_t *key, size_t size) except -1:
    cdef (uint8_t, uint8_t) pair = tally_key(kind, key, size)
    cdef uint8_t[2] name = [pair[0], pair[1]]
    cdef uint32_t hash = hash_child(store, parent, NODE_TALLY, hash_bytes(store, name, 2))
    cdef uint32_t index = child_find(store, parent, NODE_TALLY, name, 2, hash)
    if not index:
        index = node_make(store, parent, NODE_TALLY, name, 2)
        lock_acquire(&store.lock)
        index_put(&store.wholes, hash, index)
        lock_release(&store.lock)
    node_at(store, index).children += 1
    return 0


cdef bint untally(Store *store, const Node *node) noexcept:
    """Return whether the parent has another such child. The caller holds the lock."""
    cdef (uint8_t, uint8_t) pair = tally_key(node.kind, node_key(node), node.key_size)
    cdef uint8_t[2] name = [pair[0], pair[1]]
    cdef uint32_t hash = hash_child(store, node.parent, NODE_TALLY, hash_bytes(store, name, 2))
    cdef uint32_t index = child_find(store, node.parent, NODE_TALLY, name, 2, hash)
    node_at(store, index).children -= 1
    if node_at(store, index).children:
        return True
    index_clear(&store.wholes, hash, index)
    node_give_back(store, index)
    return False


# Indexes. A removal moves later entries back, so there are no tombstones.


cdef uint32_t node_hash(const Store *store, const Node *node) noexcept:
    return hash_child(store, node.parent, node.kind, hash_bytes(store, node_key(node), node.key_size))


cdef Index *index_for(Store *store, uint8_t kind) noexcept:
    return &store.steps if is_step(kind) else &store.wholes


cdef size_t index_size(uint32_t bits) noexcept:
    return (sizeof(Bucket) + 1) << bits


cdef Index index_make(uint32_t bits) except *:
    cdef Index index
    if bits > INDEX_BITS_MAX:
        raise LimitError("the interest table has reached its maximum size")
    index.bits = bits
    index.used = 0
    index.buckets = <Bucket *>allocate(index_size(bits), True)
    if index.buckets is NULL:
        raise MemoryError
    memset(index.buckets, 0, index_size(bits))
    index.filter = <uint8_t *>(index.buckets + (<size_t>1 << bits))
    return index


cdef int index_reserve(Store *store, Index *index) except -1:
    """Make room for one more entry. The larger copy is built outside the lock, so that matchers do not wait."""
    cdef uint64_t capacity = <uint64_t>1 << index.bits
    if (<uint64_t>index.used + 1) * 10 <= capacity * 7:
        return 0
    cdef Index bigger = index_make(index.bits + 1)
    cdef Bucket *smaller = index.buckets
    cdef uint64_t position
    for position in range(capacity):
        if smaller[position].node:
            index_put(&bigger, smaller[position].hash, smaller[position].node)
    lock_acquire(&store.lock)
    index[0] = bigger
    lock_release(&store.lock)
    free(smaller)
    return 0


cdef void index_put(Index *index, uint32_t hash, uint32_t node) noexcept:
    cdef uint32_t position = bucket_first(index, hash)
    index.filter[position] |= <uint8_t>1 << filter_bit(index, hash)
    while index.buckets[position].node:
        position = bucket_next(index, position)
    index.buckets[position].hash = hash
    index.buckets[position].node = node
    index.used += 1


cdef void index_clear(Index *index, uint32_t hash, uint32_t node) noexcept:
    cdef uint32_t mask = (<uint32_t>1 << index.bits) - 1
    cdef uint32_t hole = bucket_first(index, hash)
    cdef uint32_t position, home
    while index.buckets[hole].node != node:
        hole = bucket_next(index, hole)
    position = bucket_next(index, hole)
    while index.buckets[position].node:
        home = bucket_first(index, index.buckets[position].hash)
        if ((position - home) & mask) >= ((position - hole) & mask):
            index.buckets[hole] = index.buckets[position]
            hole = position
        position = bucket_next(index, position)
    index.buckets[hole].node = 0
    index.used -= 1
    filter_clear(index, hash)


cdef void filter_clear(Index *index, uint32_t hash) noexcept:
    """Clear the filter's bit for this hash, unless another hash in the index has the same bit."""
    cdef uint32_t home = bucket_first(index, hash)
    cdef uint32_t position = home, other
    while index.buckets[position].node:
        other = index.buckets[position].hash
        if bucket_first(index, other) == home and filter_bit(index, other) == filter_bit(index, hash):
            return
        position = bucket_next(index, position)
    index.filter[home] &= ~(<uint8_t>1 << filter_bit(index, hash))


# Codes: the subscribers of a node


cdef uint32_t codes_view(const Node *node, uint32_t *single, const uint32_t **codes) noexcept:
    """Return the node's codes as an array; `single` is storage for a code kept in the node itself."""
    if not node.codes:
        return 0
    if node.codes & 1:
        single[0] = <uint32_t>(node.codes >> 1)
        codes[0] = single
        return 1
    codes[0] = (<CodeList *>node.codes).codes
    return (<CodeList *>node.codes).count


cdef uint32_t code_position(const uint32_t *codes, uint32_t count, uint32_t code) noexcept:
    """Return the position of the code, or its insertion point."""
    cdef uint32_t low = 0, high = count, middle
    while low < high:
        middle = low + (high - low) // 2
        if codes[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint code_present(const Node *node, uint32_t code) noexcept:
    cdef uint32_t single
    cdef const uint32_t *codes = NULL
    cdef uint32_t count = codes_view(node, &single, &codes)
    cdef uint32_t position = code_position(codes, count, code)
    return position < count and codes[position] == code


cdef int code_add(Store *store, uint32_t index, uint32_t code) except -1:
    """Add a code; return whether it is new. On ranged paths it always is, because each interest adds its own."""
    cdef Node *node = node_at(store, index)
    cdef uint32_t subscriber = code & ~<uint32_t>NEGATIVE
    subscriber_reserve(store, subscriber)
    if not node.is_ranged:
        if code_present(node, code):
            return 0
        own(store, subscriber, index)
    if code >= NEGATIVE:
        # before the code itself, so that no matcher finds a negative code while the count is 0
        lock_acquire(&store.lock)
        store.negative_count += 1
        lock_release(&store.lock)
    code_insert(store, node, code)
    if not node.is_ranged:
        store.interest_count += 1
    return 1


cdef int code_insert(Store *store, Node *node, uint32_t code) except -1:
    cdef uint32_t single
    cdef const uint32_t *codes = NULL
    cdef uint32_t count = codes_view(node, &single, &codes)
    cdef uint32_t position = code_position(codes, count, code)
    cdef CodeList *old = NULL if node.codes & 1 else <CodeList *>node.codes
    cdef CodeList *new
    if count == 0:
        lock_acquire(&store.lock)
        node.codes = <uint64_t>code << 1 | 1
        lock_release(&store.lock)
    elif old is not NULL and count < old.capacity:
        lock_acquire(&store.lock)
        memmove(old.codes + position + 1, old.codes + position, (count - position) * sizeof(uint32_t))
        old.codes[position] = code
        old.count += 1
        lock_release(&store.lock)
    else:
        new = <CodeList *>malloc(list_size(max(LIST_FIRST, 2 * count)))
        if new is NULL:
            raise MemoryError
        new.capacity = max(LIST_FIRST, 2 * count)
        new.count = count + 1
        memcpy(new.codes, codes, position * sizeof(uint32_t))
        new.codes[position] = code
        memcpy(new.codes + position + 1, codes + position, (count - position) * sizeof(uint32_t))
        lock_acquire(&store.lock)
        node.codes = <uint64_t>new
        lock_release(&store.lock)
        store.heap_size += list_size(new.capacity)
        list_free(store, old)
    return 0


cdef bint code_remove(Store *store, uint32_t index, uint32_t code) noexcept:
    """Remove a code; return whether it existed. The caller releases the node."""
    cdef Node *node = node_at(store, index)
    if not code_present(node, code):
        return False
    cdef CodeList *codes = NULL if node.codes & 1 else <CodeList *>node.codes
    cdef uint32_t position
    lock_acquire(&store.lock)
    if codes is NULL:
        node.codes = 0
    else:
        position = code_position(codes.codes, codes.count, code)
        codes.count -= 1
        memmove(codes.codes + position, codes.codes + position + 1, (codes.count - position) * sizeof(uint32_t))
        if codes.count == 1:
            node.codes = <uint64_t>codes.codes[0] << 1 | 1
    store.negative_count -= code >= NEGATIVE
    lock_release(&store.lock)
    if codes is not NULL and codes.count == 1:
        list_free(store, codes)
    if not node.is_ranged:
        store.interest_count -= 1
    return True


cdef size_t list_size(uint32_t capacity) noexcept:
    return sizeof(CodeList) + (capacity - 1) * sizeof(uint32_t)


cdef void list_free(Store *store, CodeList *codes) noexcept:
    if codes is not NULL:
        store.heap_size -= list_size(codes.capacity)
        free(codes)


# Subscribers: the nodes of each one, so that removing a subscriber needs no search through the table


cdef int subscriber_reserve(Store *store, uint32_t subscriber) except -1:
    if subscriber < store.subscriber_capacity:
        return 0
    if subscriber > SUBSCRIBER_MAX:
        raise LimitError(f"subscriber {subscriber} exceeds the largest number {SUBSCRIBER_MAX}")
    cdef uint32_t capacity = max(<uint32_t>SUBSCRIBERS_FIRST, store.subscriber_capacity)
    while capacity <= subscriber:
        capacity *= 2
    cdef uint64_t *stamps = <uint64_t *>calloc(capacity, sizeof(uint64_t))
    cdef Owned *owned = <Owned *>calloc(capacity, sizeof(Owned))
    if stamps is NULL or owned is NULL:
        free(stamps)
        free(owned)
        raise MemoryError
    if store.subscriber_capacity:
        memcpy(owned, store.owned, store.subscriber_capacity * sizeof(Owned))
    cdef uint64_t *stamps_before = store.stamps
    lock_acquire(&store.lock)
    store.stamps = stamps
    store.subscriber_capacity = capacity
    lock_release(&store.lock)
    free(stamps_before)
    free(store.owned)
    store.owned = owned
    return 0


cdef int own(Store *store, uint32_t subscriber, uint32_t index) except -1:
    cdef Owned *owned = store.owned + subscriber
    cdef uint32_t capacity
    cdef uint32_t *nodes
    if owned.count == owned.capacity:
        owned_tidy(store, owned, subscriber)
        if 2 * owned.count >= owned.capacity:
            capacity = max(OWNED_FIRST, 2 * owned.capacity)
            nodes = <uint32_t *>realloc(owned.nodes, capacity * sizeof(uint32_t))
            if nodes is NULL:
                raise MemoryError
            store.heap_size += (capacity - owned.capacity) * sizeof(uint32_t)
            owned.nodes = nodes
            owned.capacity = capacity
    owned.nodes[owned.count] = index
    owned.count += 1
    return 0


cdef void owned_tidy(const Store *store, Owned *owned, uint32_t subscriber) noexcept:
    """Drop duplicates and nodes that the subscriber has left."""
    cdef uint32_t kept = 0, position, index
    cdef const Node *node
    if owned.count == 0:
        return
    qsort(owned.nodes, owned.count, sizeof(uint32_t), compare_u32)
    for position in range(owned.count):
        index = owned.nodes[position]
        node = node_at(store, index)
        if kept and owned.nodes[kept - 1] == index:
            continue
        if node.is_ranged or not (code_present(node, subscriber) or code_present(node, subscriber | NEGATIVE)):
            continue
        owned.nodes[kept] = index
        kept += 1
    owned.count = kept


cdef int compare_u32(const void *a, const void *b) noexcept nogil:
    cdef uint32_t left = (<const uint32_t *>a)[0]
    cdef uint32_t right = (<const uint32_t *>b)[0]
    return (left > right) - (left < right)


cdef list subscriber_remove(Store *store, uint32_t subscriber):
    """Remove all its codes except those of patterns with ranges, which are returned as (text, is negative)."""
    ranged = []
    if subscriber >= store.subscriber_capacity:
        return ranged
    cdef Owned *owned = store.owned + subscriber
    cdef Node *node
    cdef uint32_t position, code
    owned_tidy(store, owned, subscriber)
    for position in range(owned.count):
        node = node_at(store, owned.nodes[position])
        for code in (subscriber, subscriber | NEGATIVE):
            if node.kind == NODE_RANGED:
                if code_present(node, code):
                    ranged.append((node_key(node)[:node.key_size], code >= NEGATIVE))
            else:
                code_remove(store, owned.nodes[position], code)
        node_release(store, owned.nodes[position])
    if not ranged:
        store.heap_size -= owned.capacity * sizeof(uint32_t)
        free(owned.nodes)
        memset(owned, 0, sizeof(Owned))
    return ranged
