"""Consecutive packets of one stream in a block of bytes, checked in one pass and decoded when they are read."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t

from penstock.wire._codec cimport (
    ERROR_NONE,
    KIND_DATA,
    PACKET_EPOCH_AT,
    PACKET_GROUP_AT,
    PACKET_HEADER_SIZE,
    PACKET_PUBLISHER_ID_AT,
    PACKET_SEQUENCE_AT,
    PACKET_SIZE_AT,
    MessageView,
    PacketView,
    load_u32,
    load_u64,
    parse_contents,
    parse_header,
)
from penstock.wire._packet cimport PacketMessage, read_extensions


cdef enum:
    ROWS_AT_FIRST = 16


def take_run(
    bytes data not None, Py_ssize_t at, Py_ssize_t end, uint32_t group, uint32_t epoch, uint64_t last
) -> PacketRun | None:
    """Return the longest run of valid DATA packets from offset `at` to at most `end`: of this group and epoch, with
    rising sequences above `last`. None if the first packet is not such a packet.
    """
    cdef PacketRun run = PacketRun.__new__(PacketRun)
    if not 0 <= at <= end <= PyBytes_GET_SIZE(data) or end > UINT32_MAX:
        return None
    run._data = data
    run.start = <const uint8_t *>PyBytes_AS_STRING(data)
    run.take(<uint32_t>at, <uint32_t>end, group, epoch, last)
    return run if run.count else None


cdef class PacketRun:
    """The messages of the run, in order. Iterating makes a copy of each."""

    def __dealloc__(self):
        PyMem_Free(self.rows)

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        cdef Py_ssize_t index
        return iter([self.read_message(index) for index in range(self.count)])

    cdef int take(self, uint32_t at, uint32_t size, uint32_t group, uint32_t epoch, uint64_t last) except -1:
        cdef PacketView packet
        cdef const uint8_t *header
        cdef Py_ssize_t index
        cdef uint32_t left
        self.end = at
        self.last = last
        while self.end < size:
            left = size - self.end
            header = self.start + self.end
            if (
                left < PACKET_HEADER_SIZE
                or load_u32(header + PACKET_SIZE_AT) > left
                or load_u32(header + PACKET_GROUP_AT) != group
                or load_u32(header + PACKET_EPOCH_AT) != epoch
                or load_u64(header + PACKET_SEQUENCE_AT) <= self.last
                or parse_header(self.start, self.end, load_u32(header + PACKET_SIZE_AT), &packet) != ERROR_NONE
                or packet.kind != KIND_DATA
                or packet.count == 0
            ):
                return 0
            self.make_room(self.count + packet.count)
            if parse_contents(self.start, &packet, self.rows + self.count) != ERROR_NONE:
                return 0
            for index in range(self.count, self.count + packet.count):
                self.rows[index].packet_index = self.end
            self.count += packet.count
            self.end += packet.size
            self.last = packet.sequence
        return 0

    cdef int make_room(self, Py_ssize_t rows) except -1:
        cdef void *bigger
        if rows <= self._capacity:
            return 0
        self._capacity = max(rows, 2 * self._capacity, ROWS_AT_FIRST)
        bigger = PyMem_Realloc(self.rows, self._capacity * sizeof(MessageView))
        if bigger is NULL:
            raise MemoryError
        self.rows = <MessageView *>bigger
        return 0

    cdef object read_message(self, Py_ssize_t index):
        cdef const MessageView *view = &self.rows[index]
        cdef const uint8_t *packet = self.start + view.packet_index
        cdef PacketMessage message = PacketMessage.__new__(PacketMessage)
        message.topic = PyUnicode_DecodeUTF8(<const char *>self.start + view.topic_offset, view.topic_size, NULL)
        message.payload = PyBytes_FromStringAndSize(<const char *>self.start + view.payload_offset, view.payload_size)
        message.publisher_id = load_u64(packet + PACKET_PUBLISHER_ID_AT)
        message.sequence = load_u64(packet + PACKET_SEQUENCE_AT)
        message.epoch = load_u32(packet + PACKET_EPOCH_AT)
        message.flags = view.flags
        message.model_id = view.model_id
        message.model_version = view.model_version
        if view.extensions_size:
            message._extensions = read_extensions(self.start + view.extensions_offset, view.extensions_size)
        return message
