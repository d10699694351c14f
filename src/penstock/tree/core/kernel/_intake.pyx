"""Sequences a publisher's messages in one step, in the normal case: each message gets its sequence, is put into the
tail, where it survives this process, and is distributed. Python writes it to the journal soon after, and acknowledges
it then.

Exceptional messages, and all after them, are left to Python: a damaged one, one that is not the publisher's next, one
on
a topic without a stream or without a grant, one that does not fit, or one for which this half of the tail has no room.
The intake must not be open while messages with earlier places are not distributed yet.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._history cimport History, Stream
from penstock.tree.core.kernel._placing cimport Place, parse_published, placed_size_max, write_placed
from penstock.tree.core.kernel._tail cimport TailMemory
from penstock.wire._codec cimport PACKET_HEADER_SIZE

from penstock.base.limits import PACKET_SIZE_MAX

cdef uint32_t packet_size_max = PACKET_SIZE_MAX
LARGEST_NUMBER = b"\xcf" + b"\xff" * 8
"""2**64 - 1 in msgpack."""


@cython.no_gc_clear
cdef class Intake:
    """`topics` has each stream's topics, with the stream as subscriber; all of this is only changed with the
    fan-out's mutex. `wall_offset_ns` is the wall clock minus the clock of the packets' receive times.
    `acknowledgement` is the frame that acknowledges number 2**64 - 1 to a publisher that asks for it at once; empty if the
    tail alone does not suffice for an acknowledgement."""

    def __cinit__(
        self, uint64_t tree_id, uint32_t term, topics, TailMemory tail not None, int64_t wall_offset_ns,
        bytes acknowledgement not None,
    ):
        self.tree_id = tree_id
        self.term = term
        self.tail = tail
        self.wall_offset_ns = wall_offset_ns
        self._topics = Matcher(topics)
        if acknowledgement:
            self._number_at = acknowledgement.index(LARGEST_NUMBER) + 1
        self._extensions = <uint8_t *>malloc(packet_size_max)
        self._frame = <uint8_t *>malloc(max(len(acknowledgement), 1))
        if self._extensions is NULL or self._frame is NULL:
            raise MemoryError
        self.frame_size = len(acknowledgement)
        memcpy(self._frame, <const uint8_t *>acknowledgement, self.frame_size)

    def __dealloc__(self):
        free(self._extensions)
        free(self._frame)

    cdef uint32_t take(
        self, Publisher *publisher, History history, const uint8_t *data, uint32_t size, int64_t now_ns
    ) except? 0xFFFFFFFF nogil:
        cdef uint32_t at = 0, count, row
        self.fresh = self.tail.room(0)
        self.fresh_size = 0
        while at < size:
            count = self.gather(data, size, at)
            if count == 0 or self._topics.kernel.regex_count:
                return at
            self._topics.match(data, None, self._messages, count)
            if publisher.allowed is not NULL:
                if (<Matcher>publisher.allowed).kernel.regex_count:
                    return at
                (<Matcher>publisher.allowed).match(data, None, self._messages, count)
            for row in range(count):
                if not self.take_row(publisher, history, data, row, now_ns):
                    return at
                at += self._packets[row].size
        return at

    cdef uint32_t gather(self, const uint8_t *data, uint32_t size, uint32_t at) noexcept nogil:
        """Collect the packets from here on, up to an invalid one."""
        cdef uint32_t count = 0, packet_size
        while at < size and count < ROWS_MAX:
            packet_size = parse_published(data, at, size, &self._packets[count], &self._messages[count])
            if packet_size == 0:
                break
            at += packet_size
            count += 1
        return count

    cdef bint take_row(
        self, Publisher *publisher, History history, const uint8_t *data, uint32_t row, int64_t now_ns
    ) noexcept nogil:
        """True if the message was taken."""
        cdef const PacketView *packet = &self._packets[row]
        cdef Stream *stream = self.stream_for(history, row)
        cdef uint64_t size_max = placed_size_max(packet)
        cdef uint8_t *out = self.tail.room(size_max)
        cdef Place place
        cdef uint32_t size
        if (
            stream is NULL
            or out is NULL
            or packet.publisher_id != publisher.id
            or packet.sequence != publisher.through + 1
            or size_max > packet_size_max
            or not is_allowed(publisher, row)
        ):
            return False
        stream.given = max(stream.given, stream.last) + 1
        place = Place(self.tree_id, stream.given, now_ns + self.wall_offset_ns, stream.number, self.term)
        memset(out, 0, size_max + PACKET_HEADER_SIZE)  # whenever this process ends, no older bytes follow it
        size = write_placed(out, self._extensions, data, packet, &self._messages[row], &place)
        self.tail.put(size)
        self.fresh_size += size
        publisher.through += 1
        publisher.untold += 1
        if self.due_ns == 0:
            self.due_ns = max(now_ns, self.next_ns)
        return True

    cdef Stream *stream_for(self, History history, uint32_t row) noexcept nogil:
        """The stream that the message names, if it has the topic, otherwise the first one with the topic; NULL:
        none."""
        cdef uint32_t group = self._packets[row].group
        cdef uint64_t found
        cdef Stream *stream
        for found in range(self._topics.results[row], self._topics.results[row + 1]):
            if group == 0 or group == self._topics.found.subscribers[found]:
                stream = history.find(self._topics.found.subscribers[found])
                return stream if stream is not NULL and stream.term == self.term else NULL
        return NULL

    cdef const uint8_t *acknowledge(self, uint64_t through, uint32_t *size) noexcept nogil:
        cdef uint8_t *frame = self._frame
        cdef int number
        for number in range(8):
            frame[self._number_at + number] = <uint8_t>(through >> (56 - 8 * number))
        size[0] = self.frame_size
        return frame

    cdef bint is_due(self, int64_t now_ns) noexcept nogil:
        if self.due_ns == 0 or self.is_told or now_ns < self.due_ns:
            return False
        self.is_told = True
        return True


cdef bint is_allowed(const Publisher *publisher, uint32_t row) noexcept nogil:
    cdef const uint64_t *results
    if publisher.allowed is NULL:
        return True
    results = (<Matcher>publisher.allowed).results
    return results[row] < results[row + 1]
