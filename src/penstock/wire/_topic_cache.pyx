"""A bounded cache by topic, for compiled code: a topic is found by its bytes in a packet."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from penstock.wire._codec cimport load_u32, load_u64


cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef enum:
    SLOTS_MIN = 256
    SLOTS_MAX = 262_144


cdef class TopicCache:
    """Topics and a number for each. A full cache is emptied."""

    def __cinit__(self, uint64_t seed):
        self._seed = seed
        self.allot(SLOTS_MIN)

    def __dealloc__(self):
        if self._slots is not NULL:
            self.clear()
            PyMem_Free(self._slots)

    def __len__(self) -> int:
        return self._count

    cpdef void clear(self):
        cdef uint64_t at
        if self._count:
            for at in range(self._mask + 1):
                Py_XDECREF(self._slots[at].topic)
                self._slots[at].topic = NULL
            self._count = 0

    cdef TopicSlot *find(self, const uint8_t *topic, Py_ssize_t size) except? NULL:
        cdef uint64_t hash = hash_topic(topic, size, self._seed)
        cdef uint64_t at = hash & self._mask
        cdef const char *known
        cdef Py_ssize_t known_size = 0
        while self._slots[at].topic is not NULL:
            if self._slots[at].hash == hash:
                known = PyUnicode_AsUTF8AndSize(<object>self._slots[at].topic, &known_size)
                if known_size == size and memcmp(known, topic, size) == 0:
                    return &self._slots[at]
            at = (at + 1) & self._mask
        return NULL

    cdef TopicSlot *add(self, const uint8_t *topic, Py_ssize_t size, str text, int value) except NULL:
        """Add a topic that find() did not find; `text` is the same as a str."""
        if 2 * <uint64_t>(self._count + 1) > self._mask + 1:
            if self._mask + 1 < SLOTS_MAX:
                self.allot(2 * (self._mask + 1))
            else:
                self.clear()
        cdef TopicSlot *slot = free_slot(self._slots, self._mask, hash_topic(topic, size, self._seed))
        slot.hash = hash_topic(topic, size, self._seed)
        slot.topic = <PyObject *>text
        slot.value = value
        Py_INCREF(text)
        self._count += 1
        return slot

    cdef int allot(self, uint64_t slots) except -1:
        cdef TopicSlot *fresh = <TopicSlot *>PyMem_Calloc(slots, sizeof(TopicSlot))
        cdef uint64_t at
        if fresh is NULL:
            raise MemoryError
        if self._slots is not NULL:
            for at in range(self._mask + 1):
                if self._slots[at].topic is not NULL:
                    free_slot(fresh, slots - 1, self._slots[at].hash)[0] = self._slots[at]
            PyMem_Free(self._slots)
        self._slots = fresh
        self._mask = slots - 1
        return 0


cdef TopicSlot *free_slot(TopicSlot *slots, uint64_t mask, uint64_t hash) noexcept:
    cdef uint64_t at = hash & mask
    while slots[at].topic is not NULL:
        at = (at + 1) & mask
    return &slots[at]


cdef inline uint64_t hash_topic(const uint8_t *topic, Py_ssize_t size, uint64_t seed) noexcept:
    cdef uint64_t state = seed ^ <uint64_t>size * <uint64_t>0x9E3779B97F4A7C15
    while size >= 8:
        state = mix(state ^ load_u64(topic))
        topic += 8
        size -= 8
    if size >= 4:
        state = mix(state ^ load_u32(topic))
        topic += 4
        size -= 4
    while size > 0:
        state = mix(state ^ topic[0])
        topic += 1
        size -= 1
    return state ^ state >> 32


cdef inline uint64_t mix(uint64_t state) noexcept:
    state = (state ^ state >> 32) * <uint64_t>0xD6E8FEB86659FD93
    return state ^ state >> 29
