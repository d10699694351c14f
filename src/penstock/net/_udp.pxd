from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.wire._datagrams cimport DatagramBatch
from penstock.wire._packets cimport PacketStore

cdef extern from "penstock/net/udp.h" nogil:
    enum:
        UDP_BATCH
        EAGAIN
        EBADF
        EINTR

    struct iovec:
        void *iov_base
        size_t iov_len

    ctypedef struct udp_calls:
        iovec *pieces

    int64_t udp_monotonic_ns()
    void udp_pause()
    int udp_receive(int fd, udp_calls *calls, uint8_t *data, size_t stride, int room, uint32_t *sizes,
                    uint64_t *sources, int64_t *arrivals_ns, uint32_t *overflows)
    void udp_coalesce(int fd)
    int udp_receive_coalesced(int fd, udp_calls *calls, uint8_t *data, size_t room, uint32_t *segment_size,
                              uint64_t *source, int64_t *arrival_ns, uint32_t *overflows)
    int udp_send(int fd, udp_calls *calls, uint64_t destination, int count, int *error)
    int udp_send_each(int fd, udp_calls *calls, const uint64_t *destinations, int count, int *last_error)
    int udp_send_one(int fd, uint64_t destination, const uint8_t *data, size_t size)
    int udp_wait(const int *fds, int count, int64_t timeout_ns)
    int udp_wait_or_bell(const int *fds, int count, int bell, int64_t timeout_ns)


cdef class Inlet:
    cdef readonly DatagramBatch batch
    cdef int _fds[UDP_BATCH]
    cdef uint32_t _overflows[UDP_BATCH]
    cdef int _count
    cdef uint64_t _overflows_before  # of sockets that were removed
    cdef int _bell
    cdef bint _is_rung
    cdef bint _is_closed
    cdef bint _is_sparse  # datagrams arrive singly, so blocking callers wait for the next one before trying to read
    cdef udp_calls *_calls
    cdef bint _coalesces
    cdef uint8_t *_coalesced       # datagrams that the kernel handed over together, or NULL
    cdef uint32_t _coalesced_at    # the first that is not in a batch yet
    cdef uint32_t _coalesced_size
    cdef uint32_t _segment_size
    cdef uint64_t _coalesced_source
    cdef int64_t _coalesced_arrival_ns
    cdef int _coalesced_socket
    cdef int _first_socket

    cpdef int receive(self, int64_t timeout_ns=*, bint spin=*) except -1
    cdef int check_open(self) except -1

    # Implementation of receive() for an open inlet; -errno on failure.
    cdef int fill(self, int64_t timeout_ns, bint spin) except? -1 nogil

    # True once after each wake().
    cdef bint is_rung(self) noexcept nogil
    cdef int drain(self, int sockets, bint is_single) noexcept nogil
    cdef int drain_coalesced(self, int sockets, bint is_single) noexcept nogil
    cdef void take_segments(self) noexcept nogil


cdef class Outlet:
    cdef int _fd
    cdef udp_calls *_calls

    cdef int send_one_stored(self, uint64_t destination, PacketStore store, uint64_t sequence) noexcept

    # Send packets from the store; failed ones are skipped and counted. Return the last error number.
    cdef int send_range(
        self, uint64_t destination, PacketStore store, uint64_t first, uint64_t last, int *unsent
    ) noexcept nogil
