"""Decode single packets in Python: decode() and its results."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t

from penstock.wire._codec cimport (
    ERROR_NONE,
    EXTENSION_HEADER_SIZE,
    EXTENSION_SIZE_AT,
    EXTENSION_TYPE_AT,
    KIND_DATA,
    MESSAGE_CONTINUATION,
    MESSAGE_MORE,
    MessageView,
    PACKET_HEADER_SIZE,
    PacketView,
    RANGE_FIRST_AT,
    RANGE_LAST_AT,
    RANGE_SIZE,
    load_u16,
    load_u64,
    packet_error,
    padded,
    parse_contents,
    parse_header,
)


def decode(data not None) -> Packet:
    """Decode the packet in `data`; raises PacketError with the cause. The packet is read in place, so `data` must not
    be written to while the packet or one of its payloads is in use.
    """
    cdef Packet packet = Packet.__new__(Packet)
    packet.read(data)
    return packet


@cython.freelist(16)
cdef class PacketMessage:
    """A message, or a fragment of one, from a packet; or built from its parts."""

    def __init__(
        self,
        str topic not None,
        payload not None,
        int model_id = 0,
        int model_version = 0,
        int flags = 0,
        extensions = None,
        publisher_id = 0,
        sequence = 0,
        epoch = 0,
    ):
        self.topic = topic
        self.payload = memoryview(payload).cast("B").toreadonly()
        self.model_id = model_id
        self.model_version = model_version
        self.flags = flags
        self.publisher_id = publisher_id
        self.sequence = sequence
        self.epoch = epoch
        self._extensions = dict(extensions) if extensions else None

    @property
    def extensions(self) -> dict:
        """The extension bodies by type; of several with the same type, the last."""
        return {} if self._extensions is None else dict(self._extensions)

    def with_payload(self, payload not None, flags = None) -> PacketMessage:
        """Return the same message with this payload, and with these flags if given."""
        cdef PacketMessage message = PacketMessage.__new__(PacketMessage)
        message.topic = self.topic
        message.payload = memoryview(payload).cast("B").toreadonly()
        message.publisher_id = self.publisher_id
        message.sequence = self.sequence
        message.epoch = self.epoch
        message.flags = self.flags if flags is None else flags
        message.model_id = self.model_id
        message.model_version = self.model_version
        message._extensions = self._extensions
        return message

    def __repr__(self) -> str:
        return f"PacketMessage({self.topic!r}, <{len(self.payload)} bytes>, flags={self.flags})"


# Hide the reference to the buffer's owner from the garbage collector, which would clear a garbage memoryview before the
# packet releases its buffer. A packet is never part of a cycle.
@cython.no_gc
cdef class Packet:
    """A valid packet; a sequence of its messages."""

    cdef Py_buffer _buffer
    cdef bint _is_held
    cdef object _view # private, so that no caller can release it while slices of _buffer exist
    cdef PacketView _packet
    cdef MessageView *_messages

    def __dealloc__(self):
        PyMem_Free(self._messages)
        if self._is_held:
            PyBuffer_Release(&self._buffer)

    cdef int read(self, data) except -1:
        PyObject_GetBuffer(data, &self._buffer, PyBUF_SIMPLE)
        self._is_held = True
        cdef const uint8_t *start = <const uint8_t *>self._buffer.buf
        # a size beyond 32 bits exceeds every limit; the kernel refuses it as too long
        cdef uint32_t size = <uint32_t>min(self._buffer.len, <Py_ssize_t>UINT32_MAX)
        if parse_header(start, 0, size, &self._packet) != ERROR_NONE:
            raise packet_error(&self._packet)
        if self._packet.kind == KIND_DATA and self._packet.count:
            self._messages = <MessageView *>PyMem_Malloc(self._packet.count * sizeof(MessageView))
            if self._messages is NULL:
                raise MemoryError
        if parse_contents(start, &self._packet, self._messages) != ERROR_NONE:
            raise packet_error(&self._packet)
        self._view = memoryview(data).cast("B").toreadonly()
        return 0

    @property
    def kind(self) -> int:
        return self._packet.kind

    @property
    def flags(self) -> int:
        return self._packet.flags

    @property
    def publisher_id(self) -> int:
        return self._packet.publisher_id

    @property
    def group(self) -> int:
        return self._packet.group

    @property
    def epoch(self) -> int:
        return self._packet.epoch

    @property
    def sequence(self) -> int:
        return self._packet.sequence

    @property
    def gap(self) -> int:
        return self._packet.gap

    @property
    def size(self) -> int:
        return self._packet.size

    @property
    def data(self):
        """The whole packet."""
        return self._view[:]

    @property
    def is_fragmented(self) -> bool:
        """True if the packet has a fragment of a message; only its first and last message can be fragments."""
        cdef Py_ssize_t count = len(self)
        if count == 0:
            return False
        return bool(
            (self._messages[0].flags | self._messages[count - 1].flags) & (MESSAGE_CONTINUATION | MESSAGE_MORE)
        )

    @property
    def ranges(self) -> list:
        """The inclusive sequence ranges of a NACK or GONE."""
        if self._packet.kind == KIND_DATA:
            return []
        cdef const uint8_t *at = (
            <const uint8_t *>self._buffer.buf + PACKET_HEADER_SIZE + self._packet.extensions_size
        )
        cdef list ranges = []
        for _ in range(self._packet.count):
            ranges.append((load_u64(at + RANGE_FIRST_AT), load_u64(at + RANGE_LAST_AT)))
            at += RANGE_SIZE
        return ranges

    @property
    def extensions(self) -> dict:
        """The packet's own extension bodies by type; of several with the same type, the last."""
        return self.read_extensions(PACKET_HEADER_SIZE, self._packet.extensions_size)

    def __len__(self) -> int:
        return self._packet.count if self._packet.kind == KIND_DATA else 0

    def __getitem__(self, Py_ssize_t index) -> PacketMessage:
        cdef Py_ssize_t count = len(self)
        if index < 0:
            index += count
        if not 0 <= index < count:
            raise IndexError("a packet's message index is out of range")
        return self.read_message(&self._messages[index])

    def __iter__(self):
        cdef Py_ssize_t index
        for index in range(len(self)):
            yield self.read_message(&self._messages[index])

    def __repr__(self) -> str:
        return (
            f"Packet(kind={self.kind}, flags={self.flags}, publisher_id={self.publisher_id}, group={self.group:#x}, "
            f"epoch={self.epoch}, sequence={self.sequence}, gap={self.gap}, <{len(self)} messages, {self.size} bytes>)"
        )

    cdef PacketMessage read_message(self, const MessageView *view):
        cdef PacketMessage message = PacketMessage.__new__(PacketMessage)
        message.topic = PyUnicode_DecodeUTF8(
            <const char *>self._buffer.buf + view.topic_offset, view.topic_size, NULL
        )
        message.payload = self._view[view.payload_offset : view.payload_offset + view.payload_size]
        message.flags = view.flags
        message.model_id = view.model_id
        message.model_version = view.model_version
        message.publisher_id = self._packet.publisher_id
        message.sequence = self._packet.sequence
        message.epoch = self._packet.epoch
        if view.extensions_size:
            message._extensions = self.read_extensions(view.extensions_offset, view.extensions_size)
        return message

    cdef dict read_extensions(self, uint32_t offset, uint32_t size):
        return read_extensions(<const uint8_t *>self._buffer.buf + offset, size)


cdef dict read_extensions(const uint8_t *start, uint32_t size):
    """Return the bodies by type of validated extensions."""
    cdef uint32_t at = 0
    cdef uint32_t body_at, body_size
    cdef dict extensions = {}
    while at < size:
        body_at = at + EXTENSION_HEADER_SIZE
        body_size = load_u16(start + at + EXTENSION_SIZE_AT)
        extensions[load_u16(start + at + EXTENSION_TYPE_AT)] = (<const char *>start)[body_at : body_at + body_size]
        at += <uint32_t>padded(<uint64_t>EXTENSION_HEADER_SIZE + body_size)
    return extensions
