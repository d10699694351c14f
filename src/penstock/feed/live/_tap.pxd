from libc.stdint cimport uint64_t

from penstock.wire._packets cimport PacketStore

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <sys/eventfd.h>
    #include <unistd.h>
    static inline uint64_t tap_load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
    static inline void tap_store(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }
    static inline uint64_t tap_swap(uint64_t *at, uint64_t value) {
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
    }
    static inline void tap_wake(int fd) {
        const uint64_t one = 1;
        if (write(fd, &one, sizeof one) < 0) { /* it is awake already */ }
    }
    static inline int tap_eventfd(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }
    static inline void tap_close(int fd) { close(fd); }
    """
    uint64_t tap_load(const uint64_t *at)
    void tap_store(uint64_t *at, uint64_t value)
    uint64_t tap_swap(uint64_t *at, uint64_t value)
    void tap_wake(int fd)
    int tap_eventfd()
    void tap_close(int fd)


cdef class Tap:
    cdef PacketStore _store
    cdef uint64_t _cursor  # the next packet to take
    cdef uint64_t _published   # packets below this number may be taken
    cdef uint64_t _is_waiting  # the reader sleeps until the descriptor is readable
    cdef int _fd

    # Packets below `next_sequence` are complete; called by the thread that creates them.
    cdef void advance(self, uint64_t next_sequence) noexcept nogil
