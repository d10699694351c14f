"""At the root: converts a publisher's packets to packets of streams, with their sequence, time and publisher."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc

import numpy

from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._frame cimport (
    EXTENSION_PUBLISHED,
    PUBLISHED_NUMBER_AT,
    PUBLISHED_PUBLISHER_AT,
    PUBLISHED_SIZE,
    packet_size_at,
)
from penstock.tree.core.kernel._placing cimport Place, parse_published, placed_size_max, write_placed
from penstock.wire._codec cimport (
    ALIGNMENT,
    ERROR_NONE,
    EXTENSION_HEADER_SIZE,
    KIND_DATA,
    MessageView,
    PacketView,
    load_u64,
    parse_contents,
    parse_header,
)
from penstock.wire._extensions cimport find_extension

from penstock.base.counters import Cause
from penstock.base.errors import LimitError, LocalProtocolError, PacketError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.tree.core.kernel.numbered import Numbered, StreamRun
from penstock.wire import Packer

cdef extern from "Python.h":
    int PyBUF_READ

cdef uint32_t packet_size_max = PACKET_SIZE_MAX


cdef class Numbering:
    """Assigns each message the next sequence of its stream. A publisher's packet has one message; its group is the
    stream, or 0 for the first stream with the topic; its sequence is the publisher's own number, which is dense."""

    def __cinit__(self, uint64_t tree_id, uint32_t term):
        self._tree_id = tree_id
        self.term = term
        self._last = {}
        self._extensions = <uint8_t *>malloc(packet_size_max)
        if self._extensions is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._extensions)
        free(self._out)

    def open_stream(self, uint32_t stream, uint64_t last) -> None:
        if stream == 0 or stream in self._last:
            raise LocalProtocolError(f"stream {stream} cannot be opened")
        self._last[stream] = last

    def set_last(self, uint32_t stream, uint64_t last) -> None:
        """Other code has assigned the sequences up to this one."""
        if stream not in self._last:
            raise LocalProtocolError(f"stream {stream} is not open")
        self._last[stream] = last

    def close_stream(self, uint32_t stream) -> None:
        self._last.pop(stream, None)

    def last(self, uint32_t stream) -> int:
        """The sequence of the stream's newest message."""
        if stream not in self._last:
            raise LocalProtocolError(f"stream {stream} is not open")
        return self._last[stream]

    def number(
        self,
        const uint8_t[::1] packets not None,
        uint64_t publisher_id,
        uint64_t through,
        int64_t time_ns,
        *,
        topics not None,
        allowed = None,
    ) -> Numbered:
        """`topics` has each stream's topics, with the stream as subscriber; `allowed` has the topics that this
        publisher may publish on, with subscriber 0. Messages with numbers up to `through` were taken before."""
        cdef uint32_t at = 0, row, count
        cdef uint64_t duplicates = 0
        cdef str refused = ""
        cdef list sizes = []
        cdef list offsets = []
        cdef list streams = []
        if packets.shape[0] > INT32_MAX:
            raise LimitError(f"{packets.shape[0]} bytes of packets are too many at a time")
        if self._topics is None or self._topics.table is not topics:
            self._topics = Matcher(topics)
        if allowed is None:
            self._allowed = None
        elif self._allowed is None or self._allowed.table is not allowed:
            self._allowed = Matcher(allowed)
        self._out_size = 0
        self._stream = 0
        while at < packets.shape[0] and not refused:
            count = self.gather(&packets[0], <uint32_t>packets.shape[0], &at)
            if count == 0:
                refused = "a packet is damaged, or is not one message"
            for row in range(count):
                if self._packets[row].publisher_id == publisher_id and self._packets[row].sequence <= through:
                    duplicates += 1
                    continue
                refused = self.judge(row, publisher_id, through)
                if refused:
                    break
                offsets.append(self._out_size)
                sizes.append(self.make(&packets[0], row, time_ns))
                streams.append(self._stream)
                through += 1
        self.begin_stream(0)
        return as_numbered(
            PyBytes_FromStringAndSize(<const char *>self._out, self._out_size), offsets, sizes, streams, self._last,
            through, duplicates, refused,
        )

    cdef uint32_t gather(self, const uint8_t *data, uint32_t size, uint32_t *at) except? 1:
        """Match the next packets, up to an invalid one."""
        cdef uint32_t count = 0, packet_size
        while at[0] < size and count < ROWS_MAX:
            packet_size = parse_published(data, at[0], size, &self._packets[count], &self._messages[count])
            if packet_size == 0:
                break
            at[0] += packet_size
            count += 1
        view = PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ)
        with nogil:
            self._topics.match(data, view, self._messages, count)
        if self._allowed is not None:
            with nogil:
                self._allowed.match(data, view, self._messages, count)
        return count

    cdef str judge(self, uint32_t row, uint64_t publisher_id, uint64_t through):
        """The reason why the message is refused; "" if it is accepted. Then its stream becomes the current one."""
        cdef const PacketView *packet = &self._packets[row]
        cdef uint32_t stream = self.stream_for(row)
        if packet.publisher_id != publisher_id:
            return "the packet has the id of another publisher"
        if packet.sequence != through + 1:
            return f"message {through + 1} of the publisher is missing before {packet.sequence}"
        if stream == 0 or not self.begin_stream(stream):
            return "no stream has this topic"
        if self._allowed is not None and self._allowed.results[row] == self._allowed.results[row + 1]:
            return "this publisher may not publish on this topic"
        if placed_size_max(packet) > packet_size_max:
            return f"the message does not fit a packet of {packet_size_max} bytes"
        return ""

    cdef uint32_t stream_for(self, uint32_t row) noexcept:
        """The stream that the packet names, if it has the topic, otherwise the first one with the topic; 0: none."""
        cdef uint64_t found
        for found in range(self._topics.results[row], self._topics.results[row + 1]):
            if self._packets[row].group == 0 or self._packets[row].group == self._topics.found.subscribers[found]:
                return self._topics.found.subscribers[found]
        return 0

    cdef bint begin_stream(self, uint32_t stream):
        """Make this stream the current one. False if it is not open; 0 only stores the position of the previous one."""
        if stream == self._stream:
            return True
        if self._stream:
            self._last[self._stream] = self._stream_last
        self._stream = 0
        last = self._last.get(stream)
        if last is None:
            return False
        self._stream = stream
        self._stream_last = last
        return True

    cdef uint32_t make(self, const uint8_t *data, uint32_t row, int64_t time_ns) except 0:
        """Write the packet after the others. Return its size."""
        cdef Place place = Place(self._tree_id, self._stream_last + 1, time_ns, self._stream, self.term)
        cdef uint64_t needed = self._out_size + placed_size_max(&self._packets[row]), capacity
        cdef uint32_t size
        cdef void *bigger
        if needed > self._out_capacity:
            capacity = max(2 * self._out_capacity, needed)
            bigger = realloc(self._out, capacity)
            if bigger is NULL:
                raise MemoryError
            self._out = <uint8_t *>bigger
            self._out_capacity = capacity
        size = write_placed(
            self._out + self._out_size, self._extensions, data, &self._packets[row], &self._messages[row], &place
        )
        self._out_size += size
        self._stream_last += 1
        return size


cdef object as_numbered(
    bytes packets, list offsets, list sizes, list streams, dict last, uint64_t through, uint64_t duplicates, str refused
):
    runs = []
    cdef Py_ssize_t start = 0, end
    cdef dict begun = {}
    for end in range(1, len(streams) + 1):
        if end == len(streams) or streams[end] != streams[start]:
            runs.append((streams[start], start, end - start))
            begun[streams[start]] = begun.get(streams[start], 0) + end - start
            start = end
    found = []
    for stream, start, count in runs:
        found.append(StreamRun(stream, last[stream] - begun[stream] + 1, start, count))
        begun[stream] -= count
    offset_rows, size_rows = numpy.array(offsets, numpy.uint32), numpy.array(sizes, numpy.uint32)
    return Numbered(packets, offset_rows, size_rows, found, through, duplicates, refused)


def published_through(const uint8_t[::1] packets not None) -> dict:
    """By publisher id: the highest of its numbers in these packets of the tree's streams."""
    cdef uint32_t at = 0, packet_size
    cdef uint64_t publisher_id, number
    cdef uint16_t body_size = 0
    cdef PacketView packet
    cdef MessageView message
    cdef const uint8_t *body
    cdef dict found = {}
    while at < packets.shape[0]:
        packet_size = packet_size_at(&packets[at], packets.shape[0] - at)
        if (
            packet_size == 0
            or parse_header(&packets[0], at, packet_size, &packet) != ERROR_NONE
            or packet.kind != KIND_DATA
            or packet.count != 1
            or parse_contents(&packets[0], &packet, &message) != ERROR_NONE
        ):
            raise PacketError("the stored bytes of a stream are not whole packets", cause=Cause.CHECKSUM)
        body = find_extension(
            &packets[0] + message.extensions_offset, message.extensions_size, EXTENSION_PUBLISHED, &body_size
        )
        if body is not NULL and body_size == PUBLISHED_SIZE - EXTENSION_HEADER_SIZE:
            publisher_id = load_u64(body - EXTENSION_HEADER_SIZE + PUBLISHED_PUBLISHER_AT)
            number = load_u64(body - EXTENSION_HEADER_SIZE + PUBLISHED_NUMBER_AT)
            if number > <uint64_t>found.get(publisher_id, 0):
                found[publisher_id] = number
        at += packet_size
    return found


def encode_published(
    publisher_id, number, stream, topic, payload, *, model_id = 0, model_version = 0, bytes extensions = b""
) -> bytes:
    """Encode a publisher's packet; LimitError if the message does not fit into one."""
    packer = Packer(publisher_id, stream, 0, packet_size_max=PACKET_SIZE_MAX // ALIGNMENT * ALIGNMENT, first_sequence=number)
    if packer.add(topic, payload, model_id=model_id, model_version=model_version, extensions=extensions):
        raise LimitError("the message does not fit a packet", hint=f"a packet has at most {PACKET_SIZE_MAX} bytes")
    packet = packer.flush()
    if len(packet) + 2 * PUBLISHED_SIZE > PACKET_SIZE_MAX:
        raise LimitError("the message does not fit a packet", hint=f"a packet has at most {PACKET_SIZE_MAX} bytes")
    return packet
