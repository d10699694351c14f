"""Choose the messages of a batch by their topics; each topic is decided once."""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint16_t, uint64_t

import numpy

from penstock.wire._codec cimport MessageView
from penstock.wire._messages cimport MessageBatch
from penstock.wire._topic_cache cimport TopicCache, TopicSlot

cdef enum Verdict:
    VERDICT_WANTED
    VERDICT_UNWANTED
    VERDICT_REFUSED
    VERDICT_MALFORMED
    VERDICT_UNUSUAL

WANTED = int(VERDICT_WANTED)
UNWANTED = int(VERDICT_UNWANTED)
REFUSED = int(VERDICT_REFUSED)
MALFORMED = int(VERDICT_MALFORMED)
UNUSUAL = int(VERDICT_UNUSUAL)


cdef class TopicGate:
    """`decide` returns the verdict on a topic."""

    def __cinit__(self, uint64_t seed, uint16_t unusual_flags, decide not None):
        self._verdicts = TopicCache(seed)
        self._unusual_flags = unusual_flags
        self._decide = decide

    def forget(self) -> None:
        """Decide all topics again."""
        self._verdicts.clear()

    cpdef MessageBatch choose(self, MessageBatch batch):
        """Return the wanted messages, and count the refused and malformed ones. None, without counting, if a message
        has one of the unusual flags or an unusual topic.
        """
        cdef uint64_t refused = 0
        cdef uint64_t malformed = 0
        cdef Py_ssize_t wanted = 0
        cdef Py_ssize_t index
        cdef int verdict
        batch.check_current()
        if self._room < batch.message_count_:
            self.make_marks(batch.message_count_)
        for index in range(batch.message_count_):
            if batch.message[index].flags & self._unusual_flags:
                return None
            verdict = self.verdict_on(batch._datagrams.data, &batch.message[index])
            self._is_wanted[index] = verdict == VERDICT_WANTED
            wanted += verdict == VERDICT_WANTED
            refused += verdict == VERDICT_REFUSED
            malformed += verdict == VERDICT_MALFORMED
            if verdict == VERDICT_UNUSUAL:
                return None
        self.refused += refused
        self.malformed += malformed
        return batch.choose(self._is_wanted, 0, batch.message_count_, wanted)

    cdef int verdict_on(self, const uint8_t *data, const MessageView *message) except -1:
        cdef const uint8_t *topic = data + message.topic_offset
        cdef TopicSlot *slot = self._verdicts.find(topic, message.topic_size)
        if slot is NULL:
            text = PyUnicode_DecodeUTF8(<const char *>topic, message.topic_size, NULL)
            slot = self._verdicts.add(topic, message.topic_size, text, self._decide(text))
        return slot.value

    cdef int make_marks(self, Py_ssize_t room) except -1:
        self._marks = numpy.empty(room, numpy.uint8)
        cdef uint8_t[::1] marks = self._marks
        self._is_wanted = &marks[0]
        self._room = room
        return 0
