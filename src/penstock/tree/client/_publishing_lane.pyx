"""The short way of a publisher's message: encoded, kept for repetition and written to the link in one compiled call.

The lane takes the steps of the core (core/publisher.py) on the core's state. Anything unusual is left to the caller,
who goes through the core: no link, a link with TLS, no room, extensions, arguments that do not fit.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from libc.stdint cimport UINT16_MAX, UINT32_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from penstock.net._link_writer cimport LinkWriter
from penstock.tree.core.kernel._frame cimport (
    BLOCK_HEADER_SIZE,
    BLOCK_SIZE_MAX,
    KIND_PUBLISHED,
    PUBLISHED_SIZE,
    write_block_header,
)
from penstock.wire._codec cimport (
    KIND_DATA,
    PACKET_HEADER_SIZE,
    MessageView,
    PacketView,
    finish_packet,
    message_space,
    write_message,
)

from penstock.base.limits import PACKET_SIZE_MAX
from penstock.model import Message

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef PyTypeObject *message_type = <PyTypeObject *>Message
cdef uint64_t packet_size_max = PACKET_SIZE_MAX - 2 * PUBLISHED_SIZE  # the root adds extensions


cdef class PublishingLane:
    """Of one publisher; `lock` guards the core."""

    cdef object _core
    cdef object _session      # the core's links
    cdef object _take
    cdef object _give
    cdef uint64_t _publisher_id
    cdef public object links            # of the driver, by number; None: not started
    cdef public object streams          # the core's streams for which `stream_by_topic` is valid
    cdef readonly dict stream_by_topic  # of topics that were checked; 0: none is known
    cdef object _link         # the number of the link of `_writer`
    cdef LinkWriter _writer
    cdef public int64_t room  # messages that may still be published without an acknowledgement

    def __init__(self, core not None, lock not None, publisher_id):
        self._core = core
        self._session = core.session
        self._take = lock.acquire
        self._give = lock.release
        self.stream_by_topic = {}
        self._publisher_id = publisher_id

    def publish(self, topic, payload, model_id, model_version, extensions, stream) -> int:
        """Send a message; return its number, 0: the caller must publish the message through the core."""
        if extensions or type(topic) is not str:
            return 0
        if PyObject_TypeCheck(payload, message_type):
            model_id, model_version = payload.model.id, payload.version
        if not (type(model_id) is type(model_version) is type(stream) is int):
            return 0
        if not (0 <= model_id <= UINT16_MAX and 0 <= model_version <= UINT16_MAX and 0 <= stream <= UINT32_MAX):
            return 0
        self._take()
        try:
            return self.send(topic, payload, model_id, model_version, stream)
        finally:
            self._give()

    cdef object send(self, str topic, payload, uint16_t model_id, uint16_t model_version, stream):
        cdef uint64_t number
        cdef bytes packet
        cdef uint8_t[BLOCK_HEADER_SIZE] head
        known = self.stream_by_topic.get(topic)
        if self.room <= 0 or known is None or self._core.streams is not self.streams or not self.has_writer():
            return 0
        next_number = self._core.next_number
        if self._core.sent != next_number - 1:
            return 0
        packet = self.encode(next_number, stream or known, topic, payload, model_id, model_version)
        if packet is None:
            return 0
        write_block_header(head, KIND_PUBLISHED, 0, <uint32_t>PyBytes_GET_SIZE(packet))
        self._writer.turn.take()
        try:
            self._writer.append(
                head, BLOCK_HEADER_SIZE, <const uint8_t *>PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet),
                BLOCK_SIZE_MAX,
            )
        finally:
            self._writer.turn.give()
        self._core.keep_sent(packet)
        self.room -= 1
        return next_number

    cdef bint has_writer(self) except -1:
        """True if the link in use has a writer."""
        link = self._session.link
        if link != self._link:
            found = None if self.links is None else self.links.get(link)
            self._writer = None if found is None else found.writer
            self._link = link if self._writer is not None else None
        return self._writer is not None

    cdef bytes encode(self, uint64_t number, uint32_t stream, str topic, payload, uint16_t model_id, uint16_t version):
        """Return the packet; None if the message is too long."""
        cdef MessageView message
        cdef PacketView packet
        cdef Py_buffer content
        cdef Py_ssize_t topic_size
        cdef const char *text = PyUnicode_AsUTF8AndSize(topic, &topic_size)
        cdef bytes encoded = None
        PyObject_GetBuffer(payload, &content, PyBUF_SIMPLE)
        try:
            memset(&message, 0, sizeof(message))
            message.topic_size = <uint16_t>topic_size
            message.model_id = model_id
            message.model_version = version
            message.payload_size = <uint32_t>min(content.len, <Py_ssize_t>packet_size_max)
            memset(&packet, 0, sizeof(packet))
            if PACKET_HEADER_SIZE + message_space(&message) <= packet_size_max:
                packet.kind = KIND_DATA
                packet.count = 1
                packet.publisher_id = self._publisher_id
                packet.group = stream
                packet.sequence = number
                packet.size = <uint32_t>(PACKET_HEADER_SIZE + message_space(&message))
                encoded = PyBytes_FromStringAndSize(NULL, packet.size)
                write_message(
                    <uint8_t *>PyBytes_AS_STRING(encoded) + PACKET_HEADER_SIZE, &message, NULL, <const uint8_t *>text,
                    <const uint8_t *>content.buf,
                )
                finish_packet(<uint8_t *>PyBytes_AS_STRING(encoded), &packet)
        finally:
            PyBuffer_Release(&content)
        return encoded
