/* Many datagrams in one system call. The kernel's structures stay on this side of the fence, so that the Cython code
   deals in sizes, source keys and times only. A source key is the IPv4 address and the port: address << 16 | port. */

#ifndef PENSTOCK_UDP_H
#define PENSTOCK_UDP_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define UDP_BATCH 64

/* Linux's numbers, for older headers. */
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define SEGMENTS_MAX 64          /* of one call, in every version of Linux */
#define SEGMENTS_SIZE_MAX 65000  /* together, less than a datagram may have */

typedef struct {
    struct mmsghdr headers[UDP_BATCH];
    struct iovec pieces[UDP_BATCH];
    struct sockaddr_in names[UDP_BATCH];
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec)) + CMSG_SPACE(sizeof(uint32_t)) + CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control[UDP_BATCH];
    uint8_t *base; /* where the first piece is, once all are prepared */
    int used;      /* headers that the kernel has written to since */
    int is_plain;  /* the kernel or the network device does not cut datagrams into segments */
} udp_calls;

static inline int64_t udp_monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void udp_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static inline void udp_name(struct sockaddr_in *name, uint64_t key) {
    memset(name, 0, sizeof(*name));
    name->sin_family = AF_INET;
    name->sin_addr.s_addr = htonl((uint32_t)(key >> 16));
    name->sin_port = htons((uint16_t)key);
}

/* The kernel's receive time, and how many datagrams it has thrown away because the socket's buffer was full. */
static inline void udp_read_control(struct msghdr *header, int64_t *arrival_ns, uint32_t *overflows) {
    struct cmsghdr *item;
    *arrival_ns = 0;
    for (item = CMSG_FIRSTHDR(header); item != NULL; item = CMSG_NXTHDR(header, item)) {
        if (item->cmsg_level != SOL_SOCKET)
            continue;
        if (item->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec at;
            memcpy(&at, CMSG_DATA(item), sizeof(at));
            *arrival_ns = (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
        } else if (item->cmsg_type == SO_RXQ_OVFL) {
            memcpy(overflows, CMSG_DATA(item), sizeof(*overflows));
        }
    }
}

/* Make headers `first` to `last` ready for the kernel; it changes those it uses, so they must be made ready again. */
static inline void udp_prepare(udp_calls *calls, int first, int last, uint8_t *data, size_t stride) {
    int index;
    for (index = first; index < last; index++) {
        struct msghdr *header = &calls->headers[index].msg_hdr;
        calls->pieces[index].iov_base = data + (size_t)index * stride;
        calls->pieces[index].iov_len = stride;
        header->msg_name = &calls->names[index];
        header->msg_namelen = sizeof(calls->names[index]);
        header->msg_iov = &calls->pieces[index];
        header->msg_iovlen = 1;
        header->msg_control = calls->control[index].bytes;
        header->msg_controllen = sizeof(calls->control[index].bytes);
    }
}

/* Take what is there, at most `room` datagrams, without waiting: how many, or -errno. */
static int udp_receive(int fd, udp_calls *calls, uint8_t *data, size_t stride, int room, uint32_t *sizes,
                       uint64_t *sources, int64_t *arrivals_ns, uint32_t *overflows) {
    int index, count;
    if (room > UDP_BATCH)
        room = UDP_BATCH;
    if (calls->base != data)
        udp_prepare(calls, 0, UDP_BATCH, data, stride);
    else if (calls->used)
        udp_prepare(calls, 0, calls->used, data, stride);
    calls->base = data;
    calls->used = 0;
    count = recvmmsg(fd, calls->headers, (unsigned)room, MSG_DONTWAIT, NULL);
    if (count < 0)
        return -errno;
    calls->used = count;
    for (index = 0; index < count; index++) {
        const struct sockaddr_in *name = &calls->names[index];
        sizes[index] = calls->headers[index].msg_len;
        sources[index] = (uint64_t)ntohl(name->sin_addr.s_addr) << 16 | ntohs(name->sin_port);
        udp_read_control(&calls->headers[index].msg_hdr, &arrivals_ns[index], overflows);
    }
    return count;
}

static inline void udp_prepare_send(udp_calls *calls, int index, struct sockaddr_in *name) {
    struct msghdr *header = &calls->headers[index].msg_hdr;
    memset(header, 0, sizeof(*header));
    header->msg_name = name;
    header->msg_namelen = sizeof(*name);
    header->msg_iov = &calls->pieces[index];
    header->msg_iovlen = 1;
}

/* Send what is prepared: how many were sent before the first that could not be, and why. */
static int udp_send_prepared(int fd, udp_calls *calls, int count, int flags, int *error) {
    int sent = 0, now;
    *error = 0;
    while (sent < count) {
        now = sendmmsg(fd, calls->headers + sent, (unsigned)(count - sent), flags);
        if (now > 0) {
            sent += now;
        } else if (errno != EINTR) {
            *error = errno;
            break;
        }
    }
    return sent;
}

/* How many pieces from `first` on can be sent as segments of one datagram: all have the same size but the last, which
   may be smaller. */
static int udp_run(const udp_calls *calls, int first, int count) {
    size_t size = calls->pieces[first].iov_len, total = size;
    int last = first + 1;
    while (last < count && last - first < SEGMENTS_MAX && calls->pieces[last - 1].iov_len == size &&
           calls->pieces[last].iov_len <= size && total + calls->pieces[last].iov_len <= SEGMENTS_SIZE_MAX) {
        total += calls->pieces[last].iov_len;
        last++;
    }
    return last - first;
}

/* Send pieces as one datagram that the kernel cuts into segments: one walk through its network code for all of them.
   Whether it was sent. */
static int udp_send_segments(int fd, udp_calls *calls, int first, int count) {
    struct msghdr header;
    struct cmsghdr *item;
    uint16_t size = (uint16_t)calls->pieces[first].iov_len;
    memset(&header, 0, sizeof(header));
    header.msg_name = &calls->names[0];
    header.msg_namelen = sizeof(calls->names[0]);
    header.msg_iov = &calls->pieces[first];
    header.msg_iovlen = (size_t)count;
    header.msg_control = calls->control[0].bytes;
    header.msg_controllen = CMSG_SPACE(sizeof(size));
    item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = IPPROTO_UDP;
    item->cmsg_type = UDP_SEGMENT;
    item->cmsg_len = CMSG_LEN(sizeof(size));
    memcpy(CMSG_DATA(item), &size, sizeof(size));
    while (sendmsg(fd, &header, 0) < 0)
        if (errno != EINTR)
            return 0;
    return 1;
}

/* Send the datagrams of one batch to one address: how many were sent before the first that could not be, and why. */
static int udp_send(int fd, udp_calls *calls, uint64_t destination, int count, int *error) {
    int index, run, first = 0;
    udp_name(&calls->names[0], destination);
    *error = 0;
    while (first < count && !calls->is_plain && (run = udp_run(calls, first, count)) > 1) {
        if (!udp_send_segments(fd, calls, first, run)) {
            calls->is_plain = errno == EINVAL || errno == EIO || errno == EMSGSIZE || errno == EOPNOTSUPP;
            break;
        }
        first += run;
    }
    count -= first;
    memmove(calls->pieces, calls->pieces + first, (size_t)count * sizeof(calls->pieces[0]));
    for (index = 0; index < count; index++)
        udp_prepare_send(calls, index, &calls->names[0]);
    return first + udp_send_prepared(fd, calls, count, 0, error);
}

/* The same to many addresses: that of each is its destination, and one that cannot be sent at once is passed over.
   Returns how many were not sent, and why the last of them was not. */
static int udp_send_each(int fd, udp_calls *calls, const uint64_t *destinations, int count, int *last_error) {
    int index, error, done, unsent = 0;
    for (index = 0; index < count; index++) {
        udp_name(&calls->names[index], destinations[index]);
        udp_prepare_send(calls, index, &calls->names[index]);
    }
    for (done = udp_send_prepared(fd, calls, count, MSG_DONTWAIT, &error); error; ) {
        *last_error = error;
        unsent++;
        done++; /* the one that could not be sent */
        if (done == count)
            break;
        memmove(calls->headers, calls->headers + done, (size_t)(count - done) * sizeof(calls->headers[0]));
        count -= done;
        done = udp_send_prepared(fd, calls, count, MSG_DONTWAIT, &error);
    }
    return unsent;
}

static int udp_send_one(int fd, uint64_t destination, const uint8_t *data, size_t size) {
    struct sockaddr_in name;
    udp_name(&name, destination);
    while (sendto(fd, data, size, 0, (struct sockaddr *)&name, sizeof(name)) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

/* Have the kernel hand over datagrams of one source together, when they arrive together. Without effect in versions of
   Linux that cannot. */
static inline void udp_coalesce(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
}

/* Take what is there, without waiting: one datagram, or several that the kernel hands over together, of `segment_size`
   bytes each but the last, which may be smaller. The size of all, or -errno. */
static int udp_receive_coalesced(int fd, udp_calls *calls, uint8_t *data, size_t room, uint32_t *segment_size,
                                 uint64_t *source, int64_t *arrival_ns, uint32_t *overflows) {
    struct iovec piece = {data, room};
    struct sockaddr_in name;
    struct msghdr header;
    struct cmsghdr *item;
    ssize_t size;
    int segment;
    memset(&header, 0, sizeof(header));
    header.msg_name = &name;
    header.msg_namelen = sizeof(name);
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = calls->control[0].bytes;
    header.msg_controllen = sizeof(calls->control[0].bytes);
    size = recvmsg(fd, &header, MSG_DONTWAIT);
    if (size < 0)
        return -errno;
    *source = (uint64_t)ntohl(name.sin_addr.s_addr) << 16 | ntohs(name.sin_port);
    *segment_size = (uint32_t)size;
    udp_read_control(&header, arrival_ns, overflows);
    for (item = CMSG_FIRSTHDR(&header); item != NULL; item = CMSG_NXTHDR(&header, item)) {
        if (item->cmsg_level != IPPROTO_UDP || item->cmsg_type != UDP_GRO)
            continue;
        memcpy(&segment, CMSG_DATA(item), sizeof(segment));
        if (segment > 0 && segment < size)
            *segment_size = (uint32_t)segment;
    }
    return (int)size;
}

/* Wait until one of the sockets has something, or somebody rings the bell (an eventfd, or -1): whether, or -errno. */
static int udp_wait_or_bell(const int *fds, int count, int bell, int64_t timeout_ns) {
    struct pollfd waiting[UDP_BATCH + 1];
    uint64_t rings;
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    int index, ready;
    for (index = 0; index < count; index++) {
        waiting[index].fd = fds[index];
        waiting[index].events = POLLIN;
    }
    waiting[count].fd = bell; /* the kernel passes over a negative one */
    waiting[count].events = POLLIN;
    waiting[count].revents = 0;
    ready = ppoll(waiting, (nfds_t)count + 1, &timeout, NULL);
    if (ready < 0)
        return -errno;
    if (waiting[count].revents && read(bell, &rings, sizeof(rings)) < 0 && errno != EAGAIN)
        return -errno;
    return ready;
}

static inline int udp_wait(const int *fds, int count, int64_t timeout_ns) {
    return udp_wait_or_bell(fds, count, -1, timeout_ns);
}

#endif
