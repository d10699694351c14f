/* Machine primitives of the interest table: 128-bit multiplication, prefetch, vectorised scans, a lock, memory on large
   pages. */
#ifndef PENSTOCK_TOPICS_PRIMITIVES_H
#define PENSTOCK_TOPICS_PRIMITIVES_H

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define LARGE_PAGE_SIZE ((size_t)2 << 20)
#define SPINS_BEFORE_YIELD 64

static inline uint64_t load_u64(const void *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static inline uint32_t load_u32(const void *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

/* Both halves of the product depend on every bit of both factors, so combining them mixes well. */
static inline uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline int lowest_bit(uint64_t mask) { return __builtin_ctzll(mask); }

static inline void prefetch(const void *address) { __builtin_prefetch(address); }

#define SCAN_SIZE 16 /* bytes at a time */

/* Bytes that are invalid in topics: besides white space and controls, those with a meaning in interests
   (topics/topic.py). */
static const uint8_t scan_reserved[] = {0x7F, '*', '>', '!', '#', '/', '[', ']'};

#if defined(__SSE2__)
/* Load a text shorter than a block, padded with zeros, without reading beyond its end. */
static inline __m128i scan_short(const uint8_t *text, size_t size) {
    uint64_t low, high = 0;
    if (size >= 8) {
        low = load_u64(text);
        high = load_u64(text + size - 8) >> 4 * (16 - size) >> 4 * (16 - size);
    } else if (size >= 4) {
        low = load_u32(text) | (uint64_t)load_u32(text + size - 4) << 8 * (size - 4);
    } else {
        low = text[0] | (uint64_t)text[size / 2] << 8 * (size / 2) | (uint64_t)text[size - 1] << 8 * (size - 1);
    }
    return _mm_set_epi64x((int64_t)high, (int64_t)low);
}
#endif

/* Return the positions of dots in a topic from `at` on, one bit for each of SCAN_SIZE bytes or of the remaining ones,
   and whether any byte is forbidden. No branch depends on the bytes, because a misprediction would cost more than the
   scan. */
static inline uint32_t scan_bytes(const uint8_t *topic, size_t at, size_t size, uint32_t *is_forbidden) {
    size_t left = size - at;
    uint32_t dots = 0;
#if defined(__SSE2__)
    unsigned before = 0; /* bytes of the block before `at` */
    uint32_t chosen = 0xFFFF;
    __m128i block, forbidden;
    if (left >= SCAN_SIZE) {
        block = _mm_loadu_si128((const __m128i *)(topic + at));
    } else if (size >= SCAN_SIZE) {
        block = _mm_loadu_si128((const __m128i *)(topic + size - SCAN_SIZE));
        before = (unsigned)(SCAN_SIZE - left);
    } else {
        block = scan_short(topic, size);
        chosen = (1u << size) - 1;
    }
    forbidden = _mm_cmpeq_epi8(_mm_min_epu8(block, _mm_set1_epi8(0x20)), block);
    for (size_t each = 0; each < sizeof scan_reserved; each++)
        forbidden = _mm_or_si128(forbidden, _mm_cmpeq_epi8(block, _mm_set1_epi8((char)scan_reserved[each])));
    *is_forbidden |= (uint32_t)_mm_movemask_epi8(forbidden) & chosen;
    dots = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(block, _mm_set1_epi8('.'))) >> before;
#else
    for (size_t position = 0; position < left && position < SCAN_SIZE; position++) {
        uint8_t byte = topic[at + position];
        *is_forbidden |= byte <= 0x20;
        for (size_t each = 0; each < sizeof scan_reserved; each++) *is_forbidden |= byte == scan_reserved[each];
        dots |= (uint32_t)(byte == '.') << position;
    }
#endif
    return dots;
}

/* A fair lock: a matcher that returns for its next chunk cannot starve a waiting writer. */
typedef struct {
    uint32_t next;
    uint32_t serving;
} TicketLock;

static inline void lock_acquire(TicketLock *lock) {
    uint32_t ticket = __atomic_fetch_add(&lock->next, 1, __ATOMIC_RELAXED);
    for (unsigned spins = 0; __atomic_load_n(&lock->serving, __ATOMIC_ACQUIRE) != ticket; spins++) {
        if (spins >= SPINS_BEFORE_YIELD) {
            sched_yield();
        } else {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    }
}

static inline void lock_release(TicketLock *lock) {
    __atomic_store_n(&lock->serving, lock->serving + 1, __ATOMIC_RELEASE);
}

/* Freed with free(). Large blocks request large pages, which also reduces TLB misses of random reads. */
static inline void *allocate(size_t size, int is_large) {
    if (!is_large || size < LARGE_PAGE_SIZE) return aligned_alloc(64, (size + 63) & ~(size_t)63);
    size_t whole = (size + LARGE_PAGE_SIZE - 1) & ~(LARGE_PAGE_SIZE - 1);
    void *block = aligned_alloc(LARGE_PAGE_SIZE, whole);
    if (block) madvise(block, whole, MADV_HUGEPAGE); /* advice only: small pages are slower */
    return block;
}

#endif
