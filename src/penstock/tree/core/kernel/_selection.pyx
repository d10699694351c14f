"""Selection of one leg's packets in a stream's past."""

from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.filter.core.kernel._condition cimport Condition, is_met
from penstock.filter.core.kernel._matching cimport Matcher
from penstock.tree.core.kernel._frame cimport packet_size_at
from penstock.wire._codec cimport (
    ERROR_NONE,
    KIND_DATA,
    MESSAGE_DIRECT,
    MessageView,
    PacketView,
    parse_contents,
    parse_header,
)

from penstock.base.counters import Cause
from penstock.base.errors import PacketError
from penstock.topics import InterestTable

cdef extern from "Python.h":
    int PyBUF_READ


cdef class Selection:
    """Made from the wants of a leg: (topics, condition or None) each."""

    def __cinit__(self, wants not None):
        table = InterestTable()
        self._conditions = []
        for number, (topics, condition) in enumerate(wants):
            for topic in topics:
                table.add(topic, number)
            self._conditions.append(condition)
        self._matcher = Matcher(table)

    cdef uint64_t choose(
        self, const uint8_t *data, uint32_t size, uint64_t size_max, uint8_t *out, uint64_t *through
    ) except? 1:
        cdef uint32_t at = 0, count, row
        cdef uint64_t used = 0
        while at < size:
            count = self.gather(data, size, &at)
            view = PyMemoryView_FromMemory(<char *>data, size, PyBUF_READ)
            with nogil:
                self._matcher.match(data, view, self._rows, count)
            for row in range(count):
                if self.is_wanted(row, data):
                    if used and used + self._sizes[row] > size_max:
                        return used
                    memcpy(out + used, data + self._starts[row], self._sizes[row])
                    used += self._sizes[row]
                through[0] = self._sequences[row]
        return used

    cdef uint32_t gather(self, const uint8_t *data, uint32_t size, uint32_t *at) except? 1:
        cdef PacketView packet
        cdef uint32_t count = 0, packet_size
        while at[0] < size and count < ROWS_MAX:
            packet_size = packet_size_at(data + at[0], size - at[0])
            if (
                packet_size == 0
                or parse_header(data, at[0], packet_size, &packet) != ERROR_NONE
                or packet.kind != KIND_DATA
                or packet.count != 1
                or parse_contents(data, &packet, &self._rows[count]) != ERROR_NONE
                or self._rows[count].flags & MESSAGE_DIRECT
            ):
                raise PacketError("the stored bytes of a stream are not whole packets", cause=Cause.CHECKSUM)
            self._starts[count] = at[0]
            self._sizes[count] = packet_size
            self._sequences[count] = packet.sequence
            at[0] += packet_size
            count += 1
        return count

    cdef bint is_wanted(self, uint32_t row, const uint8_t *data):
        cdef uint64_t found
        cdef Condition condition
        for found in range(self._matcher.results[row], self._matcher.results[row + 1]):
            condition = self._conditions[self._matcher.found.subscribers[found]]
            if condition is None or is_met(
                &condition.terms, &self._rows[row], data + self._rows[row].payload_offset
            ):
                return True
        return False
