from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint64_t


cdef struct TopicSlot:
    uint64_t hash
    PyObject *topic  # a str; NULL: free
    int value


cdef class TopicCache:
    cdef TopicSlot *_slots  # linear probing, at most half of the slots used
    cdef uint64_t _mask
    cdef uint64_t _seed  # secret, so that nobody can choose colliding topics
    cdef Py_ssize_t _count

    # The slot of a topic; NULL if the cache does not have the topic. Valid until the next add() or clear().
    cdef TopicSlot *find(self, const uint8_t *topic, Py_ssize_t size) except? NULL
    cdef TopicSlot *add(self, const uint8_t *topic, Py_ssize_t size, str text, int value) except NULL
    cpdef void clear(self)
    cdef int allot(self, uint64_t slots) except -1
