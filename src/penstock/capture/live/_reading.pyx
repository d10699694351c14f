"""Decode many messages in one call, with the results of Models.read() for each."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from penstock.capture.core._unread cimport UnreadMessage
from penstock.model._message cimport Record, RecordMaker
from penstock.wire._codec cimport (
    EXTENSION_HEADER_SIZE,
    MessageView,
    ORIGIN_MESSAGE_SEQUENCE_AT,
    ORIGIN_SIZE,
    PACKET_SEQUENCE_AT,
    load_u64,
)
from penstock.wire._messages cimport MessageBatch
from penstock.wire._origin cimport find_origin
from penstock.wire._packet_run cimport PacketRun
from penstock.wire._topic_cache cimport TopicCache, TopicSlot

from penstock.wire import decode_origin


cdef class BatchReader:
    """Makes the messages of a batch from its packets. `read_one` decodes the messages of models that are not known
    exactly, and those that are too short; it returns None for messages to leave out. If the models are one model, the
    messages of other models are left out and counted in `others`.
    """

    def __cinit__(self, models not None, uint64_t seed, read_one not None):
        self._models = models
        self._only_id = models.only_id
        self._read_one = read_one
        self._topics = TopicCache(seed)
        self._makers = {}
        self._kind = -1

    cpdef list read(self, MessageBatch batch):
        """Return the messages, which are copies."""
        cdef const uint8_t *data = batch._datagrams.data
        cdef const MessageView *view
        cdef const uint8_t *origin
        cdef Record record
        cdef bytes memory
        cdef Py_ssize_t index
        cdef Py_ssize_t head  # bytes of the ORIGIN before the payload
        cdef list read = []
        batch.check_current()
        self.check_generation()
        for index in range(batch.message_count_):
            view = &batch.message[index]
            if self._only_id and view.model_id != self._only_id:
                self.others += 1
                continue
            origin = NULL
            self.use_kind(<int>view.model_id << 16 | view.model_version)
            if (
                self._maker is None
                or <Py_ssize_t>view.payload_size < self._maker.size_min
                or not find_origin(data + view.extensions_offset, view.extensions_size, &origin)
            ):
                one = self._read_one(batch.read_message(index))
                if one is not None:
                    read.append(one)
                continue
            head = 0 if origin is NULL else ORIGIN_SIZE
            memory = PyBytes_FromStringAndSize(NULL, head + view.payload_size)
            memcpy(<char *>memory + head, data + view.payload_offset, view.payload_size)
            record = self._maker.make(memory, head)
            record.topic = self.topic_of(data + view.topic_offset, view.topic_size)
            if origin is NULL:
                record.seq = load_u64(data + view.packet_index * batch._datagrams.stride + PACKET_SEQUENCE_AT)
            else:
                memcpy(<char *>memory, origin, ORIGIN_SIZE)
                record.seq = load_u64(origin + ORIGIN_MESSAGE_SEQUENCE_AT)
                self._maker.set_source(
                    record,
                    <const uint8_t *><char *>memory + EXTENSION_HEADER_SIZE,
                    ORIGIN_SIZE - EXTENSION_HEADER_SIZE,
                    decode_origin,
                )
            read.append(record)
        return read

    cpdef list read_run(self, PacketRun run, str apart):
        """Return the messages of a run, which are copies, with the sequences of their packets. A message on the topic
        `apart`, with an ORIGIN, or to be read by `read_one` stays a PacketMessage.
        """
        cdef const MessageView *view
        cdef const uint8_t *origin
        cdef Record record
        cdef UnreadMessage unread
        cdef Py_ssize_t index
        cdef str topic
        cdef list read = []
        self.check_generation()
        for index in range(run.count):
            view = &run.rows[index]
            origin = NULL
            topic = self.topic_of(run.start + view.topic_offset, view.topic_size)
            self.use_kind(<int>view.model_id << 16 | view.model_version)
            if (
                topic == apart
                or not find_origin(run.start + view.extensions_offset, view.extensions_size, &origin)
                or origin is not NULL
            ):
                read.append(run.read_message(index))
            elif view.model_id == 0:
                unread = UnreadMessage.__new__(UnreadMessage)
                unread.topic = topic
                unread.seq = load_u64(run.start + view.packet_index + PACKET_SEQUENCE_AT)
                unread.model_version = view.model_version
                unread.payload = PyBytes_FromStringAndSize(
                    <const char *>run.start + view.payload_offset, view.payload_size
                )
                read.append(unread)
            elif self._maker is None or <Py_ssize_t>view.payload_size < self._maker.size_min:
                read.append(run.read_message(index))
            else:
                record = self._maker.make(
                    PyBytes_FromStringAndSize(<const char *>run.start + view.payload_offset, view.payload_size), 0
                )
                record.topic = topic
                record.seq = load_u64(run.start + view.packet_index + PACKET_SEQUENCE_AT)
                read.append(record)
        return read

    cdef int check_generation(self) except -1:
        """Forget the makers when the models have changed."""
        if self._generation != self._models.generation:
            self._makers.clear()
            self._kind = -1
            self._generation = self._models.generation
        return 0

    cdef str topic_of(self, const uint8_t *topic, Py_ssize_t size):
        cdef TopicSlot *slot = self._topics.find(topic, size)
        if slot is NULL:
            slot = self._topics.add(topic, size, PyUnicode_DecodeUTF8(<const char *>topic, size, NULL), 0)
        return <str>slot.topic

    cdef int use_kind(self, int kind) except -1:
        """Find the maker of a model and version."""
        if kind == self._kind:
            return 0
        if kind not in self._makers:
            model = self._models.exactly(kind >> 16, kind & 0xFFFF)
            self._makers[kind] = None if model is None else model.record_maker(kind & 0xFFFF)
        self._maker = self._makers[kind]
        self._kind = kind
        return 0
