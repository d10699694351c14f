/* A lock, a bell and sleeps for threads that do not hold the interpreter's lock. */
#ifndef PENSTOCK_BURST_H
#define PENSTOCK_BURST_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NEVER_NS (INT64_MAX / 2)

enum { TURN_FREE, TURN_TAKEN, TURN_WANTED };

/* Take a free lock: whether that was possible. */
static inline int turn_try(uint32_t *turn) {
    uint32_t expected = TURN_FREE;
    return __atomic_compare_exchange_n(turn, &expected, TURN_TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void turn_wait(uint32_t *turn) {
    while (__atomic_exchange_n(turn, TURN_WANTED, __ATOMIC_ACQUIRE) != TURN_FREE)
        syscall(SYS_futex, turn, FUTEX_WAIT_PRIVATE, TURN_WANTED, NULL, NULL, 0);
}

static inline void turn_give(uint32_t *turn) {
    if (__atomic_exchange_n(turn, TURN_FREE, __ATOMIC_RELEASE) == TURN_WANTED)
        syscall(SYS_futex, turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The bell's word is 0 while its one listener sleeps. */
static inline void bell_wait(uint32_t *bell) {
    while (__atomic_load_n(bell, __ATOMIC_ACQUIRE) == 0)
        syscall(SYS_futex, bell, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static inline void bell_ring(uint32_t *bell) {
    if (__atomic_exchange_n(bell, 1, __ATOMIC_RELEASE) == 0)
        syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static inline void bell_mute(uint32_t *bell) { __atomic_store_n(bell, 0, __ATOMIC_RELEASE); }

/* Linux lets the timers of a thread be 50 microseconds late unless the thread asks for less. */
static inline void sleep_precisely(void) { prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); }

static inline void sleep_until_ns(int64_t at_ns) {
    struct timespec at = {at_ns / 1000000000, at_ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

#endif
