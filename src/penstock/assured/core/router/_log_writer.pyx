"""Pending records for the journal, and the sections of the log; see _log_writer.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

import numpy

from penstock.assured.core.router._containers cimport bytes_reserve

from penstock.base.errors import LocalProtocolError


cdef class LogWriter:
    """Above `section_size_max` bytes, a section is followed by a new one."""

    def __cinit__(self, uint64_t section_size_max):
        self.section_first = 1
        self.next_sequence = 1
        self.section_size_max = section_size_max

    def __dealloc__(self):
        free(self._pending.data)
        free(self._offsets)
        free(self._sizes)
        free(self._sections)

    # Records

    cdef uint8_t *room(self, uint32_t size, int64_t wall_ns) except NULL:
        """Room for a record of this size at the end of the log; in a group, for a part of the group's record."""
        cdef uint32_t *larger
        cdef uint64_t capacity
        bytes_reserve(&self._pending, size)
        if not self.is_grouping:
            if self.rows == self._capacity:
                capacity = max(<uint64_t>256, 2 * self._capacity)
                larger = <uint32_t *>realloc(self._offsets, capacity * sizeof(uint32_t))
                if larger is NULL:
                    raise MemoryError
                self._offsets = larger
                larger = <uint32_t *>realloc(self._sizes, capacity * sizeof(uint32_t))
                if larger is NULL:
                    raise MemoryError
                self._sizes = larger
                self._capacity = capacity
            if self._section_count == 0 or self._sections[self._section_count - 1].size >= self.section_size_max:
                self._begin_section(self.next_sequence, wall_ns)
            self._offsets[self.rows] = <uint32_t>self._pending.size
            self._sizes[self.rows] = size
            self.rows += 1
            self.next_sequence += 1
        self._sections[self._section_count - 1].size += size
        self.size += size
        self._pending.size += size
        return self._pending.data + self._pending.size - size

    cdef uint64_t sequence(self) noexcept:
        """The number of the record that room() made last, or of the group that contains it."""
        return self.next_sequence - 1

    cdef uint32_t offset_in_record(self, const uint8_t *at) noexcept:
        """The offset of a pending byte in the newest record."""
        return <uint32_t>(at - self.group())

    cdef const uint8_t *last(self, uint32_t size) noexcept:
        """The last pending bytes, as many as requested."""
        return self._pending.data + self._pending.size - size

    cdef const uint8_t *first_pending(self, uint32_t *size) noexcept:
        """The oldest pending record; there is one."""
        size[0] = self._sizes[0]
        return self._pending.data

    cdef void clear(self) noexcept:
        """The journal has taken the pending records."""
        self._pending.size = self.rows = 0

    cdef int recovered(self, uint64_t sequence, uint32_t size, int64_t timestamp_ns) except -1:
        """A record in the journal is the newest of the log from now on."""
        if self._section_count == 0 or self._sections[self._section_count - 1].size >= self.section_size_max:
            self._begin_section(sequence, timestamp_ns)
        self._sections[self._section_count - 1].size += size
        self.size += size
        self.next_sequence = sequence + 1
        return 0

    def start(self, uint64_t next_sequence):
        """All records of the journal were recovered: the next one gets this number."""
        self.next_sequence = next_sequence

    def append(self, bytes record not None, int64_t wall_ns):
        """Log a record that was made in Python; returns its sequence number."""
        memcpy(self.room(<uint32_t>len(record), wall_ns), <const uint8_t *>record, len(record))
        return self.sequence()

    def take(self):
        """(data, offsets, sizes, number of the first) of the pending records, or None."""
        cdef uint32_t[::1] view
        if self.rows == 0:
            return None
        data = PyBytes_FromStringAndSize(<const char *>self._pending.data, self._pending.size)
        offsets = numpy.empty(self.rows, numpy.uint32)
        sizes = numpy.empty(self.rows, numpy.uint32)
        view = offsets
        memcpy(&view[0], self._offsets, self.rows * sizeof(uint32_t))
        view = sizes
        memcpy(&view[0], self._sizes, self.rows * sizeof(uint32_t))
        first = self.next_sequence - self.rows
        self.clear()
        return data, offsets, sizes, first

    @property
    def pending_size(self):
        """Bytes of pending records."""
        return self._pending.size

    # The record of a transaction

    cdef void begin_group(self) noexcept:
        """The newest record is a transaction's head: records go into it until end_group() or undo_group()."""
        self.is_grouping = True

    cdef uint8_t *group(self) noexcept:
        """The newest of the journal's records."""
        return self._pending.data + self._offsets[self.rows - 1]

    cdef uint32_t group_size(self) noexcept:
        return <uint32_t>self._pending.size - self._offsets[self.rows - 1]

    cdef void end_group(self) noexcept:
        self._sizes[self.rows - 1] = self.group_size()
        self.is_grouping = False

    cdef void undo_group(self) noexcept:
        """Remove the record, as if it had not been made."""
        cdef uint32_t size = self.group_size()
        self.is_grouping = False
        self._pending.size -= size
        self.rows -= 1
        self.next_sequence -= 1
        self._sections[self._section_count - 1].size -= size
        self.size -= size

    # Sections

    cdef int _begin_section(self, uint64_t first_sequence, int64_t begun_ns) except -1:
        cdef uint32_t capacity
        cdef Section *larger
        if self._section_count == self._section_capacity:
            capacity = max(<uint32_t>16, 2 * self._section_capacity)
            larger = <Section *>realloc(self._sections, capacity * sizeof(Section))
            if larger is NULL:
                raise MemoryError
            self._sections = larger
            self._section_capacity = capacity
        memset(self._sections + self._section_count, 0, sizeof(Section))
        self._sections[self._section_count].first_sequence = first_sequence
        self._sections[self._section_count].begun_ns = begun_ns
        self._section_count += 1
        return 0

    cdef uint32_t newest_section(self) noexcept:
        return self.section_first + self._section_count - 1

    cdef Section *section(self, uint32_t number) noexcept:
        return self._sections + (number - self.section_first)

    cdef void add_live(self, uint32_t number, uint32_t size) noexcept:
        """A record of this size in this section belongs to a live message."""
        self.section(number).live_count += 1
        self.section(number).live_size += size
        self.live_size += size

    cdef void remove_live(self, uint32_t number, uint32_t size) noexcept:
        self.section(number).live_count -= 1
        self.section(number).live_size -= size
        self.live_size -= size

    @property
    def oldest_section(self):
        """(first sequence, first of the next section, live messages, when the next section began, live bytes), or None if
        there is one section only."""
        if self._section_count < 2:
            return None
        return (self._sections[0].first_sequence, self._sections[1].first_sequence, self._sections[0].live_count,
                self._sections[1].begun_ns, self._sections[0].live_size)

    def drop_section(self):
        """Forget the oldest section, which has no live messages."""
        if self._section_count < 2 or self._sections[0].live_count:
            raise LocalProtocolError("the oldest section of the log is in use")
        self.size -= self._sections[0].size
        self._section_count -= 1
        self.section_first += 1
        for index in range(self._section_count):
            self._sections[index] = self._sections[index + 1]
