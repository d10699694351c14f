"""A record of the log is taken into the tables."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured._records cimport PublisherHead
from penstock.assured._tables cimport Publisher, Tables

# `record` is at `at` of the journal's record, which was checked.
cdef int recover_record(Tables tables, const uint8_t *record, uint64_t sequence, uint32_t at) except -1

# What is known of a publisher, of whose numbers `had` are known, as a record; and how it is written.
cdef PublisherHead publisher_head(const Publisher *publisher, const uint64_t *had) noexcept
cdef void put_publisher(const PublisherHead *head, const uint64_t *had, uint8_t *out) noexcept
