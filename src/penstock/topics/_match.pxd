"""Match topics against a store: the working memory and the functions."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.topics._store cimport Store

cdef enum:
    DEPTH_MAX = 16
    SIZE_MAX = 255
    CHUNK_MAX = 128
    TRUNKS = 256                     # a power of two
    TRUNK_WAYS = 4                   # slots per trunk, also a power of two
    TRUNK_SIZE_MAX = 40
    TRUNK_NODES_MAX = 8
    TRUNK_RESTS_MAX = 6
    TRUNK_LEVELS_LEFT = 2            # a topic's last levels, which differ most, are not part of its trunk


cdef struct Topic:
    const uint8_t *data
    uint16_t size
    uint8_t depth                    # 0: malformed, matches nothing
    uint8_t word_level               # the level that word_hash belongs to, from 1
    uint8_t ends[DEPTH_MAX]          # the end of each level
    uint8_t trunk_levels             # number of levels in its trunk; 0: no trunk, the walk starts at the root
    bint is_first_on_trunk           # the trunk is new, and recorded from this topic's walk
    uint32_t trunk                   # in Scratch.trunks
    uint32_t next_on_level           # the next topic, plus 1, whose walk starts at the same level; 0: none
    uint32_t hash
    uint32_t position                # the bucket to check
    uint32_t first_hit               # in Scratch.hits; 0: none
    uint64_t word_hash


cdef struct Item:                    # a topic that has reached a node
    uint32_t topic
    uint32_t node


cdef struct Probe:                   # a child that a topic may reach
    uint32_t topic
    uint32_t parent
    uint32_t hash
    uint32_t position
    uint64_t value                   # for a block: the number, shifted
    uint16_t key_size
    uint8_t kind
    uint8_t shift


cdef struct Hit:
    uint32_t node
    uint32_t next                    # of the same topic; 0: none


# The nodes reached by all topics with the same first levels: most topics share them with many others, so this part of
# the walk is cached. Valid for one revision of the store.
cdef struct Trunk:
    uint64_t revision
    uint64_t chunk_made              # the chunk that recorded the trunk; usable in later chunks
    uint64_t chunk_used              # the last chunk with a topic on it
    uint8_t beginning[TRUNK_SIZE_MAX]
    uint8_t size
    uint8_t node_count               # TRUNK_NODES_MAX + 1: too many nodes, topics are walked from the root
    uint8_t rest_count
    uint32_t nodes[TRUNK_NODES_MAX]
    uint32_t rests[TRUNK_RESTS_MAX]  # the `>` nodes reached on the way


cdef struct Scratch:                 # used while holding the store's lock
    Topic topics[CHUNK_MAX]
    Trunk trunks[TRUNKS]
    uint32_t waiting[DEPTH_MAX]      # by level: the first topic, plus 1, whose walk starts there
    uint64_t chunk
    size_t trunks_new                # started in this chunk and not recorded yet
    int trunk_credit                 # hits minus misses: without common first levels, trunks cost more than they save
    Item *items
    Item *items_next
    Probe *probes
    Hit *hits                        # index 0 is unused
    size_t items_capacity
    size_t items_next_capacity
    size_t probes_capacity
    size_t hits_capacity
    size_t item_count
    size_t item_next_count
    size_t probe_count
    size_t hit_count
    uint64_t lookup_count            # nodes reached and children looked up since the table was created
    uint64_t malformed_count         # topics since the table was created


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
    const uint32_t *codes            # subscribers found by regular expressions, merged into the result of topic i:
    const uint64_t *code_offsets     # codes from code_offsets[i] to code_offsets[i + 1]; NULL: none
    const Span *tags                 # tags of topic i: from tag_offsets[i] to tag_offsets[i + 1]
    const uint64_t *tag_offsets      # NULL: no topic has tags


cdef uint8_t topic_scan(const uint8_t *data, size_t size, uint8_t *ends) noexcept nogil

# Match a batch with validated ranges: 0, or -1 without memory. The subscribers of topic i are appended to the output,
# from result_offsets[i] on.
cdef int match_batch(
    Store *store, Scratch *scratch, const Batch *batch, uint64_t *result_offsets, Output *output
) noexcept nogil
