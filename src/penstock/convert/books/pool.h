/* Memory for the rows of one state: blocks of powers of two, out of large pages where the system has them.
 *
 * Millions of orders are reached in no order. With pages of 4 KiB nearly every access would also miss the processor's
 * table of pages; with pages of 2 MiB it seldom does. Whoever frees a block says how large it is. Under the address
 * sanitizer every block is an allocation of its own, so that it can watch their bounds.
 */
#ifndef PENSTOCK_CONVERT_POOL_H
#define PENSTOCK_CONVERT_POOL_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POOL_CHUNK ((size_t)2 << 20) /* also the size of a large page */
#define POOL_BITS_FIRST 8            /* the smallest block has 256 bytes */
#define POOL_CLASSES 14              /* up to POOL_CHUNK; larger blocks are chunks of their own */

typedef struct PoolChunk {
    struct PoolChunk *next;
    void *memory;
} PoolChunk;

typedef struct {
    void *free[POOL_CLASSES];
    char *fresh; /* what is left of the newest chunk */
    size_t fresh_size;
    PoolChunk *chunks;
} Pool;

/* Zeroed memory on large pages; NULL without any. */
static inline void *pool_map(size_t size) {
    char *memory, *aligned;
    size_t rounded = (size + POOL_CHUNK - 1) & ~(POOL_CHUNK - 1), before;
    memory = (char *)mmap(NULL, rounded + POOL_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == (char *)MAP_FAILED) return NULL;
    aligned = (char *)(((uintptr_t)memory + POOL_CHUNK - 1) & ~(uintptr_t)(POOL_CHUNK - 1));
    before = (size_t)(aligned - memory);
    if (before) munmap(memory, before);
    if (before < POOL_CHUNK) munmap(aligned + rounded, POOL_CHUNK - before);
    madvise(aligned, rounded, MADV_HUGEPAGE); /* where it is refused, small pages do as well */
    return aligned;
}

static inline void pool_unmap(void *memory, size_t size) {
    if (memory) munmap(memory, (size + POOL_CHUNK - 1) & ~(POOL_CHUNK - 1));
}

/* Bytes of the block that a request gets. */
static inline size_t pool_size(size_t size) {
    size_t block = (size_t)1 << POOL_BITS_FIRST;
    while (block < size) block *= 2;
    return block;
}

#ifdef __SANITIZE_ADDRESS__

static inline void *pool_take(Pool *pool, size_t size) { return malloc(pool_size(size)); }
static inline void pool_give(Pool *pool, void *block, size_t size) { free(block); }
static inline void pool_close(Pool *pool) {}

#else

static inline int pool_class(size_t block) { return __builtin_ctzll(block) - POOL_BITS_FIRST; }

/* A block of pool_size(size) bytes, not zeroed; NULL without memory. */
static inline void *pool_take(Pool *pool, size_t size) {
    size_t block = pool_size(size);
    void *taken;
    PoolChunk *chunk;
    if (block > POOL_CHUNK) return pool_map(block);
    taken = pool->free[pool_class(block)];
    if (taken) {
        memcpy(&pool->free[pool_class(block)], taken, sizeof(void *));
        return taken;
    }
    if (pool->fresh_size < block) {
        /* what is left of the last chunk is too small for this block: it goes to the lists */
        while (pool->fresh_size) {
            size_t rest = (size_t)1 << (63 - __builtin_clzll(pool->fresh_size));
            memcpy(pool->fresh, &pool->free[pool_class(rest)], sizeof(void *));
            pool->free[pool_class(rest)] = pool->fresh;
            pool->fresh += rest;
            pool->fresh_size -= rest;
        }
        chunk = (PoolChunk *)malloc(sizeof(PoolChunk));
        if (!chunk) return NULL;
        chunk->memory = pool_map(POOL_CHUNK);
        if (!chunk->memory) {
            free(chunk);
            return NULL;
        }
        chunk->next = pool->chunks;
        pool->chunks = chunk;
        pool->fresh = (char *)chunk->memory;
        pool->fresh_size = POOL_CHUNK;
    }
    taken = pool->fresh;
    pool->fresh += block;
    pool->fresh_size -= block;
    return taken;
}

/* Give back a block that was taken for `size` bytes. */
static inline void pool_give(Pool *pool, void *block, size_t size) {
    size_t room = pool_size(size);
    if (!block) return;
    if (room > POOL_CHUNK) {
        pool_unmap(block, room);
        return;
    }
    memcpy(block, &pool->free[pool_class(room)], sizeof(void *));
    pool->free[pool_class(room)] = block;
}

/* Unmap all chunks; blocks larger than a chunk must have been given back. */
static inline void pool_close(Pool *pool) {
    while (pool->chunks) {
        PoolChunk *next = pool->chunks->next;
        pool_unmap(pool->chunks->memory, POOL_CHUNK);
        free(pool->chunks);
        pool->chunks = next;
    }
}

#endif

/* A larger block with the same content, of which `used` bytes count; the old one is given back. NULL leaves it. */
static inline void *pool_grow(Pool *pool, void *block, size_t size, size_t used, size_t size_wanted) {
    void *grown = pool_take(pool, size_wanted);
    if (!grown) return NULL;
    if (used) memcpy(grown, block, used);
    pool_give(pool, block, size);
    return grown;
}

#endif
