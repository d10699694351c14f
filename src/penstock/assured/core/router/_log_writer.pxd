"""The end of a router's log: records for the journal that were not taken yet, and the sections of the whole log.

A section is a portion of the log. The message table links the live messages of a section through `first_message`; the
cleaner moves them out of the oldest section until that section can be dropped.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._containers cimport Bytes


cdef struct Section:
    uint64_t first_sequence
    uint64_t size
    uint64_t live_size              # of messages with an endpoint
    uint64_t live_count
    int64_t begun_ns
    uint32_t first_message


cdef class LogWriter:
    cdef Bytes _pending                 # pending records for the journal
    cdef uint32_t *_offsets
    cdef uint32_t *_sizes
    cdef uint64_t _capacity
    cdef Section *_sections             # beginning with the oldest one
    cdef uint32_t _section_count
    cdef uint32_t _section_capacity
    cdef readonly uint64_t rows         # pending records
    cdef readonly bint is_grouping      # new records become parts of one transaction's record
    cdef readonly uint32_t section_first    # the number of the oldest section
    cdef readonly uint64_t size         # bytes of all sections
    cdef readonly uint64_t live_size    # bytes of live messages' records
    cdef readonly uint64_t next_sequence
    cdef readonly uint64_t section_size_max

    # Records. room() makes a record at the end of the log; sequence() is the number of the one it is in.
    cdef uint8_t *room(self, uint32_t size, int64_t wall_ns) except NULL
    cdef uint64_t sequence(self) noexcept
    cdef uint32_t offset_in_record(self, const uint8_t *at) noexcept
    cdef const uint8_t *last(self, uint32_t size) noexcept
    cdef const uint8_t *first_pending(self, uint32_t *size) noexcept
    cdef void clear(self) noexcept
    cdef int recovered(self, uint64_t sequence, uint32_t size, int64_t timestamp_ns) except -1

    # The record of a transaction, which contains other records.
    cdef void begin_group(self) noexcept
    cdef uint8_t *group(self) noexcept
    cdef uint32_t group_size(self) noexcept
    cdef void end_group(self) noexcept
    cdef void undo_group(self) noexcept

    # Sections
    cdef int _begin_section(self, uint64_t first_sequence, int64_t begun_ns) except -1
    cdef uint32_t newest_section(self) noexcept
    cdef Section *section(self, uint32_t number) noexcept
    cdef void add_live(self, uint32_t number, uint32_t size) noexcept
    cdef void remove_live(self, uint32_t number, uint32_t size) noexcept
