from libc.stdint cimport uint8_t, uint16_t, uint64_t

from penstock.wire._codec cimport MessageView
from penstock.wire._messages cimport MessageBatch
from penstock.wire._topic_cache cimport TopicCache


cdef class TopicGate:
    cdef TopicCache _verdicts
    cdef uint16_t _unusual_flags
    cdef object _decide
    cdef object _marks
    cdef uint8_t *_is_wanted
    cdef Py_ssize_t _room
    cdef readonly uint64_t refused
    cdef readonly uint64_t malformed

    cpdef MessageBatch choose(self, MessageBatch batch)
    cdef int verdict_on(self, const uint8_t *data, const MessageView *message) except -1
    cdef int make_marks(self, Py_ssize_t room) except -1
