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

typedef struct {
    struct mmsghdr headers[UDP_BATCH];
    struct iovec pieces[UDP_BATCH];
    struct sockaddr_in names[UDP_BATCH];
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec)) + CMSG_SPACE(sizeof(uint32_t))];
        struct cmsghdr aligned;
    } control[UDP_BATCH];
    uint8_t *base; /* where the first piece is, once all are prepared */
    int used;      /* headers that the kernel has written to since */
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

/* Send the datagrams of one batch to one address. */
static int udp_send(int fd, udp_calls *calls, uint64_t destination, int count, int *error) {
    int index;
    udp_name(&calls->names[0], destination);
    for (index = 0; index < count; index++)
        udp_prepare_send(calls, index, &calls->names[0]);
    return udp_send_prepared(fd, calls, count, 0, error);
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
