"""Apply a record of the log to the tables."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._tables cimport Tables

# `record` is at offset `at` of the checked journal record.
cdef int recover_record(Tables tables, const uint8_t *record, uint64_t sequence, uint32_t at) except -1
