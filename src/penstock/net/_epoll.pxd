# System calls for compiled loops that serve connected sockets: sys/socket.h, sys/uio.h and sys/epoll.h.

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int shutdown(int fd, int how)
    int MSG_NOSIGNAL, MSG_DONTWAIT, SHUT_WR

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int size, int timeout)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLONESHOT
