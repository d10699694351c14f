/* Operations on shared memory that C has and Cython lacks: atomic words, fences, the futex and the clocks.
 *
 * One side stores data, then releases a word; the other acquires the word, then loads the data. The data itself is
 * copied with memcpy while the other side may be writing it: a copy is used only after its verification.
 */
#ifndef PENSTOCK_SHM_MEMORY_H
#define PENSTOCK_SHM_MEMORY_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

static inline uint64_t load_acquire(const uint8_t *at) {
    return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}
static inline uint64_t load_relaxed(const uint8_t *at) {
    return __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
}
static inline void store_release(uint8_t *at, uint64_t value) {
    __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELEASE);
}
static inline void store_relaxed(uint8_t *at, uint64_t value) {
    __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELAXED);
}
static inline void fence_acquire(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void fence_release(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

/* Hint to the processor that this thread spins. */
static inline void spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Prefetch memory for writing. The address may be outside the mapping. */
#define AHEAD_MAX 512 /* bytes; more would be evicted early */
static inline void fetch_ahead(const uint8_t *at, uint64_t size) {
    for (uint64_t done = 0; done < size && done < AHEAD_MAX; done += 64) __builtin_prefetch(at + done, 1);
}

static inline int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static inline int64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static inline int64_t wall_ns(void) { return clock_ns(CLOCK_REALTIME); }

/* A signal ends the sleep early. */
static inline void sleep_ns(int64_t duration_ns) {
    struct timespec duration = {duration_ns / 1000000000, duration_ns % 1000000000};
    nanosleep(&duration, NULL);
}

/* The doorbell: a word that is 1 while a reader sleeps or is about to. Only the writer resets it, so that one reader
 * cannot consume another's wake-up. The full fences on both sides ensure that the reader does not miss the event and
 * the writer does not miss the reader. */
static inline void doorbell_arm(uint32_t *bell) {
    __atomic_store_n(bell, 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void doorbell_wait(uint32_t *bell, int64_t timeout_ns) {
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, bell, FUTEX_WAIT, 1, &timeout, NULL, 0);
}
static inline void fence_full(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* The writer's side after fence_full(), which several bells can share. */
static inline void doorbell_wake(uint32_t *bell) {
    if (__atomic_load_n(bell, __ATOMIC_RELAXED)) {
        __atomic_store_n(bell, 0, __ATOMIC_RELAXED);
        syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}
static inline void doorbell_ring(uint32_t *bell) {
    fence_full();
    doorbell_wake(bell);
}

#endif
