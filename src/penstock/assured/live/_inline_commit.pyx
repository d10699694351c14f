"""Inline commit at the router: serves one publisher that waits for each of its messages, without the loop.

Each message is received, checked, matched, accepted, written to the disk and acknowledged by the usual kernels, without
a turn of the loop, an event or an instruction per message. The processing takes a fraction of the time of a fast disk.
Any other work ends the inline commit and is left to the loop: other frames, other clients, deliveries, refusals, a new
segment, an error of the disk.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.time cimport clock_gettime, timespec

from penstock.assured.wire._frames cimport check_publish
from penstock.assured.core.router._intake cimport Wanted, accept_one, replicated, stored
from penstock.assured.wire._layout cimport (
    FRAME_GOOD,
    KIND_PUBLISH,
    LENGTH_SIZE,
    OUTCOME_DEGRADED,
    PUBLISH_HEAD_SIZE,
    PUBLISHED_HEAD_SIZE,
    PublishedHead,
    PublishHead,
)
from penstock.assured.core.router._records cimport message_record_size
from penstock.assured.core.router._publishers cimport Publisher
from penstock.assured.core.router._tables cimport Tables
from penstock.journal.live._inline_commit cimport InlineWriter
from penstock.net._tcp cimport RECEIVED_MAX, Receiver, has_something
from penstock.topics._match cimport Batch, Output, match_batch
from penstock.topics._table cimport TableKernel
from penstock.wire._codec cimport load_u32

from penstock.net._tcp import send_now

cdef extern from "<time.h>" nogil:
    int CLOCK_BOOTTIME

cdef uint64_t EVERY_ID = <uint64_t>-1


cdef class InlineCommitKernel:
    """Works on the core's tables. `topics` matches interests, `receiver` waits for the next message. `other_links`, an
    epoll, is ready as soon as any client sends something."""

    cdef readonly uint64_t served       # number of messages so far
    cdef readonly bint is_next_ready        # the client sends its next message at once
    cdef readonly bytes unsent          # of the last acknowledgement
    cdef Tables tables
    cdef TableKernel topics
    cdef Receiver receiver
    cdef int other_links
    cdef Output found

    def __init__(
        self, Tables tables not None, TableKernel topics not None, Receiver receiver not None, int other_links
    ) -> None:
        self.tables = tables
        self.topics = topics
        self.receiver = receiver
        self.other_links = other_links

    def __dealloc__(self):
        free(self.found.subscribers)

    def serve(
        self,
        InlineWriter journal not None,
        int fd,
        uint64_t link,
        const uint32_t[::1] endpoints not None,
        int64_t wall_offset_ns,
        int64_t for_ns,
    ) -> bytes:
        """Serve the publishers of a link for `for_ns`, or until there is other work. Return received bytes that were
        not served. The caller then reports the last number on the disk to the core. endpoints[subscriber] is as in
        accept().

        The wall-clock time of a message is CLOCK_BOOTTIME plus wall_offset_ns.
        """
        cdef uint8_t room[RECEIVED_MAX]
        cdef int64_t until = now() + for_ns
        cdef ssize_t size
        self.unsent = b""
        self.is_next_ready = False
        if self.tables.log.rows or self.tables.log.next_sequence != journal.next_sequence:
            return b""
        while True:
            with nogil:
                size = self.receiver.take(fd, room, 0, -1)
            self.is_next_ready = size > 0
            if not self.is_next_ready: # the loop learns of the end
                return b""
            if not self.is_served(journal, room, size, link, endpoints, wall_offset_ns):
                return PyBytes_FromStringAndSize(<char *>room, size)
            self.served += 1
            if self.has_takers() or not self.answer(fd, link) or has_something(self.other_links) or now() >= until:
                return b""

    cdef bint is_served(
        self, InlineWriter journal, const uint8_t *data, uint64_t size, uint64_t link, const uint32_t[::1] endpoints,
        int64_t wall_offset_ns
    ) except -1:
        """False: this is not a single message for inline commit; nothing has changed."""
        cdef Tables tables = self.tables
        cdef const uint8_t *frame = data + LENGTH_SIZE
        cdef const uint8_t *topic = frame + PUBLISH_HEAD_SIZE + PUBLISHED_HEAD_SIZE
        cdef PublishHead head
        cdef PublishedHead each
        cdef Wanted wanted
        cdef const uint8_t *record
        cdef uint32_t record_size
        if size <= LENGTH_SIZE or load_u32(data) != size - LENGTH_SIZE or frame[0] != KIND_PUBLISH:
            return False
        if check_publish(frame, size - LENGTH_SIZE) != FRAME_GOOD:
            return False
        memcpy(&head, frame, PUBLISH_HEAD_SIZE)
        if head.count != 1 or head.transaction or tables.publishers.on_link(head.publisher, link) is NULL:
            return False
        memcpy(&each, topic - PUBLISHED_HEAD_SIZE, PUBLISHED_HEAD_SIZE)
        self.match(topic, each.topic_size)
        if not journal.has_room(message_record_size(self.found.count, each.topic_size, each.payload_size)):
            return False
        tables.set_time(now() + wall_offset_ns)
        wanted = Wanted(self.found.subscribers, self.found.count, &endpoints[0], True, 0)
        accept_one(tables, head.publisher, head.first_number, topic, &wanted)
        if tables.log.rows == 1:
            record = tables.log.first_pending(&record_size)
            journal.store(record, record_size, tables.wall_ns)
            tables.log.clear() # also if the disk has failed: the journal has the error
            stored(tables, journal.next_sequence - 1 - (journal.failure != 0))
            replicated(tables, EVERY_ID, OUTCOME_DEGRADED)
        return True

    cdef int match(self, const uint8_t *topic, uint16_t size) except -1:
        """Match the topic; the result is in `found`."""
        cdef Batch batch
        cdef uint32_t offset = 0
        cdef uint64_t[2] offsets
        memset(&batch, 0, sizeof(Batch))
        batch.data, batch.offsets, batch.sizes, batch.count = topic, &offset, &size, 1
        self.found.count = 0
        if match_batch(self.topics.store, self.topics.scratch, &batch, offsets, &self.found):
            raise MemoryError
        return 0

    cdef bint has_takers(self) noexcept:
        """True if a consumer waits for a message that is ready now."""
        cdef Tables tables = self.tables
        cdef uint64_t index
        for index in range(tables.ready.count):
            if tables.endpoints[tables.ready.items[index]].flow_count:
                return True
        return False

    cdef bint answer(self, int fd, uint64_t link) except -1:
        """Acknowledge the committed message. False: other acknowledgements are pending; nothing was sent."""
        cdef bytes frame = self.tables.publishers.take_only(link)
        if frame is None:
            return False
        self.unsent = frame[send_now(fd, frame):]
        return not self.unsent


cdef int64_t now() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_BOOTTIME, &time)
    return time.tv_sec * <int64_t>1_000_000_000 + time.tv_nsec
