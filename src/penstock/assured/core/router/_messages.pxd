"""Operations on messages and their entries: creation, queueing, caching, removal."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.assured.core.router._publishers cimport Publisher
from penstock.assured.core.router._tables cimport Endpoint, Entry, List, Message, Tables

# Messages and entries
cdef uint32_t message_new(Tables tables, uint64_t id) except 0
cdef uint32_t message_by_id(Tables tables, uint64_t id) noexcept
cdef int message_place(Tables tables, uint32_t place, uint64_t sequence, uint32_t record_at, uint32_t record_size) except -1
cdef void message_free(Tables tables, uint32_t place) noexcept
cdef uint32_t entry_new(Tables tables, uint32_t message, Endpoint *endpoint) except 0
cdef uint32_t entry_of(Tables tables, uint32_t message, uint32_t endpoint) noexcept
cdef uint32_t consumed_entry(Tables tables, uint32_t endpoint, uint64_t id) noexcept # 0: there is none, or no longer
cdef void entry_free(Tables tables, uint32_t place) noexcept # also frees the message if this was its last entry
cdef int message_stored(Tables tables, uint32_t place) except -1
cdef void append_by_id(Tables tables, uint32_t place) noexcept

# Lists of entries
cdef void list_append(Tables tables, List *entries, uint32_t place) noexcept
cdef void list_insert(Tables tables, List *entries, uint32_t place, uint32_t before) noexcept
cdef void list_remove(Tables tables, List *entries, uint32_t place) noexcept
cdef int queue_append(Tables tables, uint32_t place) except -1
cdef uint32_t queue_return(Tables tables, uint32_t place, uint32_t hint) except 0
cdef void flow_remove(Tables tables, uint32_t place) noexcept
cdef void queue_remove(Tables tables, uint32_t place) noexcept

# The cache
cdef const uint8_t *cached(Tables tables, const Message *message) noexcept
cdef void cache_put(Tables tables, Message *message, const uint8_t *record, uint32_t size) noexcept

# The numbers of publishers
cdef bint is_known(const Publisher *publisher, uint64_t number) noexcept
cdef void remember(Publisher *publisher, uint64_t number) noexcept
