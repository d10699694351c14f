"""Records that are logged again."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._records cimport PublisherHead
from penstock.assured.core.router._publishers cimport Publisher
from penstock.assured.core.router._tables cimport Tables

# Log a message in its current state; `record` is any of its records.
cdef int move(Tables tables, uint32_t place, const uint8_t *record) except -1

# The state of a publisher as a record, with its known numbers `had`; and the writing of it.
cdef PublisherHead publisher_head(const Publisher *publisher, const uint64_t *had) noexcept
cdef void put_publisher(const PublisherHead *head, const uint64_t *had, uint8_t *out) noexcept
