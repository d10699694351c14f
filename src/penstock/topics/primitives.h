/* What the interest table needs of the machine: a multiplication of 128 bits, prefetch, a lock, memory in large pages. */
#ifndef PENSTOCK_TOPICS_PRIMITIVES_H
#define PENSTOCK_TOPICS_PRIMITIVES_H

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

/* Both halves of the product depend on every bit of both factors, so their difference is a good mixture. */
static inline uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline int lowest_bit(uint64_t mask) { return __builtin_ctzll(mask); }

static inline void prefetch(const void *address) { __builtin_prefetch(address); }

/* First come, first served: a matcher that comes back for its next chunk cannot starve a waiting writer. */
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

/* Freed with free(). Large blocks ask for large pages: random reads then rarely miss the TLB as well. */
static inline void *allocate(size_t size, int is_large) {
    if (!is_large || size < LARGE_PAGE_SIZE) return aligned_alloc(64, (size + 63) & ~(size_t)63);
    size_t whole = (size + LARGE_PAGE_SIZE - 1) & ~(LARGE_PAGE_SIZE - 1);
    void *block = aligned_alloc(LARGE_PAGE_SIZE, whole);
    if (block) madvise(block, whole, MADV_HUGEPAGE); /* advice only: without it the table is slower, not wrong */
    return block;
}

#endif
