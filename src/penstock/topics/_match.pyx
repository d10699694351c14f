"""Matching: from topics to subscribers.

Topics are matched in chunks, stage by stage: while memory for one topic is being fetched, other topics are processed.
Patterns are walked level by level for the whole chunk, for the same reason.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from penstock.base import limits
from penstock.topics._store cimport *

cdef enum:
    WORK_MAX = 16384                 # nodes and probes of a chunk, above which the next chunk is smaller
    PROBES_PER_NODE_MAX = 1 + 64 + 64
    DIGITS_MAX = 20                  # of a 64-bit number
    TRUNK_CREDIT_MAX = 1024
    TRUNK_MISS_COST = 4

if DEPTH_MAX != limits.TOPIC_DEPTH_MAX or SIZE_MAX != limits.TOPIC_SIZE_MAX:
    raise ImportError("the compiled interest table and penstock.base.limits disagree")

cdef struct Codes:
    const uint32_t *codes
    size_t count


cdef int match_batch(
    Store *store, Scratch *scratch, const Batch *batch, uint64_t *result_offsets, Output *output
) noexcept nogil:
    cdef size_t start = 0, count, chunk = CHUNK_MAX
    cdef uint64_t lookup_count
    cdef int status = 0
    result_offsets[0] = 0
    while start < batch.count and status == 0:
        count = min(chunk, batch.count - start)
        lock_acquire(&store.lock)
        lookup_count = scratch.lookup_count
        status = match_batch_chunk(store, scratch, batch, start, count, result_offsets, output)
        lookup_count = scratch.lookup_count - lookup_count
        lock_release(&store.lock)
        start += count
        # Patterns with many branches make a chunk slow: bound the time under the lock, and the memory.
        if lookup_count > WORK_MAX:
            chunk -= chunk // 2
        elif chunk < CHUNK_MAX and lookup_count < WORK_MAX // 4:
            chunk *= 2
    return status


cdef int match_batch_chunk(
    Store *store, Scratch *scratch, const Batch *batch, size_t start, size_t count, uint64_t *result_offsets,
    Output *output
) noexcept nogil:
    cdef size_t index
    cdef Codes more
    for index in range(count):
        scratch.topics[index].data = batch.data + batch.offsets[start + index]
        scratch.topics[index].size = batch.sizes[start + index]
    if match_chunk(store, scratch, count):
        return -1
    if batch.tag_offsets is not NULL and match_tags(store, scratch, batch, start, count):
        return -1
    for index in range(count):
        more.codes = NULL
        more.count = 0
        if batch.code_offsets is not NULL and scratch.topics[index].depth:
            more.codes = batch.codes + batch.code_offsets[start + index]
            more.count = batch.code_offsets[start + index + 1] - batch.code_offsets[start + index]
        if emit(store, scratch, scratch.topics[index].first_hit, more, output):
            return -1
        result_offsets[start + index + 1] = output.count
    return 0


cdef int match_tags(Store *store, Scratch *scratch, const Batch *batch, size_t start, size_t count) noexcept nogil:
    """Add the hits of the tags to those of the topics."""
    cdef size_t first = batch.tag_offsets[start], last = batch.tag_offsets[start + count], index, tag
    cdef const Span *span
    cdef uint32_t node
    if reserve(<void **>&scratch.hits, &scratch.hits_capacity, scratch.hit_count + last - first, sizeof(Hit)):
        return -1
    for index in range(count):
        if not scratch.topics[index].depth:
            continue
        for tag in range(batch.tag_offsets[start + index], batch.tag_offsets[start + index + 1]):
            span = batch.tags + tag
            node = child_find(
                store, ROOT, NODE_TAG, span.data, span.size,
                hash_child(store, ROOT, NODE_TAG, hash_bytes(store, span.data, span.size))
            )
            if node:
                hit_put(scratch, scratch.topics + index, node)
    return 0


cdef int reserve(void **block, size_t *capacity, size_t needed, size_t item_size) noexcept nogil:
    """Return 0, or -1 without memory."""
    if needed <= capacity[0]:
        return 0
    cdef size_t wanted = max(2 * capacity[0], needed + 64)
    cdef void *bigger = realloc(block[0], wanted * item_size)
    if bigger is NULL:
        return -1
    block[0] = bigger
    capacity[0] = wanted
    return 0


# Topics


cdef uint8_t topic_scan(const uint8_t *data, size_t size, uint8_t *ends) noexcept nogil:
    """Return the depth, and the end of each level; 0 if the topic is malformed."""
    cdef size_t at = 0, end, start = 0, depth = 0
    cdef uint32_t dots, is_bad = 0
    if size > SIZE_MAX:
        return 0
    while at < size:
        dots = scan_bytes(data, at, size, &is_bad)
        while dots:
            end = at + lowest_bit(dots)
            is_bad |= end == start
            ends[depth & (DEPTH_MAX - 1)] = <uint8_t>end
            depth += 1
            start = end + 1
            dots &= dots - 1
        at += SCAN_SIZE
    if is_bad or start == size or depth >= DEPTH_MAX:
        return 0
    ends[depth] = <uint8_t>size
    return <uint8_t>depth + 1


cdef inline uint8_t word_start(const Topic *topic, uint8_t level) noexcept nogil:
    return topic.ends[level - 1] + 1 if level else 0


cdef bint word_number(const uint8_t *word, size_t size, uint64_t *number) noexcept nogil:
    """True if the level is a 64-bit number without leading zeros."""
    cdef uint64_t value = 0
    cdef size_t position
    cdef uint8_t digit
    if size > DIGITS_MAX or (word[0] == c"0" and size > 1):
        return False
    for position in range(size):
        digit = word[position] - c"0"
        if digit > 9 or value > (<uint64_t>-1 - digit) // 10:
            return False
        value = value * 10 + digit
    number[0] = value
    return True


cdef inline void block_key(uint8_t *key, uint8_t shift, uint64_t value) noexcept nogil:
    cdef int position
    key[0] = shift
    for position in range(8):
        key[1 + position] = <uint8_t>(value >> (8 * position))


# Matching a chunk. Each function returns 0, or -1 without memory.


cdef int match_chunk(Store *store, Scratch *scratch, size_t count) noexcept nogil:
    """Find the hits of the first `count` topics, whose data and size are set. The caller holds the lock."""
    if walk_chunk(store, scratch, count) == 0:
        return 0
    forget_new_trunks(scratch)
    return -1


cdef int walk_chunk(Store *store, Scratch *scratch, size_t count) noexcept nogil:
    cdef const Node *root = node_at(store, ROOT)
    cdef size_t waiting
    cdef uint8_t level = 0
    scratch.hit_count = 1
    if reserve(<void **>&scratch.hits, &scratch.hits_capacity, count + 1, sizeof(Hit)):
        return -1
    match_exact(store, scratch, count)
    scratch.item_count = 0
    if not (root.literals or root.body.step.prefix_lengths or root.body.step.block_shifts or root.body.step.star
            or root.body.step.rest):
        return 0
    waiting = find_trunks(store, scratch, count)
    while scratch.item_count or waiting or scratch.trunks_new:
        if reserve(
            <void **>&scratch.items, &scratch.items_capacity, scratch.item_count + waiting * TRUNK_NODES_MAX, sizeof(Item)
        ) or reserve(
            <void **>&scratch.hits, &scratch.hits_capacity, scratch.hit_count + waiting * TRUNK_RESTS_MAX, sizeof(Hit)
        ):
            return -1
        waiting -= leave_trunks(scratch, level)
        if scratch.trunks_new:
            make_trunks(store, scratch, count, level)
        if scratch.item_count and match_level(store, scratch, level):
            return -1
        level += 1
    return 0


# Trunks


cdef size_t find_trunks(Store *store, Scratch *scratch, size_t count) noexcept nogil:
    """Sort topics by the level where their walk starts: after a known trunk, or at the root. Return their number."""
    cdef Topic *topic
    cdef size_t index, found = 0
    cdef uint8_t level
    cdef bint is_worth_it = scratch.trunk_credit > -TRUNK_CREDIT_MAX // 2
    scratch.chunk += 1
    scratch.trunks_new = 0
    for level in range(DEPTH_MAX):
        scratch.waiting[level] = 0
    for index in range(count):
        topic = scratch.topics + index
        if not topic.depth:
            continue
        level = 0
        topic.is_first_on_trunk = False
        topic.trunk_levels = 0
        if is_worth_it and topic.depth > TRUNK_LEVELS_LEFT:
            level = topic.depth - TRUNK_LEVELS_LEFT
            if topic.ends[level - 1] > TRUNK_SIZE_MAX or not trunk_find(store, scratch, topic, level):
                level = 0
        topic.next_on_level = scratch.waiting[level]
        scratch.waiting[level] = <uint32_t>index + 1
        found += 1
    if not is_worth_it:
        scratch.trunk_credit += 1 # trunks are tried again after a while
    return found


cdef inline bint trunk_find(Store *store, Scratch *scratch, Topic *topic, uint8_t levels) noexcept nogil:
    """True if the topic's trunk is known. If not, this topic may become the first on a new trunk."""
    cdef size_t size = topic.ends[levels - 1]
    cdef uint32_t place = hash_bytes(store, topic.data, size) & (TRUNKS - TRUNK_WAYS)
    cdef uint32_t oldest = place, way
    cdef Trunk *trunk
    for way in range(place, place + TRUNK_WAYS):
        trunk = scratch.trunks + way
        if trunk.revision == store.revision and trunk.size == size and is_equal(trunk.beginning, topic.data, size):
            trunk.chunk_used = scratch.chunk
            if trunk.chunk_made == scratch.chunk or trunk.node_count > TRUNK_NODES_MAX:
                return False
            topic.trunk = way
            topic.trunk_levels = levels
            scratch.trunk_credit += scratch.trunk_credit < TRUNK_CREDIT_MAX
            scratch.lookup_count += 1
            return True
        if trunk.chunk_used < scratch.trunks[oldest].chunk_used:
            oldest = way
    scratch.trunk_credit -= TRUNK_MISS_COST
    trunk = scratch.trunks + oldest
    if trunk.chunk_used == scratch.chunk:
        return False # all slots are used by other topics of this chunk
    trunk.revision = store.revision
    trunk.chunk_made = trunk.chunk_used = scratch.chunk
    trunk.size = <uint8_t>size
    trunk.node_count = 0
    trunk.rest_count = 0
    memcpy(trunk.beginning, topic.data, size)
    topic.trunk = oldest
    topic.trunk_levels = levels
    topic.is_first_on_trunk = True
    scratch.trunks_new += 1
    return False


cdef size_t leave_trunks(Scratch *scratch, uint8_t level) noexcept nogil:
    """Start the walk of topics at the end of their trunks, for trunks that end at this level. Return their number."""
    cdef Topic *topic
    cdef const Trunk *trunk
    cdef uint32_t index = scratch.waiting[level]
    cdef size_t count = 0, position
    while index:
        topic = scratch.topics + (index - 1)
        if level == 0:
            item_put(scratch.items, &scratch.item_count, index - 1, ROOT)
        else:
            trunk = scratch.trunks + topic.trunk
            for position in range(trunk.node_count):
                item_put(scratch.items, &scratch.item_count, index - 1, trunk.nodes[position])
            for position in range(trunk.rest_count):
                hit_put(scratch, topic, trunk.rests[position])
        index = topic.next_on_level
        count += 1
    return count


cdef void make_trunks(Store *store, Scratch *scratch, size_t count, uint8_t level) noexcept nogil:
    """Record the nodes and `>` nodes reached by the first topic of each new trunk."""
    cdef Topic *topic
    cdef Trunk *trunk
    cdef uint32_t hit
    cdef size_t index
    for index in range(scratch.item_count):
        topic = scratch.topics + scratch.items[index].topic
        if topic.is_first_on_trunk and topic.trunk_levels == level:
            trunk = scratch.trunks + topic.trunk
            if trunk.node_count < TRUNK_NODES_MAX:
                trunk.nodes[trunk.node_count] = scratch.items[index].node
            trunk.node_count = min(trunk.node_count + 1, TRUNK_NODES_MAX + 1)
    for index in range(count):
        topic = scratch.topics + index
        if not topic.depth or not topic.is_first_on_trunk or topic.trunk_levels != level:
            continue
        scratch.trunks_new -= 1
        trunk = scratch.trunks + topic.trunk
        hit = topic.first_hit
        while hit:
            if node_at(store, scratch.hits[hit].node).kind == NODE_REST:
                if trunk.rest_count == TRUNK_RESTS_MAX:
                    trunk.node_count = TRUNK_NODES_MAX + 1
                    break
                trunk.rests[trunk.rest_count] = scratch.hits[hit].node
                trunk.rest_count += 1
            hit = scratch.hits[hit].next


cdef void forget_new_trunks(Scratch *scratch) noexcept nogil:
    """Discard this chunk's new trunks after an aborted walk."""
    cdef size_t index
    for index in range(TRUNKS):
        if scratch.trunks[index].chunk_made == scratch.chunk:
            scratch.trunks[index].size = 0


cdef void match_exact(Store *store, Scratch *scratch, size_t count) noexcept nogil:
    cdef const Index *wholes = &store.wholes
    cdef Topic *topic
    cdef uint32_t node
    cdef uint8_t chosen[CHUNK_MAX]
    cdef size_t index, kept = 0
    for index in range(count):
        topic = scratch.topics + index
        topic.first_hit = 0
        topic.word_level = 0
        topic.hash = 0
        topic.depth = topic_scan(topic.data, topic.size, topic.ends)
        if topic.depth:
            topic.hash = hash_child(store, ROOT, NODE_TOPIC, hash_bytes(store, topic.data, topic.size))
        else:
            scratch.malformed_count += 1
        topic.position = bucket_first(wholes, topic.hash)
        prefetch(wholes.filter + topic.position)
    for index in range(count):
        topic = scratch.topics + index
        chosen[kept] = <uint8_t>index
        kept += (topic.depth != 0) & filter_passes(wholes, topic.hash) # unpredictable, so without a branch
        scratch.lookup_count += topic.depth != 0
    for index in range(kept):
        prefetch(wholes.buckets + scratch.topics[chosen[index]].position)
    for index in range(kept):
        topic = scratch.topics + chosen[index]
        topic.position = probe_bucket(store, wholes, topic.position, topic.hash)
    for index in range(kept):
        topic = scratch.topics + chosen[index]
        node = child_find_from(
            store, wholes, topic.position, ROOT, NODE_TOPIC, topic.data, topic.size, topic.hash
        )
        if node:
            hit_put(scratch, topic, node)


cdef inline uint32_t probe_bucket(
    const Store *store, const Index *index, uint32_t position, uint32_t hash
) noexcept nogil:
    """Return the first bucket that may match (and prefetch its node), or an empty one."""
    cdef const Bucket *bucket = index.buckets + position
    while bucket.node and bucket.hash != hash:
        position = bucket_next(index, position)
        bucket = index.buckets + position
    if bucket.node:
        prefetch(node_at(store, bucket.node))
    return position


cdef inline void hit_put(Scratch *scratch, Topic *topic, uint32_t node) noexcept nogil:
    scratch.hits[scratch.hit_count].node = node
    scratch.hits[scratch.hit_count].next = topic.first_hit
    topic.first_hit = <uint32_t>scratch.hit_count
    scratch.hit_count += 1


cdef inline void item_put(Item *items, size_t *count, uint32_t topic, uint32_t node) noexcept nogil:
    items[count[0]].topic = topic
    items[count[0]].node = node
    count[0] += 1


cdef int match_level(Store *store, Scratch *scratch, uint8_t level) noexcept nogil:
    """Advance topics from the nodes reached before `level` to those reached with it."""
    cdef Probe *probe
    cdef size_t index
    cdef uint32_t child
    scratch.item_next_count = 0
    scratch.probe_count = 0
    if reserve(
        <void **>&scratch.hits, &scratch.hits_capacity, scratch.hit_count + 2 * scratch.item_count, sizeof(Hit)
    ) or reserve(
        <void **>&scratch.items_next, &scratch.items_next_capacity, scratch.item_count, sizeof(Item)
    ):
        return -1
    for index in range(scratch.item_count):
        if reserve(
            <void **>&scratch.probes, &scratch.probes_capacity, scratch.probe_count + PROBES_PER_NODE_MAX, sizeof(Probe)
        ):
            return -1
        expand(store, scratch, level, scratch.items[index].topic, scratch.items[index].node)
    scratch.lookup_count += scratch.item_count + scratch.probe_count
    probes_filter(&store.steps, scratch)
    if reserve(
        <void **>&scratch.items_next, &scratch.items_next_capacity, scratch.item_next_count + scratch.probe_count,
        sizeof(Item)
    ) or reserve(
        <void **>&scratch.hits, &scratch.hits_capacity, scratch.hit_count + scratch.probe_count, sizeof(Hit)
    ):
        return -1
    for index in range(scratch.probe_count):
        probe = scratch.probes + index
        probe.position = probe_bucket(store, &store.steps, probe.position, probe.hash)
    for index in range(scratch.probe_count):
        probe = scratch.probes + index
        child = probe_finish(store, scratch, probe, level)
        if child:
            reach(scratch, level, probe.topic, child)
    scratch.items, scratch.items_next = scratch.items_next, scratch.items
    scratch.items_capacity, scratch.items_next_capacity = scratch.items_next_capacity, scratch.items_capacity
    scratch.item_count = scratch.item_next_count
    return 0


cdef inline void reach(Scratch *scratch, uint8_t level, uint32_t topic, uint32_t node) noexcept nogil:
    """Record that the topic reaches the node with `level`: a hit at the end of the topic, else an item for the next
    level.
    """
    if scratch.topics[topic].depth == level + 1:
        hit_put(scratch, scratch.topics + topic, node)
    else:
        item_put(scratch.items_next, &scratch.item_next_count, topic, node)


cdef inline void expand(
    Store *store, Scratch *scratch, uint8_t level, uint32_t topic_index, uint32_t node_index
) noexcept nogil:
    """Add probes for all children that a topic can reach from a node. Room has been reserved."""
    cdef Topic *topic = scratch.topics + topic_index
    cdef const Node *node = node_at(store, node_index)
    cdef const uint8_t *word
    cdef uint8_t block[BLOCK_KEY_SIZE]
    cdef size_t size, length
    cdef uint64_t mask, number
    cdef uint8_t shift
    if node.body.step.rest:
        hit_put(scratch, topic, node.body.step.rest)
        prefetch(node_at(store, node.body.step.rest))
    if node.body.step.star:
        reach(scratch, level, topic_index, node.body.step.star)
        prefetch(node_at(store, node.body.step.star))
    word = topic.data + word_start(topic, level)
    size = topic.ends[level] - word_start(topic, level)
    if node.literals:
        if topic.word_level != level + 1:
            topic.word_level = level + 1
            topic.word_hash = hash_bytes(store, word, size)
        probe_put(store, scratch, topic_index, node_index, NODE_LITERAL, size, topic.word_hash, 0, 0)
    mask = node.body.step.prefix_lengths
    if size < LENGTH_MAX:
        mask &= (<uint64_t>1 << size) - 1
    while mask:
        length = lowest_bit(mask) + 1
        probe_put(store, scratch, topic_index, node_index, NODE_PREFIX, length, hash_bytes(store, word, length), 0, 0)
        mask &= mask - 1
    mask = node.body.step.block_shifts
    if mask and word_number(word, size, &number):
        while mask:
            shift = <uint8_t>lowest_bit(mask)
            block_key(block, shift, number >> shift)
            probe_put(
                store, scratch, topic_index, node_index, NODE_BLOCK, BLOCK_KEY_SIZE,
                hash_bytes(store, block, BLOCK_KEY_SIZE), shift, number >> shift
            )
            mask &= mask - 1


cdef inline void probe_put(
    const Store *store, Scratch *scratch, uint32_t topic, uint32_t parent, uint8_t kind, size_t key_size,
    uint64_t key_hash, uint8_t shift, uint64_t value
) noexcept nogil:
    cdef uint32_t hash = hash_child(store, parent, kind, key_hash)
    cdef Probe *probe = scratch.probes + scratch.probe_count
    scratch.probe_count += 1
    probe.topic = topic
    probe.parent = parent
    probe.kind = kind
    probe.key_size = <uint16_t>key_size
    probe.shift = shift
    probe.value = value
    probe.hash = hash
    probe.position = bucket_first(&store.steps, hash)
    prefetch(store.steps.filter + probe.position)


cdef inline void probes_filter(const Index *steps, Scratch *scratch) noexcept nogil:
    """Keep the probes that may succeed. The outcome is unpredictable, so there is no branch on it."""
    cdef size_t index, kept = 0
    cdef uint32_t hash
    for index in range(scratch.probe_count):
        hash = scratch.probes[index].hash
        scratch.probes[kept] = scratch.probes[index]
        kept += filter_passes(steps, hash)
    scratch.probe_count = kept
    for index in range(kept):
        prefetch(steps.buckets + scratch.probes[index].position)


cdef inline uint32_t probe_finish(Store *store, Scratch *scratch, const Probe *probe, uint8_t level) noexcept nogil:
    """Return the child, or 0."""
    cdef const Topic *topic = scratch.topics + probe.topic
    cdef uint8_t block[BLOCK_KEY_SIZE]
    cdef const uint8_t *key = topic.data + word_start(topic, level)
    if probe.kind == NODE_BLOCK:
        block_key(block, probe.shift, probe.value)
        key = block
    return child_find_from(
        store, &store.steps, probe.position, probe.parent, probe.kind, key, probe.key_size, probe.hash
    )


# From hits to subscribers


cdef inline size_t hit_codes(const Store *store, uint32_t index, uint32_t *single, const uint32_t **codes) noexcept nogil:
    cdef const Node *node = node_at(store, index)
    if node.codes & 1:
        single[0] = <uint32_t>(node.codes >> 1)
        codes[0] = single
        return 1
    if not node.codes:
        return 0
    codes[0] = (<CodeList *>node.codes).codes
    return (<CodeList *>node.codes).count


cdef int emit(
    Store *store, const Scratch *scratch, uint32_t first_hit, Codes more, Output *output
) noexcept nogil:
    """Append the subscribers with a positive and no negative code among the hits and `more`, each once."""
    cdef uint32_t single, hit
    cdef const uint32_t *codes = NULL
    cdef size_t count, index
    if more.count == 0:
        if first_hit == 0:
            return 0
        if scratch.hits[first_hit].next == 0:
            # A single node, usually with a single subscriber: no comparison needed.
            count = hit_codes(store, scratch.hits[first_hit].node, &single, &codes)
            if count == 1 and codes[0] < NEGATIVE:
                return emit_one(codes[0], output)
    store.generation += 1
    if store.negative_count:
        hit = first_hit
        while hit:
            count = hit_codes(store, scratch.hits[hit].node, &single, &codes)
            while count and codes[count - 1] >= NEGATIVE:
                count -= 1
                store.stamps[codes[count] & SUBSCRIBER_MAX] = store.generation
            hit = scratch.hits[hit].next
    for index in range(more.count):
        if more.codes[index] >= NEGATIVE:
            store.stamps[more.codes[index] & SUBSCRIBER_MAX] = store.generation
    hit = first_hit
    while hit:
        count = hit_codes(store, scratch.hits[hit].node, &single, &codes)
        if emit_positive(store, codes, count, output):
            return -1
        hit = scratch.hits[hit].next
    return emit_positive(store, more.codes, more.count, output)


cdef inline int emit_one(uint32_t subscriber, Output *output) noexcept nogil:
    if reserve(<void **>&output.subscribers, &output.capacity, output.count + 1, sizeof(uint32_t)):
        return -1
    output.subscribers[output.count] = subscriber
    output.count += 1
    return 0


cdef inline int emit_positive(Store *store, const uint32_t *codes, size_t count, Output *output) noexcept nogil:
    cdef size_t index
    if reserve(<void **>&output.subscribers, &output.capacity, output.count + count, sizeof(uint32_t)):
        return -1
    for index in range(count):
        if codes[index] < NEGATIVE and store.stamps[codes[index]] != store.generation:
            store.stamps[codes[index]] = store.generation
            output.subscribers[output.count] = codes[index]
            output.count += 1
    return 0
