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
    cdef uint64_t _overflows_before # of sockets that it no longer listens to
    cdef int _bell
    cdef bint _is_rung
    cdef bint _is_closed
    cdef bint _is_sparse # datagrams come one by one, so who blocks waits for the next before looking for it
    cdef udp_calls *_calls

    cpdef int receive(self, int64_t timeout_ns=*, bint spin=*) except -1
    cdef int check_open(self) except -1

    # What receive() does, of an inlet that is open; -errno on failure.
    cdef int fill(self, int64_t timeout_ns, bint spin) except? -1 nogil

    # Whether somebody has called wake(); once.
    cdef bint is_rung(self) noexcept nogil
    cdef int drain(self, int sockets, bint is_single) noexcept nogil


cdef class Outlet:
    cdef int _fd
    cdef udp_calls *_calls

    cdef int send_one_stored(self, uint64_t destination, PacketStore store, uint64_t sequence) noexcept

    # Send packets that are in the store; one that cannot be sent is passed over and counted. The last error's number.
    cdef int send_range(
        self, uint64_t destination, PacketStore store, uint64_t first, uint64_t last, int *unsent
    ) noexcept nogil
