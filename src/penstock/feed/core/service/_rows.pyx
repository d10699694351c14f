"""Rows of published messages: the subscribers of each, and the space that they need in packets."""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint64_t

from penstock.wire._codec cimport ALIGNMENT, ERROR_NONE, ERROR_NONE, MESSAGE_HEADER_SIZE, PACKET_HEADER_SIZE, MessageView, PacketView
from penstock.wire._topic_cache cimport TopicCache, TopicSlot

from penstock.base.errors import LocalProtocolError

cdef enum:
    SETS_MAX = 65_536


cdef class TopicSelector:
    """Selects the rows for each subscriber by topic. `decide` returns the numbers of a topic's subscribers; each topic
    is decided once."""

    cdef TopicCache _topics  # with an index of _sets
    cdef list _sets          # tuples of numbers
    cdef dict _indices       # of these tuples
    cdef object _decide

    def __cinit__(self, uint64_t seed, decide not None):
        self._topics = TopicCache(seed)
        self._decide = decide
        self.forget()

    cpdef void forget(self):
        """Decide all topics again."""
        self._topics.clear()
        self._sets = []
        self._indices = {}

    def select(self, const uint8_t[::1] data not None, rows not None) -> dict:
        """For each subscriber with matching messages, their rows, in order."""
        cdef const MessageView[::1] messages = rows
        cdef Py_ssize_t count = messages.shape[0], index = 1
        cdef int first
        cdef dict chosen = {}
        if count == 0:
            return chosen
        if len(self._sets) > SETS_MAX:
            self.forget()
        first = self.set_of(data, &messages[0])
        while index < count and self.set_of(data, &messages[index]) == first:
            index += 1
        if index == count:  # the ordinary case: the same subscribers for all rows
            return dict.fromkeys(self._sets[first], rows)
        for index in range(count):
            for number in <tuple>self._sets[self.set_of(data, &messages[index])]:
                if (indices := chosen.get(number)) is None:
                    chosen[number] = indices = []
                (<list>indices).append(index)
        return {number: rows[indices] for number, indices in chosen.items()}

    cdef int set_of(self, const uint8_t[::1] data, const MessageView *message) except -1:
        """The index of the subscribers of a message."""
        cdef Py_ssize_t size = message.topic_size
        cdef const uint8_t *topic
        cdef TopicSlot *slot
        if size == 0 or <Py_ssize_t>message.topic_offset + size > data.shape[0]:
            raise LocalProtocolError("a row without a topic")
        topic = &data[0] + message.topic_offset
        slot = self._topics.find(topic, size)
        if slot is NULL:
            text = PyUnicode_DecodeUTF8(<const char *>topic, size, "replace")
            numbers = tuple(self._decide(text))
            index = self._indices.setdefault(numbers, len(self._sets))
            if index == len(self._sets):
                self._sets.append(numbers)
            slot = self._topics.add(topic, size, text, index)
        return slot.value


def packed_size(const MessageView[::1] rows not None) -> int:
    """The most bytes that these messages need in packets, even if each has a packet of its own."""
    cdef Py_ssize_t index, size = 0
    for index in range(rows.shape[0]):
        size += rows[index].topic_size + rows[index].payload_size + rows[index].extensions_size
    return size + (MESSAGE_HEADER_SIZE + PACKET_HEADER_SIZE + 2 * ALIGNMENT) * rows.shape[0]


def are_sourced(const MessageView[::1] rows not None) -> bool:
    """True if all messages have extensions."""
    cdef Py_ssize_t index
    for index in range(rows.shape[0]):
        if rows[index].extensions_size == 0:
            return False
    return True


def count_overwritten(const PacketView[::1] packets not None, uint64_t first) -> int:
    """The number of packets up to the last one that is damaged, or does not have its number; they begin at `first`."""
    cdef Py_ssize_t count = packets.shape[0]
    while count and packets[count - 1].error == ERROR_NONE and packets[count - 1].sequence == first + count - 1:
        count -= 1
    return count
