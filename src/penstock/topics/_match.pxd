"""Matching topics against a store: the working memory, and the two calls."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.topics._store cimport Store

cdef enum:
    DEPTH_MAX = 16
    SIZE_MAX = 255
    CHUNK_MAX = 128
    TRUNKS = 256                     # a power of two
    TRUNK_WAYS = 4                   # places that a trunk may have, also a power of two
    TRUNK_SIZE_MAX = 40
    TRUNK_NODES_MAX = 8
    TRUNK_RESTS_MAX = 6
    TRUNK_LEVELS_LEFT = 2            # a topic's last levels, which differ most, are no part of its trunk


cdef struct Topic:
    const uint8_t *data
    uint16_t size
    uint8_t depth                    # 0: not well formed, matches nothing
    uint8_t word_level               # the level that word_hash belongs to, from 1
    uint8_t ends[DEPTH_MAX]          # where each level ends
    uint8_t trunk_levels             # how many levels its trunk has; 0: none, it is walked from the root
    bint is_first_on_trunk           # the trunk is new, and made from where this topic gets to
    uint32_t trunk                   # in Scratch.trunks
    uint32_t next_on_level           # the next topic, plus 1, whose walk begins on the same level; 0: none
    uint32_t hash
    uint32_t position                # the bucket to look at
    uint32_t first_hit               # in Scratch.hits; 0: none
    uint64_t word_hash


cdef struct Item:                    # a topic has reached a node
    uint32_t topic
    uint32_t node


cdef struct Probe:                   # a topic may reach this child
    uint32_t topic
    uint32_t parent
    uint32_t hash
    uint32_t position
    uint64_t value                   # of a block: the number, shifted
    uint16_t key_size
    uint8_t kind
    uint8_t shift


cdef struct Hit:
    uint32_t node
    uint32_t next                    # of the same topic; 0: none


# Where all topics that begin alike get to: most topics share their first levels with many others, so the walk over
# these is remembered. It holds for one revision of the store.
cdef struct Trunk:
    uint64_t revision
    uint64_t chunk_made              # the chunk it is made in, and can be used after
    uint64_t chunk_used              # the last chunk with a topic on it
    uint8_t beginning[TRUNK_SIZE_MAX]
    uint8_t size
    uint8_t node_count               # TRUNK_NODES_MAX + 1: it does not fit, such topics are walked from the root
    uint8_t rest_count
    uint32_t nodes[TRUNK_NODES_MAX]
    uint32_t rests[TRUNK_RESTS_MAX]  # the `>` nodes met on the way


cdef struct Scratch:                 # used by whoever holds the store's lock
    Topic topics[CHUNK_MAX]
    Trunk trunks[TRUNKS]
    uint32_t waiting[DEPTH_MAX]      # by level: the first topic, plus 1, whose walk begins there
    uint64_t chunk
    size_t trunks_new                # begun in this chunk and not made yet
    int trunk_credit                 # hits less misses: where topics do not begin alike, trunks are not worth it
    Item *items
    Item *items_next
    Probe *probes
    Hit *hits                        # from 1
    size_t items_capacity
    size_t items_next_capacity
    size_t probes_capacity
    size_t hits_capacity
    size_t item_count
    size_t item_next_count
    size_t probe_count
    size_t hit_count
    uint64_t lookup_count            # nodes reached and children looked for, since the table was made
    uint64_t malformed_count         # topics, since the table was made


cdef struct Output:
    uint32_t *subscribers
    size_t count
    size_t capacity


cdef struct Span:
    const uint8_t *data
    size_t size


cdef struct Batch:                   # topic i is sizes[i] bytes at data + offsets[i]
    const uint8_t *data
    const uint32_t *offsets
    const uint16_t *sizes
    size_t count
    const uint32_t *codes            # found elsewhere (regular expressions), merged into the result of topic i:
    const uint64_t *code_offsets     # those from code_offsets[i] to code_offsets[i + 1]; NULL: none at all
    const Span *tags                 # of topic i: those from tag_offsets[i] to tag_offsets[i + 1]
    const uint64_t *tag_offsets      # NULL: no topic has tags


cdef uint8_t topic_scan(const uint8_t *data, size_t size, uint8_t *ends) noexcept nogil

# Match a batch whose ranges have been checked: 0, or -1 when there is no memory. The subscribers of topic i are appended
# to the output, from result_offsets[i] on.
cdef int match_batch(
    Store *store, Scratch *scratch, const Batch *batch, uint64_t *result_offsets, Output *output
) noexcept nogil
