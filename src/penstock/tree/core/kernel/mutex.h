/* Who may touch an agent's data path: one thread at a time, which may ask again while it does. The thread that moves the
   data lets others have it in between (mutex_give_way), which a mutex of its own does not grant them. */

#ifndef PENSTOCK_TREE_MUTEX_H
#define PENSTOCK_TREE_MUTEX_H

#include <pthread.h>
#include <sched.h>
#include <stdint.h>

typedef struct {
    pthread_mutex_t mutex;
    uint32_t waiting;
    uint32_t depth; /* of the thread that has it */
} Mutex;

static inline int mutex_init(Mutex *mutex) {
    pthread_mutexattr_t attributes;
    int error;
    mutex->waiting = mutex->depth = 0;
    if ((error = pthread_mutexattr_init(&attributes)))
        return error;
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    error = pthread_mutex_init(&mutex->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return error;
}

static inline void mutex_destroy(Mutex *mutex) { pthread_mutex_destroy(&mutex->mutex); }

static inline void mutex_acquire(Mutex *mutex) {
    if (pthread_mutex_trylock(&mutex->mutex)) {
        __atomic_fetch_add(&mutex->waiting, 1, __ATOMIC_SEQ_CST);
        pthread_mutex_lock(&mutex->mutex);
        __atomic_fetch_sub(&mutex->waiting, 1, __ATOMIC_SEQ_CST);
    }
    mutex->depth++;
}

static inline void mutex_release(Mutex *mutex) {
    mutex->depth--;
    pthread_mutex_unlock(&mutex->mutex);
}

/* Let those have it that wait for it, and take it again. */
static inline void mutex_give_way(Mutex *mutex) {
    int turns;
    if (__atomic_load_n(&mutex->waiting, __ATOMIC_SEQ_CST) == 0)
        return;
    mutex_release(mutex);
    for (turns = 0; turns < 1000 && __atomic_load_n(&mutex->waiting, __ATOMIC_SEQ_CST); turns++)
        sched_yield();
    mutex_acquire(mutex);
}

#endif
