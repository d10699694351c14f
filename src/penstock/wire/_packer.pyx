"""Encode packets message by message: Packer, and packets without messages of a stream."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport UINT16_MAX, UINT32_MAX, UINT64_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from penstock.wire._codec cimport (
    ALIGNMENT,
    ERROR_NONE,
    EXTENSION_DESTINATION,
    EXTENSION_HEADER_SIZE,
    EXTENSION_SIZE_AT,
    EXTENSION_TYPE_AT,
    KIND_DATA,
    KIND_GONE,
    KIND_NACK,
    MESSAGE_CONTINUATION,
    MESSAGE_DIRECT,
    MESSAGE_HEADER_SIZE,
    MESSAGE_MORE,
    MessageView,
    PACKET_HEADER_SIZE,
    PACKET_KEEP_ALIVE,
    PacketView,
    RANGE_FIRST_AT,
    RANGE_LAST_AT,
    RANGE_SIZE,
    finish_packet,
    is_extensions,
    is_utf8,
    load_u16,
    message_space,
    packet_error,
    padded,
    parse_header,
    store_u64,
    write_message,
)

from penstock.base.errors import LocalProtocolError
from penstock.base.limits import MESSAGE_SIZE_MAX, PACKET_SIZE_DEFAULT, PACKET_SIZE_MAX, TOPIC_SIZE_MAX

PACKET_SIZE_MIN = PACKET_HEADER_SIZE + MESSAGE_HEADER_SIZE + padded(TOPIC_SIZE_MAX) + ALIGNMENT
"""Minimum of packet_size_max, so that every topic fits with some content."""

RANGES_MAX = (PACKET_SIZE_DEFAULT - PACKET_HEADER_SIZE) // RANGE_SIZE
"""Maximum number of ranges in a NACK or GONE."""


cdef uint64_t unsigned(value, uint64_t value_max, str name) except? 0:
    if not 0 <= value <= value_max:
        raise LocalProtocolError(f"{name} {value} is outside 0 to {value_max}")
    return value


cdef bint has_destination(const uint8_t *extensions, uint32_t size) noexcept:
    cdef uint32_t at = 0
    while at < size:
        if load_u16(extensions + at + EXTENSION_TYPE_AT) == EXTENSION_DESTINATION:
            return True
        at += <uint32_t>padded(<uint64_t>EXTENSION_HEADER_SIZE + load_u16(extensions + at + EXTENSION_SIZE_AT))
    return False


cdef int set_stream(PacketView *packet, publisher_id, group, epoch) except -1:
    memset(packet, 0, sizeof(PacketView))
    packet.publisher_id = unsigned(publisher_id, UINT64_MAX, "publisher id")
    if packet.publisher_id == 0:
        raise LocalProtocolError("a publisher id must not be 0")
    packet.group = <uint32_t>unsigned(group, UINT32_MAX, "group")
    packet.epoch = <uint32_t>unsigned(epoch, UINT32_MAX, "epoch")
    return 0


cdef class Packer:
    """Packs the messages of one stream into packets with consecutive sequence numbers.

    A packet stays open until a message does not fit or flush() is called; the caller chooses between latency and
    packing. Packets whose number is a multiple of `keep_alive_packets` have the flag KEEP_ALIVE; all of them have
    `flags`.
    """

    def __cinit__(
        self,
        publisher_id,
        group,
        epoch,
        *,
        packet_size_max = PACKET_SIZE_DEFAULT,
        first_sequence = 1,
        keep_alive_packets = UINT64_MAX,
        flags = 0,
    ):
        if not PACKET_SIZE_MIN <= packet_size_max <= PACKET_SIZE_MAX:
            raise LocalProtocolError(
                f"invalid packet_size_max {packet_size_max}",
                hint=f"use {PACKET_SIZE_MIN} to {PACKET_SIZE_MAX}",
            )
        set_stream(&self._packet, publisher_id, group, epoch)
        self._packet.kind = KIND_DATA
        self._packet.sequence = unsigned(first_sequence, UINT64_MAX, "first sequence")
        self._packet.size = PACKET_HEADER_SIZE
        self._keep_alive_packets = max(1, unsigned(keep_alive_packets, UINT64_MAX, "keep_alive_packets"))
        self._flags = <uint16_t>unsigned(flags, UINT16_MAX, "packet flags")
        self._size_max = packet_size_max // ALIGNMENT * ALIGNMENT
        self._out = <uint8_t *>PyMem_Malloc(self._size_max)
        if self._out is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._out)

    @property
    def next_sequence(self) -> int:
        """Sequence number of the packet that is closed next."""
        return self._packet.sequence

    @property
    def pending_count(self) -> int:
        """Number of messages in the open packet; the last fragment of a message counts."""
        return self._packet.count

    def add(
        self, topic not None, payload not None, *, model_id = 0, model_version = 0, flags = 0, bytes extensions = b""
    ) -> list:
        """Add a message and return the packets that became complete, usually none.

        `extensions` are bytes from encode_extensions(). A message that cannot be sent raises LocalProtocolError and
        leaves the open packet unchanged.
        """
        cdef bytes topic_bytes = topic if isinstance(topic, bytes) else topic.encode("utf-8", "surrogatepass")
        cdef MessageView message
        memset(&message, 0, sizeof(message))
        message.model_id = <uint16_t>unsigned(model_id, UINT16_MAX, "model id")
        message.model_version = <uint16_t>unsigned(model_version, UINT16_MAX, "model version")
        message.flags = <uint16_t>unsigned(flags, UINT16_MAX, "message flags")
        self.check(&message, topic_bytes, extensions)
        cdef Py_buffer content
        PyObject_GetBuffer(payload, &content, PyBUF_SIMPLE)
        try:
            if content.len > MESSAGE_SIZE_MAX:
                raise LocalProtocolError(f"the message has {content.len} bytes, above the limit of {MESSAGE_SIZE_MAX}")
            message.payload_size = <uint32_t>content.len
            return self.pack(&message, topic_bytes, extensions, <const uint8_t *>content.buf)
        finally:
            PyBuffer_Release(&content)

    def flush(self, flags = 0) -> bytes | None:
        """Close the open packet and return it; None if it has no message."""
        if self._packet.count == 0:
            return None
        return self.close(<uint16_t>unsigned(flags, UINT16_MAX, "packet flags"))

    def empty(self, flags) -> bytes:
        """Return a packet without messages, such as a keep-alive, with its own sequence number."""
        if self._packet.count:
            raise LocalProtocolError("an empty packet cannot precede the open packet", hint="call flush() first")
        return self.close(<uint16_t>unsigned(flags, UINT16_MAX, "packet flags"))

    def skip(self, count) -> None:
        """Skip `count` sequence numbers, which belong to packets made elsewhere."""
        if self._packet.count:
            raise LocalProtocolError("the open packet uses the next number", hint="call flush() first")
        self._packet.sequence += unsigned(count, UINT64_MAX, "count")

    cdef int check(self, MessageView *message, bytes topic, bytes extensions) except -1:
        """Check that a message with this header can be sent; fills in the sizes."""
        if message.flags & (MESSAGE_CONTINUATION | MESSAGE_MORE):
            raise LocalProtocolError("a caller cannot add fragments", hint="add the whole message")
        if len(topic) > TOPIC_SIZE_MAX:
            raise LocalProtocolError(f"the topic has {len(topic)} bytes, above the limit of {TOPIC_SIZE_MAX}")
        if len(topic) == 0 and not message.flags & MESSAGE_DIRECT:
            raise LocalProtocolError("a message needs a topic", hint="only messages with the DIRECT flag have none")
        if not is_utf8(topic, <uint32_t>len(topic)):
            raise LocalProtocolError(f"the topic {topic!r} is not UTF-8 text")
        message.topic_size = <uint16_t>len(topic)
        if len(extensions) + padded(len(topic)) + MESSAGE_HEADER_SIZE + ALIGNMENT > self._size_max - PACKET_HEADER_SIZE:
            raise LocalProtocolError(f"{len(extensions)} bytes of extensions leave no room for content in a packet")
        if not is_extensions(extensions, <uint32_t>len(extensions)):
            raise LocalProtocolError("the extensions are malformed", hint="use encode_extensions()")
        if message.flags & MESSAGE_DIRECT and not has_destination(extensions, <uint32_t>len(extensions)):
            raise LocalProtocolError("a DIRECT message needs a DESTINATION extension")
        message.extensions_size = <uint16_t>len(extensions)
        return 0

    cdef list pack(self, MessageView *message, bytes topic, bytes extensions, const uint8_t *payload):
        cdef uint32_t capacity = self._size_max - PACKET_HEADER_SIZE
        cdef uint32_t payload_left = message.payload_size
        cdef uint16_t flags = message.flags
        cdef list closed = []
        if message_space(message) > self._size_max - self._packet.size and self._packet.count:
            closed.append(self.close(0))
        while message_space(message) > capacity:
            message.flags |= MESSAGE_MORE
            message.payload_size = capacity - MESSAGE_HEADER_SIZE - message.extensions_size - <uint32_t>padded(
                message.topic_size
            )
            self.put(message, topic, extensions, payload)
            closed.append(self.close(0))
            payload += message.payload_size
            payload_left -= message.payload_size
            message.flags = flags | MESSAGE_CONTINUATION
            message.extensions_size = 0
            message.payload_size = payload_left
        self.put(message, topic, extensions, payload)
        return closed

    cdef void put(self, const MessageView *message, const uint8_t *topic, const uint8_t *extensions,
                  const uint8_t *payload) noexcept:
        self._packet.size += write_message(self._out + self._packet.size, message, extensions, topic, payload)
        self._packet.count += 1

    cdef bytes close(self, uint16_t flags):
        self._packet.flags = self._flags | flags
        if self._packet.sequence % self._keep_alive_packets == 0:
            self._packet.flags |= PACKET_KEEP_ALIVE
        finish_packet(self._out, &self._packet)
        cdef bytes packet = PyBytes_FromStringAndSize(<char *>self._out, self._packet.size)
        self._packet.sequence += 1
        self._packet.count = 0
        self._packet.size = PACKET_HEADER_SIZE
        return packet


def encode_nack(publisher_id, group, epoch, ranges, *, requester = 0, number = 0) -> bytes:
    """Encode a request to retransmit the packets of these inclusive sequence ranges. Each `requester` numbers its
    requests from 1; a publisher with keys answers only numbered requests, and each once.
    """
    return encode_ranges(KIND_NACK, publisher_id, group, epoch, ranges, requester, number)


def encode_gone(publisher_id, group, epoch, ranges) -> bytes:
    """Encode the publisher's answer that the packets of these sequence ranges are no longer kept."""
    return encode_ranges(KIND_GONE, publisher_id, group, epoch, ranges, 0, 0)


cdef bytes encode_ranges(uint8_t kind, publisher_id, group, epoch, ranges, requester, number):
    cdef PacketView packet
    cdef uint64_t first, last
    set_stream(&packet, publisher_id, group, epoch)
    if not 1 <= len(ranges) <= RANGES_MAX:
        raise LocalProtocolError(f"{len(ranges)} ranges are outside the limits of 1 to {RANGES_MAX} per packet")
    packet.kind = kind
    packet.sequence = unsigned(requester, UINT64_MAX, "requester")
    packet.gap = <uint32_t>unsigned(number, UINT32_MAX, "number")
    packet.count = <uint16_t>len(ranges)
    packet.size = PACKET_HEADER_SIZE + packet.count * RANGE_SIZE
    cdef bytes data = PyBytes_FromStringAndSize(NULL, packet.size)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(data)
    cdef uint8_t *at = out + PACKET_HEADER_SIZE
    for pair in ranges:
        first = unsigned(pair[0], UINT64_MAX, "sequence")
        last = unsigned(pair[1], UINT64_MAX, "sequence")
        if first > last:
            raise LocalProtocolError(f"the range {first} to {last} ends before it begins")
        store_u64(at + RANGE_FIRST_AT, first)
        store_u64(at + RANGE_LAST_AT, last)
        at += RANGE_SIZE
    finish_packet(out, &packet)
    return data


def restamp(packet not None, *, set_flags = 0, clear_flags = 0, gap = None) -> bytes:
    """Return a copy of the packet with changed flags and gap, and a new checksum.

    The packet's own checksum is verified first (PacketError), so that damaged packets never get a valid checksum.
    """
    cdef bytes copy = memoryview(packet).tobytes()
    cdef PacketView view
    cdef uint32_t size = <uint32_t>min(len(copy), <Py_ssize_t>UINT32_MAX)
    if parse_header(copy, 0, size, &view) != ERROR_NONE:
        raise packet_error(&view)
    view.flags |= <uint16_t>unsigned(set_flags, UINT16_MAX, "packet flags")
    view.flags &= ~<uint16_t>unsigned(clear_flags, UINT16_MAX, "packet flags")
    if gap is not None:
        view.gap = <uint32_t>unsigned(gap, UINT32_MAX, "gap")
    finish_packet(<uint8_t *>PyBytes_AS_STRING(copy), &view)
    return copy
